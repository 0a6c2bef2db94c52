"""Redis streams: entries under ids that only grow, read by range, dropped at the front.

Entries are kept in blocks of up to a hundred, as in Redis, or what stream-node-max-entries says. Finding an id is a
bisection of the blocks and one inside a block. Dropping the front drops whole blocks. Approximate trimming keeps the
entries that share a block with one that stays, as Redis does. (Redis also closes a block at 4096 bytes; it does not
promise where a block ends, so bytes are not counted here.)

Rejected: a SortedDict by id. It takes as much memory and appends as fast, but drops its front entry by entry, and has
no blocks to trim by.

Invariants: no block is empty; ids grow from row to row and from block to block; none is above `last_id`.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import chain, islice, pairwise
from typing import Self

from penstock.freeing import GIANT, dispose
from penstock.types.kernels import chunks
from penstock.types.packing import CorruptValue, packed_pieces, unpack_many
from penstock.types.registry import value_type

Id = tuple[int, int]  # milliseconds, sequence number; both unsigned 64-bit
Fields = tuple[bytes, ...]  # field, value, field, value ...
Row = tuple[Id, Fields]

BLOCK = 100
"""Redis's default for stream-node-max-entries."""
LARGEST_BLOCK = 10_000
"""Dropping entries inside a block moves the others."""
HIGHEST = (1 << 64) - 1
FIRST_ID: Id = (0, 0)  # below every entry's
LAST_ID: Id = (HIGHEST, HIGHEST)
_HEADER = struct.Struct("<5Q")


def after(at: Id) -> Id | None:
    """The next id, None after the last possible one.

    >>> after((1, 2)), after((1, HIGHEST))
    ((1, 3), (2, 0))
    """
    milliseconds, sequence = at
    if sequence < HIGHEST:
        return milliseconds, sequence + 1
    return (milliseconds + 1, 0) if milliseconds < HIGHEST else None


def before(at: Id) -> Id | None:
    """The previous id, None before 0-0."""
    milliseconds, sequence = at
    if sequence:
        return milliseconds, sequence - 1
    return (milliseconds - 1, HIGHEST) if milliseconds else None


def _first_id(block: list[Row]) -> Id:
    return block[0][0]


