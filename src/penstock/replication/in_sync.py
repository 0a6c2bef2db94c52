"""The in-sync set of a shard, as its leader keeps it: the nodes that have everything that was acknowledged.

etcd has the set, and only its members are promoted. The law is that a change is acknowledged when *all* members have
it, so any of them may lead next. It follows how the set may change:

- A node joins when it has all that was acknowledged so far. From the moment at which etcd is asked to add it,
  acknowledgements wait for it too.
- A node that is gone, or has been behind for `in-sync-max-lag`, leaves. Acknowledgements wait for it until etcd has
  said that it has left.
- A request to etcd without an answer may have been carried out. Until a later one was answered, acknowledgements wait
  for the nodes of both.
- A node leaves only if `replica-acks` others stay. Otherwise nothing could be acknowledged without it anyway, and it
  may still be the one that leads next.

So what acknowledgements wait for is never less than what etcd may have. `replica-acks 0` waits for no node; then the
set only says which nodes were close.

Owned by the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.replication.link import Link
from penstock.replication.replicas import Replicas

Members = dict[str, str]
"""Names of nodes, with the ids of their logs."""


class InSync:
    """See the top of this file. One is made each time this server begins to lead."""

    def __init__(
        self, replicas: Replicas, node: str, members: Members, wanted: Callable[[], int], lag: Callable[[], float],
        ask: Callable[[Members], None],
    ) -> None:  # fmt: skip
        self._replicas = replicas
        self._node = node
        self._wanted = wanted  # replica-acks
        self._lag = lag  # seconds
        self._ask = ask  # have etcd hold another set; the answer comes to `answered`
        self.members = members  # as etcd has them
        self._asked: Members | None = None  # what etcd was asked to hold, and may hold already
        self._is_asking = False
        self._joining: Members = {}  # have nearly everything, and are waited for
        self._began = replicas.now()
        self._was_there: set[str] = set()  # nodes that were connected since this server leads
        self.confirmed = replicas.end  # what was acknowledged so far, by earlier leaders too, is not beyond this

    # -- what acknowledgements wait for -----------------------------------------------------------------------

    def offset(self) -> int | None:
        """Up to where all that must have the feed have it; None if they are too few, or one is not connected."""
        required = self._required()
        if len({node for node, _ in required}) < self._wanted():
            return None
        links = [self._link(*each) for each in required]
        offsets = [link.acknowledged for link in links if link is not None]
        if len(offsets) < len(links):
            return None
        reached = min(offsets, default=self._replicas.end)
        self.confirmed = max(self.confirmed, reached)
        return reached

    def _required(self) -> set[tuple[str, str]]:
        """All nodes that etcd may have in the set, and those that are about to be in it."""
        every = {*self.members.items(), *(self._asked or {}).items(), *self._joining.items()}
        return {(node, log) for node, log in every if node != self._node}

    def _link(self, node: str, log: str) -> Link | None:
        found = [
            link
            for link in self._replicas.links.values()
            if link.node == node and link.log == log and link.position is not None and not link.session.closing
        ]
        return found[-1] if found else None

    @property
    def others(self) -> Members:
        """Its members but for this server."""
        return {node: log for node, log in self.members.items() if node != self._node}

    @property
    def connected(self) -> int:
        """How many of them follow and are not behind."""
        present = [(node, log) for node, log in self.others.items() if self._link(node, log) is not None]
        return sum(not self._is_late(*each) for each in present)

    @property
    def furthest(self) -> str:
        """The one of them that follows and has most; empty if none follows."""
        links = [link for each in self.others.items() if (link := self._link(*each)) is not None]
        return max(links, key=lambda link: link.acknowledged).node if links else ""

    @property
    def is_past_grace(self) -> bool:
        """Whether nodes have had the time to come since this server leads."""
        return self._replicas.now() - self._began > self._lag()

    # -- who comes and goes -----------------------------------------------------------------------------------

    def look(self) -> None:
        """A node has come, or gone, or time has passed: ask etcd for another set if need be."""
        for node, log in [*self._joining.items()]:
            link = self._link(node, log)
            if link is None or self._is_late(node, log):
                del self._joining[node]
        for link in self._replicas.links.values():
            if link.node and self._link(link.node, link.log) is link:
                self._was_there.add(link.node)
                if self.members.get(link.node) != link.log and self._is_close(link):
                    self._joining[link.node] = link.log
        if self._is_asking:
            return
        late = [node for node, log in self.others.items() if self._is_late(node, log)]
        if len(self.others) - len(late) < self._wanted():
            late = []
        wished = {node: log for node, log in self.members.items() if node not in late}
        for node, log in self._joining.items():
            link = self._link(node, log)
            if link is not None and link.acknowledged >= self.confirmed:
                wished[node] = log
        if wished != self.members or self._asked is not None:
            self._asked = {**(self._asked or {}), **wished}
            self._is_asking = True
            self._ask(wished)

    def answered(self, members: Members | None) -> None:
        """etcd has these for certain; None: it did not answer, and may have what it was asked for."""
        self._is_asking = False
        if members is not None:
            self.members, self._asked = members, None
            self._joining = {node: log for node, log in self._joining.items() if members.get(node) != log}

    def removed(self, nodes: list[str]) -> None:
        """An operator has removed these from the set that etcd holds."""
        self.members = {node: log for node, log in self.members.items() if node not in nodes}

    def _is_close(self, link: Link) -> bool:
        """Whether a node has what there was a moment ago."""
        return link.acknowledged >= link.goal and link.online and self._replicas.now() - link.goal_set <= self._lag()

    def _is_late(self, node: str, log: str) -> bool:
        """Whether the set is better off without a node."""
        link, now = self._link(node, log), self._replicas.now()
        if link is not None:
            return now - link.goal_set > self._lag()
        return node in self._was_there or self.is_past_grace
