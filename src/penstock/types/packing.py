"""Many byte strings in one: a table of lengths, then the bytes. What `dump` methods are made of.

Lengths are unsigned 32-bit, little endian on every machine, so that a file can move between machines.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import accumulate, islice, pairwise
from typing import Final

CHUNK: Final = 512
"""Items that one call packs or unpacks, so that a thread with a million of them keeps no other waiting: see kernels.py.

An even number: pairs are not parted.
"""


AN_OBJECT = 41
"""Bytes that a byte string takes beside its own: its header, and what the allocator adds on average to a multiple of 16."""


class CorruptValue(ValueError):
    """Bytes that no `dump` wrote."""


class EmptyValue(CorruptValue):
    """A collection of no elements, which is no value: a key with no elements does not exist."""


class OversizedValue(ValueError):
    """Bytes that would take more memory than their reader allows."""


def pack_many(items: Iterable[bytes]) -> bytes:
    """All items in one byte string.

    >>> unpack_many(pack_many([b"a", b"", b"bc"]))
    [b'a', b'', b'bc']
    """
    return b"".join(packed_pieces(items))


def packed_pieces(items: Iterable[bytes], first: list[bytes] | None = None) -> list[bytes]:
    """What `pack_many` joins, for a value so large that joining it would keep others waiting.

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


def packed_doubles(numbers: Iterable[float]) -> list[bytes]:
    """All numbers, eight bytes each, in pieces of one byte string."""
    rest = iter(numbers)
    return [struct.pack(f"<{len(chunk)}d", *chunk) for chunk in iter(lambda: list(islice(rest, CHUNK)), [])]


def count_packed(data: bytes) -> int:
    """How many items a byte string that `unpack_many` has read holds."""
    return int.from_bytes(data[:4], "little")


def unpack_many(data: bytes) -> list[bytes]:
    """What `pack_many` packed; CorruptValue unless it is exactly that."""
    return [item for chunk in unpacked_chunks(data) for item in chunk]


def unpacked_chunks(data: bytes) -> Iterator[list[bytes]]:
    """What `unpack_many` gives, in lists of CHUNK items; data that is corrupt may show at the end only."""
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
