"""The values of all directives: read from a file and the command line, changed by CONFIG SET.

directives.py declares the directives. Read one as `config.name_with_underscores`; if something must happen when it
changes, use `config.on_change("name", function)`.

Invariant: a Config always holds values that its directives' parsers accepted.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from glob import glob, has_magic
from pathlib import Path
from typing import Any

from penstock.engine.directive_kinds import BUFFER_LIMITS, SAVE
from penstock.engine.directives import DIRECTIVES, Directive, Settings, find_directive
from penstock.protocol.errors import PenstockError
from penstock.protocol.grammar import split_inline

_NOT_HERE = {
    "rename-command": "is not supported: ACLs decide who may run a command (ACL SETUSER, or the directive user)",
}


class ConfigError(PenstockError):
    """A directive that does not exist or a value it does not take; says which, and where it was written."""


class ChangeRefused(ConfigError):
    """CONFIG SET of a value that a directive, or what must act on it, does not take."""

    def __init__(self, directive: Directive, why: str) -> None:
        super().__init__(why)
        self.directive = directive


class Config(Settings):
    """The values in force. Attributes are directive names with underscores."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        for directive in DIRECTIVES.values():
            self._assign(directive, directive.default)
        self._listeners: dict[str, list[Callable[[Any], None]]] = {}
        self.given: set[str] = set()  # named in the file or on the command line
        self.file: str | None = None  # where CONFIG REWRITE writes
        self.on_change("dir", _check_folder)

    def _assign(self, directive: Directive, value: Any) -> None:
        """Values are plain attributes: commands read some of them on every call."""
        self._values[directive.name] = value
        setattr(self, directive.attribute, value)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def path(self, name: str) -> Path:
        """The file that a directive names; `dir` is where a relative path begins, as in Redis."""
        return Path(self._values["dir"], self._values[name])

    def show(self, name: str) -> str:
        """The value as CONFIG GET prints it."""
        return DIRECTIVES[name].kind.show(self._values[name])

    def on_change(self, name: str, listener: Callable[[Any], None]) -> None:
        """Call `listener(new value)` after each change; ValueError, OSError and ConfigError undo it."""
        self._listeners.setdefault(name, []).append(listener)

    def load(self, name: str, words: list[str], where: str = "") -> None:
        """Set a directive at start. `where` is put in front of an error: "line 3"."""
        directive = find_directive(name)
        if directive is None:
            if name.lower() in _NOT_HERE:
                raise ConfigError(f"{where}directive '{name}' {_NOT_HERE[name.lower()]}")
            near = difflib.get_close_matches(name.lower(), DIRECTIVES, 1)
            raise ConfigError(f"{where}unknown directive '{name}'{f'; did you mean {near[0]}?' if near else ''}")
        try:
            value = directive.kind.parse(words)
        except ValueError as error:
            shown = "" if directive.secret else f" ('{' '.join(words)}')"
            raise ConfigError(f"{where}directive '{name}'{shown}: {error}") from None
        adds_up = directive.kind is SAVE and directive.name in self.given and value
        if directive.repeated or adds_up:
            value = self._values[directive.name] + value
        elif directive.kind is BUFFER_LIMITS:
            value = {**self._values[directive.name], **value}
        self._assign(directive, value)
        self.given.add(directive.name)

    def replace(self, name: str, value: Any) -> None:
        """At start: replace a value that this machine cannot provide."""
        self._assign(DIRECTIVES[name], value)

    def change(self, pairs: Iterable[tuple[Directive, str]]) -> None:
        """CONFIG SET: all of it or, when one value is refused, none of it."""
        new = [(directive, self._parse(directive, text)) for directive, text in pairs]
        before = [(directive, self._values[directive.name]) for directive, _ in new]
        for directive, value in new:
            self._assign(directive, value)
        for told, (directive, value) in enumerate(new):
            try:
                self._tell(directive, value)
            except (ValueError, OSError, ConfigError) as error:
                for changed, old in before:
                    self._assign(changed, old)
                for changed, old in before[: told + 1]:
                    # Files for TLS may be gone: their contents are in use.
                    with suppress(ValueError, OSError, ConfigError):
                        self._tell(changed, old)
                raise ChangeRefused(directive, getattr(error, "strerror", None) or str(error)) from None
        self.given.update(directive.name for directive, _ in new)

    def _parse(self, directive: Directive, text: str) -> Any:
        try:
            value = directive.kind.parse(directive.kind.words(text))
        except ValueError as error:
            raise ChangeRefused(directive, str(error)) from None
        return {**self._values[directive.name], **value} if directive.kind is BUFFER_LIMITS else value

    def _tell(self, directive: Directive, value: Any) -> None:
        for listener in self._listeners.get(directive.name, ()):
            listener(value)


def _check_folder(path: str) -> None:
    os.scandir(path).close()  # raises what keeps us from using it


def lines_of(text: str) -> list[str]:
    """The lines of a file. Only a line feed ends one: a value may have any of the others that Python knows."""
    return text.removesuffix("\n").split("\n") if text else []


def read_file(file: str) -> str:
    """The text of a configuration file."""
    try:
        return Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read the configuration file '{file}': {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"the configuration file '{file}' is not UTF-8 text") from None


def parse_file(text: str, place: str = "") -> Iterator[tuple[int, str, list[str]]]:
    """(line number, name, words) of every directive in a file; comments and blank lines are skipped.

    An error says that it is at `place`.
    """
    for number, line in enumerate(lines_of(text), 1):
        line = line.strip(" \t\r\n")  # nothing else: a value may end with another space that Python knows
        if not line or line.startswith("#"):
            continue
        try:
            raw = split_inline(line.encode("utf-8", "surrogateescape"))
        except PenstockError:
            raise ConfigError(f"{place}line {number}: unbalanced quotes") from None
        name, *words = [word.decode("utf-8", "surrogateescape") for word in raw]
        yield number, name, words


def build(file_text: str | None = None, arguments: Iterable[tuple[str, list[str]]] = ()) -> Config:
    """A Config from a file's text, then the command line's directives on top of it."""
    config = Config()
    if file_text is not None:
        _load_text(config, file_text)
    if file_text is not None and "save" in config.given and any(name == "save" for name, _ in arguments):
        config.given.discard("save")
    for name, words in arguments:
        _load(config, name, words, "command line: ")
    return config


def _load_text(config: Config, text: str, place: str = "", within: tuple[str, ...] = ()) -> None:
    for number, name, words in parse_file(text, place):
        _load(config, name, words, f"{place}line {number}: ", within)


def _load(config: Config, name: str, words: list[str], where: str, within: tuple[str, ...] = ()) -> None:
    """Set a directive, or those of the files that it includes; `within` are the included files that lead to it."""
    if name.lower() != "include":
        config.load(name, words, where)
        return
    if len(words) != 1:
        raise ConfigError(f"{where}include takes one file, or a pattern of files")
    pattern = words[0]
    files = sorted(glob(pattern)) if has_magic(pattern) else words  # noqa: PTH207  # a Path takes no absolute pattern
    for file in files:
        if (path := os.path.realpath(file)) in within:
            raise ConfigError(f"{where}the file '{file}' includes itself")
        try:
            text = read_file(file)
        except ConfigError as error:
            raise ConfigError(f"{where}{error}") from None
        _load_text(config, text, f"{file}: ", (*within, path))
