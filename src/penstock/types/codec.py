"""Any value to bytes and back: for snapshots, DUMP, COPY, TYPE and MEMORY USAGE.

Everything here is derived from the declarations of the types (registry.py); a new type changes nothing here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.types import kernels
from penstock.types.hash import Hash
from penstock.types.list import List
from penstock.types.packing import AN_OBJECT, CorruptValue, EmptyValue, count_packed
from penstock.types.registry import COLLECTIONS, DECLARED, TYPES, load_all
from penstock.types.set import Set
from penstock.types.stream.nodes import Storage
from penstock.types.stream.stream import Stream
from penstock.types.zset import SortedSet

STRING = 0
STRINGS = (bytes, bytearray, int)
PIECE = 1 << 18
"""Bytes of a string that are copied at once."""


def type_name(value: Any) -> str:
    """The name that TYPE answers."""
    return "string" if type(value) in STRINGS else DECLARED[type(value)].name


def dump(value: Any) -> bytes:
    """A tag byte, then the value."""
    if type(value) in STRINGS:
        return b"\x00" + (b"%d" % value if type(value) is int else value)
    body: bytes = value.dump()
    return bytes((DECLARED[type(value)].tag,)) + body


def dump_for_snapshot(value: Any) -> bytes:
    """As `dump`; a stream refers to the files in which its history lies."""
    if type(value) is Stream:
        return bytes((DECLARED[Stream].tag,)) + value.dump_referring()
    return dump(value)


def dump_pieces(value: Any) -> list[bytes]:
    """The bytes of `dump`, in pieces for a collection or a long string, so that no call works on all of it: see
    kernels.py.
    """
    if type(value) is bytes:
        return [bytes((STRING,)), value]
    if type(value) is bytearray:
        return [bytes((STRING,)), *(bytes(value[at : at + PIECE]) for at in range(0, len(value), PIECE))]
    if not hasattr(value, "dump_pieces"):
        return [dump(value)]
    return [bytes((DECLARED[type(value)].tag,)), *value.dump_pieces()]


def load(data: bytes, limit: int | None = None, storage: Storage | None = None) -> Any:
    """The value that `dump` wrote; CorruptValue for anything else, EmptyValue for a collection without elements.

    Only streams are compressed: OversizedValue if a part of one would unpack to more than `limit` bytes. `storage` is
    the storage setting of the server that the stream is for.
    """
    if not data:
        raise CorruptValue("a value of no bytes")
    if data[0] == STRING:
        return data[1:]
    if data[0] not in TYPES:
        raise CorruptValue(f"unknown type tag {data[0]}")
    name, kind = TYPES[data[0]]
    if kind is Stream:
        return Stream.load(data[1:], limit, storage)
    value = kind.load(data[1:])
    if kind in COLLECTIONS and not value:
        raise EmptyValue(f"an empty {name}")
    items = DECLARED[kind].items
    if items and len(value) * items != count_packed(data[1:5]):
        raise CorruptValue(f"a {name} with an element twice")
    return value


def is_empty(value: Any) -> bool:
    """Whether it is a collection without elements: such a key must be removed."""
    return type(value) in COLLECTIONS and not value


def is_value(value: Any) -> bool:
    """Whether it is of a type that a key can hold."""
    return type(value) in STRINGS or type(value) in DECLARED


def sound_part(value: Any) -> Any:
    """What of a value can be packed: the value itself, a collection less the elements that are not bytes, or None.

    Only a module can have put anything else there. O(elements).
    """
    kind = type(value)
    if kind is List or kind is Set:
        return value if _all_bytes(value) else kind(item for item in value if type(item) is bytes)
    if kind is Hash:
        if _all_bytes(value) and _all_bytes(value.values()):
            return value
        return Hash((key, item) for key, item in value.items() if type(key) is bytes and type(item) is bytes)
    if kind is SortedSet:
        if _all_bytes(value.scores) and set(map(type, value.scores.values())) <= {float}:
            return value
        rows = value.scores.items()
        return SortedSet({key: score for key, score in rows if type(key) is bytes and type(score) is float})
    return value if is_value(value) else None


def _all_bytes(items: Iterable[Any]) -> bool:
    return set(map(type, items)) <= {bytes}


_FILLED = (List, Set, Hash)  # Python's containers


def copy(value: Any) -> Any:
    """An equal value that shares nothing mutable."""
    kind = type(value)
    if kind is bytes or kind is int:
        return value
    if kind is bytearray:
        return kind(value)
    if kind is SortedSet:
        return kind(_filled({}, value.scores.items()))
    if kind in _FILLED:
        return _filled(kind(), value.items() if kind is Hash else value)
    return value.copy() if "copy" in vars(kind) else kind.load(value.dump())


def size_of_copy(value: Any) -> int:
    """About how many bytes `copy` takes, which shares the bytes of elements. O(1), for a stream O(nodes + groups)."""
    kind = type(value)
    if kind is bytes or kind is int:
        return 0
    if kind in DECLARED and kind not in _FILLED and kind is not SortedSet:
        return int(value.size_of_copy() if hasattr(value, "size_of_copy") else value.size())
    table = int(value.scores.__sizeof__() if kind is SortedSet else value.__sizeof__())
    return table if kind is bytearray or kind is List else 2 * table  # a new table may be emptier


def size_of_loaded(data: bytes) -> int:
    """An upper limit on the bytes of memory that `load` of this takes. O(1)."""
    kind = kind_of_dump(data)
    if kind is None:
        return len(data)
    return len(data) + DECLARED[kind].item_cost * min(count_packed(data[1:5]), len(data) // 4)


def _filled(target: Any, items: Iterable[Any]) -> Any:
    """The container filled with the items, in chunks: see kernels.py."""
    add = target.extend if isinstance(target, List) else target.update
    for chunk in kernels.chunks(items):
        add(chunk)
    return target


def elements(value: Any) -> int:
    """How many elements a copy has to copy; a string or a stream counts as one, because copies share its bytes."""
    return len(value) if type(value) in COLLECTIONS else 1


def kind_of_dump(data: bytes) -> type[Any] | None:
    """The type of what `load` makes of this, None for a string and for what is no dump."""
    return TYPES[data[0]][1] if data[:1] and data[0] in TYPES else None


def elements_dumped(data: bytes) -> int:
    """An upper limit on the elements of a collection that `load` has to unpack, as `elements` counts them."""
    if kind_of_dump(data) not in COLLECTIONS:
        return 1
    return min(count_packed(data[1:5]), len(data) // 4)


def size(value: Any) -> int:
    """About how many bytes of memory a value takes, its key not counted."""
    if type(value) in STRINGS:
        return value.__sizeof__() if type(value) is int else len(value) + AN_OBJECT
    return int(value.size())


load_all()
BUILT_IN = frozenset(DECLARED)
"""The types that are not of a module."""
