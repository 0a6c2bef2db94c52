"""TREAD ... GROUP: reading as a member of a group, of one stream or of several.

A group read is a write. The log gets what it changed (the position, leases with absolute times) and not the command, so
that a replay at another time gives the same groups.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from penstock.commands.stream_read_arguments import Read, SeveralReads, only_new, still_waiting
from penstock.commands.stream_read_replies import array, bulk, leased_reply, schema_text
from penstock.engine.declarations import Argv, Reply
from penstock.engine.session import Session
from penstock.protocol import stream_messages
from penstock.protocol.errors import ReplyError, Unblocked
from penstock.protocol.resp import NULL_ARRAY, RawPieces
from penstock.types.stream import reading
from penstock.types.stream.groups import Delivery, Group
from penstock.types.stream.stream import Stream


def read_group(session: Session, read: Read) -> Reply:
    if read.dead_letter is not None or not _is_known(session, read):
        _check(session, [read])
    part = _deliver(session, read)
    session.effects = part.effects
    if not part.delivery.runs and read.wait is not None and read.count:
        wish = replace(read)
        part.wait(session, wish)
        return session.block([read.key], read.deadline(session), NULL_ARRAY, wish)
    return part.reply(read)


def read_several(session: Session, read: Read) -> Reply:
    """Read several streams, each with what those before it left. An error delivers nothing of any of them."""
    keys = [read.key, *read.also]
    if read.fair:
        # By group: with one counter for all, groups that read alternately would begin with the same stream each time.
        group = _known_group(session, read)
        turn = group.turns % len(keys) if group is not None else 0
        keys = keys[turn:] + keys[:turn]
    reads = [replace(read, key=name, also=()) for name in keys]
    _check(session, reads)
    count, left_bytes = read.count, read.max_bytes
    found: list[tuple[Read, Delivered]] = []
    effects: list[Argv] = []
    for each in reads:
        each.count, each.max_bytes = count, left_bytes
        part = _deliver(session, each)
        found.append((each, part))
        effects += part.effects
        count -= part.size
        left_bytes = part.delivery.left_bytes
        if count <= 0 or (left_bytes is not None and left_bytes <= 0):
            break
    session.log(*effects)
    if (group := _known_group(session, read)) is not None:
        group.turns += 1
    given = [(each, part) for each, part in found if part.delivery.runs]
    if not given and read.wait is not None and read.count:
        for each, part in found:
            part.wait(session, each)
        wish = SeveralReads(read.group or b"", [each for each, _ in found])
        return session.block([read.key, *read.also], read.deadline(session), NULL_ARRAY, wish)
    pieces = [
        chain([b"*2\r\n$%d\r\n%b\r\n" % (len(each.key), each.key)], part.reply(each).pieces) for each, part in given
    ]
    return RawPieces(chain([b"*%d\r\n" % len(given)], *pieces))


class Delivered(NamedTuple):
    """What one stream gave to a group read."""

    stream: Stream
    group: Group
    delivery: Delivery
    effects: list[Argv]

    @property
    def size(self) -> int:
        return sum([end - start for start, end in self.delivery.runs])

    def wait(self, session: Session, read: Read) -> None:
        """Nothing was there: wait for it."""
        engine = session.engine
        if session.may_block:
            read.wait_for_retry(session, self.group)
            now, due_by = engine.streams.lease_time(), engine.streams.due_by()
            if self.group.has_work(self.stream.messages, now, engine.config.stream_max_pending, due_by):
                engine.streams.wake_at(session.db, read.key, now)  # it passed by as many as one call may
        read.origin, read.offset = weakref.ref(self.stream), self.stream.messages.last + 1

    def reply(self, read: Read) -> RawPieces:
        messages, runs = self.stream.messages, self.delivery.runs
        if read.with_lease:
            return leased_reply(self.stream, read, self.delivery)
        if read.arrow:
            fields = schema_text(self.stream, read)
            return bulk(reading.read_arrow_runs(messages, runs, read.compressed, read.with_info, fields))
        info = messages if read.with_info else None
        return array(reading.read_runs(messages, runs, stream_messages), self.size, info)


def _check(session: Session, reads: Sequence[Read]) -> None:
    """Raise what these group reads can raise, before the first of them delivers anything."""
    db, dead_letter = session.db, reads[0].dead_letter
    news = [read for read in reads if not _is_known(session, read)]
    for read in news:
        session.engine.require_memory([read.key, read.group or b"", read.consumer or b""])
    if dead_letter is not None and type(db.get(dead_letter)) not in (Stream, type(None)):
        raise ReplyError(f"DEADLETTER key '{dead_letter[:64].decode(errors='replace')}' holds no stream")
    for read in reads if news else ():  # again, because LAZY commands may have run to make room
        stream = db.find(read.key, Stream)
        if stream is not None and read.group not in stream.groups and still_waiting(session, stream):
            name = (read.group or b"").decode(errors="replace")
            raise Unblocked(f"the group '{name}' was deleted while this read waited")


def _is_known(session: Session, read: Read) -> bool:
    """Whether there is the group, and the member if it has a name."""
    group = _known_group(session, read)
    return group is not None and (read.consumer is None or read.consumer in group.members.by_name)


def _known_group(session: Session, read: Read) -> Group | None:
    stream = session.db.find(read.key, Stream)
    return stream.groups.get(read.group or b"") if stream is not None else None


def _deliver(session: Session, read: Read) -> Delivered:
    """Deliver messages of one stream to a group, which is made if it is new; the caller logs the effects.

    It raises nothing after `_check`.
    """
    engine, db = session.engine, session.db
    assert read.group is not None
    stream = db.obtain_stream(read.key)
    known = stream.groups.get(read.group)
    group = known or stream.group(read.group, _place(session, stream, read))
    if known is None:
        engine.streams.note(db, read.key, stream)
    if read.consumer is not None:
        engine.stream_members.asked(session, read.key, read.group, group, read.consumer, read.release)
    now = engine.streams.lease_time()
    if stream.delays is not None and stream.hides(now) is None:
        stream.delays = None  # all of them are visible
    delivery = group.deliver(
        stream.messages,
        now,
        read.count,
        read.retry,
        engine.config.stream_max_pending,
        read.max_bytes,
        read.dead_letter,
        read.limit,
        read.reserve,
        engine.streams.token(now) if read.retry is not None else 0,
        stream.delays,
        engine.streams.due_by(now),
    )
    if read.retry is not None and (read.retry[1] or read.limit):
        soonest = min(read.retry[1] or read.retry[0], read.retry[0]) if read.limit else read.retry[1]
        stream.expiries.note(read.group, now + soonest)
    if read.consumer is not None and delivery.leases:
        group.members.by_name[read.consumer].got(delivery.leases, group.leases)
    change = delivery.change or (group.change() if known is None else None)
    effects: list[Argv] = []
    if change is not None:
        effects = engine.streams.group_changed(db, read.key, read.group, stream, change, delivery.expired)
    return Delivered(stream, group, delivery, effects)


def _place(session: Session, stream: Stream, read: Read) -> int:
    """The start of a group that this read creates."""
    return only_new(session, stream, stream.messages) if read.offset is None else read.offset or stream.messages.first
