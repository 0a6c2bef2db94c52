"""Which connection reads under which name (TREAD ... CONSUMER), and what happens to its messages when it ends.

With RELEASE, what a name holds is given back when the connection that last read under it ends, as by TNACK, and logged
as one. That is a write: while writes are paused or a thread reads the stream, it waits for the next round of upkeep.

A stream may have got another name since (RENAME, MOVE, SWAPDB). Then it is searched for among those with groups.

Owned by the loop thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.types.stream.groups import Group, merged
from penstock.types.stream.stream import Stream

if TYPE_CHECKING:
    from penstock.engine.dispatch import Engine
    from penstock.engine.keyspace.databases import Database
    from penstock.engine.session import Session

Place = tuple["Database", bytes]
FORGOTTEN = 3_600_000
"""Milliseconds after which a name is forgotten that holds nothing and did not ask."""


class StreamMembers:
    """See the top of this file."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._read: dict[int, dict[Place, None]] = {}  # by connection: where it read under a name with RELEASE
        self._ended: dict[int, dict[Place, None]] = {}  # the same of connections that ended, until all is given back

    def asked(self, session: Session, key: bytes, group: Group, name: bytes, release: bool) -> None:
        """A connection reads under a name. In a script it is no connection, and there is nothing to release."""
        release = release and not session.scripted
        group.members.asked(name, self._engine.streams.lease_time(), session.id, release)
        if release:
            self._read.setdefault(session.id, {})[session.db, key] = None

    def ended(self, session: Session) -> None:
        """A connection ended: give back what it holds under names."""
        places = self._read.pop(session.id, None)
        if places is not None:
            self._ended[session.id] = places
            self.give_back()

    def give_back(self) -> None:
        """Give back what connections held that ended, as far as it is possible now."""
        if not self._ended or self._engine.pause.until:
            return
        for reader, places in list(self._ended.items()):
            for place in self._found(reader, places):
                if place[1] in place[0].locked:
                    break  # a thread may be reading it
                self._give_back(reader, *place)
            else:
                del self._ended[reader]
        if self._engine.keyspace.ready:
            self._engine.blocking.serve()

    def _found(self, reader: int, places: dict[Place, None]) -> list[Place]:
        """Where a connection has names, if a stream is no longer where it was then too."""
        if all(any(self._names(reader, *place)) for place in places):
            return list(places)
        return [place for place in self._engine.streams.noted() if any(self._names(reader, *place))]

    def _names(self, reader: int, database: Database, key: bytes) -> Iterator[tuple[bytes, Group, bytes]]:
        """The groups of a stream and the names in them under which a connection was the last to read."""
        stream = database.get(key)
        if type(stream) is Stream:
            for group_name, group in stream.groups.items():
                for name, member in group.members.by_name.items():
                    if member.reader == reader and member.release:
                        yield group_name, group, name

    def _give_back(self, reader: int, database: Database, key: bytes) -> None:
        engine = self._engine
        engine.lazy.run_for(database, key, to_write=True)
        now = engine.streams.lease_time()
        for group_name, group, name in list(self._names(reader, database, key)):
            member = group.members.by_name[name]
            ranges = merged(member.holds(group.leases))
            member.runs, member.release = [], False
            if ranges:
                group.nack(ranges, now)
                engine.streams.may_end(database, key, now)
                words = [b"%d-%d" % (start, end - 1) for start, end in ranges]
                engine.propagate(database, [[b"TAPPLY", key, b"AT", b"%d" % now, b"TNACK", key, group_name, *words]])
                database.changed(key)

    def stop(self) -> None:
        """The server stops. Its clients go on with what they hold when it is back, so nothing is given back."""
        self._read.clear()
        self._ended.clear()

    def is_waiting(self, reader: int) -> bool:
        """Whether a connection waits for messages."""
        session = self._engine.sessions.get(reader)
        return session is not None and session.waiter is not None
