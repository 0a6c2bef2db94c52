"""Which connection reads under which name (TREAD ... CONSUMER), and what happens to its messages when it ends.

With RELEASE, what a name holds is given back when the connection that last read under it ends, as by TNACK, and logged
as one. That is a write: while nothing is to change (`Engine.changes_nothing`) or a thread reads the stream, it waits
for the next round of upkeep.

A stream may have got another name since (RENAME, MOVE, SWAPDB). Then it is searched for among those with groups. The
end of a connection costs nothing for names that others have, nor for its own that another connection took over.

Owned by the loop thread.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from penstock.types.stream.groups import Group
from penstock.types.stream.members import Member
from penstock.types.stream.offset_ranges import merged
from penstock.types.stream.stream import Stream

if TYPE_CHECKING:
    from penstock.engine.dispatch import Engine
    from penstock.engine.keyspace.databases import Database
    from penstock.engine.session import Session

Place = tuple["Database", bytes]
Name = tuple["Database", bytes, bytes, bytes]
"""Where a stream was, its group, and the name of a member in it."""
FORGOTTEN = 3_600_000
"""Milliseconds after which a name is forgotten that holds nothing and did not ask."""


class StreamMembers:
    """See the top of this file."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._read: dict[int, dict[Name, Member]] = {}  # by connection: the names under which it read with RELEASE
        self._ended: dict[int, dict[Name, Member]] = {}  # the same of connections that ended, until all is given back

    def asked(self, session: Session, key: bytes, group_name: bytes, group: Group, name: bytes, release: bool) -> None:
        """A connection reads under a name. In a script it is no connection, and there is nothing to release."""
        release = release and not session.scripted
        member = group.members.asked(name, self._engine.streams.lease_time(), session.id, release)
        if release:
            self._read.setdefault(session.id, {})[session.db, key, group_name, name] = member

    def ended(self, session: Session) -> None:
        """A connection ended: give back what it holds under names."""
        names = self._read.pop(session.id, None)
        if names is not None:
            self._ended[session.id] = names
            self.give_back()

    def give_back(self) -> None:
        """Give back what connections held that ended, as far as it is possible now."""
        if not self._ended or self._engine.changes_nothing:
            return
        for reader, names in list(self._ended.items()):
            for name, member in list(names.items()):
                place = self._find(name, member) if member.reader == reader and member.release else None
                if place is not None and place[1] in place[0].locked:
                    continue  # a thread may be reading it
                del names[name]
                if place is not None:
                    self._give_back(*place, name[2], name[3])
            if not names:
                del self._ended[reader]
        if self._engine.keyspace.ready:
            self._engine.blocking.serve()

    def _find(self, name: Name, member: Member) -> Place | None:
        """Where a member's stream is now."""
        places = chain([name[:2]], self._engine.streams.noted())
        return next((place for place in places if _member(*place, *name[2:]) is member), None)

    def _give_back(self, database: Database, key: bytes, group_name: bytes, name: bytes) -> None:
        engine = self._engine
        engine.lazy.run_for(database, key, to_write=True)
        stream = database.get(key)
        member = _member(database, key, group_name, name)
        if type(stream) is not Stream or member is None:
            return
        group, now = stream.groups[group_name], engine.streams.lease_time()
        ranges = merged(member.holds(group.leases))
        member.runs, member.release = [], False
        if ranges:
            group.nack(ranges, now)
            stream.expiries.note(group_name, now)
            words = [b"%d-%d" % (start, end - 1) for start, end in ranges]
            engine.propagate(database, [[b"TAPPLY", key, b"AT", b"%d" % now, b"TNACK", key, group_name, *words]])
            database.changed(key)

    def stop(self) -> None:
        """The server stops, or follows another one: clients go on there, or when it is back, with what they hold."""
        self._read.clear()
        self._ended.clear()

    def is_waiting(self, reader: int) -> bool:
        """Whether a connection waits for messages."""
        session = self._engine.sessions.get(reader)
        return session is not None and session.waiter is not None


def _member(database: Database, key: bytes, group_name: bytes, name: bytes) -> Member | None:
    stream = database.get(key)
    group = stream.groups.get(group_name) if type(stream) is Stream else None
    return group.members.by_name.get(name) if group is not None else None
