"""The part that both clients share: their options, the delivery settings, the connections they own, the counters.

A connection drives one ConnectionCore: drivers.sync.SyncConnection or drivers.aio.AioConnection. A client has one that
all callers share, and makes others for what must not be shared; those are kept and used again.
"""

from __future__ import annotations

import inspect
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from inspect import Parameter
from typing import Any, Generic, Protocol, Self, TypeVar

from penstock.client.api.pipeline import total
from penstock.client.api.stream_replies import CALLBACKS
from penstock.client.delivery import Counters, Delivery, ReplayFilter, ServerContact, Settings, check_called
from penstock.client.drivers.connecting import SETTINGS, encoding_of, finds_leader, settings_from
from penstock.client.drivers.pool_handoff import Driver, PoolHandoff
from penstock.client.engine.batch import Batch
from penstock.client.engine.connection import ConnectionCore
from penstock.client.errors import ClientClosed, NotSent
from penstock.client.events import Listeners
from penstock.client.tracing.spans import follow_redis_py

OPTIONS = (*SETTINGS, "on_reconnect", "on_replay")
MOST_ASIDE = 16
"""Connections that a client uses at a time so that small commands do not wait for large ones."""
_CONTACT = "_contact"  # what a client gives to those that are made from it, and no other caller


def take_options(kwargs: dict[str, Any], *more: str) -> dict[str, Any]:
    """Take what is ours out of the arguments for redis-py."""
    return {name: kwargs.pop(name) for name in (*OPTIONS, _CONTACT, *more) if name in kwargs}


F = TypeVar("F", bound=Callable[..., None])


def shown_with_arguments_of(theirs: Callable[..., None]) -> Callable[[F], F]:
    """Have help() and completion show redis-py's arguments of a constructor, and ours, instead of `*args, **kwargs`."""

    def show(ours: F) -> F:
        signature = inspect.signature(theirs)
        defaults = {setting.name: setting.default for setting in fields(Settings)}
        own = [Parameter(name, Parameter.KEYWORD_ONLY, default=defaults.get(name)) for name in OPTIONS]
        parameters = [*signature.parameters.values(), *own]
        ours.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return ours

    return show


class AnyConnection(Protocol):
    """The methods of a connection that the body uses."""

    core: ConnectionCore

    def change(self, change: Callable[[ConnectionCore, float], object]) -> None: ...


L = TypeVar("L", bound=AnyConnection)


