"""The work of ONCE beside its commands: which client has which connection, forgetting clients, the figures for INFO.

A client that was idle for long is forgotten (once-idle-timeout), and one without a connection soon (once-gone-timeout):
but not before its patience, which it has told (ONCEBEGIN), is over. The time in which the server was down does not
count.

The records are in `keyspace.once_records`, with the data, because they are logged and saved with the data: a snapshot
that had one without the other would run a command twice, or never.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.engine.declarations import Handler
    from penstock.engine.dispatch import Engine
    from penstock.engine.session import Session
    from penstock.types.once_records import ClientRecord, OnceRecords

LOOK_EVERY = 1000
"""Milliseconds between looks for idle clients: a look visits all of them, some with each tick."""
SLICE = 4000
"""Clients that one tick visits, in about a millisecond, or in a few if it forgets them all."""
STOOD_STILL = 10_000
"""Milliseconds without a tick after which the clock was set, or the server was suspended: that time does not count as
idle.
"""
MANY = 64
"""A connection that has served more clients looks which of them are still known, and again at twice as many."""


class Once:
    """Owned by the loop thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._seen = 0  # when the last tick was
        self._looked = 0  # when the last look began
        self._to_visit: list[bytes] = []  # clients that the look under way did not visit yet
        self._leaving: list[tuple[Session, list[bytes], int]] = []  # connections that ended: their clients, and when
        self._records: OnceRecords | None = None  # those at the last tick
        self.handlers: dict[bytes, tuple[Handler, int, int]] = {}  # of commands that came by the inner loop
        self.repeated = 0  # commands answered with a reply that was kept
        self.forgotten = 0  # clients

    def connected(self, session: Session, client: bytes, record: ClientRecord) -> None:
        """A client's command came through a connection which is not that of its last command."""
        record.connection = session
        if len(session.once_clients) >= session.once_room:
            known = self._engine.keyspace.once_records.clients
            session.once_clients = {name for name in session.once_clients if name in known}
            session.once_room = max(MANY, 2 * len(session.once_clients))
        session.once_clients.add(client)

    def disconnected(self, session: Session) -> None:
        if session.once_clients:
            self._leaving.append((session, list(session.once_clients), self._engine.clock.now))
            if len(session.once_clients) <= SLICE:
                self._leave()

    def tick(self) -> None:
        now, config, records = self._engine.clock.now, self._engine.config, self._engine.keyspace.once_records
        if self._engine.loading or self._engine.following:
            return
        if records is not self._records:
            self._loaded(records, now)
        passed = now - self._seen
        if self._seen and not 0 <= passed <= STOOD_STILL:  # the server was suspended, or the clock was set
            records.postpone(passed, now)
        self._seen = now
        self._leave()
        if not self._to_visit and not 0 <= now - self._looked < LOOK_EVERY:
            self._looked, self._to_visit = now, list(records.clients)
        some = self._to_visit[-SLICE:]
        del self._to_visit[-SLICE:]
        self.forgotten += records.forget_idle(now - config.once_idle_timeout, some)
        self.forgotten += records.forget_gone(now, config.once_gone_timeout, some)

    def took_over(self) -> None:
        """This server was a replica until now: the clients have yet to come here."""
        self._records = None

    def _leave(self) -> None:
        """Note for some clients of connections that ended that they have none."""
        left = SLICE
        while self._leaving and left > 0:
            session, clients, when = self._leaving[-1]
            for client in clients[-left:]:
                self._engine.keyspace.once_records.disconnected(client, session, when)
            clients[-left:], left = [], left - len(clients)
            if not clients:
                self._leaving.pop()

    def _loaded(self, records: OnceRecords, now: int) -> None:
        """These records were loaded since the last tick, and do not know the connections."""
        self._records, self._to_visit = records, []
        for session in self._engine.sessions.values():
            for client in session.once_clients & records.clients.keys():
                records.clients[client].connection = session
        records.renew(now)

    def info(self) -> dict[str, int | str]:
        """The fields of INFO once."""
        records = self._engine.keyspace.once_records
        gone, gone_bytes = records.gone()
        return {
            "once_clients": len(records.clients),
            "once_clients_without_connection": gone,
            "once_bytes_without_connection": gone_bytes,
            "once_replies": records.replies,
            "once_bytes": records.bytes,
            "once_repeated": self.repeated,
            "once_forgotten_clients": self.forgotten,
        }
