"""Functions for scripts that are written in Python: the bit and struct libraries.

Lua sees them through `native.lua`. A function here never raises into Lua, where an exception would be an object that
a script could hold: it answers its values, or the `Refusal` that the Lua side raises. `Lua` (interpreter.py) hands
either over.
"""

from __future__ import annotations

import functools
import math
import re
import struct
import sys
from collections.abc import Callable, Iterator
from typing import Any, Literal


class Refusal(bytes):
    """Why a function did nothing."""


Function = Callable[..., "tuple[Any, ...] | Refusal"]


class BadArgument(Exception):
    """What Lua says about an argument it cannot use."""

    def __init__(self, position: int, problem: str) -> None:
        super().__init__(position, problem)
        self.position = position
        self.problem = problem


def _lua_type(value: object) -> str:
    names = {type(None): "nil", bool: "boolean", bytes: "string", int: "number", float: "number"}
    return names.get(type(value), "table")


def _guarded(function: Callable[..., tuple[Any, ...]]) -> Function:
    """Answer a Refusal instead of raising."""
    name = function.__name__.strip("_")

    @functools.wraps(function)
    def guarded(*arguments: Any) -> tuple[Any, ...] | Refusal:
        try:
            return function(*arguments)
        except BadArgument as bad:
            return Refusal(f"bad argument #{bad.position} to '{name}' ({bad.problem})".encode())
        except MemoryError:
            return Refusal(b"not enough memory")
        except Exception as error:
            return Refusal(str(error).encode("utf-8", "backslashreplace"))

    return guarded


_NUMERAL = re.compile(
    rb"[ \t-\r]*([+-]?(?:0x(?:[0-9a-f]+\.?[0-9a-f]*|\.[0-9a-f]+)(?:p[+-]?\d+)?"
    rb"|(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|inf(?:inity)?|nan))[ \t-\r]*(?:\0|\Z)",
    re.IGNORECASE,
)
"""What strtod of C takes for a number, as much of it as C sees."""


def _number(arguments: tuple[Any, ...], position: int, missing: str = "no value") -> int | float:
    if position > len(arguments):
        raise BadArgument(position, f"number expected, got {missing}")
    value = arguments[position - 1]
    if type(value) is int or type(value) is float:
        return value
    if type(value) is bytes and (match := _NUMERAL.match(value)):
        text = match[1].decode()
        try:
            return float.fromhex(text) if "x" in text.lower() else float(text)
        except OverflowError:
            return -math.inf if text.startswith("-") else math.inf
    raise BadArgument(position, f"number expected, got {_lua_type(value)}")


def _integer(number: int | float) -> int:
    """As C makes an integer of 64 bits of a double: one without a sign, if the double has none."""
    if type(number) is int:
        return number
    if math.isfinite(number) and -(2.0**63) <= number < 2.0**64:
        return int(number)
    return 0 if number > 0 else -(1 << 63)


# -- bit: 32-bit integers, signed when they come out ----------------------------------------------------------


def _word(arguments: tuple[Any, ...], position: int) -> int:
    number = _number(arguments, position)
    try:
        return (number if type(number) is int else round(number)) & 0xFFFFFFFF
    except (OverflowError, ValueError):  # inf, nan
        return 0


