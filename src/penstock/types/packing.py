"""Many byte strings in one: a table of lengths, then the bytes. What `dump` methods are made of.

Lengths are unsigned 32-bit, little endian on every machine, so that a file can move between machines.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import accumulate, pairwise


class CorruptValue(ValueError):
    """Bytes that no `dump` wrote."""


class OversizedValue(ValueError):
    """Bytes that would take more memory than their reader allows."""


def pack_many(items: Iterable[bytes]) -> bytes:
    """All items in one byte string.

    >>> unpack_many(pack_many([b"a", b"", b"bc"]))
    [b'a', b'', b'bc']
    """
    parts = list(items)
    return b"".join([struct.pack(f"<I{len(parts)}I", len(parts), *map(len, parts)), *parts])


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
