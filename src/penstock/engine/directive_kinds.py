"""The types of values that directives take: text to a Python value and back, as Redis reads and prints them.

A directive names one of these (directives.py). The type of the value is that of `config.name`, which mypy checks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

_words_of = re.compile(r"[^ \t\n\r\v\f]+").findall  # str.split takes more for spaces, which names may have


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """A type of value: text words to a Python value and back."""

    name: str
    parse: Callable[[list[str]], T]
    show: Callable[[T], str]
    is_text: bool = False  # any text at all, which a file may have to quote
    split: bool = False  # a whole value is as many words as it has

    def words(self, text: str) -> list[str]:
        """A whole value, as CONFIG SET or a program gives it, as the words `parse` takes."""
        return _words_of(text) if self.split else [text]


def _one(words: list[str]) -> str:
    if len(words) != 1:
        raise ValueError("wrong number of arguments")
    return words[0]


def _yes_no(words: list[str]) -> bool:
    word = _one(words).lower()
    if word not in ("yes", "no"):
        raise ValueError("argument must be 'yes' or 'no'")
    return word == "yes"


INT_MAX = (1 << 31) - 1
_is_integer = re.compile(r"(0|-?[1-9]\d{0,18})\Z", re.ASCII).match
_UNITS = {"b": 1, "k": 1000, "kb": 1024, "m": 1000**2, "mb": 1024**2, "g": 1000**3, "gb": 1024**3}


def parse_memory(text: str) -> int:
    """Bytes, with Redis's units: 1k is 1000, 1kb is 1024.

    >>> parse_memory("2mb")
    2097152
    """
    digits = text.rstrip("kKmMgGbB")
    unit = text[len(digits) :].lower()
    if not digits.isdigit() or (unit and unit not in _UNITS):
        raise ValueError("argument must be a memory value")
    return int(digits) * _UNITS.get(unit, 1)


def _within(number: int, low: int, high: int) -> int:
    if not low <= number <= high:
        raise ValueError(f"argument must be between {low} and {high} inclusive")
    return number


def memory(low: int, high: int, least: int = 0) -> Kind[int]:
    """Bytes; fewer than `least`, which are allowed from `low` on, become `least`."""
    return Kind("memory", lambda words: max(_within(parse_memory(_one(words)), low, high), least), str)


def _memory_or_percent(words: list[str]) -> int:
    """Bytes, or a percentage as a negative number."""
    text = _one(words)
    digits = text.removesuffix("%")
    if digits == text:
        try:
            return _within(parse_memory(text), 0, (1 << 63) - 1)
        except ValueError:
            digits = ""
    if not digits.isdecimal():
        raise ValueError("argument must be a memory or percent value")
    if int(digits) > 100:
        raise ValueError("percentage argument must be less or equal to 100")
    return -int(digits)


def integer(low: int, high: int) -> Kind[int]:
    def parse(words: list[str]) -> int:
        text = _one(words)
        if not _is_integer(text) or not -(1 << 63) <= int(text) < 1 << 63:
            raise ValueError("argument couldn't be parsed into an integer")
        return _within(int(text), low, high)

    return Kind("integer", parse, str)


def clamped(low: int, high: int) -> Kind[int]:
    """An integer; one that is too small or too large becomes the nearest allowed one."""
    any_integer = integer(0, INT_MAX)
    return Kind("integer", lambda words: min(max(any_integer.parse(words), low), high), str)


def choice(*options: str) -> Kind[str]:
    def parse(words: list[str]) -> str:
        word = _one(words).lower()
        if word not in options:
            raise ValueError("argument(s) must be one of the following: " + ", ".join(options))
        return word

    return Kind(" | ".join(options), parse, str)


def _oom_scores(words: list[str]) -> list[int]:
    if len(words) != 3:
        raise ValueError("wrong number of arguments")
    if not all(_is_integer(word) and -2000 <= int(word) <= 2000 for word in words):
        raise ValueError("Invalid oom-score-adj-values, elements must be between -2000 and 2000.")
    return list(map(int, words))


OOM_SCORES: Kind[list[int]] = Kind(
    "integer integer integer", _oom_scores, lambda scores: " ".join(map(str, scores)), split=True
)
YES_NO: Kind[bool] = Kind("yes | no", _yes_no, lambda value: "yes" if value else "no")
TEXT: Kind[str] = Kind("text", _one, str, is_text=True)
WORDS: Kind[list[str]] = Kind("words", lambda words: words, " ".join, split=True)
FOLDER: Kind[str] = Kind("folder", _one, os.path.abspath, is_text=True)
MEMORY = memory(0, (1 << 64) - 1)
MEMORY_OR_PERCENT = Kind("memory | percentage", _memory_or_percent, lambda it: f"{-it}%" if it < 0 else str(it))
BACKLOG = memory(1, (1 << 63) - 1, least=1 << 14)
LENGTH = memory(1 << 20, (1 << 63) - 1)  # of what a client sends: less than a megabyte would lock all clients out


def file_name(directive: str, what: str = "filename") -> Kind[str]:
    """The name of a file or folder inside `dir`."""

    def parse(words: list[str]) -> str:
        name = _one(words)
        if not name:
            raise ValueError(f"{directive} can't be empty")
        if name in (".", "..") or any(letter in name for letter in "/\\\0"):
            raise ValueError(f"{directive} can't be a path, just a {what}")
        return name

    return Kind("file name", parse, str, is_text=True)


def _address(words: list[str]) -> list[str]:
    return [word for text in words for word in _words_of(text)]


ADDRESS: Kind[list[str]] = Kind("host port", _address, " ".join, split=True)


def _save(words: list[str]) -> list[tuple[int, int]]:
    words = [word for text in words for word in _words_of(text)]
    if not words:
        return []
    if len(words) % 2 or not all(word.isdigit() for word in words):
        raise ValueError("Invalid save parameters")
    rules = [(int(a), int(b)) for a, b in zip(words[::2], words[1::2], strict=True)]
    if any(seconds < 1 for seconds, _ in rules):
        raise ValueError("Invalid save parameters")
    return rules


SAVE: Kind[list[tuple[int, int]]] = Kind(
    "seconds changes ...", _save, lambda rules: " ".join(f"{a} {b}" for a, b in rules)
)


def _user(words: list[str]) -> list[list[str]]:
    return [_words_of(words[0]) if len(words) == 1 else words]


USER: Kind[list[list[str]]] = Kind("words", _user, lambda users: "\n".join(map(" ".join, users)), split=True)
"""A name and its rules, each a word that may have spaces (a password), or all of them in one word."""

MODULE: Kind[list[str]] = Kind("module", lambda words: [_one(words)], " ".join)

BufferLimits = dict[str, tuple[int, int, int]]


def _buffer_limits(words: list[str]) -> BufferLimits:
    if words == [""]:  # no class, so none changes
        return {}
    words = [word for text in words for word in _words_of(text)]
    if not words or len(words) % 4:
        raise ValueError("Wrong number of arguments in buffer limit configuration.")
    limits: BufferLimits = {}
    for at in range(0, len(words), 4):
        name = {"slave": "replica"}.get(words[at].lower(), words[at].lower())
        if name not in ("normal", "replica", "pubsub"):
            raise ValueError("Invalid client class specified in buffer limit configuration.")
        try:
            limits[name] = (parse_memory(words[at + 1]), parse_memory(words[at + 2]), int(words[at + 3]))
        except ValueError:
            raise ValueError("Error in hard, soft or soft_seconds setting in buffer limit configuration.") from None
    return limits


BUFFER_LIMITS: Kind[BufferLimits] = Kind(
    "class hard soft seconds ...",
    _buffer_limits,
    lambda limits: " ".join(
        f"{'slave' if name == 'replica' else name} {hard} {soft} {seconds}"
        for name, (hard, soft, seconds) in limits.items()
    ),
)
