"""Any value to bytes and back: for snapshots, DUMP, and OBJECT's and MEMORY's questions about it.

A new type adds one row to TYPES; its class has `dump()`, `load(data)`, `size()` and `check()`.
"""

from __future__ import annotations

from typing import Any, Protocol, Self

from penstock.types.hash import Hash
from penstock.types.list import List
from penstock.types.packing import CorruptValue
from penstock.types.set import Set
from penstock.types.zset import SortedSet


class Type(Protocol):
    """What every value class offers."""

    def dump(self) -> bytes:
        """The whole value as bytes."""

    @classmethod
    def load(cls, data: bytes) -> Self:
        """The value that `dump` wrote; CorruptValue for anything else."""

    def size(self) -> int:
        """About how many bytes of memory it takes."""

    def check(self) -> None:
        """Assert every invariant; for tests."""


STRING = 0
TYPES: dict[int, tuple[str, type[Any]]] = {
    1: ("list", List),
    2: ("set", Set),
    3: ("hash", Hash),
    4: ("zset", SortedSet),
}
_TAGS = {kind: tag for tag, (_, kind) in TYPES.items()}
_NAMES = {kind: name for name, kind in TYPES.values()}
STRINGS = (bytes, bytearray, int)


def type_name(value: Any) -> str:
    """As TYPE answers it."""
    return "string" if type(value) in STRINGS else _NAMES[type(value)]


def dump(value: Any) -> bytes:
    """A tag byte, then the value."""
    if type(value) in STRINGS:
        return b"\x00" + (b"%d" % value if type(value) is int else value)
    body: bytes = value.dump()
    return bytes((_TAGS[type(value)],)) + body


def load(data: bytes) -> Any:
    """What `dump` wrote; CorruptValue for anything else."""
    if not data:
        raise CorruptValue("a value of no bytes")
    if data[0] == STRING:
        return data[1:]
    if data[0] not in TYPES:
        raise CorruptValue(f"unknown type tag {data[0]}")
    return TYPES[data[0]][1].load(data[1:])


def size(value: Any) -> int:
    """About how many bytes of memory a value takes, its key not counted."""
    if type(value) in STRINGS:
        return value.__sizeof__() if type(value) is int else len(value) + 33
    return int(value.size())
