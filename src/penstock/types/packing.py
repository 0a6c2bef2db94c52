"""Many byte strings in one: a table of lengths, then the bytes. The `dump` methods use it.

Lengths are unsigned 32-bit, little endian on every machine, so that a file can move between machines.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise
from typing import Final

CHUNK: Final = 512
"""Items that one call packs or unpacks, so that other threads can run in between: see kernels.py.

An even number, so that pairs are not split.
"""


AN_OBJECT = 41
"""Bytes that a byte string takes beside its own: its header, and on average what the allocator rounds up to 16."""


class CorruptValue(ValueError):
    """Bytes that no `dump` wrote."""


class EmptyValue(CorruptValue):
    """A collection without elements, which is not a value: a key without elements does not exist."""


class OversizedValue(ValueError):
    """Bytes that would take more memory than their reader allows."""


@dataclass(frozen=True, slots=True)
class Unmade:
    """A byte string that is made when it is written, because it takes as much memory as what it is made of."""

    size: int
    make: Callable[[], bytes]


Part = bytes | list[bytes] | Unmade
"""A byte string, also one that `pack_many` makes of a list."""


def made(part: Part) -> bytes:
    """The byte string.

    >>> made(b"a"), made([b"a"]) == pack_many([b"a"]), made(Unmade(1, lambda: b"a"))
    (b'a', True, b'a')
    """
    if isinstance(part, Unmade):
        return part.make()
    return pack_many(part) if isinstance(part, list) else part


def pack_many(items: Iterable[bytes]) -> bytes:
    """All items in one byte string.

    >>> unpack_many(pack_many([b"a", b"", b"bc"]))
    [b'a', b'', b'bc']
    """
    return b"".join(packed_pieces(items))


def packed_pieces(items: Iterable[bytes], first: list[bytes] | None = None) -> list[bytes]:
    """The pieces that `pack_many` would join, for a value so large that joining would block other threads.

    `first` is one more item, before the others, that is in pieces itself.
    """
    lengths, parts, count = [b""], [], 0
    if first is not None:
        lengths.append(struct.pack("<I", sum(map(len, first))))
        parts += first
        count = 1
    rest = iter(items)
    while chunk := list(islice(rest, CHUNK)):
        lengths.append(struct.pack(f"<{len(chunk)}I", *map(len, chunk)))
        parts.append(b"".join(chunk))
        count += len(chunk)
    lengths[0] = struct.pack("<I", count)
    return lengths + parts


def total_length(items: Iterable[bytes]) -> int:
    """The bytes of all items, counted in chunks, between which other threads run.

    >>> total_length([b"a", b"", b"bc"])
    3
    """
    rest = iter(items)
    return sum(sum(map(len, chunk)) for chunk in iter(lambda: list(islice(rest, CHUNK)), []))


def packed_doubles(numbers: Iterable[float]) -> list[bytes]:
    """All numbers, eight bytes each, in pieces of one byte string."""
    rest = iter(numbers)
    return [struct.pack(f"<{len(chunk)}d", *chunk) for chunk in iter(lambda: list(islice(rest, CHUNK)), [])]


def count_packed(data: bytes) -> int:
    """How many items a byte string that `unpack_many` has read holds."""
    return int.from_bytes(data[:4], "little")


def unpack_many(data: bytes) -> list[bytes]:
    """The items that `pack_many` packed; CorruptValue if the bytes are not exactly that."""
    return [item for chunk in unpacked_chunks(data) for item in chunk]


def unpacked_chunks(data: bytes) -> Iterator[list[bytes]]:
    """The items of `unpack_many`, in lists of CHUNK items; corrupt data may be found only at the end."""
    if len(data) < 4:
        raise CorruptValue("a packed list is shorter than its header")
    (count,) = struct.unpack_from("<I", data)
    start = 4 + 4 * count
    if len(data) < start:
        raise CorruptValue("a packed list is shorter than its table of lengths")
    end = start
    for at in range(4, start, 4 * CHUNK):
        lengths = struct.unpack_from(f"<{min(CHUNK, (start - at) // 4)}I", data, at)
        ends = list(accumulate(lengths, initial=end))
        end = ends[-1]
        if end > len(data):
            break
        yield [data[a:b] for a, b in pairwise(ends)]
    if end != len(data):
        raise CorruptValue("a packed list's lengths do not add up to its size")
