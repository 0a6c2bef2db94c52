"""The connections of a cluster client: which are idle, how many there may be, and the events of lost and new ones.
Threads and asyncio share this part.

Idle connections are in lists whose `pop` and `append` are atomic, so threads share them without a lock. A connection
counts towards max_connections from before it is opened until it is closed or forgotten; one place is always kept for
the connection that calls share (shared_connection.py).
"""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry

from penstock.client.cluster.call_bounds import CallBounds
from penstock.client.cluster.driver_requests import NodeBatch, Outcome, Rules
from penstock.client.cluster.errors import TimeIsUp
from penstock.client.cluster.shared_connection import WAS_CLOSED, closed, out_of_time, outcome_of, reason
from penstock.client.cluster.slot_map import Address
from penstock.client.engine.batch import Batch
from penstock.client.engine.connection import ConnectionCore
from penstock.client.errors import ClientClosed, NotSent
from penstock.client.events import Event, Reconnected

READ_SIZE = 1 << 16
WRITE_SIZE = 1 << 18
"""Bytes that are read from a node, and given to its socket, at once."""
Key = tuple[Address, bool]
"""A node, and whether connections to it were opened to read from a replica."""


def connection_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments for redis-py's client of a node, without its own retries: they are decided here."""
    return {
        **arguments,
        "retry": Retry(NoBackoff(), 0),
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    }


class OwnConnection(Protocol):
    """A connection that a batch has for itself."""

    def whose(self) -> str:
        """Why it cannot be used here: it belongs to another process or event loop. Empty if it can."""

    def is_usable(self) -> bool: ...
    def close(self) -> None: ...


L = TypeVar("L", bound=OwnConnection)


class SharedConnection(Protocol):
    """A connection that all callers share."""

    core: ConnectionCore


S = TypeVar("S", bound=SharedConnection)


@dataclass(slots=True)
class _Outage:
    """A node to which a connection was lost."""

    since: float
    attempts: int = 1


