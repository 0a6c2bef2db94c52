"""Connections that a client has left with its pool, for the next client of that pool.

With redis-py a client costs nothing: programs make one for every request, `Redis(connection_pool=pool)`, and the pool
keeps the connections. Ours have a connection each, so one that does not own its pool leaves it there when it ends: if
it is idle, and its session state is that of a new connection. Otherwise a connection would be opened and closed for
every request, some eight times the work.

They end with `pool.disconnect()`, as the pool's own do. Rejected: making them the pool's own. Those follow redis-py's
rules for retries and time, which ours do not; and there are several kinds of pools.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, NamedTuple, Protocol

from penstock.client.engine.connection import ConnectionCore


def identities_left(connection: Any) -> Sequence[str]:
    """The identities of ONCE that the client before has left with a connection."""
    left: Sequence[str] = connection.__dict__.pop("penstock_identities", ())
    return left


Leave = Callable[[Any, ConnectionCore], bool]
"""`PoolHandoff.leave`."""


class Driver(Protocol):
    """Checks and closes a connection of redis-py's whose socket, or transport, a driver has used."""

    @staticmethod
    def is_usable(connection: Any) -> bool:
        """Whether an idle connection is still open."""

    @staticmethod
    def discard(connection: Any) -> None:
        """Close it."""


class _LeftConnection(NamedTuple):
    connection: Any
    since: float
    process: int


class PoolHandoff:
    """The connections that a pool keeps for us. Only appended to and popped from, which needs no lock."""

    def __init__(self, pool: Any, driver: Driver, interval: float) -> None:
        self._pool = pool
        self._left: list[_LeftConnection] = pool.__dict__.setdefault("_penstock_left", [])
        self._driver = driver
        self._interval = interval
        """Seconds after which one would have to be asked whether it still lives; a new one is as good."""

    def leave(self, connection: Any, core: ConnectionCore) -> bool:
        """Keep an open connection; False if it is not as new, or there is no room for it.

        Its identities of ONCE are ended by its next client. A command from here would get a reply that the next client
        takes for its own.
        """
        pool = self._pool
        if not core.is_idle or core.session.is_changed:
            return False
        connection.penstock_identities = core.exactly_once.finished_identities()
        if len(self._left) >= pool.max_connections or _is_asked_before(pool):
            return False
        if "disconnect" not in pool.__dict__:
            pool.disconnect = self._disconnect
        self._left.append(_LeftConnection(connection, monotonic(), os.getpid()))
        return True

    def take(self) -> Any:
        """The one that was left last, if it can be used; else None."""
        while (left := self._pop()) is not None:
            if monotonic() - left.since < self._interval and self._driver.is_usable(left.connection):
                return left.connection
            self._driver.discard(left.connection)
        return None

    def _disconnect(self, *args: Any, **options: Any) -> Any:
        """For the pool's own, which it calls: a coroutine, if that is one."""
        while (left := self._pop()) is not None:
            self._driver.discard(left.connection)
        return type(self._pool).disconnect(self._pool, *args, **options)

    def _pop(self) -> _LeftConnection | None:
        while self._left:
            try:
                left = self._left.pop()
            except IndexError:  # another thread was quicker
                break
            if left.process == os.getpid():
                return left
            _of_parents.append(left.connection)
        return None


_of_parents: list[Any] = []
"""In a child: what is the parent's to close."""


def _is_asked_before(pool: Any) -> bool:
    """Whether the server is looked for before every connection: the leader of a shard, or what Sentinel names."""
    return "shard" in pool.connection_kwargs or "connection_pool" in pool.connection_kwargs
