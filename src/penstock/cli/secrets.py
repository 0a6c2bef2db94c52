"""Secrets on the command line and in the environment: hidden from other programs, which see them in `ps` and /proc.

Every user sees a command line, and the same user an environment. So a secret is safer in the environment, or in a file
that the environment names: PENSTOCK_REQUIREPASS or PENSTOCK_REQUIREPASS_FILE, and the same for every secret directive.
Secrets in both places are overwritten in the memory that is shown as soon as the program runs. Until then, for most of
a second, they can be seen. Only Linux tells a program where that memory is.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator, MutableMapping, Sequence
from pathlib import Path

from penstock.engine.config import ConfigError
from penstock.engine.directives import DIRECTIVES, find_directive

_ARG_START, _ENV_START = 48, 50  # positions in /proc/self/stat, as proc(5) counts
_in_url = re.compile(r"://[^/@]*?:([^/]*)@").search


def from_environment(environment: MutableMapping[str, str]) -> Iterator[tuple[str, list[str]]]:
    """Secret directives from the environment, or from files that it names. They are removed from it, so that children
    do not inherit them.
    """
    for variable, name in _variables().items():
        value, file = environment.pop(variable, None), environment.pop(variable + "_FILE", None)
        if value is not None and file is not None:
            raise ConfigError(f"give {variable} or {variable}_FILE, not both")
        if file is not None:
            try:
                value = Path(file).read_text(encoding="utf-8").removesuffix("\n")
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"cannot read {variable}_FILE '{file}': {error}") from None
            if not value:
                raise ConfigError(f"{variable}_FILE '{file}' is empty: write the secret to it, or do not name it")
        if value is not None:
            yield name, [value]


def _variables() -> dict[str, str]:
    """The variables that hold secrets, with the directives that they set."""
    names = [directive.name for directive in DIRECTIVES.values() if directive.secret]
    return {"PENSTOCK_" + name.upper().replace("-", "_"): name for name in names}


def secrets_in(words: Sequence[str]) -> Iterator[tuple[int, str]]:
    """The secret words of a command line: their number, and the text to show instead.

    >>> list(secrets_in(["serve", "--requirepass", "a", "--user", "tess", ">b", "--url", "redis://tess:c@host"]))
    [(2, '*'), (5, '**'), (7, 'redis://tess:*@host')]
    >>> list(secrets_in(["serve", "--requirepass=abc"]))
    [(1, '--requirepass=***')]
    >>> list(secrets_in(["serve", "--user", "tess on >b"]))
    [(2, '**********')]
    """
    option = ""
    for number, word in enumerate(words):
        if word.startswith("--"):
            option = word[2:].partition("=")[0].lower()
        directive = find_directive(option)
        in_rules = option == "user" and any(rule[0] in "><#!" for rule in word.split())
        if not word.startswith("--") and (in_rules or (directive is not None and directive.secret)):
            yield number, "*" * len(os.fsencode(word))
        elif "=" in word and word.startswith("--") and directive is not None and directive.secret:
            name, _, secret = word.partition("=")
            yield number, f"{name}={'*' * len(os.fsencode(secret))}"
        elif found := _in_url(word):
            start, end = found.span(1)
            yield number, word[:start] + "*" * len(os.fsencode(found[1])) + word[end:]


def blank(words: Sequence[str]) -> bool:
    """Overwrite secret arguments of this program in the memory that `ps` shows; whether that is possible here."""
    replaced = {number: os.fsencode(word) for number, word in secrets_in(words)}
    if not replaced:
        return True
    start, shown = _shown("cmdline", _ARG_START)
    given = b"".join(os.fsencode(word) + b"\0" for word in words)
    if not shown.endswith(b"\0" + given):
        return False
    at = start + len(shown) - len(given)
    for number, word in enumerate(words):
        if number in replaced:
            ctypes.memmove(at, replaced[number], len(replaced[number]))
        at += len(os.fsencode(word)) + 1
    return True


def blank_environment() -> bool:
    """Overwrite the values of secret variables of the environment in the memory that /proc shows; whether that is
    possible here.

    They must have been taken out of `os.environ`, so that the C library does not refer to that memory any more.
    """
    at, shown = _shown("environ", _ENV_START)
    secret = {os.fsencode(name) for name in _variables()}
    for entry in shown.split(b"\0"):
        name, _, value = entry.partition(b"=")
        if name in secret and os.fsdecode(name) not in os.environ:
            ctypes.memset(at + len(entry) - len(value), ord("*"), len(value))
        at += len(entry) + 1
    return bool(shown)


def _shown(name: str, start_field: int) -> tuple[int, bytes]:
    """What a file of /proc/self shows of this program's memory, and where that is; nothing if it is not there."""
    try:
        stat = Path("/proc/self/stat").read_text().rpartition(")")[2]
        fields = stat.split()  # from the third; the second may have spaces
        start, end = (int(fields[number - 3]) for number in (start_field, start_field + 1))
        shown = Path("/proc/self", name).read_bytes()
    except (OSError, ValueError, IndexError):
        return 0, b""
    in_place = start and end - start == len(shown) and ctypes.string_at(start, len(shown)) == shown
    return (start, shown) if in_place else (0, b"")
