"""Limits how often nodes are asked for the topology: once for all callers, and then not again for a while.

A storm of MOVED or a dead node makes every thread want a new map at the same moment (redis-py#4074). Here the thread
that comes while one is asked for waits for that answer, and a map that is younger than `refresh_interval`, or newer
than the one that proved wrong, is answered without asking.
"""

from __future__ import annotations

import math
import random
from collections.abc import Generator, Iterable, Mapping
from typing import Any

from redis.exceptions import AuthenticationError, AuthorizationError

from penstock.client.cluster.driver_requests import DriverRequest, Exchange, NodeBatch, Outcome, Rules
from penstock.client.cluster.errors import NoTopology
from penstock.client.cluster.routing import CommandTable
from penstock.client.cluster.slot_map import Address, SlotMap, parse_slots, shown
from penstock.client.delivery import State
from penstock.client.errors import ClientClosed, NotSent, NotSentInTime, stated
from penstock.protocol.resp import pack

_SLOTS = pack(b"CLUSTER", b"SLOTS")
_COMMAND = pack(b"COMMAND")


class Topology:
    """The newest snapshot, and the server's table of commands. The driver holds a lock around `refresh` and `learn`."""

    def __init__(self, startup: Iterable[Address], rules: Rules) -> None:
        self.startup = tuple(startup)
        self.map = SlotMap()
        self.table: CommandTable | None = None
        self._rules = rules
        self._asked_at = float("-inf")
        self.refreshes = 0
        """How often it was asked for."""

    def is_fresh(self, suspect: SlotMap | None) -> bool:
        """Whether the map need not be asked for: it is newer than the suspect, or was asked for a moment ago."""
        if self.table is None:
            return False
        if suspect is None or suspect.epoch < self.map.epoch:
            return True
        return self._rules.clock() - self._asked_at < self._rules.refresh_interval

    @property
    def addresses(self) -> set[Address]:
        """Every node that is known of."""
        return {*self.map.nodes, *self.startup}

    def learn(self, moves: Mapping[int, Address]) -> None:
        """Apply a MOVED: it is newer than any other knowledge about its slots."""
        if any(self.map.owners[slot] != address for slot, address in moves.items()):
            self.map = self.map.with_moves(moves)

    def refresh(self, moves: Mapping[int, Address], until: float = math.inf) -> Generator[DriverRequest, Any, SlotMap]:
        """Ask one node after the other until one knows: those that MOVED named first, they know of their slots best."""
        if self.table is not None and self._rules.clock() >= until:
            self.learn(moves)
            return self.map
        self._asked_at = self._rules.clock()
        self.refreshes += 1
        known = list(self.map.masters)
        random.shuffle(known)
        reasons: list[str] = []
        refusals: list[Exception] = []
        for address in dict.fromkeys((*moves.values(), *known, *self.map.nodes, *self.startup)):
            if self._rules.clock() >= until:
                break
            pieces = [_SLOTS] if self.table is not None else [_SLOTS, _COMMAND]
            outcomes: list[Outcome] = yield Exchange([NodeBatch(address, pieces, [-1] * len(pieces))], until=until)
            try:
                self._take(outcomes[0], address)
            except ClientClosed:
                if self.table is None:
                    raise
                return self.map
            except Exception as error:
                reasons.append(f"{shown(address)}: {error}")
                if isinstance(error, AuthenticationError | AuthorizationError):
                    refusals.append(error)
                continue
            self.learn(moves)
            self._asked_at = self._rules.clock()
            return self.map
        if self.table is not None:  # a map that may be old is better than none: the nodes will say MOVED
            self.learn(moves)
            return self.map
        if refusals and len(refusals) == len(
            reasons
        ):  # the nodes refuse us: another matter than nodes that do not answer
            refusals[0].args = ("; ".join(reasons),)
            raise stated(refusals[0], State.QUEUED)
        raise self.unknown("; ".join(reasons), until)

    def unknown(self, reasons: str, until: float) -> NotSent:
        """The error of a call that came before the topology was known."""
        if self._rules.clock() >= until:
            return NotSentInTime(
                f"no node said which node owns which slot, and {self._rules.late()}"
                + (f" ({reasons})" if reasons else "")
            )
        return NoTopology(f"no node says which node owns which slot: {reasons}")

    def _take(self, outcome: Outcome, address: Address) -> None:
        if outcome.error is not None:
            raise outcome.error
        for reply in outcome.replies:
            if isinstance(reply, Exception):
                raise reply
        new = parse_slots(outcome.replies[0], address, self._rules.address_remap, self.map.epoch + 1)
        if not new.masters:
            raise NoTopology("it knows of no master")
        if self.table is None:
            self.table = CommandTable.parse(outcome.replies[1])
        self.map = new
