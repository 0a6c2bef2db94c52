"""The node being written: plain lists, because appending to them is the fastest operation in Python.

It has the methods of a sealed node (nodes.py) that readers use. A node is sealed when it has a thousand messages.

Rejected: one growing Arrow builder, which cannot be read while it grows.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

from penstock.types.stream.arrow import offsets_from
from penstock.types.stream.column_buffers import latest
from penstock.types.stream.encoding import Encoding, encoded_one_by_one
from penstock.types.stream.ipc import ArrowPart, rows_part
from penstock.types.stream.nodes import NODE, OVERHEAD, Node, Range, Rows, message_batch


class Active:
    """The active node. Its encoded messages grow when it is read: each message is encoded once."""

    __slots__ = ("before", "begins", "encoded", "encoding", "entries", "start", "tags", "times")

    def __init__(self, start: int, before: int) -> None:
        self.start = start  # offset of the first message in the lists
        self.before = before  # as in Node
        self.times = array("q")
        self.tags: list[bytes] = []
        self.entries: list[bytes] = []
        self.encoding: Encoding | None = None  # of the last reader
        self.encoded = bytearray()  # the first messages, as it makes them
        self.begins = array("Q", (0,))  # where each begins in it (one more: the end)

    @property
    def number(self) -> int:
        return (self.start - 1) // NODE

    @property
    def count(self) -> int:
        return len(self.entries)

    @property
    def newest(self) -> int:
        return max(self.times, default=self.before)

    @property
    def raw(self) -> int:
        return sum(map(len, self.tags)) + sum(map(len, self.entries)) + OVERHEAD * len(self.entries)

    def extend(self, times: array[int], tags: list[bytes], entries: list[bytes]) -> None:
        self.times += times
        self.tags += tags
        self.entries += entries

    def row(self, offset: int) -> int:
        return max(offset - self.start, 0)

    def offset_at(self, row: int) -> int:
        return self.start + row

    def runs(self, start: int, end: int) -> Iterator[Range]:
        yield start, end

    def fit(self, start: int, end: int, budget: int) -> tuple[int, int]:
        cost = 0
        for row in range(start - self.start, end - self.start):
            cost += len(self.tags[row]) + len(self.entries[row]) + OVERHEAD
            if cost >= budget:
                return self.start + row + 1, cost
        return end, cost

    def encoded_slice(self, start: int, end: int, encoding: Encoding) -> bytes:
        """A run of messages as readers get them. A copy, because a view would keep the buffer from growing."""
        a, b = start - self.start, end - self.start
        if encoding is not self.encoding:
            self.encoding, self.encoded, self.begins = encoding, bytearray(), array("Q", (0,))
        begins = self.begins
        if b >= len(begins):
            encoding.encode_more(self.encoded, begins, self.start, self.tags, self.entries, b)
        return bytes(self.encoded[begins[a] : begins[b]])

    def leased(self, start: int, end: int, more: int, encoding: Encoding) -> bytes:
        first, last = start - self.start, end - self.start
        return encoding.encode_leased(self.start, self.times, self.tags, self.entries, first, last, more)

    def arrow(self, start: int, end: int, compressed: bool = False, more: int | None = None) -> ArrowPart:
        rows = slice(start - self.start, end - self.start)
        batch = message_batch(self.times[rows], self.tags[rows], self.entries[rows])
        return rows_part(offsets_from(start, end - start), batch, more)

    def lists(self) -> tuple[list[int], list[int], list[bytes], list[bytes]]:
        offsets = list(range(self.start, self.start + len(self.entries)))
        return offsets, list(self.times), self.tags[:], self.entries[:]

    def rows(self, start: int, end: int) -> Rows:
        part = slice(start - self.start, end - self.start)
        return range(start, end), self.times[part], self.tags[part], self.entries[part]

    def row_at_time(self, ms: int) -> int:
        return bisect_left([*accumulate(self.times, max, initial=self.before)], ms, 1) - 1

    def seal(self) -> Node:
        """The finished node; it is encoded already if a reader follows the stream."""
        end = (self.number + 1) * NODE + 1
        whole = len(self.entries) == NODE
        node = Node.of(
            self.number,
            message_batch(self.times, self.tags, self.entries),
            self.before,
            latest(self.times),
            None if whole else array("q", range(self.start, end)),
        )
        if self.encoding is not None:
            self.encoding.encode_more(self.encoded, self.begins, self.start, self.tags, self.entries, len(self.entries))
            node.encoded = self.encoding, memoryview(bytes(self.encoded)), self.begins
        return node

    def copy(self) -> Active:
        active = Active(self.start, self.before)
        active.extend(self.times, self.tags, self.entries)
        return active

    def size(self) -> int:
        """Bytes of memory."""
        return self.raw + len(self.encoded) + (2 * 41 + 8) * len(self.entries) + 8 * len(self.begins) + 400

    def check(self) -> None:
        assert len(self.times) == len(self.tags) == len(self.entries) < NODE
        known = len(self.begins) - 1
        offsets, tags, entries = [*range(self.start, self.start + known)], self.tags[:known], self.entries[:known]
        expected = (b"", [0]) if self.encoding is None else encoded_one_by_one(self.encoding, offsets, tags, entries)
        assert (bytes(self.encoded), self.begins.tolist()) == expected


Block = Node | Active
