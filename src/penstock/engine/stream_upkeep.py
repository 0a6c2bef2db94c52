"""The periodic work for streams: waking readers when a retry falls due, expiring messages, retention.

Commands call `note` for a stream that may need any of it, also those that put a stream under another name (RENAME,
COPY, RESTORE, MOVE, SWAPDB); everything else follows from the stream itself. Changes made here are logged like a
command, by their effect.

Owned by the loop thread.
"""

from __future__ import annotations

import logging
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import islice
from time import perf_counter_ns
from typing import TYPE_CHECKING

from penstock.engine.cold_compaction import ColdCompaction
from penstock.engine.cold_letters import ColdLetters
from penstock.engine.declarations import Argv
from penstock.engine.lease_grace import LeaseGrace
from penstock.engine.stream_members import FORGOTTEN, Place
from penstock.protocol.dead_letters import Letter, name_in_text
from penstock.protocol.errors import ReplyError
from penstock.types.stream.changes import Change
from penstock.types.stream.groups import Group
from penstock.types.stream.lease_chunk import Lease
from penstock.types.stream.messages import MOST, Messages
from penstock.types.stream.nodes import NODE
from penstock.types.stream.reading import Message, each
from penstock.types.stream.retention import apply_retention
from penstock.types.stream.segments import MissingHistory
from penstock.types.stream.stream import Stream

if TYPE_CHECKING:
    from penstock.engine.dispatch import Engine
    from penstock.engine.keyspace.databases import Database

logger = logging.getLogger("penstock.engine")

TaggedEntry = tuple[bytes, bytes]

PAUSED = 100
"""Milliseconds after which the waking of readers is tried again during CLIENT PAUSE."""
LOOK_FOR_MEMBERS = 60_000
"""Milliseconds between looks for members that may be forgotten."""
LOOKED_THROUGH = 1000
"""Groups that a tick looks through for such members."""
SLICE = 1_000_000
"""Nanoseconds that a tick works before other clients are served."""
PAUSE = 0.010
"""Seconds before it goes on with what was too much for one tick."""


