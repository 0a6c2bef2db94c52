"""What streams need between commands: waking readers when a retry falls due, giving up on what expired, retention.

Commands call `note` for a stream that may need any of it; everything else follows from the stream itself, so a key
that is renamed, copied or restored is taken care of again from the next command that touches it. What happens here is
logged like a command, by its effect.

Owned by the loop thread.
"""

from __future__ import annotations

import base64
import json
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING

from penstock.engine.spec import Argv
from penstock.types.stream.groups import Change, Lease
from penstock.types.stream.log import STORAGE
from penstock.types.stream.stream import Stream

if TYPE_CHECKING:
    from penstock.engine.dispatch import Engine
    from penstock.engine.keyspace import Database

Place = tuple["Database", bytes]

SLICE = 1_000_000
"""Nanoseconds that a tick works before it lets clients have their turn."""


class Streams:
    """See the top of this file."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._noted: dict[Place, None] = {}  # streams with groups, stages or retention
        self.replaying = False  # an effect is being applied; what was evicted with it is an effect of its own
        self._timers: dict[Place, tuple[int, object]] = {}  # when the readers of a stream are to be woken
        for name, attribute in (("stream-compression", "compression"), ("stream-hot-nodes", "hot_nodes")):
            setattr(STORAGE, attribute, engine.config[name])
            engine.config.on_change(name, partial(setattr, STORAGE, attribute))

    def note(self, database: Database, key: bytes, stream: Stream) -> None:
        """This stream may need something later."""
        if stream.groups or stream.stages.by_token or stream.retention.age_ms or stream.retention.compact:
            self._noted[database, key] = None

    def find_all(self) -> None:
        """Note every stream there is: after loading.

        A replay does not compact. What is superseded goes now, or a limit of bytes would find the stream too large
        and evict what compaction is to keep.
        """
        for database in self._engine.keyspace.databases:
            for key, value in database.data.items():
                if type(value) is Stream:
                    self.note(database, key, value)
                    while value.log.compact():
                        pass

    def wake_at(self, database: Database, key: bytes, when: int) -> None:
        """Run those blocked on a stream again at a time, unless something wakes them before."""
        place = (database, key)
        planned = self._timers.get(place)
        if planned is not None:
            if planned[0] <= when:
                return
            self._engine.timers.cancel(planned[1])
        delay = max(when - self._engine.clock.now, 0) / 1000
        self._timers[place] = (when, self._engine.timers.call_later(delay, lambda: self._wake(place)))

    def _wake(self, place: Place) -> None:
        self._timers.pop(place, None)
        database, key = place
        self._engine.clock.refresh()
        if key in database.observed:
            self._engine.keyspace.ready.append(place)
            self._engine.blocking.serve()

    def tick(self) -> None:
        """Many times a second: expire leases and stages, enforce age and compaction, for a slice of time.

        Streams take turns, so that thousands of them hold nobody up, and each has its turn.
        """
        until = perf_counter_ns() + SLICE
        for database, key in list(self._noted):
            del self._noted[database, key]
            self._engine.lazy.settle(database, key, to_write=True)
            stream = database.get(key)
            if type(stream) is Stream:
                self._expire_leases(database, key, stream)
                self._expire_stages(database, key, stream)
                self.enforce_retention(database, key, stream)
                self.note(database, key, stream)  # at the end of the line, if there may be more
            if perf_counter_ns() >= until:
                break
        if self._engine.keyspace.ready:
            self._engine.blocking.serve()

    def _expire_leases(self, database: Database, key: bytes, stream: Stream) -> None:
        for name, group in stream.groups.items():
            expired, change = group.expire(self._engine.clock.now)
            if change is not None:
                self._engine.propagate(database, self.settle(database, key, name, stream, change, expired))

    def _expire_stages(self, database: Database, key: bytes, stream: Stream) -> None:
        before = self._engine.clock.now - self._engine.config.stream_stage_timeout
        if stream.stages.expire(before):
            database.changed(key)
            self._engine.propagate(database, [[b"TAPPLY", key, b"UNSTAGE", b"%d" % before]])

    def enforce_retention(self, database: Database, key: bytes, stream: Stream) -> None:
        """Evict what is too old and compact a slice."""
        first = stream.log.first
        stream.enforce_retention(self._engine.clock.now)
        if stream.log.first != first:
            database.changed(key)
            self._engine.propagate(database, [[b"TEVICT", key, b"%d" % (stream.log.first - 1)]])

    def settle(
        self, database: Database, key: bytes, name: bytes, stream: Stream, change: Change, expired: list[Lease]
    ) -> list[Argv]:
        """A group changed: write the dead letters of what expired; the commands to log for all of it."""
        effects: list[Argv] = []
        if self._engine.log is not None:
            effects.append([b"TAPPLY", key, b"GROUP", name, change.encode()])
        for lease in expired:
            if lease.dead_letter is not None:
                effects += self._dead_letter(database, key, name, stream, lease)
        ready = self._engine.keyspace.ready
        before = len(ready)
        database.changed(key)
        if not change.removed:
            del ready[before:]  # a delivery leaves less for those who wait; only what is dropped makes room for them
        return effects

    def _dead_letter(self, database: Database, key: bytes, name: bytes, stream: Stream, lease: Lease) -> list[Argv]:
        """Append the expired messages to the lease's dead letter stream; the commands that say so."""
        target = lease.dead_letter
        assert target is not None
        self._engine.lazy.settle(database, target, to_write=True)
        if type(database.get(target)) not in (Stream, type(None)):
            return []  # somebody put another type there; the pending entry goes all the same
        now = self._engine.clock.now
        effects: list[Argv] = []
        for message in stream.log.messages(lease.start, lease.end - lease.start):
            if message.offset >= lease.end:
                break
            letter = _letter(key, name, message.offset, lease.attempts, message.entry)
            database.obtain(target, Stream).log.append(now, message.tag, letter)
            effects.append([b"TAPPLY", target, b"AT", b"%d" % now, b"TWRITE", target, message.tag, letter])
        if effects:
            letters = database.obtain(target, Stream)
            first = letters.log.first
            letters.log.apply_retention(letters.retention, now)
            if letters.log.first != first:
                effects.append([b"TEVICT", target, b"%d" % (letters.log.first - 1)])
            database.changed(target)
        return effects


def _letter(key: bytes, group: bytes, offset: int, attempts: int, entry: bytes) -> bytes:
    """A dead letter's entry: JSON that names where it came from; an entry that is not UTF-8 goes as base64."""
    fields: dict[str, object] = {
        "stream": key.decode("utf-8", "backslashreplace"),
        "group": group.decode("utf-8", "backslashreplace"),
        "offset": offset,
        "attempts": attempts,
    }
    try:
        fields["entry"] = entry.decode()
    except UnicodeDecodeError:
        fields["entry_base64"] = base64.b64encode(entry).decode()
    return json.dumps(fields, ensure_ascii=False).encode()