@value_type("stream", tag=5, item_cost=160)
class XStream:
    """A stream without consumer groups.

    >>> stream = XStream()
    >>> stream.append((5, 0), (b"colour", b"red"))
    >>> stream.range(FIRST_ID, LAST_ID), stream.last_id
    ([((5, 0), (b'colour', b'red'))], (5, 0))
    """

    __slots__ = ("_blocks", "_length", "entries_added", "last_id", "max_deleted_id")

    def __init__(self) -> None:
        self._blocks: list[list[Row]] = []
        self._length = 0
        self.last_id = FIRST_ID  # of the newest entry ever, also if it was removed
        self.max_deleted_id = FIRST_ID  # the highest that `delete` removed
        self.entries_added = 0  # ever

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Row]:
        return chain.from_iterable(self._blocks)

    @property
    def blocks(self) -> int:
        return len(self._blocks)

    def first(self) -> Row | None:
        return self._blocks[0][0] if self._blocks else None

    def last(self) -> Row | None:
        return self._blocks[-1][-1] if self._blocks else None

    # -- changing ---------------------------------------------------------------------------------------------

    def append(self, at: Id, fields: Fields, full: int = BLOCK) -> None:
        """Add an entry under an id above `last_id`, in a block of its own if the last one has `full` entries. O(1)."""
        blocks = self._blocks
        if blocks and len(blocks[-1]) < full:
            blocks[-1].append((at, fields))
        else:
            blocks.append([(at, fields)])
        self._length += 1
        self.last_id = at
        self.entries_added += 1

    def delete(self, at: Id) -> bool:
        """Remove the entry with this id; whether it existed. O(log N)."""
        number = bisect_right(self._blocks, at, key=_first_id) - 1
        if number < 0:
            return False
        block = self._blocks[number]
        place = bisect_left(block, (at,))
        if place == len(block) or block[place][0] != at:
            return False
        del block[place]
        if not block:
            del self._blocks[number]
        self._length -= 1
        self.max_deleted_id = max(self.max_deleted_id, at)
        return True

    def keep_newest(self, count: int, whole_blocks: bool = False, limit: int = 0) -> int:
        """Drop the oldest entries until `count` are left; answer how many were dropped.

        With `whole_blocks`, drop only whole blocks, and no more than `limit` entries unless that is 0. O(1) a block.
        """
        excess = self._length - count
        return self._drop(excess, whole_blocks, limit) if excess > 0 else 0

    def keep_from(self, lowest: Id, whole_blocks: bool = False, limit: int = 0) -> int:
        """Drop the entries with ids below `lowest`, all or as `keep_newest` does; answer how many were dropped."""
        number = max(bisect_right(self._blocks, lowest, key=_first_id) - 1, 0)
        older = sum(map(len, islice(self._blocks, number)))
        if number < len(self._blocks):
            older += bisect_left(self._blocks[number], (lowest,))
        return self._drop(older, whole_blocks, limit)

    def _drop(self, count: int, whole_blocks: bool, limit: int) -> int:
        """Drop the `count` oldest entries, or fewer because of whole blocks or the limit."""
        blocks = self._blocks
        allowed = min(count, limit) if limit else count
        number = gone = 0
        while number < len(blocks) and gone + len(blocks[number]) <= allowed:
            gone += len(blocks[number])
            number += 1
        dropped = blocks[:number]
        del blocks[:number]
        if gone > GIANT:
            dispose(dropped)
        if gone < count and not whole_blocks:
            del blocks[0][: count - gone]
            gone = count
        self._length -= gone
        return gone

    # -- reading ----------------------------------------------------------------------------------------------

    def range(self, low: Id, high: Id, count: int | None = None, backwards: bool = False) -> list[Row]:
        """Up to `count` rows with ids from `low` to `high`, or from `high` to `low`. O(log N) and O(1) a row."""
        return list(chain.from_iterable(self.parts(low, high, count, backwards)))

    def parts(self, low: Id, high: Id, count: int | None = None, backwards: bool = False) -> Iterator[list[Row]]:
        """The rows of `range`, block by block; the stream must not change during that."""
        missing = self._length if count is None else min(count, self._length)
        beyond = (high[0], high[1] + 1)
        blocks = self._blocks
        number = max(bisect_right(blocks, high if backwards else low, key=_first_id) - 1, 0)
        while missing > 0 and 0 <= number < len(blocks):
            block = blocks[number]
            if block[-1][0] < low if backwards else block[0][0] > high:
                break
            start, stop = bisect_left(block, (low,)), bisect_left(block, (beyond,))
            found = block[max(start, stop - missing) : stop][::-1] if backwards else block[start:stop][:missing]
            yield found
            missing -= len(found)
            number += -1 if backwards else 1

    def about(self, low: Id, high: Id, count: int | None = None) -> int:
        """About how many rows `range` answers: a share of all, by the blocks that they are in. O(log N)."""
        blocks = self._blocks
        first = max(bisect_right(blocks, low, key=_first_id) - 1, 0)
        inside = bisect_right(blocks, high, key=_first_id) - first
        rows = max(inside, 0) * self._length // max(len(blocks), 1)
        return rows if count is None else min(rows, count)

    def copy(self) -> XStream:
        """An equal stream, which shares the rows."""
        stream = XStream()
        stream._blocks = [block.copy() for block in self._blocks]
        stream._length = self._length
        stream.last_id, stream.max_deleted_id = self.last_id, self.max_deleted_id
        stream.entries_added = self.entries_added
        return stream

    def size_of_copy(self) -> int:
        """About how many bytes `copy` takes."""
        return 8 * self._length + 80 * len(self._blocks) + 120

    # -- for storage and tests --------------------------------------------------------------------------------

    def __del__(self) -> None:
        if self._length > GIANT:
            dispose(self._blocks)

    def dump(self) -> bytes:
        return b"".join(self.dump_pieces())

    def dump_pieces(self) -> list[bytes]:
        header = _HEADER.pack(*self.last_id, *self.max_deleted_id, self.entries_added)
        ids, widths = [], []
        for rows in chunks(self):
            ids.append(struct.pack(f"<{2 * len(rows)}Q", *chain.from_iterable(at for at, _ in rows)))
            widths.append(struct.pack(f"<{len(rows)}I", *(len(fields) for _, fields in rows)))
        parts = [header, b"".join(ids), b"".join(widths)]
        return packed_pieces(chain(parts, chain.from_iterable(fields for _, fields in self)))

    @classmethod
    def load(cls, data: bytes) -> Self:
        parts = unpack_many(data)
        if len(parts) < 3 or len(parts[0]) != _HEADER.size or len(parts[1]) != 4 * len(parts[2]):
            raise CorruptValue("a stream without its header")
        length, odd = divmod(len(parts[2]), 4)
        if odd:
            raise CorruptValue("a stream with half a number")
        numbers = struct.unpack(f"<{2 * length}Q", parts[1])
        widths = struct.unpack(f"<{length}I", parts[2])
        if sum(widths) != len(parts) - 3 or any(width < 2 or width % 2 for width in widths):
            raise CorruptValue("a stream whose entries are not made of fields and values")
        ids = list(zip(numbers[::2], numbers[1::2], strict=True))
        last_ms, last_seq, deleted_ms, deleted_seq, added = _HEADER.unpack(parts[0])
        if any(a >= b for a, b in pairwise([FIRST_ID, *ids])) or (ids and ids[-1] > (last_ms, last_seq)):
            raise CorruptValue("a stream with ids out of order")
        stream = cls()
        fields = iter(parts[3:])
        for at, width in zip(ids, widths, strict=True):
            stream.append(at, tuple(islice(fields, width)))
        stream.last_id = last_ms, last_seq
        stream.max_deleted_id = deleted_ms, deleted_seq
        stream.entries_added = added
        return stream

    def size(self) -> int:
        held = sum(sum(map(len, fields)) + 41 * len(fields) for _, fields in self)  # a bytes object and its place
        return held + 220 * self._length + 120 * len(self._blocks) + 120  # a row: three tuples, two ints, its place

    def check(self) -> None:
        assert all(0 < len(block) <= LARGEST_BLOCK for block in self._blocks), list(map(len, self._blocks))
        assert self._length == sum(map(len, self._blocks))
        ids = [at for at, _ in self]
        assert all(a < b for a, b in pairwise([FIRST_ID, *ids, (self.last_id[0], self.last_id[1] + 1)])), ids
        assert all(type(fields) is tuple and fields and len(fields) % 2 == 0 for _, fields in self), list(self)