class Streams:
    """See the top of this file."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._noted: OrderedDict[Place, None] = OrderedDict()  # streams with groups, stages or retention
        self.replaying = False  # an effect is being applied; what was evicted with it is an effect of its own
        self._timers: dict[Place, tuple[int, object]] = {}  # when the readers of a stream are to be woken
        self.grace = LeaseGrace()
        self._token = 0  # of the last delivery in any group
        self._lost: weakref.WeakKeyDictionary[Messages, str] = weakref.WeakKeyDictionary()  # what was last told of them
        self._cold_compaction = ColdCompaction(engine, self._tick_soon)
        self._cold_letters = ColdLetters(engine, self._tick_soon)
        self._tick_planned = False  # there is more to expire, or to compact, than one tick took
        engine.config.on_change("stream-max-pending", lambda _: self._wake_all())

    def note(self, database: Database, key: bytes, stream: Stream) -> None:
        """This stream may need something later."""
        if stream.groups or stream.stages.by_token or stream.retention.age_ms or stream.retention.compact:
            self._noted[database, key] = None

    def noted(self) -> list[Place]:
        """Where there may be streams with groups."""
        return list(self._noted)

    def found(self, database: Database, key: bytes, stream: Stream) -> None:
        """This stream came from a file or from another name: it may need all of the work."""
        self.note(database, key, stream)
        messages, files = stream.messages, self._engine.keyspace.stream_storage.files
        messages.key = key
        self._engine.compression.later(messages)
        if files is not None and messages.sealed_nodes:
            files.sealed(messages, messages.sealed_raw - messages.stored_raw)

    def swapped(self, one: int, other: int) -> None:
        """SWAPDB exchanged two databases: what was noted of one is true of the other."""
        a, b = self._engine.keyspace[one], self._engine.keyspace[other]
        exchanged = {a: b, b: a}
        places = [(exchanged.get(database, database), key) for database, key in self._noted]
        self._noted = OrderedDict.fromkeys(places)

    def cleared(self, database: Database) -> None:
        """FLUSHDB or FLUSHALL: the noted streams are gone, and must not delay others."""
        self._noted = OrderedDict.fromkeys([place for place in self._noted if place[0] is not database])

    def find_all(self) -> None:
        """Note every stream there is: after loading."""
        for database in self._engine.keyspace.databases:
            for key, value in database.data.items():
                if type(value) is Stream:
                    self.found(database, key, value)
                    for group in value.groups.values():
                        self._engine.clock.catch_up(group.leases.last_delivery())
                        self._token = max(self._token, group.token)

    def started(self) -> None:
        """The server has loaded its data, and goes on with it."""
        self.find_all()
        streams = [value for database, key in self._noted if type(value := database.data.get(key)) is Stream]
        has_leases = any(group.pending_count for stream in streams for group in stream.groups.values())
        self.grace.started(self.lease_time(), has_leases)

    def check_from_client(self, group: Group | Change, deliveries: Iterable[int]) -> None:
        """Refuse a group that a client writes if no server can have made it. `deliveries` are those of its leases.

        Lease times and tokens of the far future would count for all groups (clock.py). A counter near its end would
        pass it, and the server could not load what it has written.
        """
        if self._engine.loading:
            return
        if any(map(self._engine.clock.is_far_ahead, deliveries)):
            raise ReplyError("a lease was delivered more than a minute from now, by the clock of this server")
        if self._engine.clock.is_far_ahead(group.token // 1000):
            raise ReplyError("a token was given out more than a minute from now, by the clock of this server")
        if max(group.lost, group.acknowledged or 0) > MOST // 2:
            raise ReplyError("a group has lost or acknowledged more messages than there can be")

    def lease_time(self) -> int:
        """The time that leases go by; that of an effect which is being applied is the one it happened at."""
        return self._engine.clock.now if self.replaying else self._engine.clock.lease_time()

    def due_by(self, now: int | None = None) -> int:
        """What falls due until this lease time is due now: after an outage, only what was due before it."""
        return self.grace.due_by(self.lease_time() if now is None else now)

    def token(self, now: int) -> int:
        """The number of the next delivery at a lease time. It grows, and starts at the microseconds since 1970.

        So a group that is deleted and made again repeats none, nor does one after a restart.
        """
        self._token = max(self._token + 1, now * 1000)
        return self._token

    def wake_at(self, database: Database, key: bytes, when: int) -> None:
        """Run those blocked on a stream again at a time, unless something wakes them before."""
        place = (database, key)
        planned = self._timers.get(place)
        if planned is not None:
            if planned[0] <= when:
                return
            self._engine.timers.cancel(planned[1])
        delay = max(when - self.lease_time(), 0) / 1000
        self._timers[place] = (when, self._engine.timers.call_later(delay, lambda: self._wake(place)))

    def _wake(self, place: Place) -> None:
        self._timers.pop(place, None)
        database, key = place
        self._engine.clock.refresh()
        if self._engine.pause.until or self._engine.cannot_confirm:
            self.wake_at(database, key, self.lease_time() + PAUSED)  # a retry is a write
        elif key in database.observed:
            self._engine.keyspace.ready.append(place)
            self._engine.blocking.serve()

    def _wake_all(self) -> None:
        """Groups may have more room than before: wake the members that wait for it, because nothing else would."""
        waited_for = [(database, key) for database, key in self._noted if key in database.observed]
        self._engine.keyspace.ready.extend(waited_for)

    def tick(self) -> None:
        """Many times a second: expire leases and stages, enforce age and compaction, for a slice of time.

        Streams take turns, so that thousands of them hold no client up, and each has its turn. All of these are writes,
        so they wait while CLIENT PAUSE lasts, or replicas are too few; a replica leaves them to its leader.
        """
        self.grace.look(self.lease_time(), 1000 // self._engine.config.hz)
        if self._engine.changes_nothing:
            return
        self._engine.stream_members.give_back()
        until = perf_counter_ns() + SLICE
        for _ in range(len(self._noted)):
            (database, key), _ = self._noted.popitem(last=False)
            self._engine.lazy.run_for(database, key, to_write=True)
            stream = database.get(key)
            if key in database.locked:
                self._noted[database, key] = None  # a thread may be reading it
            elif type(stream) is Stream:
                self._expire_leases(database, key, stream, until)
                self._expire_stages(database, key, stream)
                self._forget_members(stream)
                self._enforce_retention(database, key, stream, until)
                self.note(database, key, stream)  # at the end of the line, if there may be more
            if perf_counter_ns() >= until:
                break
        if self._engine.keyspace.ready:
            self._engine.blocking.serve()

    # -- expiry, retention ------------------------------------------------------------------------------------

    def _expire_leases(self, database: Database, key: bytes, stream: Stream, until: int) -> None:
        """Expire messages in the groups in which some can have expired, for as long as there is time."""
        now = self.due_by()
        while (name := stream.expiries.due(now)) is not None:
            group = stream.groups.get(name)
            if group is not None:
                ready = self._cold_letters.ready_for(stream.messages, group, now)
                if ready is None:
                    return  # for a file
                with self._cold_letters.used(stream.messages):
                    expired, change = group.expire(stream.messages, now, ready)
                    if change is not None:
                        effects = self.group_changed(database, key, name, stream, change, expired)
                        self._engine.propagate(database, effects)
            stream.expiries.set(name, group.next_expiry() if group is not None else None)
            if perf_counter_ns() >= until:
                self._tick_soon()
                return

    def _forget_members(self, stream: Stream) -> None:
        """Forget names that did not ask for long; a look visits some groups, and those names that hold something."""
        now = self.lease_time()
        if now < stream.members_from:
            return
        members = self._engine.stream_members
        before = now - FORGOTTEN
        for group in islice(stream.groups.values(), stream.members_seen, stream.members_seen + LOOKED_THROUGH):
            if group.members.by_name:
                group.members.forget(before, group.leases, members.is_waiting)
        stream.members_seen += LOOKED_THROUGH
        if stream.members_seen >= len(stream.groups):
            stream.members_seen, stream.members_from = 0, now + LOOK_FOR_MEMBERS

    def _tick_soon(self) -> None:
        if not self._tick_planned:
            self._tick_planned = True
            self._engine.timers.call_later(PAUSE, self._tick_again)

    def _tick_again(self) -> None:
        self._tick_planned = False
        self._engine.clock.refresh()
        self.tick()

    def _expire_stages(self, database: Database, key: bytes, stream: Stream) -> None:
        before = self.lease_time() - self._engine.config.stream_stage_timeout
        if stream.stages.expire(before):
            database.changed(key)
            self._engine.propagate(database, [[b"TAPPLY", key, b"UNSTAGE", b"%d" % before]])

    def _enforce_retention(self, database: Database, key: bytes, stream: Stream, until: int) -> None:
        """Evict messages that are too old, and compact one node, or more if there is time."""
        messages = stream.messages
        first = messages.first
        apply_retention(messages, stream.retention, self._engine.clock.now)
        if messages.first != first:
            database.changed(key)
            self._engine.propagate(database, [[b"TEVICT", key, b"%d" % (messages.first - 1)]])
        rewritten: list[int] = []
        try:
            while (compacted := self._cold_compaction.step(messages)) is not None:
                rewritten += compacted.rewritten
                if not compacted.more:
                    break
                if perf_counter_ns() >= until:
                    self._tick_soon()
                    break
        except MissingHistory as error:
            self._tell_lost(messages, key, "is not compacted", error)
        if rewritten:
            self._changed_without_waking(database, key)
            self._engine.propagate(database, [[b"TAPPLY", key, b"COMPACT", *[b"%d" % number for number in rewritten]]])

    def group_changed(
        self,
        database: Database,
        key: bytes,
        name: bytes,
        stream: Stream,
        change: Change,
        given_up: list[Lease],
        why: str | None = None,
    ) -> list[Argv]:
        """A group changed: write the dead letters of what it gave up; the commands to log for all of it."""
        effects: list[Argv] = []
        if self._engine.log is not None:
            effects.append([b"TAPPLY", key, b"GROUP", name, change.encode()])
        for lease in given_up:
            if lease.dead_letter is not None:
                effects += self._dead_letter(database, key, name, stream, lease, why)
        if change.removed:
            database.changed(key)
        else:
            self._changed_without_waking(database, key)  # a delivery leaves less; only what is dropped makes room
        return effects

    def _changed_without_waking(self, database: Database, key: bytes) -> None:
        """A change that gives waiting members nothing: they are not run again for it."""
        ready = self._engine.keyspace.ready
        before = len(ready)
        database.changed(key)
        del ready[before:]

    def _dead_letter(
        self, database: Database, key: bytes, name: bytes, stream: Stream, lease: Lease, why: str | None
    ) -> list[Argv]:
        """Append messages that were given up to the lease's dead letter stream; the commands that say so."""
        target = lease.dead_letter
        assert target is not None
        letters: list[TaggedEntry] = []
        for message in self._given_up(key, stream.messages, lease):
            letter = Letter(key, message.entry, why, message.offset, name_in_text(name), lease.attempts)
            letters.append((message.tag, letter.encode()))
        evictions = self.append_letters(database, target, letters) if target != key else None
        if evictions is None:
            # The key got another type since, or this stream, which would read its own dead letters without end. The
            # message stays in the stream, but the group is done with it.
            reason = "is the stream itself" if target == key else "holds no stream"
            logger.warning(
                "stream %s, group %s: no dead letters for %d-%d, %s %s",
                *(name_in_text(key), name_in_text(name), lease.start, lease.end - 1, name_in_text(target), reason),
            )
            return []
        group = stream.groups.get(name)
        if group is not None:
            group.dead_letters += len(letters)
        at = b"%d" % self._engine.clock.now
        written = [[b"TAPPLY", target, b"AT", at, b"TWRITE", target, tag, entry] for tag, entry in letters]
        return [*written, *evictions]

    def _given_up(self, key: bytes, messages: Messages, lease: Lease) -> Iterator[Message]:
        """The messages of a lease; those of a lost file of history are left out, and the group is done with them."""
        start = lease.start
        while start < lease.end:
            end = min((start - 1) // NODE * NODE + NODE + 1, lease.end)
            try:
                found = [message for message in each(messages, start, end - start) if message.offset < end]
            except MissingHistory as error:
                self._tell_lost(messages, key, "gets no dead letters", error)
                found = []
            yield from found
            start = end

    def _tell_lost(self, messages: Messages, key: bytes, consequence: str, error: MissingHistory) -> None:
        """Log that a file of history is lost, once for each problem."""
        problem = f"{consequence}: {error}"
        if self._lost.get(messages) != problem:
            self._lost[messages] = problem
            logger.error("the stream %s %s: %s", name_in_text(key), consequence, error)

    def append_letters(self, database: Database, target: bytes, letters: list[TaggedEntry]) -> list[Argv] | None:
        """Append letters to the stream at a key, creating it. The commands to log for what that evicted.

        None, and nothing is appended, if the key holds another type. The caller logs the letters themselves.
        """
        self._engine.lazy.run_for(database, target, to_write=True)
        found = database.get(target)
        if type(found) not in (Stream, type(None)):
            return None
        if not letters:
            return []
        if target in database.locked and type(found) is Stream:
            database.replace(target, found.copy())  # a thread may be reading the other
        stream = database.obtain_stream(target)
        now, first = self._engine.clock.now, stream.messages.first
        stream.messages.append_many(now, [tag for tag, _ in letters], [entry for _, entry in letters])
        self._engine.compression.later(stream.messages)
        if not self.replaying:
            apply_retention(stream.messages, stream.retention, now)
        database.changed(target)
        return [[b"TEVICT", target, b"%d" % (stream.messages.first - 1)]] if stream.messages.first != first else []