class ClientBase(ABC, Generic[L]):
    """Mixed into a client of redis-py; `_set_up` after its constructor."""

    connection_pool: Any
    response_callbacks: Any

    _driver: Driver

    @abstractmethod
    def _new_connection(self) -> L:
        """A connection, with its core, of the kind that this client drives."""

    def _set_up(self, options: dict[str, Any], is_shared: bool) -> None:
        follow_redis_py()
        self._is_shared = is_shared
        self._listeners = Listeners(options.pop("on_reconnect", None), options.pop("on_replay", None))
        self._contact = options.pop(_CONTACT, None) or ServerContact()
        self._contact.finds_leader = finds_leader(self.connection_pool)
        self.response_callbacks.update(CALLBACKS)
        self.settings = settings_from(self.connection_pool, options)
        encoding, errors = encoding_of(self.connection_pool)
        self.decoding = None if encoding is None else (encoding, errors)
        # Connections must not refer to the client: it would then be closed at some collection, not when its last user
        # is gone.
        self._make_core = partial(
            ConnectionCore, self.settings, encoding=encoding, encoding_errors=errors, contact=self._contact
        )
        self._handoff = PoolHandoff(self.connection_pool, self._driver, self.settings.health_check_interval)
        # Changed only by append and pop, which need no lock; a lock could be held by another thread at a fork.
        self._own_connections: list[L] = []
        self._idle_connections: list[L] = []
        self._connection: L = self._new_connection()
        self._workers: weakref.WeakSet[Self] = weakref.WeakSet()
        self._before = Counters()  # of connections that were closed, if there are others since

    def _reopen(self) -> None:
        """If this client was closed: let it connect again, as redis-py's do. What was held is finished, and
        stays so.
        """
        if self._connection.core.is_closed:
            self._before, self._own_connections, self._idle_connections = self.counters, [], []
            self._connection = self._new_connection()

    def __reduce__(self) -> Any:
        raise TypeError(
            "a client is a connection, which cannot be pickled or copied; make one from its URL where it is used"
        )

    def client(self) -> Self:
        """A client with the same settings and a connection of its own, on which MULTI and WATCH may be used by hand."""
        return type(self)(**self._options_of_twin())

    def consumer_client(self) -> Self:
        """A client for one worker of a consumer, which is closed with this one. It repeats nothing by itself."""
        if self._connection.core.is_closed:
            raise ClientClosed("the client was closed")
        made = type(self)(**{**self._options_of_twin(), "delivery": Delivery.AT_MOST_ONCE})
        self._workers.add(made)
        return made

    def _options_of_twin(self) -> dict[str, Any]:
        """The arguments for another client like this one, with a connection of its own."""
        return {
            **{name: getattr(self.settings, name) for name in SETTINGS},
            "connection_pool": self.connection_pool,
            "single_connection_client": True,
            "on_reconnect": self._listeners.on_reconnect,
            "on_replay": self._listeners.on_replay,
            _CONTACT: self._contact,
        }

    def for_producer(self, timeout: float) -> Self:
        """The client that a producer sends with: what it has sent, it sends again by itself."""
        own = {
            "delivery": Delivery.AT_MOST_ONCE, "replay_filter": None, "command_timeout": timeout,
            "max_buffered_bytes": 1 << 40, "backoff_base": 0.02, "backoff_cap": 0.5,
        }  # fmt: skip
        return type(self)(**self._options_of_twin() | own)

    @property
    def delivery(self) -> Delivery:
        """The level, which may be changed at any time. To at-most-once while there is no connection cancels what is
        held.
        """
        return self.settings.delivery

    @delivery.setter
    def delivery(self, level: Delivery | str) -> None:
        chosen = Delivery.of(level)
        for connection in self._connections():
            connection.change(lambda core, now: core.set_delivery(chosen, now))

    @property
    def replay_filter(self) -> ReplayFilter | None:
        """True for commands that must not be sent again; they then fail with their state."""
        return self.settings.replay_filter

    @replay_filter.setter
    def replay_filter(self, replay_filter: ReplayFilter | None) -> None:
        check_called("replay_filter", replay_filter)
        for connection in self._connections():
            connection.change(lambda core, now: core.set_replay_filter(replay_filter))

    @property
    def counters(self) -> Counters:
        """The counters of this client, over all its connections."""
        return total((self._before, *(connection.core.counters for connection in self._connections())))

    def _connections(self) -> list[L]:
        return [self._connection, *self._own_connections]

    def steps_aside(self, batch: Batch) -> bool:
        """Whether a batch is to have a connection of its own: it blocks, or it is large, or a large reply is coming in
        on the shared connection. For size alone no more than MOST_ASIDE do, and only while there is a connection: what
        is held during an outage is held within its bounds, and so is a pipeline of many commands. What concerns the
        shared connection stays there: SELECT and the like, and WAIT, which asks about its writes.
        """
        if batch.blocks or not self._is_shared:
            return self._is_shared
        is_bound = bool(batch.notable or batch.patience) or batch.count > MOST_ASIDE
        is_free = len(self._own_connections) - len(self._idle_connections) < MOST_ASIDE
        return is_free and not is_bound and self._connection.core.up

    @contextmanager
    def own_connection(self) -> Iterator[L]:
        """A connection that no other caller uses at the same time, in the state of the shared one."""
        idle = self._idle_connections
        try:
            connection = idle.pop()
        except IndexError:
            most = self.connection_pool.max_connections
            if len(self._own_connections) >= most:
                raise NotSent(
                    f"all {most} connections for blocking commands are in use; raise max_connections"
                ) from None
            connection = self._new_connection()
            self._own_connections.append(connection)
        try:
            connection.change(lambda core, now: core.adopt_session(self._connection.core.session))
            yield connection
        finally:
            idle.append(connection)
