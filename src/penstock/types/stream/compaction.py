"""Compaction by tag: of the messages with one tag, sealed nodes keep the newest.

The index maps a tag to its newest offset in the sealed nodes, and counts for each node the messages that were
superseded, so that a slice of work goes straight to a node that can lose some. The index can be rebuilt from the
messages, so a dump leaves it out. A message without a tag is always kept.

Evicting a node does not read it: the tags whose newest message was there are forgotten later, in slices too. Until then
the index may name offsets before `start`, which are ignored.

Rejected: sweeping all nodes after every seal (the stream's whole length for one superseded message), and compacting the
active node (its readers follow the stream and want to see every change).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice, pairwise, takewhile
from typing import TYPE_CHECKING, NamedTuple

from penstock.types.stream.nodes import NODE, Node
from penstock.types.stream.segments import MissingHistory

if TYPE_CHECKING:
    from penstock.types.stream.messages import Messages, Place


class Compacted(NamedTuple):
    """The result of a slice of compaction: the numbers of the nodes that lost messages, and whether there is more to
    do.
    """

    rewritten: list[int]
    more: bool


class Compactor:
    """The index of the tags of nodes from `start` up to `next`."""

    __slots__ = ("evicted", "latest", "next", "start", "superseded")

    def __init__(self, start: int) -> None:
        self.latest: dict[bytes, int] = {}
        self.superseded: dict[int, int] = {}  # node number -> messages that it can lose
        self.start = start  # the first node that is held
        self.next = start  # the first node not indexed yet
        self.evicted: deque[Node] = deque()  # nodes that the index still knows

    def index(self, node: Node) -> None:
        """Index the tags of the next node. O(its messages)."""
        latest, superseded = self.latest, self.superseded
        offsets, tags = node.tagged()
        for offset, tag in zip(offsets, tags, strict=True):
            if tag:
                older = latest.get(tag)
                if older is not None and (number := (older - 1) // NODE) >= self.start:
                    superseded[number] = superseded.get(number, 0) + 1
                latest[tag] = offset
        self.next = node.number + 1

    def candidate(self, least: int) -> int | None:
        """A node that can lose at least so many messages."""
        return next((number for number, count in self.superseded.items() if count >= least), None)

    def compact(self, node: Node, compression: str) -> int:
        """Drop a node's superseded messages and answer how many there were."""
        del self.superseded[node.number]
        offsets, tags = node.tagged()
        latest = self.latest
        rows = [row for row, tag in enumerate(tags) if not tag or latest[tag] == offsets[row]]
        before = node.count
        if len(rows) < before:
            node.keep(rows, compression)
        return before - len(rows)

    def evict(self, node: Node) -> None:
        """The first node was evicted. O(1)."""
        self.start = node.number + 1
        self.superseded.pop(node.number, None)
        if node.number < self.next:
            self.evicted.append(node)
        else:
            self.next = self.start

    def forget(self) -> None:
        """Forget the tags whose newest message was in an evicted node. O(its messages), or O(tags) if they are lost."""
        latest, node = self.latest, self.evicted.popleft()
        try:
            offsets, tags = node.tagged()
        except MissingHistory:
            end = node.start + NODE
            tags = [tag for tag, offset in latest.items() if node.start <= offset < end]
            offsets = [latest[tag] for tag in tags]
        for offset, tag in zip(offsets, tags, strict=True):
            if latest.get(tag) == offset:
                del latest[tag]

    def size(self) -> int:
        """About how many bytes of memory it takes. O(evicted nodes not forgotten yet): tags are counted as short."""
        return 130 * len(self.latest) + 100 * len(self.superseded) + sum(node.size() for node in self.evicted)

    def check(self, nodes: dict[int, Node]) -> None:
        """Assert that the index equals a scan of the indexed nodes."""
        latest: dict[bytes, int] = {}
        superseded: dict[int, int] = {}
        for node in [*self.evicted, *nodes.values()]:
            if node.number < self.next:
                offsets, tags = node.copy().tagged()
                latest.update(item for item in zip(tags, offsets, strict=True) if item[0])
        for node in nodes.values():
            if node.number < self.next:
                offsets, tags = node.copy().tagged()
                lost = sum(1 for offset, tag in zip(offsets, tags, strict=True) if tag and latest[tag] != offset)
                if lost:
                    superseded[node.number] = lost
        assert self.latest == latest
        numbers = [node.number for node in self.evicted] + [self.start]
        assert all(a < b for a, b in pairwise(numbers))
        assert self.superseded == superseded


def compact(messages: Messages, nodes: int = 8, least: int = 1) -> Compacted:
    """Index, rewrite or forget up to so many nodes (rewrite those with `least` messages to lose)."""
    compactor = messages.compactor
    if compactor is None:
        return Compacted([], False)
    rewritten: list[int] = []
    for _ in range(nodes):
        if compactor.next < messages.active.number:
            _index(messages, compactor)
            continue
        if compactor.evicted:
            compactor.forget()
            continue
        number = compactor.candidate(least)
        if number is None:
            return Compacted(rewritten, False)
        _compact_node(messages, compactor, number)
        rewritten.append(number)
    more = compactor.next < messages.active.number or compactor.evicted or compactor.candidate(least) is not None
    return Compacted(rewritten, bool(more))


def upcoming(messages: Messages, nodes: int) -> list[Place]:
    """The nodes in files that the next steps of `compact` will read, so many at most; none if the first reads none."""
    compactor = messages.compactor
    if compactor is None:
        return []
    if compactor.next < messages.active.number:
        held: Iterable[Node] = map(messages.node, range(compactor.next, messages.active.number))
    else:
        held = compactor.evicted or map(messages.node, compactor.superseded)
    return [node.stored for node in takewhile(_is_in_file, islice(held, nodes)) if node.stored is not None]


def _is_in_file(node: Node) -> bool:
    return node.stored is not None and not node.payload


def compact_nodes(messages: Messages, numbers: Iterable[int]) -> None:
    """Rewrite these nodes only, as `compact` did on a stream with the same messages."""
    compactor = messages.compactor
    if compactor is None:
        return
    while compactor.next < messages.active.number:
        _index(messages, compactor)
    for number in numbers:
        if number in compactor.superseded:
            _compact_node(messages, compactor, number)


def index_next(messages: Messages) -> None:
    """Index one node more, if there is one."""
    compactor = messages.compactor
    if compactor is not None and compactor.next < messages.active.number:
        _index(messages, compactor)


def _index(messages: Messages, compactor: Compactor) -> None:
    node = messages.node(compactor.next)
    messages.use(node)
    compactor.index(node)


def _compact_node(messages: Messages, compactor: Compactor, number: int) -> None:
    files = messages.storage.files
    if files is not None and messages.history:
        files.keep_for_replay(messages.history)
    node = messages.nodes[number] if number in messages.nodes else messages.recall(number)
    messages.use(node)
    raw = node.raw
    messages.sealed_rows -= compactor.compact(node, messages.storage.compression)
    messages.sealed_raw += node.raw - raw
    messages.cooling.shrunk(node, raw - node.raw)
