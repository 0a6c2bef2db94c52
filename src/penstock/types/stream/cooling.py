"""The life of a sealed node: it is hot, it cools, it is compressed; and the work for that which can be deferred.

Appending does the least: the newest nodes are left as they were sealed, and a node that cools only drops what can be
made again. Compressing it, and copying a hot node out of the upload it was cut from, can be deferred for up to
`Storage.backlog` bytes of a stream, until the server has time for `do_deferred` or gives a `Packing` to another thread.
The reasons are in docs/design/0004-streams.md.

A thread gets buffers that never change, and returns bytes; only the loop's thread uses nodes. While a thread compresses
a node, it can be read, dumped and copied as before. Evicting or rewriting it removes it from `away`, and the thread's
result for it is dropped.

Invariant: nodes before `cooled` were told to cool. Nodes before `packed` are compressed if they are to be, or are
`away` in a Packing. The nodes between the two that are not compressed, and those away, have `waiting` bytes. A node
that shares an upload is one of these, or is hot and in `shared`.
"""

from __future__ import annotations

from typing import Any

from penstock.types.stream.nodes import NODE, Node, Source, Storage, compressed, cut

ALL = 1 << 62  # more than any number of a node, or of bytes
AT_ONCE = 32
"""Nodes that a thread compresses in one call, after which it needs the interpreter for a tenth of a millisecond."""
AT_ONCE_BYTES = 1 << 20
"""Bytes of messages after which no more nodes join a call: it makes a copy of all that it has compressed."""


class Packing:
    """Some nodes for a thread to compress. The loop makes it, and takes it back after `run`."""

    __slots__ = ("_call_bytes", "_calls", "_compression", "is_over", "numbers", "payloads", "raw", "room")

    def __init__(self, compression: str, room: int) -> None:
        self._compression = compression
        self._calls: list[list[_Run | Any]] = []  # runs of nodes in uploads, or batches
        self._call_bytes: list[int] = []  # of the messages of each
        self.room = room  # bytes of payloads after which it ends, with as many nodes as are done by then
        self.is_over = False  # it has run, and nothing failed
        self.raw = 0  # bytes of their messages
        self.numbers: list[int] = []
        self.payloads: list[bytes] = []  # of those that are done so far

    def add(self, node: Node) -> None:
        if not len(self.numbers) % AT_ONCE or self._call_bytes[-1] >= AT_ONCE_BYTES:
            self._calls.append([])
            self._call_bytes.append(0)
        self._call_bytes[-1] += node.raw
        self.raw += node.raw
        self.numbers.append(node.number)
        call = self._calls[-1]
        if node.source is None:
            call.append(node.opened())
        elif not (call and type(call[-1]) is _Run and call[-1].goes_on_with(node.source)):
            call.append(_Run(node.source))

    def run(self) -> None:
        """Compress them, in any thread: one call at least, and then as long as the next one cannot need more than is
        left of the room.
        """
        made = 0
        for call, size in zip(self._calls, self._call_bytes, strict=True):
            if made and made + size > self.room:
                break
            batches = [cut(form.source, form.nodes) if type(form) is _Run else form for form in call]
            payloads = compressed(batches, self._compression)
            made += sum(map(len, payloads))
            self.payloads += payloads
        self.is_over = True

    @property
    def most(self) -> int:
        """Bytes of payloads that it makes at most."""
        return min(self.raw, max([self.room, *self._call_bytes[:1]]))

    def stop(self) -> None:
        """Have a thread that runs this end after the call that it is in."""
        self.room = 0

    def clear(self) -> None:
        """The nodes have what they need: let go of it here, because they may be in a file the next moment."""
        self._calls, self._call_bytes, self.numbers, self.payloads, self.raw = [], [], [], [], 0


