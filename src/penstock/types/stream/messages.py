"""The messages of a stream by offset: append, find, evict.

Offsets are contiguous from 1 and never reused; an emptied stream keeps its counter, so that first == last + 1. Node
numbers follow from offsets, so a seek is a division and a dictionary look-up at any length. `first` is exact: no reader
gets a message below it, although memory is freed by whole nodes.

Costs, here and in limits, are a message's tag and entry plus 16 bytes, whatever the encoding or the compression. So a
reader's MAXBYTES means the same in every form, and retention the same on every server.

A sealed node is in memory (`nodes`) or in a file (`history`, segments.py). `node` answers either; what it has to fetch
is read at once, unless a command had it read by a thread before (stored_nodes.py).

Invariants: every number from `lowest` up to the active node's is in `nodes` or in one segment of `history`;
sealed_nodes, sealed_rows and sealed_raw are their sums, stored_raw that of history's. A node that is cold (cooling.py)
and not in `recent` holds nothing that can be made again. Owned by the loop thread: reading moves nodes in and out of
`recent`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise
from operator import attrgetter
from typing import Any, NamedTuple

import pyarrow.compute as pc

from penstock.types.stream.active import Active, Block
from penstock.types.stream.compaction import Compactor
from penstock.types.stream.cooling import Cooling
from penstock.types.stream.nodes import NODE, Node, Storage, node_in, raw_of, recalled, tables_of
from penstock.types.stream.segments import Segment

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
    history_length: int
    history_bytes: int
    history_files: int
    stored_bytes: int


Place = tuple[Segment, int]  # where a node lies in a file

_first = attrgetter("first")


class Messages:
    """Messages by offset."""

    __slots__ = (
        "__weakref__",
        "active",
        "compactor",
        "cooling",
        "fetched",
        "first",
        "history",
        "key",
        "last",
        "lowest",
        "nodes",
        "recent",
        "sealed_nodes",
        "sealed_raw",
        "sealed_rows",
        "stored_raw",
    )  # fmt: skip

    def __init__(self, storage: Storage | None = None) -> None:
        self.first = 1  # the first offset that can still be read
        self.last = 0  # the last offset given out
        self.nodes: dict[int, Node] = {}  # sealed ones that are in memory
        self.history: list[Segment] = []  # the others, the oldest first
        self.lowest = 0  # number of the first node held
        self.cooling = Cooling(self.nodes, storage if storage is not None else Storage())
        self.active = Active(1, 0)
        self.recent: dict[int, Node] = {}  # cold nodes that were read recently, the latest last
        self.fetched: dict[int, Node] = {}  # nodes of history that a thread has read for the command under way
        self.sealed_nodes = 0
        self.sealed_rows = 0
        self.sealed_raw = 0
        self.stored_raw = 0
        self.compactor: Compactor | None = None
        self.key = b""  # under which it was last seen; it may have another one by now

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
            self._add([self.active.seal()])
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
                self._add([self.active.seal()])
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
                        self._add([self.active.seal()])
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

    def _add(self, sealed: list[Node]) -> None:
        """Add nodes that end with the last offset."""
        for node in sealed:
            self.nodes[node.number] = node
            self.sealed_rows += node.count
            self.sealed_raw += node.raw
        self.sealed_nodes += len(sealed)
        self.active = Active(self.last + 1, max(node.before, node.newest))
        self.cooling.add(range(sealed[0].number, node.number + 1), self.lowest)
        files = self.storage.files
        if files is not None:
            files.sealed(self, sum(node.raw for node in sealed))

    # Finding.

    @property
    def complete(self) -> bool:
        """Whether no message between first and last is missing; compaction leaves gaps."""
        return self.sealed_rows == NODE * self.sealed_nodes

    def numbers(self) -> range:
        """Of the sealed nodes."""
        return range(self.lowest, self.active.number)

    def block(self, number: int) -> Block:
        return self.node(number) if number < self.active.number else self.active

    def node(self, number: int) -> Node:
        """A sealed node that is held, in memory or in a file."""
        node = self.nodes.get(number) or self.fetched.get(number) or self.recent.get(number)
        return node if node is not None else node_in(*self.place(number))

    def place(self, number: int) -> Place:
        """Where a node lies that is not in memory."""
        segment = self.history[bisect_right(self.history, number, key=_first) - 1]
        return segment, number - segment.first

    def blocks(self, start: int, end: int) -> Iterator[tuple[Block, int, int]]:
        """The blocks between two held offsets, with the part of each that is asked for."""
        number = (start - 1) // NODE
        while start < end:
            block = self.used_block(number)
            number += 1
            stop = number * NODE + 1
            if stop > end:
                stop = end
            yield block, start, stop
            start = stop

    def used_block(self, number: int) -> Block:
        """A block for a reader: a cold node is kept decoded."""
        active = self.active
        if number >= active.number:
            return active
        node = self.nodes.get(number) or self.node(number)
        if node.stored is not None or number < self.cooling.hot_from(active.number):
            self.use(node)
        return node

    def use(self, node: Node) -> None:
        """Keep a cold node decoded for the next read, and drop the one that was not read for longest."""
        number, cooling = node.number, self.cooling
        if (node.stored is None and number >= cooling.hot_from(self.active.number)) or number in self.fetched:
            return
        recent = self.recent
        recent.pop(number, None)
        recent[number] = node
        while len(recent) > max(cooling.storage.hot_nodes, 1):
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
        in_memory = sum(node.count for later, node in self.nodes.items() if later > number)
        stored = sum(segment.rows_from(number + 1) for segment in self.history)
        block = self.block(number)
        rest = in_memory + stored + (len(self.active.entries) if block is not self.active else 0)
        return block.count - block.row(offset) + rest

    def numbers_in_memory(self) -> list[int]:
        return sorted(self.nodes)  # those that came back from files are not in order

    # History: nodes in files. More of it is in stored_nodes.py.

    def is_in_memory_from(self, offset: int) -> bool:
        """Whether no message at or after an offset is in a file."""
        return not self.history or offset > self.history[-1].end * NODE

    def recall(self, number: int) -> Node:
        """Bring a node of history back into memory, so that it can be rewritten; its segment becomes two."""
        segment, _ = self.place(number)
        node = self.nodes[number] = recalled(self.node(number))
        for read in [each for each in self.recent if segment.first <= each < segment.end]:
            del self.recent[read]  # they refer to the segment
        self.stored_raw -= node.raw
        self.cooling.came(node)
        at = self.history.index(segment)
        parts = [(segment.first, number), (number + 1, segment.end)]
        self.history[at : at + 1] = [segment.part(a, b) for a, b in parts if a < b and b > self.lowest]
        if self.storage.files is not None:
            self.storage.files.sealed(self, node.raw)
        return node

    def _evict_stored(self, before: int) -> None:
        """Let go of the nodes of the first segment, up to a number."""
        segment = self.history[0]
        stop = min(before, segment.end)
        raw = sum(segment.raws[self.lowest - segment.first : stop - segment.first])
        self.sealed_rows -= segment.rows_from(self.lowest) - segment.rows_from(stop)
        self.sealed_raw -= raw
        self.stored_raw -= raw
        for number in [number for number in self.recent if number < stop]:
            del self.recent[number]
        if self.compactor:
            for number in range(self.lowest, stop):
                self.compactor.evict(node_in(segment, number - segment.first))
        self.sealed_nodes -= stop - self.lowest
        self.lowest = stop
        self.cooling.passed(stop)
        if stop == segment.end:
            del self.history[0]

    # Evicting.

    def evict_through(self, offset: int) -> int:
        """Remove messages up to and including an offset; answer how many. O(nodes freed)."""
        before = len(self)
        self.first = max(self.first, min(offset, self.last) + 1)
        keep = min((self.first - 1) // NODE, self.active.number)
        while self.lowest < keep:
            if self.lowest not in self.nodes:
                self._evict_stored(keep)
                continue
            node = self.nodes.pop(self.lowest)
            self.lowest += 1
            self.recent.pop(node.number, None)
            self.sealed_nodes -= 1
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
        stored = [segment.part(max(segment.first, self.lowest), segment.end) for segment in self.history]
        rows, size = sum(segment.rows for segment in stored), sum(segment.stored for segment in stored)
        files = len({segment.name for segment in stored})
        nodes, cold = self.sealed_nodes + 1, len(self.nodes) - hot
        return MessagesInfo(
            self.first, self.last, len(self), nodes, hot, cold, raw, rows, size, files, self.size()
        )  # fmt: skip

    def size(self) -> int:
        """Bytes of memory. O(nodes)."""
        index = self.compactor.size() if self.compactor is not None else 0
        index += sum(segment.size() for segment in self.history)
        index += sum(node.size() for node in self.recent.values() if node.stored is not None)
        return 500 + sum(node.size() for node in self.nodes.values()) + self.active.size() + index

    def copy(self) -> Messages:
        """Equal messages that share only bytes that never change."""
        messages = Messages(self.storage)
        for name in ("first", "last", "lowest", "sealed_nodes", "sealed_raw", "sealed_rows", "stored_raw", "key"):
            setattr(messages, name, getattr(self, name))
        messages.nodes = {number: node.copy() for number, node in self.nodes.items()}
        messages.history = self.history[:]
        messages.recent = {number: messages.nodes[number] for number in self.recent if number in messages.nodes}
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
        held = [*self.nodes, *(n for each in self.history for n in range(max(each.first, self.lowest), each.end))]
        if sorted(held) != [*self.numbers()]:
            yield "a node is missing, or there twice"
            return
        if [*map(_first, self.history)] != sorted(map(_first, self.history)):
            yield "the segments are not in order"
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
        spans = [(node.number, node.before, max(node.before, node.newest)) for node in self.nodes.values()]
        spans += [(each.first, each.before, each.peak) for each in self.history]
        if any(a[2] != b[1] for a, b in pairwise([*sorted(spans), (active.number, active.before, 0)])):
            yield "a node does not know the latest time before it"
        stored = [each.part(max(each.first, self.lowest), each.end) for each in self.history]
        if self.sealed_nodes != active.number - self.lowest:
            yield "sealed_nodes is not the number of nodes"
        if self.sealed_rows != sum(node.count for node in self.nodes.values()) + sum(each.rows for each in stored):
            yield "sealed_rows is not the sum of the nodes' messages"
        if self.stored_raw != sum(each.raw for each in stored):
            yield "stored_raw is not the sum of the bytes in files"
        if self.sealed_raw != sum(node.raw for node in self.nodes.values()) + self.stored_raw:
            yield "sealed_raw is not the sum of the nodes' bytes"
        for number, node in self.recent.items():
            if self.nodes.get(number) is not node and (node.stored is None or node.stored[0] not in self.history):
                yield "an evicted node is kept decoded"

    def check(self) -> None:
        """Assert every invariant. O(messages)."""
        assert not [*self.faults()], [*self.faults()]
        for node in self.nodes.values():
            node.check()
            assert node.stored is None
        assert not self.fetched
        self.cooling.check(self.recent)
        self.active.check()
        assert len(self) == sum(b - a for _, a, b in self.copy().runs(self.first, self.last + 1))
        if self.compactor:
            assert self.lowest == self.compactor.start <= self.compactor.next <= self.active.number
            self.compactor.check({number: self.node(number) for number in self.numbers()})