class NodePool(ABC, Generic[L, S]):
    """See the top of this file."""

    def __init__(self, rules: Rules, bounds: CallBounds, make_shared: Callable[..., S]) -> None:
        """`make_shared` makes one of a maker of redis-py's connections and a listener to events."""
        self.rules = rules
        self.bounds = bounds
        self._make_shared = make_shared
        self._shared: dict[Key, S] = {}
        self._idle: dict[Key, list[L]] = {}
        self._open: defaultdict[Address, weakref.WeakSet[Any]] = defaultdict(weakref.WeakSet)
        self._lock = threading.RLock()  # around `_open`, and the making of what is shared
        self.outages: dict[Address, _Outage] = {}
        """Nodes to which a connection was lost, and that have not answered since."""
        self._events: deque[Reconnected] = deque()
        self.is_closed = False

    @abstractmethod
    def make_connection(self, address: Address, from_replica: bool) -> Any:
        """One of redis-py's, not yet open; not by its pool, which counts what it has made and not what there is."""

    # -- how many -----------------------------------------------------------------------------------------------

    def admit(self, address: Address, connection: L) -> bool:
        """Count a connection that is about to be opened; False if there are too many to this node, and none that could
        be closed for it.
        """
        with self._lock:
            connections = self._open[address]
            if len(connections) < self.rules.max_connections - 1 or self._close_idle(address):
                connections.add(connection)
                return True
            return False

    def _close_idle(self, address: Address) -> bool:
        """Close one that was opened for the other kind of use."""
        for from_replica in (False, True):
            connection = self.take_idle((address, from_replica))
            if connection is not None:
                self.dismiss(address, connection)
                return True
        return False

    def every(self) -> list[L]:
        """All connections: open or being opened, idle or in use."""
        with self._lock:
            return [connection for connections in self._open.values() for connection in connections]

    def dismiss(self, address: Address, connection: L) -> None:
        """Close a connection, which does not count any more."""
        with self._lock:
            self._open[address].discard(connection)
        connection.close()

    # -- use ----------------------------------------------------------------------------------------------------

    def at_hand(self, batch: NodeBatch) -> L | None:
        """One that is open: the one of the batch's lane, or an idle one that the node has not closed.

        Raises redis.ConnectionError if the lane's is not ours any more.
        """
        if (lane := batch.lane) is not None and lane.connection is not None:
            held: L = lane.connection
            if not (gone := held.whose()) and lane.address == batch.address:
                return held
            lane.connection = None
            if gone:
                raise redis.ConnectionError(gone)
            self.release(held, lane.address)
        while (idle := self.take_idle((batch.address, batch.from_replica))) is not None:
            if idle.is_usable():
                return idle
            self.lost(batch.address)
            self.dismiss(batch.address, idle)
        return None

    def take_idle(self, key: Key) -> L | None:
        """One that waits, if there is one."""
        try:
            return self._idle[key].pop()
        except (KeyError, IndexError):
            return None

    def give_back(self, batch: NodeBatch, outcome: Outcome, connection: L) -> None:
        """A batch is done with its connection: its lane keeps it, or it is kept for others, or it is closed."""
        if batch.lane is not None:
            batch.lane.connection = connection if outcome.error is None else None
            batch.lane.address = batch.address
        if outcome.error is not None or self.is_closed:
            if not isinstance(outcome.error, TimeIsUp):
                self.lost(batch.address)
            self.dismiss(batch.address, connection)
        elif batch.lane is None:
            self._idle.setdefault((batch.address, batch.from_replica), []).append(connection)

    def release(self, lane_connection: L | None, address: Address | None) -> None:
        """Close a connection that a lane held: what it remembers (WATCH) ends with it."""
        if lane_connection is not None and address is not None:
            self.dismiss(address, lane_connection)

    # -- what is shared -----------------------------------------------------------------------------------------

    def shared(self, address: Address) -> S | None:
        """The connection to a node that all callers share, if there is one."""
        return self._shared.get((address, False))

    def sharing(self, key: Key) -> S:
        """The same; created if there is none."""
        with self._lock:
            if key not in self._shared:
                self._shared[key] = self._make_shared(
                    partial(self.make_connection, *key), partial(self.shared_again, key[0])
                )
            return self._shared[key]

    def refusal(self, until: float) -> Outcome | None:
        """Why nothing can be sent now: the client was closed, or the time of the call is up. None if it can."""
        if self.is_closed:
            return closed()
        return out_of_time() if self.rules.clock() >= until else None

    def refuse(self, made: Batch, error: NotSent) -> None:
        """The core did not take a batch: this client was closed, or another thread has just closed the connection of a
        node that has left.
        """
        made.results = [ClientClosed(WAS_CLOSED) if self.is_closed else NotSent(str(error))] * made.count

    def outcome(self, made: Batch, address: Address, until: float) -> Outcome:
        """The outcome of a batch on a shared connection."""
        outcome = outcome_of(made)
        if outcome.error is not None:
            outcome.error = reason(outcome.error, address, until - self.rules.clock())
        elif address in self.outages:
            self.answers(address)
        return outcome

    # -- events -------------------------------------------------------------------------------------------------

    def lost(self, address: Address) -> None:
        """A connection to a node is gone."""
        if len(self.outages) < MOST_OUTAGES:
            self.outages.setdefault(address, _Outage(self.rules.clock()))

    def not_opened(self, address: Address) -> None:
        """There was an attempt to open a connection to a node."""
        outage = self.outages.get(address)
        if outage is not None:
            outage.attempts += 1

    def answers(self, address: Address) -> None:
        """There is a connection to a node again, be it one that is shared."""
        outage = self.outages.pop(address, None)
        if outage is not None:
            self._events.append(Reconnected(self.rules.clock() - outage.since, outage.attempts, address))

    def shared_again(self, address: Address, event: Event) -> None:
        """The core of a shared connection tells that it has a new one."""
        self.outages.pop(address, None)
        self.bounds.reconnected()
        self.rules.listeners.tell(replace(event, node=address))

    def tell(self) -> None:
        """Tell of what has happened; not in the middle of an exchange, for a listener may use this client."""
        while self._events:
            try:
                event = self._events.popleft()
            except IndexError:  # another thread tells
                return
            self.bounds.reconnected()
            self.rules.listeners.tell(event)

    # -- nodes that have left -----------------------------------------------------------------------------------

    def forget(self, known: Container[Address]) -> None:
        """Close what waits for nodes that are not in the cluster any more: in the long run they would be many."""
        with self._lock:
            for key in [key for key in self._idle if key[0] not in known]:
                while (connection := self.take_idle(key)) is not None:
                    self.dismiss(key[0], connection)
                del self._idle[key]
            for address in [address for address in self._open if address not in known and not self._open[address]]:
                del self._open[address]
            for address in [address for address in self.outages if address not in known]:
                self.outages.pop(address, None)

    def take_departed(self, known: Container[Address]) -> list[S]:
        """Shared connections to nodes that have left the cluster, unused by any call; the caller closes them."""
        departed = [key for key in self._shared if key[0] not in known]
        idle = [key for key in departed if not self._shared[key].core.counters.buffered_commands]
        return [self._shared.pop(key) for key in idle]

    def after_fork(self) -> None:
        """In a child: the connections are the parent's, and are left alone."""
        self._idle, self._lock, self._open = {}, threading.RLock(), defaultdict(weakref.WeakSet)


MOST_OUTAGES = 1024
"""A server that makes up addresses must not fill the memory with them."""
