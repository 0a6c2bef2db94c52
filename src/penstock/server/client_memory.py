"""maxmemory-clients: the memory that all clients together may take, and which of them are closed beyond it.

Nothing is counted while commands run. A client takes much memory only if commands or replies of it wait. The connection
says so where that happens (`notice`), which is not on the way of a client that reads what it asks for; the next turn of
the loop then counts all clients. Ten times a second (`hz`) they are counted in any case: for a long transaction, or for
many small clients. To count ten thousand takes several milliseconds, so a tenth of the time is spent on it at most.

The client that takes the most is closed first, as in Redis, unless it said CLIENT NO-EVICT ON. Replicas do not count:
they have limits of their own (client-output-buffer-limit).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.server.app import App

logger = logging.getLogger("penstock.server")

SHARE = 10
"""After a count, so many times as long as it took is left to clients before the next."""


class ClientMemory:
    """The limit of one App. Owned by the loop thread."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._limit = 0
        self._planned = False
        self._next_count = 0.0  # not before this time of the loop
        for name in ("maxmemory", "maxmemory-clients"):
            app.config.on_change(name, lambda _: self._configure())
        self._configure()

    def _configure(self) -> None:
        config = self._app.config
        wanted = config.maxmemory_clients
        self._limit = wanted if wanted >= 0 else config.maxmemory * -wanted // 100
        self.notice()

    def notice(self) -> None:
        """A client may take much memory: count soon."""
        if self._limit and not self._planned:
            self._planned = True
            self._app.loop.call_at(self._next_count, self._enforce)

    def _enforce(self) -> None:
        """Close clients until the others take no more than allowed."""
        self._planned = False
        started = self._app.loop.time()
        counted = [each for each in self._app.connections if not (each.session.closing or each.session.is_replica)]
        taken = {each: each.session.memory() for each in counted}
        excess = sum(taken.values()) - self._limit
        evictable = [each for each in taken if not each.session.no_evict] if excess > 0 else []
        for connection in sorted(evictable, key=taken.__getitem__, reverse=True):
            if excess <= 0:
                break
            excess -= taken[connection]
            session = connection.session
            logger.warning(
                "closing client %s (id %d): it takes %d bytes, and all clients together more than maxmemory-clients",
                session.peer, session.id, taken[connection],
            )  # fmt: skip
            self._app.engine.stats.evicted_clients += 1
            connection.close(after_reply=False)
        now = self._app.loop.time()
        self._next_count = now + SHARE * (now - started)
