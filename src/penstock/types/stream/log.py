"""The sequence of nodes: append, seek, read, evict, compact.

Offsets are contiguous from 1 and never reused; an emptied log keeps its counter, so that first == last + 1. Node
numbers follow from offsets, so a seek is a division and a dictionary look-up at any length: the RCP's skiplist is not
needed. `first` is exact: what lies below it is gone for every reader, though memory goes back by whole nodes.

Costs, here and in limits, are counted as a message's tag and entry plus 16 bytes, whatever the encoding or the
compression: a reader's MAXBYTES means the same in every form, and retention the same on every replica.

Invariants: nodes has every number from `lowest` up to the active node's; sealed_rows and sealed_raw are their sums; a
node that is cold (cooling.py) and not in `recent` holds nothing that can be made again. Owned by the loop thread:
reading moves nodes in and out of `recent`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow.compute as pc

from penstock.types.stream.compaction import Compactor
from penstock.types.stream.cooling import Cooling, Packing
from penstock.types.stream.encoding import Encoding
from penstock.types.stream.ipc import ArrowPart, Piece, stream_of
from penstock.types.stream.nodes import NODE, OVERHEAD, Active, Block, Node, Range, Storage, raw_of, tables_of

MOST = 1 << 53  # messages: three centuries of a million a second, and far from where 64 bits end


class Message(NamedTuple):
    """One message, as the slow paths see it."""

    offset: int
    time: int
    tag: bytes
    entry: bytes


class Taken(NamedTuple):
    """What a group read may have: runs of messages, where to go on, how many offsets had no message, the cost."""

    runs: list[Range]
    next: int
    skipped: int
    cost: int


class Compacted(NamedTuple):
    """What a slice of compaction did: the numbers of the nodes that lost messages, and whether there is more to do."""

    rewritten: list[int]
    more: bool


@dataclass(frozen=True, slots=True)
class Retention:
    """What a log may keep; 0 is no limit. `compact` keeps the newest message of every tag."""

    count: int = 0
    age_ms: int = 0
    bytes: int = 0
    compact: bool = False


class LogInfo(NamedTuple):
    """For TINFO."""

    first: int
    last: int
    length: int
    nodes: int
    hot: int
    cold: int
    raw_bytes: int
    stored_bytes: int


class Log:
    """Messages by offset."""

    __slots__ = (
        "__weakref__", "active", "compactor", "cooling", "first", "last", "lowest", "nodes", "recent", "sealed_raw",
        "sealed_rows", "storage",
    )  # fmt: skip

    def __init__(self, storage: Storage | None = None) -> None:
        self.storage = storage if storage is not None else Storage()
        self.first = 1  # the first offset that can still be read
        self.last = 0  # the last offset given out
        self.nodes: dict[int, Node] = {}
        self.lowest = 0  # number of the first node held
        self.cooling = Cooling()
        self.active = Active(1, 0)
        self.recent: dict[int, Node] = {}  # cold nodes read of late, the latest last
        self.sealed_rows = 0
        self.sealed_raw = 0
        self.compactor: Compactor | None = None

    def __len__(self) -> int:
        """Messages that can be read. O(1)."""
        front = self._block(self.lowest)
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
        """As append_many, of what `parse_arrow` gave. Whole nodes never become Python objects."""
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
        """Add nodes of the rows of a batch from some places on, which are copied later if there may be a backlog."""
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
        self.cooling.add(range(sealed[0].number, node.number + 1), self.nodes, self.lowest, self.storage)

    def settle(self, before: int | None = None) -> bool:
        """Do a piece of what appending left for later, of nodes before a number if one is given; whether there is more."""
        return self.cooling.settle(self.nodes, self.storage, self._end(before))

    def pack(self, size: int, before: int | None = None) -> Packing | None:
        """About so many bytes of what settle would compress, for another thread to `run`; None if there is nothing."""
        return self.cooling.pack(self.nodes, self.storage, size, self._end(before))

    def unpack(self, packing: Packing) -> bool:
        """Take back what a thread is done with; False if it failed, and the rest of it is to be done here."""
        return self.cooling.unpack(packing, self.nodes)

    def _end(self, before: int | None) -> int:
        return self.active.number if before is None else before

    # Finding.

    def _numbers(self) -> range:
        """Of the sealed nodes."""
        return range(self.lowest, self.active.number)

    def _block(self, number: int) -> Block:
        return self.nodes[number] if number < self.active.number else self.active

    def _blocks(self, start: int, end: int) -> Iterator[tuple[Block, int, int]]:
        """The blocks between two held offsets, with the part of each that is asked for."""
        number = (start - 1) // NODE
        nodes = self.nodes
        cold = self.active.number - self.storage.hot_nodes  # from here on nodes are hot
        while start < end:
            node = nodes.get(number)
            if node is not None and number < cold:
                self._use(node)
            number += 1
            stop = min(end, number * NODE + 1)
            yield self.active if node is None else node, start, stop
            start = stop

    def _use(self, node: Node) -> None:
        """Keep what a read decodes of a cold node for the next one, and let go of what was not read for longest."""
        hot = self.storage.hot_nodes
        if node.number >= self.active.number - hot:
            return
        recent = self.recent
        recent.pop(node.number, None)
        recent[node.number] = node
        while len(recent) > max(hot, 1):
            recent.pop(next(iter(recent))).rest()

    def _runs(self, start: int, end: int) -> Iterator[tuple[Block, int, int]]:
        for block, a, b in self._blocks(max(start, self.first), end):
            for run in block.runs(a, b):
                yield block, *run

    def count_from(self, offset: int) -> int:
        """Messages at or after an offset. O(1), or O(nodes from there) once messages were compacted away."""
        offset = max(offset, self.first)
        if offset > self.last or self.sealed_rows == NODE * len(self.nodes):
            return max(self.last + 1 - offset, 0)
        number = (offset - 1) // NODE
        rest = sum(self.nodes[later].count for later in range(number + 1, self.active.number))
        block = self._block(number)
        return block.count - block.row(offset) + rest + (len(self.active.entries) if block is not self.active else 0)

    def take(self, start: int, count: int, max_bytes: int | None = None, stop: int | None = None) -> Taken:
        """Runs of up to `count` messages from an offset, before `stop`; the message that reaches max_bytes is the last."""
        stop = self.last + 1 if stop is None else min(stop, self.last + 1)
        if count <= 0 or start >= stop:
            return Taken([], start, 0, 0)
        at = max(start, self.first)
        if max_bytes is None and self.sealed_rows == NODE * len(self.nodes):
            end = min(at + count, stop)
            return Taken([(at, end)], end, at - start, 0) if at < end else Taken([], stop, stop - start, 0)
        runs: list[Range] = []
        left, cost = count, 0
        for block, a, b in self._runs(at, stop):
            end = min(b, a + left)
            if max_bytes is not None:
                end, spent = block.fit(a, end, max_bytes - cost)
                cost += spent
            left -= end - a
            if runs and runs[-1][1] == a:
                a = runs.pop()[0]
            runs.append((a, end))
            if not left or (max_bytes is not None and cost >= max_bytes):
                return Taken(runs, end, end - start - count + left, cost)
        return Taken(runs, stop, stop - start - count + left, cost)

    def seek_time(self, ms: int) -> int:
        """The first available offset that is not before a time; last + 1 if all are. O(log nodes).

        A message counts as late as the latest one before it: when the clock jumped back, messages written after the
        jump do not hide those written before it.
        """
        nodes = self.nodes
        number = self.lowest + bisect_left(self._numbers(), ms, key=lambda at: max(nodes[at].before, nodes[at].newest))
        start = max(self.first, number * NODE + 1)
        for block, a, _ in self._blocks(start, self.last + 1):
            row = max(block.row_at_time(ms), block.row(a))
            if row < block.count:
                return block.offset_at(row)
        return self.last + 1

    # Reading.

    def read(
        self, offset: int, count: int, encoding: Encoding, null: bytes, max_bytes: int | None = None
    ) -> tuple[list[Piece], int]:
        """The messages of offset, offset + 1, ..., in pieces to be joined, and how many they are.

        `null` stands for each message that is gone. Stops at the last offset.
        """
        stop = min(offset + count, self.last + 1)
        if offset >= stop:
            return [], 0
        if max_bytes is None and offset >= self.first and self.sealed_rows == NODE * len(self.nodes):
            return [
                block.encoded_slice(a, b, encoding) for block, a, b in self._blocks(offset, stop)
            ], stop - offset  # none is gone
        left = max_bytes
        pieces: list[Piece] = []
        at = offset
        for block, a, b in self._runs(offset, stop):
            if at < a:
                gone, left = _affordable(a - at, left)
                pieces.append(null * gone)
                at += gone
                if at < a or left == 0:
                    return pieces, at - offset
            if left is not None:
                end, cost = block.fit(a, b, left)
                pieces.append(block.encoded_slice(a, end, encoding))
                at, left = end, max(left - cost, 0)
                if left == 0:
                    return pieces, at - offset
            else:
                pieces.append(block.encoded_slice(a, b, encoding))
                at = b
        if at < stop:
            gone, _ = _affordable(stop - at, left)
            pieces.append(null * gone)
            at += gone
        return pieces, at - offset

    def read_runs(self, runs: Iterable[Range], encoding: Encoding) -> list[Piece]:
        """Runs of available messages, as `take` found them, in pieces to be joined."""
        return [block.encoded_slice(a, b, encoding) for run in runs for block, a, b in self._blocks(*run)]

    def messages(self, offset: int, count: int, max_bytes: int | None = None) -> Iterator[Message]:
        """Up to `count` available messages from an offset on, one by one."""
        for run in self.take(offset, count, max_bytes).runs:
            for block, a, b in self._blocks(*run):
                rows = slice(block.row(a), block.row(b))
                yield from map(Message, *(column[rows] for column in block.lists()))

    def read_arrow(
        self, offset: int, count: int, max_bytes: int | None = None, compressed: bool = False, with_bounds: bool = False
    ) -> ArrowPart:
        """An Arrow stream of (offset, time, tag, entry); what is gone is absent. A record batch a node.

        As in `read`, count is a number of offsets, gone ones included. `compressed` lets nodes be as they are stored;
        `with_bounds` puts the log's first and last in the schema's metadata.
        """
        stop = min(offset + count, self.last + 1)
        runs: list[Range] = [(max(offset, self.first), stop)]
        if max_bytes is not None:
            runs = self.take(offset, count, max_bytes, stop).runs
        return self.arrow_of(runs, compressed, with_bounds)

    def arrow_of(self, runs: Iterable[Range], compressed: bool = False, with_bounds: bool = False) -> ArrowPart:
        """As read_runs, in Arrow. Its pieces may be made later, whatever happens to the log meanwhile."""
        parts = (block.arrow(a, b, compressed) for run in runs for block, a, b in self._blocks(*run))
        return stream_of(parts, (self.first, self.last) if with_bounds else None)

    # Forgetting.

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
            self._shed(gone)
        return before - len(self)

    def _shed(self, gone: int) -> None:
        """Let the active node begin later, once half of it is evicted: large messages must not wait for it to be sealed."""
        active = self.active
        self.active = Active(self.first, max(active.before, *active.times[:gone]))
        self.active.extend(active.times[gone:], active.tags[gone:], active.entries[gone:])

    def keep_nodes(self, count: int) -> int:
        """Remove whole nodes from the front as long as `count` messages remain; answer how many messages went."""
        before = length = len(self)
        while self.lowest < self.active.number:
            front = self.nodes[self.lowest]
            available = front.count - front.row(self.first)
            if length - available < count:
                break
            length -= available
            self.evict_through((self.lowest + 1) * NODE)
        return before - length

    def keep_last(self, count: int) -> int:
        """Remove all but the last `count` messages; answer how many went."""
        removed = self.keep_nodes(count)
        spare = len(self) - count
        if spare > 0:
            front = self._block(self.lowest)
            removed += self.evict_through(front.offset_at(front.row(self.first) + spare) - 1)
        return removed

    def apply_retention(self, retention: Retention, now: int) -> int:
        """Remove the whole nodes that a retention does not cover; answer how many messages went.

        A count is kept at the least; a node goes by age when its newest message is too old, the active one too; bytes are
        held at the most, but the newest message stays. Messages so large that a node of them would be too much go one by one.
        """
        removed = self.keep_nodes(retention.count) if retention.count else 0
        active = self.active.raw if retention.bytes and self.nodes else 0
        while self.lowest < self.active.number:
            too_old = retention.age_ms and self.nodes[self.lowest].newest < now - retention.age_ms
            too_large = retention.bytes and self.sealed_raw + active > retention.bytes
            if not (too_old or too_large):
                break
            through = (self.lowest + 1) * NODE
            if through == self.last and not too_old:
                removed += self.evict_through(through - 1)
                break
            removed += self.evict_through(through)
        if retention.bytes and not self.nodes:
            removed += self._keep_bytes(retention.bytes)
        if retention.age_ms and not self.nodes:
            oldest, times = now - retention.age_ms, self.active.times
            if times and times[-1] < oldest and max(times) < oldest:
                removed += self.evict_through(self.last)
        return removed

    def _keep_bytes(self, limit: int) -> int:
        """Remove what the active node has beyond a number of bytes; answer how many messages went. O(its messages)."""
        active = self.active
        if active.raw <= limit:
            return 0
        left, row = limit, len(active.entries)
        while row and (left := left - len(active.tags[row - 1]) - len(active.entries[row - 1]) - OVERHEAD) >= 0:
            row -= 1
        removed = self.evict_through(min(active.offset_at(row), self.last) - 1)
        if self.active.start < self.first:
            self._shed(self.first - self.active.start)
        return removed

    def outgrows(self, limit: int, offset: int) -> bool:
        """Whether a node of messages like those from an offset on would have more than so many bytes. O(those)."""
        active, count = self.active, self.last + 1 - offset
        size = sum(map(len, active.tags[-count:])) + sum(map(len, active.entries[-count:])) + OVERHEAD * count
        return size * NODE > limit * count

    def set_compaction(self, on: bool) -> None:
        """Begin or stop keeping the index that compaction needs; `compact` fills it."""
        if on != (self.compactor is not None):
            self.compactor = Compactor(self.lowest) if on else None

    def compact(self, nodes: int = 8, least: int = 1) -> Compacted:
        """Index, rewrite or forget up to so many nodes (rewrite those with `least` messages to lose)."""
        compactor = self.compactor
        if compactor is None:
            return Compacted([], False)
        rewritten: list[int] = []
        for _ in range(nodes):
            if compactor.next < self.active.number:
                self._index(compactor)
                continue
            if compactor.evicted:
                compactor.forget()
                continue
            number = compactor.candidate(least)
            if number is None:
                return Compacted(rewritten, False)
            self._compact_node(compactor, number)
            rewritten.append(number)
        more = compactor.next < self.active.number or compactor.evicted or compactor.candidate(least) is not None
        return Compacted(rewritten, bool(more))

    def compact_nodes(self, numbers: Iterable[int]) -> None:
        """Rewrite these nodes, and no others: what `compact` did to a log that held the same."""
        compactor = self.compactor
        if compactor is None:
            return
        while compactor.next < self.active.number:
            self._index(compactor)
        for number in numbers:
            if number in compactor.superseded:
                self._compact_node(compactor, number)

    def _index(self, compactor: Compactor) -> None:
        node = self.nodes[compactor.next]
        self._use(node)
        compactor.index(node)

    def _compact_node(self, compactor: Compactor, number: int) -> None:
        node = self.nodes[number]
        self._use(node)
        raw = node.raw
        self.sealed_rows -= compactor.compact(node, self.storage.compression)
        self.sealed_raw += node.raw - raw
        self.cooling.shrunk(node, raw - node.raw)

    # The whole.

    def info(self) -> LogInfo:
        """Figures for TINFO. O(nodes)."""
        hot = min(len(self.nodes), self.storage.hot_nodes)
        raw = self.sealed_raw + self.active.raw
        return LogInfo(
            self.first, self.last, len(self), len(self.nodes) + 1, hot, len(self.nodes) - hot, raw, self.size()
        )

    def size(self) -> int:
        """Bytes of memory. O(nodes)."""
        index = self.compactor.size() if self.compactor is not None else 0
        return 500 + sum(node.size() for node in self.nodes.values()) + self.active.size() + index

    def copy(self) -> Log:
        """An equal log that shares only bytes that never change."""
        log = Log(self.storage)
        for name in ("first", "last", "lowest", "sealed_raw", "sealed_rows"):
            setattr(log, name, getattr(self, name))
        log.nodes = {number: node.copy() for number, node in self.nodes.items()}
        log.recent = {number: log.nodes[number] for number in self.recent}
        log.cooling = self.cooling.copy(log.nodes)
        log.active = self.active.copy()
        log.set_compaction(self.compactor is not None)
        return log

    def faults(self) -> Iterator[str]:
        """What is wrong with the log's shape, its nodes not looked into. O(nodes)."""
        active = self.active
        if not 1 <= self.first <= self.last + 1:
            yield "first is not between 1 and last + 1"
        if self.last > MOST:
            yield "more was written than can have been"
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
        self.cooling.check(self.nodes, self.recent)
        self.active.check()
        assert len(self) == sum(b - a for _, a, b in self.copy()._runs(self.first, self.last + 1))
        if self.compactor:
            assert self.lowest == self.compactor.start <= self.compactor.next <= self.active.number
            self.compactor.check(self.nodes)


def _affordable(items: int, budget: int | None) -> tuple[int, int | None]:
    """How many nulls a budget of bytes pays for, and what is left of it."""
    if budget is None:
        return items, None
    items = min(items, -(-budget // OVERHEAD))
    return items, max(budget - items * OVERHEAD, 0)
