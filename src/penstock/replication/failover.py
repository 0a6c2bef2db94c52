"""FAILOVER: a leader hands over to a replica that has everything, and follows it.

Writes are held back (engine/pause.py) until a replica has the whole log. Then this server asks that replica for the
feed, with the word FAILOVER: the replica leads from then on. If it refuses, this server goes on leading. If it cannot
be reached, it is asked again and again: it may lead already, and two leaders would be worse than none. FAILOVER ABORT,
or REPLICAOF NO ONE, ends that. Clients whose writes were held back get READONLY afterwards, and go to the new leader.

Owned by the loop thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum

from penstock.engine.dispatch import Engine
from penstock.engine.pause import Purpose
from penstock.protocol.errors import ReplyError
from penstock.replication.link import Link
from penstock.replication.replicas import Replicas
from penstock.storage.notice_logging import notice

LONG = 1 << 31
"""Milliseconds: longer than a failover takes."""


class Step(Enum):
    """How far it is, in Redis's words."""

    NONE = "no-failover"
    WAITING = "waiting-for-sync"
    ASKED = "failover-in-progress"


class Failover:
    """See the top of this file."""

    def __init__(
        self, engine: Engine, replicas: Replicas, hand_over: Callable[[str, int, str], None], lead: Callable[[], None]
    ) -> None:
        self._engine = engine
        self._replicas = replicas
        self.hand_over = hand_over  # let a server lead and follow it; REPLICAOF's way, or the shard's
        self.take_back = lead
        self.is_eligible: Callable[[Link], bool] = lambda link: True
        self.step = Step.NONE
        self._target: tuple[str, int] | None = None
        self._until: float | None = None
        self._force = False

    def start(self, target: tuple[str, int] | None, timeout: int, force: bool) -> None:
        """Begin; `tick` goes on with it. ReplyError if it is not possible."""
        if self.step is not Step.NONE:
            raise ReplyError("FAILOVER already in progress.")
        if self._engine.following:
            raise ReplyError("FAILOVER is not valid when server is a replica.")
        if not any(link.position is not None for link in self._replicas.links.values()):
            raise ReplyError("FAILOVER requires connected replicas.")
        if force and (target is None or not timeout):
            raise ReplyError("FAILOVER with force option requires both a timeout and target HOST and IP.")
        if target is not None and self._link_to(target) is None:
            raise ReplyError("FAILOVER target HOST and PORT is not a replica.")
        self._target, self._force = target, force
        self._until = time.monotonic() + timeout / 1000 if timeout else None
        self.step = Step.WAITING
        self._engine.pause.start(Purpose.FAILOVER, LONG, everything=False)
        notice("handing over to a replica: waiting until it has everything", of="replication")
        self.tick()

    def refuse_orders(self) -> None:
        """Let no REPLICAOF change roles before this is over."""
        if self.step is not Step.NONE:
            raise ReplyError("REPLICAOF not allowed while failing over.")

    def abort(self) -> None:
        """FAILOVER ABORT: go on leading."""
        if self.step is Step.NONE:
            raise ReplyError("No failover in progress.")
        if self.step is Step.ASKED:
            self.take_back()
        self.ended("it was aborted")

    def tick(self) -> None:
        """Many times a second, and whenever a replica has more than before."""
        if self.step is not Step.WAITING:
            return
        link = self._ready()
        if link is not None:
            self._ask(link.address, "FAILOVER")
        elif self._until is not None and time.monotonic() > self._until:
            if self._force and self._target is not None:
                self._ask(self._target, "FORCE")
            else:
                self.ended("no replica had everything in time")
        else:
            self._replicas.ask_all()

    def _ready(self) -> Link | None:
        writer = self._replicas.aof.writer
        if writer is None or not writer.has_all:
            return None
        links = [link for link in self._replicas.links.values() if link.acknowledged == self._replicas.end]
        links = [link for link in links if self.is_eligible(link)]
        chosen = [link for link in links if self._target is None or link.address == self._target]
        return chosen[0] if chosen else None

    def _link_to(self, address: tuple[str, int]) -> Link | None:
        links = [
            link for link in self._replicas.links.values() if link.position is not None and link.address == address
        ]
        return links[0] if links else None

    def _ask(self, address: tuple[str, int], order: str) -> None:
        self.step = Step.ASKED
        notice("handing over to %s:%d", *address, of="replication")
        try:
            self.hand_over(*address, order)
        except ReplyError as error:  # the disk refuses the end of the log
            self.ended(str(error))

    def ended(self, problem: str | None) -> None:
        """The replica leads now, or why it does not."""
        if self.step is Step.NONE:
            return
        self.step = Step.NONE
        if problem:
            notice("handing over failed: %s", problem, of="replication")
        else:
            notice("handed over", of="replication")
        self._engine.pause.end(Purpose.FAILOVER)
