"""What becomes of a node after it was sealed: it is hot, it cools, it is compressed; and what of that may come later.

Appending does the least: the newest nodes are left as they were sealed, and one that cools only drops what can be made
again. Compressing it, and copying a hot node out of the upload it was cut from, may wait, for up to `Storage.backlog` bytes
of a log, until somebody who has time calls `settle`. Why: docs/design/0004-streams.md.

Invariant: nodes before `cooled` were told to cool, those before `packed` are compressed if they are to be; the nodes between
the two that are not compressed have `waiting` bytes; a node that shares an upload is between them, or hot and in `shared`.
"""

from __future__ import annotations

from penstock.types.stream.nodes import Node, Storage


class Cooling:
    """Of the nodes of a log."""

    __slots__ = ("cooled", "packed", "shared", "waiting")

    def __init__(self) -> None:
        self.cooled = 0  # number of the first node that was not told to cool
        self.packed = 0  # number of the first node that was not told to be compressed
        self.waiting = 0  # bytes of the messages that wait for compression
        self.shared: dict[int, Node] = {}  # hot nodes that may share an upload, the oldest first

    @property
    def unsettled(self) -> bool:
        """Whether something was left for later."""
        return bool(self.waiting or self.shared)

    def add(self, node: Node, nodes: dict[int, Node], lowest: int, storage: Storage) -> None:
        """A node was sealed, so an older one cools."""
        if node.source is not None:
            if storage.backlog:
                self.shared[node.number] = node
            else:
                node.own()
        # One node a seal keeps step; a second one catches up after hot_nodes was lowered or the log was loaded.
        self.cooled = max(self.cooled, lowest)
        self.packed = max(self.packed, lowest)
        for number in range(self.cooled, min(self.cooled + 2, node.number + 1 - storage.hot_nodes)):
            nodes[number].rest()
            self.shared.pop(number, None)
            self.waiting += _compressible(nodes[number])
            self.cooled = number + 1
        while self.packed < self.cooled and self.waiting >= storage.backlog:
            self._pack(nodes, storage)

    def settle(self, nodes: dict[int, Node], storage: Storage, before: int) -> bool:
        """Do a piece of what was left for later, the oldest node first, no node from `before` on; whether there is more."""
        if self.packed < min(self.cooled, before):
            self._pack(nodes, storage)
        elif (number := next(iter(self.shared), before)) < before:
            self.shared.pop(number).own()
        return self.packed < min(self.cooled, before) or next(iter(self.shared), before) < before

    def _pack(self, nodes: dict[int, Node], storage: Storage) -> None:
        """Compress the oldest node that waits for it."""
        node = nodes[self.packed]
        self.packed += 1
        self.waiting -= _compressible(node)
        node.freeze(storage.compression)

    def evicted(self, node: Node) -> None:
        """The oldest node is gone."""
        if self.packed <= node.number < self.cooled:
            self.waiting -= _compressible(node)
        self.packed = max(self.packed, node.number + 1)
        self.cooled = max(self.cooled, node.number + 1)
        self.shared.pop(node.number, None)

    def shrunk(self, node: Node, by: int) -> None:
        """A node lost messages of so many bytes."""
        if self.packed <= node.number < self.cooled and not node.compressed:
            self.waiting -= by

    def copy(self, nodes: dict[int, Node]) -> Cooling:
        """The same for copies of the nodes."""
        cooling = Cooling()
        cooling.cooled, cooling.packed, cooling.waiting = self.cooled, self.packed, self.waiting
        cooling.shared = {number: nodes[number] for number in self.shared}
        return cooling

    def check(self, nodes: dict[int, Node], recent: dict[int, Node]) -> None:
        """Assert every invariant; nodes in `recent` may be decoded, however cold."""
        assert self.packed <= self.cooled
        waiting = [node for number, node in nodes.items() if self.packed <= number < self.cooled]
        assert self.waiting == sum(map(_compressible, waiting))
        for number, node in nodes.items():
            if number < self.cooled and number not in recent:
                assert node.wire is None
                assert node.batch is None or not node.compressed
            assert node.source is None or node in waiting or self.shared[number] is node


def _compressible(node: Node) -> int:
    """Bytes that compressing a node would make fewer."""
    return 0 if node.compressed else node.raw
