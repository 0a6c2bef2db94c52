"""The part that the drivers for threads and for tasks share: the core, its renewal, and fork.

In a child process a connection belongs to the parent, and so does everything on it. Every driven connection of the
process therefore begins again in the child, with a new core, which has an ONCE identity of its own.
"""

from __future__ import annotations

import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from penstock.client.engine.connection import ConnectionCore
from penstock.client.events import Event


class DrivenConnection(ABC):
    """One core, on one connection of redis-py's at a time."""

    def __init__(
        self,
        make_core: Callable[[], ConnectionCore],
        make_redis_connection: Callable[[], Any],
        on_event: Callable[[Event], None],
    ) -> None:
        self._make_core = make_core
        self._make_redis_connection = make_redis_connection
        self._on_event = on_event
        self.core = make_core()
        self._begin()
        _connections.add(self)

    @abstractmethod
    def _begin(self) -> None:
        """Set everything up but the core: there is no connection yet."""

    @abstractmethod
    def _let_go_in_child(self) -> None:
        """Close this process's copy of what is the parent's, without a word to the server."""

    def _tell(self) -> None:
        """Report events. Not while the connection is in use: a listener may use the client."""
        for event in self.core.take_events():
            self._on_event(event)

    def after_fork(self) -> None:
        """In a child: begin again."""
        old = self.core
        self._let_go_in_child()
        self.core = self._make_core()
        self.core.inherit(old)
        self._begin()


_connections: weakref.WeakSet[DrivenConnection] = weakref.WeakSet()


def _after_fork() -> None:
    for connection in list(_connections):
        connection.after_fork()


os.register_at_fork(after_in_child=_after_fork)