def _signed(word: int) -> int:
    return ((word & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


@_guarded
def tobit(*arguments: Any) -> tuple[Any, ...]:
    return (_signed(_word(arguments, 1)),)


@_guarded
def bnot(*arguments: Any) -> tuple[Any, ...]:
    return (_signed(~_word(arguments, 1)),)


@_guarded
def bswap(*arguments: Any) -> tuple[Any, ...]:
    return (_signed(int.from_bytes(_word(arguments, 1).to_bytes(4, "little"), "big")),)


@_guarded
def tohex(*arguments: Any) -> tuple[Any, ...]:
    word = _word(arguments, 1)
    digits = _signed(_word(arguments, 2)) if len(arguments) > 1 else 8
    text = b"%08x" % word if digits >= 0 else b"%08X" % word
    return (text[8 - min(abs(digits), 8) :],)


def _fold(name: str, combine: Callable[[int, int], int]) -> Function:
    def function(*arguments: Any) -> tuple[Any, ...]:
        words = [_word(arguments, position) for position in range(1, max(len(arguments), 1) + 1)]
        return (_signed(functools.reduce(combine, words)),)

    function.__name__ = name
    return _guarded(function)


def _shift(name: str, move: Callable[[int, int], int]) -> Function:
    def function(*arguments: Any) -> tuple[Any, ...]:
        return (_signed(move(_word(arguments, 1), _word(arguments, 2) & 31)),)

    function.__name__ = name
    return _guarded(function)


BIT: dict[str, Function] = {
    "tobit": tobit, "bnot": bnot, "bswap": bswap, "tohex": tohex,
    "band": _fold("band", lambda a, b: a & b),
    "bor": _fold("bor", lambda a, b: a | b),
    "bxor": _fold("bxor", lambda a, b: a ^ b),
    "lshift": _shift("lshift", lambda word, by: word << by),
    "rshift": _shift("rshift", lambda word, by: word >> by),
    "arshift": _shift("arshift", lambda word, by: _signed(word) >> by),
    "rol": _shift("rol", lambda word, by: word << by | word >> (32 - by)),
    "ror": _shift("ror", lambda word, by: word >> by | word << (32 - by)),
}  # fmt: skip


# -- struct: C structures with their alignment ----------------------------------------------------------------

_SIZES = {"b": 1, "B": 1, "h": 2, "H": 2, "i": 4, "I": 4, "l": 8, "L": 8, "T": 8, "f": 4, "d": 8}
_MAX_INTEGER = 32
_MAX_ALIGNMENT = 8
_MAX_FORMAT = 100_000
_MAX_COUNT = 0x7FFFFFFF  # an int of C


def _string(arguments: tuple[Any, ...], position: int) -> bytes:
    """An argument that is a string, or a number, of which C takes the text."""
    text = arguments[position - 1] if position <= len(arguments) else None
    if type(text) is int or type(text) is float:
        return b"%.14g" % text
    if type(text) is not bytes:
        raise BadArgument(position, f"string expected, got {_lua_type(text)}")
    return text


class _Layout:
    """Reads a format one option at a time, and keeps its byte order and alignment."""

    def __init__(self, arguments: tuple[Any, ...]) -> None:
        text = _string(arguments, 1)
        if len(text) > _MAX_FORMAT:  # nothing can interrupt the call
            raise ValueError(f"format is longer than {_MAX_FORMAT} bytes")
        self._text = text.decode("latin-1")
        self._at = 0
        self.order: Literal["little", "big"] = sys.byteorder
        self.alignment = 1

    def _count(self, default: int) -> int:
        start = self._at
        while self._at < len(self._text) and self._text[self._at] in "0123456789":
            self._at += 1
        digits = self._text[start : self._at].lstrip("0")
        if len(digits) > 10 or int(digits or 0) > _MAX_COUNT:
            raise ValueError("integral size overflow")
        return int(digits or 0) if self._at > start else default

    def options(self) -> Iterator[tuple[str, int]]:
        """(letter, size); the size of "s" is not known, and that of "c" may be 0, "as long as it is"."""
        while self._at < len(self._text):
            letter = self._text[self._at]
            self._at += 1
            if letter in "iI":
                size = self._count(4)
                if size > _MAX_INTEGER:
                    raise ValueError(f"integral size {size} is larger than limit of {_MAX_INTEGER}")
                yield letter, size
            elif letter in _SIZES:
                yield letter, _SIZES[letter]
            elif letter == "c":
                yield letter, self._count(1)
            elif letter == "x":
                yield letter, 1
            elif letter == "s":
                yield letter, 0
            elif letter in "<>=":
                self.order = "little" if letter == "<" else "big" if letter == ">" else sys.byteorder
            elif letter == "!":
                self.alignment = self._count(_MAX_ALIGNMENT)
                if self.alignment <= 0 or self.alignment & (self.alignment - 1):
                    raise ValueError("alignment is not a power of 2")
            elif letter != " ":
                raise BadArgument(1, f"invalid format option '{letter}'")

    def padding(self, letter: str, size: int, at: int) -> int:
        """Bytes to leave out so that the option starts where its size asks for."""
        align = min(size, self.alignment)
        if letter in "csx" or align <= 1:
            return 0
        if align & (align - 1):
            raise ValueError("alignment is not a power of 2")
        return -at % align

    def float_code(self, letter: str) -> str:
        return (">" if self.order == "big" else "<") + letter


@_guarded
def size(*arguments: Any) -> tuple[Any, ...]:
    layout = _Layout(arguments)
    total = 0
    for letter, length in layout.options():
        if letter == "s" or (letter == "c" and length == 0):
            raise BadArgument(1, f"option '{'s' if letter == 's' else 'c0'}' has no fixed size")
        total += layout.padding(letter, length, total) + length
    return (total,)


@_guarded
def pack(*arguments: Any) -> tuple[Any, ...]:
    layout = _Layout(arguments)
    data = bytearray()
    position = 1
    for letter, length in layout.options():
        data += bytes(layout.padding(letter, length, len(data)))
        if letter == "x":
            data.append(0)
            continue
        position += 1
        if letter in "sc":
            data += _text(arguments, position, letter, length)
        elif letter in "fd":
            data += _float(layout, letter, _number(arguments, position, "nil"))
        else:
            number = _integer(_number(arguments, position, "nil"))
            data += (number & ((1 << 8 * length) - 1)).to_bytes(length, layout.order)
    return (bytes(data),)


def _float(layout: _Layout, letter: str, number: int | float) -> bytes:
    code = layout.float_code(letter)
    try:
        return struct.pack(code, number)
    except OverflowError:  # too large for four bytes
        return struct.pack(code, math.copysign(math.inf, number))


def _text(arguments: tuple[Any, ...], position: int, letter: str, length: int) -> bytes:
    text = _string(arguments, position)
    if letter == "s":
        return text + b"\0"
    if len(text) < length:
        raise BadArgument(position + 1, "string too short")  # sic, as Redis counts
    return text[: length or len(text)]


@_guarded
def unpack(*arguments: Any) -> tuple[Any, ...]:
    layout = _Layout(arguments)
    data = _string(arguments, 2)
    offset = _number(arguments, 3) if len(arguments) > 2 else 1
    if not -(2.0**63) < offset < 2.0**63:  # NaN neither
        raise BadArgument(2, "data string too short")
    at = int(offset) - 1
    if at < 0:
        raise BadArgument(3, "offset must be 1 or greater")
    values: list[Any] = []
    for letter, length in layout.options():
        at += layout.padding(letter, length, at)
        if letter == "c" and length == 0:
            if not values or type(values[-1]) is not int:
                raise ValueError("format 'c0' needs a previous size")
            length = values.pop()
        elif letter == "s":
            end = data.find(b"\0", at)
            if end < 0:
                raise ValueError("unfinished string in data")
            values.append(data[at:end])
            at = end + 1
            continue
        if length < 0 or at + length > len(data):
            raise BadArgument(2, "data string too short")
        piece = data[at : at + length]
        at += length
        if letter == "c":
            values.append(piece)
        elif letter in "fd":
            values.append(struct.unpack(layout.float_code(letter), piece)[0])
        elif letter != "x":
            number = int.from_bytes(piece, layout.order, signed=letter in "bhil")
            values.append(number if -(1 << 63) <= number < 1 << 63 else float(number))
    return (*values, at + 1)


STRUCT: dict[str, Function] = {"pack": pack, "unpack": unpack, "size": size}
