"""Many byte strings in one: a table of lengths, then the bytes. What `dump` methods are made of.

Lengths are unsigned 32-bit, little endian on every machine, so that a file can move between machines.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import accumulate, islice, pairwise
from typing import Final

CHUNK: Final = 512
"""Items that one call packs, so that a thread that packs a million keeps no other waiting: see kernels.py."""


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
    lengths = [b""]
    parts = []
    count = 0
    rest = iter(items)
    while chunk := list(islice(rest, CHUNK)):
        lengths.append(struct.pack(f"<{len(chunk)}I", *map(len, chunk)))
        parts.append(b"".join(chunk))
        count += len(chunk)
    lengths[0] = struct.pack("<I", count)
    return b"".join(lengths + parts)


def pack_doubles(numbers: Iterable[float]) -> bytes:
    """All numbers in one byte string, eight bytes each."""
    rest = iter(numbers)
    return b"".join(struct.pack(f"<{len(chunk)}d", *chunk) for chunk in iter(lambda: list(islice(rest, CHUNK)), []))


def count_packed(data: bytes) -> int:
    """How many items a byte string that `unpack_many` has read holds."""
    return int.from_bytes(data[:4], "little")


def unpack_many(data: bytes) -> list[bytes]:
    """What `pack_many` packed; CorruptValue unless it is exactly that."""
    if len(data) < 4:
        raise CorruptValue("a packed list is shorter than its header")
    (count,) = struct.unpack_from("<I", data)
    start = 4 + 4 * count
    if len(data) < start:
        raise CorruptValue("a packed list is shorter than its table of lengths")
    ends = list(accumulate(struct.unpack_from(f"<{count}I", data, 4), initial=start))
    if ends[-1] != len(data):
        raise CorruptValue("a packed list's lengths do not add up to its size")
    return [data[a:b] for a, b in pairwise(ends)]