class _Run:
    """Neighbouring nodes of an upload that are cut from it together, because every cut takes time on the loop."""

    __slots__ = ("nodes", "source")

    def __init__(self, source: Source) -> None:
        self.source = source  # of the first
        self.nodes = 1

    def goes_on_with(self, source: Source) -> bool:
        """Add the next node, if it follows."""
        batch, row, now = self.source
        follows = source[0] is batch and source[1:] == (row + NODE * self.nodes, now)
        self.nodes += follows
        return follows


class Cooling:
    """How far the nodes of a stream have cooled, and the work that was deferred."""

    __slots__ = ("_nodes", "away", "cooled", "packed", "shared", "storage", "waiting")

    def __init__(self, nodes: dict[int, Node], storage: Storage) -> None:
        self._nodes = nodes  # of the stream, by number: not a copy
        self.storage = storage
        self.cooled = 0  # number of the first node that was not told to cool
        self.packed = 0  # number of the first node that was not told to be compressed
        self.away: dict[int, Packing] = {}  # nodes before it that are being compressed
        self.waiting = 0  # bytes of the messages that wait for compression
        self.shared: dict[int, Node] = {}  # hot nodes that may share an upload, the oldest first

    @property
    def has_deferred(self) -> bool:
        """Whether work was deferred."""
        return bool(self.waiting or self.shared or self.packed < self.cooled)

    def add(self, added: range, lowest: int) -> None:
        """The nodes of these numbers were sealed, so as many older ones cool."""
        nodes, storage = self._nodes, self.storage
        for number in added:
            node = nodes[number]
            if node.source is not None:
                if storage.backlog:
                    self.shared[number] = node
                else:
                    node.own()
        self.cooled = max(self.cooled, lowest)
        self.packed = max(self.packed, lowest)
        # One node for each seal keeps up; a second one catches up after hot_nodes was lowered.
        self._cool(min(self.cooled + 2 * len(added), added.stop - storage.hot_nodes))
        if self.packed < self.cooled and self.waiting >= storage.backlog:
            self._relieve()

    def _relieve(self) -> None:
        """Compress the oldest nodes until fewer than the allowed bytes wait, or all that wait are away."""
        storage = self.storage
        packing = self.pack(self.waiting + 1 - storage.backlog, self.cooled)
        if packing is not None:
            try:
                packing.run()
            finally:
                self.unpack(packing)
        while self.packed < self.cooled and self.waiting >= storage.backlog:  # they are not to be compressed
            self._pack()

    def loaded(self, end: int) -> None:
        """The nodes before a number were loaded: those that are old enough are cold, compressed or not."""
        self.cooled = self.packed = min(self._nodes, default=end)
        self._cool(end - self.storage.hot_nodes)

    def hot_from(self, end: int) -> int:
        """The nodes in memory from this number on are hot, of those before `end`."""
        hot_from = end - self.storage.hot_nodes
        return hot_from if hot_from > self.cooled else self.cooled  # every read asks, and max() takes longer

    def cool_all(self, end: int) -> None:
        """Memory is short: the nodes up to a number cool, however new they are."""
        self._cool(end)

    def _cool(self, end: int) -> None:
        """Tell the nodes up to a number to cool."""
        nodes = self._nodes
        for number in range(self.cooled, end):
            node = nodes.get(number)
            if node is not None:  # else it is in a file
                node.rest()
                self.waiting += _compressible(node)
            self.shared.pop(number, None)
            self.cooled = number + 1

    def do_deferred(self, before: int = ALL) -> bool:
        """Do a piece of the deferred work, the oldest node first, no node from `before` on.

        Answers whether there is more to do here.
        """
        if self.packed < min(self.cooled, before):
            self._pack()
        elif (number := next(iter(self.shared), before)) < before:
            self.shared.pop(number).own()
        return self.packed < min(self.cooled, before) or next(iter(self.shared), before) < before

    def _pack(self) -> None:
        """Compress the oldest node that waits for it."""
        node = self._nodes.get(self.packed)
        self.packed += 1
        if node is not None:
            waiting = _compressible(node)
            self.waiting -= waiting
            node.freeze(self.storage.compression)
            if waiting:
                self._tell(waiting - len(node.payload))

    def pack(self, size: int, before: int = ALL, room: int = ALL) -> Packing | None:
        """The oldest waiting nodes, about so many bytes, none from `before` on, for another thread to `run`, which ends
        when it has made about `room` bytes of them.

        None if there are none.
        """
        nodes, compression = self._nodes, self.storage.compression
        if compression == "none":
            return None
        packing = Packing(compression, room)
        while self.packed < min(self.cooled, before) and size > 0:
            node = nodes.get(self.packed)
            if node is None or node.large or not node.count:  # not like the others
                self._pack()
                continue
            self.packed += 1
            if not node.compressed:
                packing.add(node)
                self.away[node.number] = packing
                size -= node.raw
        return packing if packing.numbers else None

    def unpack(self, packing: Packing) -> bool:
        """Take over what a thread has compressed; the other nodes wait again. False if it failed, or has not run."""
        nodes, saved = self._nodes, 0
        for number, payload in zip(packing.numbers, packing.payloads, strict=False):
            if self.away.get(number) is packing:
                del self.away[number]
                node = nodes[number]
                self.waiting -= node.raw
                saved += node.raw - len(payload)
                node.take_compressed(payload)
        self._tell(saved)
        if len(packing.payloads) < len(packing.numbers):
            self.recall()
        packing.clear()
        return packing.is_over

    def _tell(self, saved: int) -> None:
        if self.storage.files is not None:
            self.storage.files.compressed(saved)

    def recall(self) -> None:
        """Let the nodes that are away wait here again; a thread's result for them will be dropped."""
        self.packed = min(self.away, default=self.packed)
        self.away.clear()

    def evicted(self, node: Node) -> None:
        """The oldest node was evicted."""
        self.gone(node)
        self.passed(node.number + 1)

    def gone(self, node: Node) -> None:
        """A node is no longer in memory."""
        if self.packed <= node.number < self.cooled or self.away.pop(node.number, None) is not None:
            self.waiting -= _compressible(node)
        self.shared.pop(node.number, None)

    def came(self, node: Node) -> None:
        """A node is in memory again."""
        if self.packed <= node.number < self.cooled:
            self.waiting += _compressible(node)

    def passed(self, number: int) -> None:
        """There is no node before a number any more."""
        self.packed = max(self.packed, number)
        self.cooled = max(self.cooled, number)

    def shrunk(self, node: Node, by: int) -> None:
        """A node lost messages of so many bytes."""
        if node.number in self.away:
            self.recall()
        if self.packed <= node.number < self.cooled and not node.compressed:
            self.waiting -= by

    def copy(self, nodes: dict[int, Node]) -> Cooling:
        """The same for copies of the nodes."""
        cooling = Cooling(nodes, self.storage)
        cooling.cooled, cooling.waiting = self.cooled, self.waiting
        cooling.packed = min(self.away, default=self.packed)  # a thread's result does not reach a copy
        cooling.shared = {number: nodes[number] for number in self.shared}
        return cooling

    def check(self, recent: dict[int, Node]) -> None:
        """Assert every invariant; nodes in `recent` may be decoded, however cold."""
        nodes = self._nodes
        assert self.packed <= self.cooled
        assert all(number < self.packed and not nodes[number].compressed for number in self.away)
        waiting = [node for number, node in nodes.items() if self.packed <= number < self.cooled or number in self.away]
        assert self.waiting == sum(map(_compressible, waiting))
        for number, node in nodes.items():
            if number < self.cooled and number not in recent:
                assert node.encoded is None
                assert node.batch is None or not node.compressed
            assert node.source is None or node in waiting or self.shared[number] is node


def _compressible(node: Node) -> int:
    """Bytes that compressing a node would save."""
    return 0 if node.compressed else node.raw
