"""The messages of a stream by offset: append, find, evict.

Offsets are contiguous from 1 and never reused; an emptied stream keeps its counter, so that first == last + 1. Node
numbers follow from offsets, so a seek is a division and a dictionary look-up at any length. `first` is exact: no reader
gets a message below it, although memory is freed by whole nodes.

Costs, here and in limits, are a message's tag and entry plus 16 bytes, whatever the encoding or the compression. So a
reader's MAXBYTES means the same in every form, and retention the same on every server.

Invariants: nodes has every number from `lowest` up to the active node's; sealed_rows and sealed_raw are their sums; a
node that is cold (cooling.py) and not in `recent` holds nothing that can be made again. Owned by the loop thread:
reading moves nodes in and out of `recent`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow.compute as pc

from penstock.types.stream.active import Active, Block
from penstock.types.stream.compaction import Compactor
from penstock.types.stream.cooling import Cooling
from penstock.types.stream.nodes import NODE, Node, Storage, raw_of, tables_of

MOST = 1 << 53  # messages: three centuries of a million a second, and far from where 64 bits end


class MessagesInfo(NamedTuple):
    """The figures for TINFO."""

    first: int
    last: int
    length: int
    nodes: int
    hot: int
    cold: int
    raw_bytes: int
    stored_bytes: int


class Messages:
    """Messages by offset."""

    __slots__ = (
        "__weakref__", "active", "compactor", "cooling", "first", "last", "lowest", "nodes", "recent", "sealed_raw",
        "sealed_rows",
    )  # fmt: skip

    def __init__(self, storage: Storage | None = None) -> None:
        self.first = 1  # the first offset that can still be read
        self.last = 0  # the last offset given out
        self.nodes: dict[int, Node] = {}
        self.lowest = 0  # number of the first node held
        self.cooling = Cooling(self.nodes, storage if storage is not None else Storage())
        self.active = Active(1, 0)
        self.recent: dict[int, Node] = {}  # cold nodes that were read recently, the latest last
        self.sealed_rows = 0
        self.sealed_raw = 0
        self.compactor: Compactor | None = None

    @property
    def storage(self) -> Storage:
        """How the nodes are kept."""
        return self.cooling.storage

    def __len__(self) -> int:
        """Messages that can be read. O(1)."""
        front = self.block(self.lowest)
        return self.sealed_rows + len(self.active.entries) - front.row(self.first)

    # Writing.

    def append(self, now: int, tag: bytes, entry: bytes) -> int:
        """Add a message and answer its offset. O(1)."""
        active = self.active
        active.times.append(now)
        active.tags.append(tag)
        active.entries.append(entry)
        self.last = last = self.last + 1
        if not last % NODE:
            self._seal()
        return last

    def append_many(self, now: int, tags: list[bytes], entries: list[bytes]) -> int:
        """Add messages and answer the first one's offset, or what would be the next one's for none."""
        first = self.last + 1
        at, count = 0, len(entries)
        while at < count:
            end = min(at + NODE - self.last % NODE, count)
            times = array("q", (now,)) * (end - at)
            if end - at == count:
                self.active.extend(times, tags, entries)
            else:
                self.active.extend(times, tags[at:end], entries[at:end])
            self.last += end - at
            if not self.last % NODE:
                self._seal()
            at = end
        return first

    def append_arrow(self, now: int, batches: Iterable[Any]) -> int:
        """As append_many, of the batches that `parse_arrow` gave. Whole nodes never become Python objects."""
        first = self.last + 1
        for batch in batches:
            at, count = 0, batch.num_rows
            while at < count:
                rows = min(NODE - self.last % NODE, count - at)
                if rows == NODE:
                    rows = (count - at) // NODE * NODE
                    self._add_rows(now, batch, range(at, at + rows, NODE))
                else:
                    part = batch.slice(at, rows)
                    times = part.column(0).to_pylist() if part.num_columns == 3 else (now,) * rows
                    self.active.extend(array("q", times), *(column.to_pylist() for column in part.columns[-2:]))
                    self.last += rows
                    if not self.last % NODE:
                        self._seal()
                at += rows
        return first

    def _add_rows(self, now: int, batch: Any, starts: range) -> None:
        """Add nodes of the rows of a batch from some positions on, which are copied later if there may be a backlog."""
        tables = tables_of(batch)
        number, before = self.active.number, self.active.before
        sealed = []
        for at in starts:
            newest = pc.max(batch.column(0).slice(at, NODE)).as_py() if batch.num_columns == 3 else now
            sealed.append(Node.sharing(number, (batch, at, now), raw_of(tables, at, at + NODE), before, newest))
            number += 1
            before = max(before, newest)
        self.last += NODE * len(sealed)
        self._add(sealed)

    def _seal(self) -> None:
        self._add([self.active.seal()])

    def _add(self, sealed: list[Node]) -> None:
        """Add nodes that end with the last offset."""
        for node in sealed:
            self.nodes[node.number] = node
            self.sealed_rows += node.count
            self.sealed_raw += node.raw
        self.active = Active(self.last + 1, max(node.before, node.newest))
        self.cooling.add(range(sealed[0].number, node.number + 1), self.lowest)

    # Finding.

    @property
    def complete(self) -> bool:
        """Whether no message between first and last is missing; compaction leaves gaps."""
        return self.sealed_rows == NODE * len(self.nodes)

    def _numbers(self) -> range:
        """Of the sealed nodes."""
        return range(self.lowest, self.active.number)

    def block(self, number: int) -> Block:
        return self.nodes[number] if number < self.active.number else self.active

    def blocks(self, start: int, end: int) -> Iterator[tuple[Block, int, int]]:
        """The blocks between two held offsets, with the part of each that is asked for."""
        number = (start - 1) // NODE
        nodes = self.nodes
        cold = self.active.number - self.cooling.storage.hot_nodes  # from here on nodes are hot
        while start < end:
            node = nodes.get(number)
            if node is not None and number < cold:
                self.use(node)
            number += 1
            stop = min(end, number * NODE + 1)
            yield self.active if node is None else node, start, stop
            start = stop

    def use(self, node: Node) -> None:
        """Keep a cold node decoded for the next read, and drop the one that was not read for longest."""
        hot = self.cooling.storage.hot_nodes
        if node.number >= self.active.number - hot:
            return
        recent = self.recent
        recent.pop(node.number, None)
        recent[node.number] = node
        while len(recent) > max(hot, 1):
            recent.pop(next(iter(recent))).rest()

    def runs(self, start: int, end: int) -> Iterator[tuple[Block, int, int]]:
        for block, a, b in self.blocks(max(start, self.first), end):
            for run in block.runs(a, b):
                yield block, *run

    def count_from(self, offset: int) -> int:
        """Messages at or after an offset. O(1), or O(nodes from there) once messages were compacted away."""
        offset = max(offset, self.first)
        if offset > self.last or self.complete:
            return max(self.last + 1 - offset, 0)
        number = (offset - 1) // NODE
        rest = sum(self.nodes[later].count for later in range(number + 1, self.active.number))
        block = self.block(number)
        return block.count - block.row(offset) + rest + (len(self.active.entries) if block is not self.active else 0)

    def seek_time(self, ms: int) -> int:
        """The first available offset that is not before a time; last + 1 if all are. O(log nodes).

        A message counts as late as the latest one before it: if the clock was set back, messages written after that do
        not hide those written before it.
        """
        nodes = self.nodes
        number = self.lowest + bisect_left(self._numbers(), ms, key=lambda at: max(nodes[at].before, nodes[at].newest))
        start = max(self.first, number * NODE + 1)
        for block, a, _ in self.blocks(start, self.last + 1):
            row = max(block.row_at_time(ms), block.row(a))
            if row < block.count:
                return block.offset_at(row)
        return self.last + 1

    # Evicting.

    def evict_through(self, offset: int) -> int:
        """Remove messages up to and including an offset; answer how many. O(nodes freed)."""
        before = len(self)
        self.first = max(self.first, min(offset, self.last) + 1)
        keep = min((self.first - 1) // NODE, self.active.number)
        while self.lowest < keep:
            node = self.nodes.pop(self.lowest)
            self.lowest += 1
            self.recent.pop(node.number, None)
            self.sealed_rows -= node.count
            self.sealed_raw -= node.raw
            self.cooling.evicted(node)
            if self.compactor:
                self.compactor.evict(node)
        gone = self.first - self.active.start
        if 2 * gone > len(self.active.entries):
            self.shed(gone)
        return before - len(self)

    def shed(self, gone: int) -> None:
        """Free the front of the active node when half of it is evicted: large messages must not wait until it is
        sealed.
        """
        active = self.active
        self.active = Active(self.first, max(active.before, *active.times[:gone]))
        self.active.extend(active.times[gone:], active.tags[gone:], active.entries[gone:])

    def set_compaction(self, on: bool) -> None:
        """Start or stop keeping the index that compaction needs; `compact` fills it."""
        if on != (self.compactor is not None):
            self.compactor = Compactor(self.lowest) if on else None

    # The whole.

    def info(self) -> MessagesInfo:
        """Figures for TINFO. O(nodes)."""
        hot = min(len(self.nodes), self.storage.hot_nodes)
        raw = self.sealed_raw + self.active.raw
        return MessagesInfo(
            self.first, self.last, len(self), len(self.nodes) + 1, hot, len(self.nodes) - hot, raw, self.size()
        )

    def size(self) -> int:
        """Bytes of memory. O(nodes)."""
        index = self.compactor.size() if self.compactor is not None else 0
        return 500 + sum(node.size() for node in self.nodes.values()) + self.active.size() + index

    def copy(self) -> Messages:
        """Equal messages that share only bytes that never change."""
        messages = Messages(self.storage)
        for name in ("first", "last", "lowest", "sealed_raw", "sealed_rows"):
            setattr(messages, name, getattr(self, name))
        messages.nodes = {number: node.copy() for number, node in self.nodes.items()}
        messages.recent = {number: messages.nodes[number] for number in self.recent}
        messages.cooling = self.cooling.copy(messages.nodes)
        messages.active = self.active.copy()
        messages.set_compaction(self.compactor is not None)
        return messages

    def faults(self) -> Iterator[str]:
        """An error in the structure, without looking into nodes. O(nodes)."""
        active = self.active
        if not 1 <= self.first <= self.last + 1:
            yield "first is not between 1 and last + 1"
        if self.last > MOST:
            yield "more was written than is possible"
        if len(self.nodes) != active.number - self.lowest or any(n not in self.nodes for n in self._numbers()):
            yield "a node is missing"
        if self.lowest != min((self.first - 1) // NODE, active.number):
            yield "nodes begin elsewhere than first"
        if active.start + len(active.entries) != self.last + 1 or len(active.entries) >= NODE:
            yield "the active node does not end at last"
        if active.start != active.number * NODE + 1 and active.start > self.first:
            yield "the active node begins too late"
        if not len(active.times) == len(active.tags) == len(active.entries):
            yield "the active node's columns differ in length"
        if any(number != node.number for number, node in self.nodes.items()):
            yield "a node is in another's place"
        blocks: list[Block] = [*self.nodes.values(), active]
        if any(max(a.before, a.newest) != b.before for a, b in pairwise(blocks)):
            yield "a node does not know the latest time before it"
        if self.sealed_rows != sum(node.count for node in self.nodes.values()):
            yield "sealed_rows is not the sum of the nodes' messages"
        if self.sealed_raw != sum(node.raw for node in self.nodes.values()):
            yield "sealed_raw is not the sum of the nodes' bytes"
        if any(self.nodes.get(number) is not node for number, node in self.recent.items()):
            yield "an evicted node is kept decoded"

    def check(self) -> None:
        """Assert every invariant. O(messages)."""
        assert not [*self.faults()], [*self.faults()]
        for node in self.nodes.values():
            node.check()
        self.cooling.check(self.recent)
        self.active.check()
        assert len(self) == sum(b - a for _, a, b in self.copy().runs(self.first, self.last + 1))
        if self.compactor:
            assert self.lowest == self.compactor.start <= self.compactor.next <= self.active.number
            self.compactor.check(self.nodes)
