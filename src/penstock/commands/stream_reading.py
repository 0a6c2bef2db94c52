"""TREAD: reading a stream by offset, or as a member of a group.

A group read is a write. The log gets what it changed (the position, leases with absolute times) and not the command, so
that a replay at another time gives the same groups.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import NamedTuple

from penstock.commands.streams import refuse_repeated, to_number
from penstock.engine.arguments import INT64_MAX
from penstock.engine.declarations import Access, Argv, Flag, KeySpec, Reply, command, key
from penstock.engine.keyspace.databases import Value
from penstock.engine.session import Session
from penstock.engine.stream_history import with_history
from penstock.protocol import stream_messages
from penstock.protocol.errors import ReplyError, Unblocked
from penstock.protocol.resp import NULL_ARRAY, RawPieces
from penstock.protocol.stream_messages import NULL2, NULL3
from penstock.types.stream import reading
from penstock.types.stream.arrow import TIMED_SCHEMA
from penstock.types.stream.delays import Delays
from penstock.types.stream.groups import Delivery, Group
from penstock.types.stream.ipc import ArrowPart, Piece, stream_of
from penstock.types.stream.messages import Messages
from penstock.types.stream.nodes import Range, Storage
from penstock.types.stream.shelf import MOST_LIMIT
from penstock.types.stream.stream import Stream

_NO_STREAM = Stream(Storage())  # the result where there is none
_NOTHING = _NO_STREAM.messages
MAX_NULLS = 1_000_000
"""The most evicted messages that one plain read reports: a stream may have lost more than a reply can hold."""
FORESEEN = 1000
"""Leases that a group read looks through for those that are due, to fetch their messages."""


@dataclass(slots=True)
class _Read:
    """A TREAD's arguments."""

    key: bytes
    offset: int | None  # None is `$`: only new messages
    count: int
    deadline: int | None = None  # None does not block, 0 blocks for ever
    group: bytes | None = None
    retry: tuple[int, int] | None = None
    max_bytes: int | None = None
    dead_letter: bytes | None = None
    limit: int = 0  # of attempts
    reserve: bool = False
    with_lease: bool = False
    consumer: bytes | None = None
    release: bool = False
    also: tuple[bytes, ...] = ()  # more streams, read as members of groups of the same name
    fair: bool = False
    with_info: bool = False
    with_time: bool = False
    arrow: bool = False
    compressed: bool = False  # Arrow only: nodes that are stored compressed may be sent compressed
    only_new: bool = False  # the offset was given as `$`
    origin: weakref.ref[Stream] | None = None  # the stream it waits on, if there was one; `offset` is then the next one

    # What a blocked read waits for: engine.blocking.Wish.

    def came_upon(self, value: Value | None) -> bool:
        """Whether this is the stream that the key held when the read came."""
        return self.origin is not None and self.origin() is value

    def goes_on_with(self, key: bytes, value: Value | None) -> None:
        self.origin = weakref.ref(value) if type(value) is Stream else None

    @property
    def shared(self) -> bool:
        """A plain read removes nothing."""
        return self.group is None

    def same(self) -> object:
        if self.group is None:
            at = id(self.origin()) if self.only_new and self.origin is not None else None
            form = self.with_info, self.with_time, self.arrow, self.compressed
            return self.offset, self.count, self.max_bytes, form, self.only_new, at
        return self.group

    def is_met(self, session: Session) -> bool:
        stream = session.db.get(self.key)
        if type(stream) is not Stream:
            return False
        if self.group is None:
            if self.only_new and not self.came_upon(stream):
                return (
                    stream.messages.first <= stream.messages.last
                )  # all messages of a stream that replaced this one are new
            assert self.offset is not None
            return self.offset <= stream.messages.last
        group = stream.groups.get(self.group)
        if group is None:
            return True  # the read creates it
        engine = session.engine
        streams = engine.streams
        now, due_by = streams.lease_time(), streams.due_by()
        if group.has_work(stream.messages, now, engine.config.stream_max_pending, due_by):
            return True
        self.wait_for_retry(session, group)
        return False

    def wait_for_retry(self, session: Session, group: Group) -> None:
        """Wake a blocked member when a retry falls due, or a message becomes visible."""
        streams = session.engine.streams
        due = group.next_deadline(session.engine.config.stream_max_pending, streams.grace.until)
        if due is not None:
            streams.wake_at(session.db, self.key, due)

    @classmethod
    def parse(cls, argv: Argv, now: int) -> _Read:
        offset = None if argv[2] == b"$" else to_number(argv[2], "offset")
        read = cls(argv[1], offset, to_number(argv[3], "count"), only_new=offset is None)
        seen: set[bytes] = set()
        at = 4
        while at < len(argv):
            word = argv[at].upper()
            size = _size(argv, at)
            if size is None or at + size > len(argv):
                shown = argv[at][:64].decode(errors="replace")
                raise ReplyError(f"unknown or incomplete option '{shown}' of TREAD")
            refuse_repeated(seen, word, "TREAD")
            read._take(word, argv[at + 1 : at + size], now)
            at += size
        if read.group is None and offset == 0:
            raise ReplyError("offset must be at least 1; offsets start at 1, and 0 is only for a new group")
        if not _PLAIN.issuperset(seen):
            read._check(seen)
        return read

    def _take(self, word: bytes, values: list[bytes], now: int) -> None:
        if word == b"BLOCK":
            wait = to_number(values[0], "BLOCK")
            self.deadline = min(now + wait, INT64_MAX) if wait else 0
        elif word == b"GROUP":
            self.group = values[0]
        elif word == b"RETRY":
            retry, expire = to_number(values[0], "RETRY's retry-ms", 1), to_number(values[1], "RETRY's expire-ms")
            self.retry = (retry, expire)
        elif word == b"MAXBYTES":
            self.max_bytes = to_number(values[0], "MAXBYTES", 1)
        elif word == b"DEADLETTER":
            self.dead_letter = values[0]
        elif word == b"MAXATTEMPTS":
            self.limit = to_number(values[0], "MAXATTEMPTS", 1)
            if self.limit > MOST_LIMIT:
                raise ReplyError(f"MAXATTEMPTS must be at most {MOST_LIMIT}")
        elif word == b"CONSUMER":
            self.consumer = values[0]
        elif word == b"ALSO":
            self.also = tuple(values[1:])
        elif word in _SWITCHES:
            setattr(self, _SWITCHES[word], True)
        elif values[0].upper() == b"ARROW":
            self.arrow = True
        else:
            raise ReplyError(f"unknown FORMAT '{values[0][:64].decode(errors='replace')}'; there is ARROW")

    def _check(self, seen: set[bytes]) -> None:
        if self.retry is not None and self.group is None:
            raise ReplyError("RETRY needs GROUP: only a group waits for acknowledgements")
        if self.dead_letter is not None and self.retry is None:
            raise ReplyError("DEADLETTER needs RETRY: only what is retried can expire")
        if self.dead_letter in (self.key, *self.also):
            raise ReplyError("DEADLETTER must be another key than the stream's own")
        for word in (b"MAXATTEMPTS", b"RESERVE", b"WITHLEASE"):
            if word in seen and self.retry is None:
                raise ReplyError(f"{word.decode()} needs RETRY: without it a message is done when it is delivered")
        if self.consumer is not None and self.group is None:
            raise ReplyError("CONSUMER needs GROUP: it is the name of a member")
        if self.release and (self.consumer is None or self.retry is None):
            raise ReplyError("RELEASE needs CONSUMER and RETRY: it gives back what a name holds")
        if self.also and self.group is None:
            raise ReplyError("ALSO needs GROUP: only a group reads several streams")
        if len({self.key, *self.also}) <= len(self.also):
            raise ReplyError("ALSO names a stream twice")
        if self.fair and not self.also:
            raise ReplyError("FAIR needs ALSO: it takes turns among several streams")
        if self.with_time and self.group is not None:
            raise ReplyError("WITHTIME is for reads without GROUP; WITHLEASE gives the time to a member")
        if self.compressed and not self.arrow:
            raise ReplyError("COMPRESSED needs FORMAT ARROW: only record batches may be compressed")


_SIZES = {
    b"BLOCK": 2, b"GROUP": 2, b"RETRY": 3, b"MAXBYTES": 2, b"DEADLETTER": 2, b"WITHINFO": 1, b"FORMAT": 2,
    b"COMPRESSED": 1, b"MAXATTEMPTS": 2, b"RESERVE": 1, b"WITHLEASE": 1, b"CONSUMER": 2, b"RELEASE": 1,
    b"FAIR": 1, b"WITHTIME": 1,
}  # fmt: skip
_SWITCHES = {
    b"WITHINFO": "with_info", b"COMPRESSED": "compressed", b"RESERVE": "reserve", b"WITHLEASE": "with_lease",
    b"RELEASE": "release", b"FAIR": "fair", b"WITHTIME": "with_time",
}  # fmt: skip
_PLAIN = frozenset([b"BLOCK", b"GROUP", b"MAXBYTES", b"WITHINFO", b"FORMAT"])  # those that go with any others


def _size(argv: Sequence[bytes], at: int) -> int | None:
    """The words of the option at a position; None if there is no such option."""
    word = argv[at].upper()
    if word == b"ALSO":
        count = argv[at + 1] if at + 1 < len(argv) else b""
        return 2 + int(count) if count.isdigit() and 0 < len(count) < 7 and int(count) else None
    return _SIZES.get(word)


def _options(argv: Sequence[bytes]) -> dict[bytes, int]:
    """The positions of a TREAD's options; stops at an unknown word."""
    found: dict[bytes, int] = {}
    at = 4
    while at < len(argv) and (size := _size(argv, at)) is not None:
        found[argv[at].upper()] = at
        at += size
    return found


def _tread_access(argv: Sequence[bytes]) -> Access:
    return Access.UPDATE if b"GROUP" in _options(argv) else Access.READ


def _dead_letter_key(argv: Sequence[bytes]) -> Iterable[int]:
    at = _options(argv).get(b"DEADLETTER", len(argv))
    return [at + 1] if at + 1 < len(argv) else []


def _also_keys(argv: Sequence[bytes]) -> Iterable[int]:
    at = _options(argv).get(b"ALSO")
    return range(at + 2, min(at + 2 + int(argv[at + 1]), len(argv))) if at is not None else []


@command(
    "TREAD",
    arity=-4,
    flags=Flag.WRITE | Flag.BLOCKING | Flag.MOVABLEKEYS | Flag.BRIEF,
    keys=(
        *key(1, Access.UPDATE, narrow=_tread_access),
        KeySpec(Access.UPDATE, find=_also_keys),
        KeySpec(Access.WRITE, find=_dead_letter_key),
    ),
    group="stream",
    syntax="key offset count [BLOCK ms] [GROUP name] [RETRY retry-ms expire-ms] [MAXATTEMPTS count] "
    "[CONSUMER name [RELEASE]] [RESERVE] [WITHLEASE] [MAXBYTES bytes] [DEADLETTER key] [WITHINFO] [WITHTIME] "
    "[FORMAT ARROW [COMPRESSED]] [ALSO numkeys key [key ...] [FAIR]]",
    cost="O(1) to find the offset, at any length, and O(bytes) to send; a group adds O(leases touched)",
)
def tread(session: Session, argv: Argv) -> Reply:
    """Read up to count messages, each [offset, tag, entry], from an offset on, or the next ones of a group.

    Without GROUP the reply is positional: evicted messages are null, and it stops at the last offset (or after a
    million nulls, if more than that were evicted). `$` reads only new messages, which are all messages of a stream that
    replaces this one during the wait. BLOCK waits while there is nothing at or after the offset; 0 waits for ever; a
    timeout answers a null array. With GROUP the offset only sets the start of a group that does not exist yet (0 is the
    first available message). Each message goes to one member and is then done. With RETRY it is delivered again after
    retry-ms until it is acknowledged with TACK, or given up: expire-ms after its first delivery (0 is never), or when
    it is due again and was begun MAXATTEMPTS times. RESERVE begins no message: attempts and expire-ms count from
    TEXTEND ... BEGIN. CONSUMER is the name of the member, for TGROUP LIST. With RELEASE, what the name holds is given
    back at once when the connection that last read under it ends. WITHLEASE puts the token of the delivery in front,
    and each message is [offset, tag, entry, time, attempts]; in Arrow there is a column attempts, and the token is in
    the schema's metadata. WITHINFO puts [first, last] in front (after the token). WITHTIME, without GROUP, makes each
    message [offset, tag, entry, time, visible-at]: when it was written, and when groups get it, 0 if they do already;
    in Arrow it adds the column visible_at. FORMAT ARROW answers one bulk string
    that pyarrow.ipc.open_stream reads; WITHINFO then puts first, last and the stream's schema in the schema's metadata,
    and COMPRESSED sends record batches compressed as they are stored, which every Arrow with lz4 and zstd reads. ALSO
    reads more streams with groups of the same name, in the order given: a stream gets what those before it left of
    count and MAXBYTES; with FAIR each read begins with another one. The reply then has [key, reply] for each stream
    that gave something.
    """
    if len(argv) == 4 and argv[2] != b"$" and (offset := to_number(argv[2], "offset")):
        # The most frequent form, without parsing options.
        count = to_number(argv[3], "count")
        stream = session.db.find(argv[1], Stream)
        if stream is None or stream.messages.is_in_memory_from(offset):
            return _messages(session, stream.messages if stream is not None else _NOTHING, offset, count)
    read = _Read.parse(argv, session.db.clock.now)
    handle = _read_plain if read.group is None else _read_several if read.also else _read_group
    streams = [session.db.find(name, Stream) for name in (read.key, *read.also)]
    if not any(stream is not None and stream.messages.history for stream in streams):
        return handle(session, read)
    upcoming = [
        (stream.messages, each)
        for stream in streams
        if stream is not None and stream.messages.history
        for each in _upcoming(session, read, stream)
    ]
    return with_history(session, upcoming, lambda: handle(session, read), read.max_bytes)


def _upcoming(session: Session, read: _Read, stream: Stream) -> list[Range]:
    """The offsets that a read will probably touch; what it touches beside them is fetched in its middle."""
    offset = read.offset if read.offset is not None else stream.messages.last + 1
    if read.group is None:
        return [(offset, offset + read.count)]
    group = stream.groups.get(read.group)
    if group is None:
        return [(offset or stream.messages.first, (offset or stream.messages.first) + read.count)]
    streams = session.engine.streams
    now, due_by = streams.lease_time(), streams.due_by()
    leases = islice(group.leases, FORESEEN)
    due = [lease for lease in leases if lease.retry_at <= (now if lease.given_back else due_by)]
    return [(group.position, group.position + read.count), *[(lease.start, lease.end) for lease in due[: read.count]]]


def _read_plain(session: Session, read: _Read) -> Reply:
    stream = session.db.find(read.key, Stream)
    messages = stream.messages if stream is not None else _NOTHING
    if read.offset is None:
        read.offset = _only_new(session, stream, messages)
    if read.deadline is not None and read.count and read.offset > messages.last:
        read.origin = weakref.ref(stream) if stream is not None else None
        return session.block([read.key], read.deadline, NULL_ARRAY, read)
    if read.with_time:
        return _timed(session, stream if stream is not None else _NO_STREAM, read, read.offset)
    if read.arrow:
        fields = _fields(stream, read)
        return _bulk(
            reading.read_arrow(
                messages, read.offset, read.count, read.max_bytes, read.compressed, read.with_info, fields
            )
        )
    return _messages(session, messages, read.offset, read.count, read.max_bytes, read.with_info)


def _timed(session: Session, stream: Stream, read: _Read, offset: int) -> RawPieces:
    """The reply with the times of messages, and when groups get them."""
    messages, shown = stream.messages, session.db.clock.shown
    now = session.engine.streams.lease_time()
    count = min(read.count, MAX_NULLS) if messages.first - offset > MAX_NULLS else read.count
    if read.max_bytes is not None:
        count = reading.read(messages, offset, count, stream_messages, NULL2, read.max_bytes)[1]
    stop = min(offset + count, messages.last + 1)
    delays = stream.hides(now) or Delays()
    parts = [
        (block, start, end, shown(at)[0] if at else 0)
        for block, a, b in messages.runs(offset, stop)
        for start, end, at in delays.parts(a, b, now)
    ]
    if read.arrow:
        bounds = (messages.first, messages.last) if read.with_info else None
        arrow = (block.arrow(start, end, more=at) for block, start, end, at in parts)
        return _bulk(stream_of(arrow, bounds, _fields(stream, read), TIMED_SCHEMA))
    null = NULL2 if session.protocol == 2 else NULL3
    pieces: list[Piece] = []
    at_offset = offset
    for block, start, end, at in parts:
        pieces += [null * (start - at_offset), block.leased(start, end, at, stream_messages)]
        at_offset = end
    pieces.append(null * max(stop - at_offset, 0))
    return _array(pieces, max(stop - offset, 0), messages if read.with_info else None)


def _fields(stream: Stream | None, read: _Read) -> str | None:
    """The newest schema of a stream, if the reader asks about the stream and there is one."""
    if not read.with_info or stream is None or stream.schemas is None:
        return None
    return str(stream.schemas.newest)


def _messages(
    session: Session, messages: Messages, offset: int, count: int, max_bytes: int | None = None, with_info: bool = False
) -> RawPieces:
    if messages.first - offset > MAX_NULLS:
        count = min(count, MAX_NULLS)
    null = NULL2 if session.protocol == 2 else NULL3
    pieces, count = reading.read(messages, offset, count, stream_messages, null, max_bytes)
    return _array(pieces, count, messages if with_info else None)


def _read_group(session: Session, read: _Read) -> Reply:
    _check(session, [read])
    part = _deliver(session, read)
    session.log(*part.effects)
    if not part.delivery.runs and read.deadline is not None and read.count:
        part.wait(session, read)
        return session.block([read.key], read.deadline, NULL_ARRAY, read)
    return part.reply(read)


def _read_several(session: Session, read: _Read) -> Reply:
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
    found: list[tuple[_Read, _Part]] = []
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
    if not given and read.deadline is not None and read.count:
        for each, part in found:
            part.wait(session, each)
        wish = _Several(read.group or b"", [each for each, _ in found])
        return session.block([read.key, *read.also], read.deadline, NULL_ARRAY, wish)
    pieces = [
        chain([b"*2\r\n$%d\r\n%b\r\n" % (len(each.key), each.key)], part.reply(each).pieces) for each, part in given
    ]
    return RawPieces(chain([b"*%d\r\n" % len(given)], *pieces))


@dataclass(slots=True)
class _Several:
    """What a blocked read of several streams waits for: engine.blocking.Wish."""

    group: bytes
    reads: list[_Read]

    @property
    def shared(self) -> bool:
        return False

    def same(self) -> object:
        return self.group, *[read.key for read in self.reads]

    def is_met(self, session: Session) -> bool:
        return any(read.is_met(session) for read in self.reads)

    def came_upon(self, value: Value | None) -> bool:
        return any(read.came_upon(value) for read in self.reads)

    def goes_on_with(self, key: bytes, value: Value | None) -> None:
        for read in self.reads:
            if read.key == key:
                read.goes_on_with(key, value)


class _Part(NamedTuple):
    """What one stream gave to a group read."""

    stream: Stream
    group: Group
    delivery: Delivery
    effects: list[Argv]

    @property
    def size(self) -> int:
        return sum([end - start for start, end in self.delivery.runs])

    def wait(self, session: Session, read: _Read) -> None:
        """Nothing was there: wait for it."""
        engine = session.engine
        if session.may_block:
            read.wait_for_retry(session, self.group)
            now, due_by = engine.streams.lease_time(), engine.streams.due_by()
            if self.group.has_work(self.stream.messages, now, engine.config.stream_max_pending, due_by):
                engine.streams.wake_at(session.db, read.key, now)  # it passed by as many as one call may
        read.origin, read.offset = weakref.ref(self.stream), self.stream.messages.last + 1

    def reply(self, read: _Read) -> RawPieces:
        messages, runs = self.stream.messages, self.delivery.runs
        if read.with_lease:
            return _leased(self.stream, read, self.delivery)
        if read.arrow:
            fields = _fields(self.stream, read)
            return _bulk(reading.read_arrow_runs(messages, runs, read.compressed, read.with_info, fields))
        info = messages if read.with_info else None
        return _array(reading.read_runs(messages, runs, stream_messages), self.size, info)


def _check(session: Session, reads: Sequence[_Read]) -> None:
    """Raise what these group reads can raise, before the first of them delivers anything."""
    db, dead_letter, news = session.db, reads[0].dead_letter, []
    for read in reads:
        group = _known_group(session, read)
        if group is None or (read.consumer is not None and read.consumer not in group.members.by_name):
            news.append(read)
    for read in news:
        session.engine.require_memory([read.key, read.group or b"", read.consumer or b""])
    if dead_letter is not None and type(db.get(dead_letter)) not in (Stream, type(None)):
        raise ReplyError(f"DEADLETTER key '{dead_letter[:64].decode(errors='replace')}' holds no stream")
    for read in reads if news else ():  # again, because LAZY commands may have run to make room
        stream = db.find(read.key, Stream)
        if stream is not None and read.group not in stream.groups and _still_waiting(session, stream):
            name = (read.group or b"").decode(errors="replace")
            raise Unblocked(f"the group '{name}' was deleted while this read waited")


def _known_group(session: Session, read: _Read) -> Group | None:
    stream = session.db.find(read.key, Stream)
    return stream.groups.get(read.group or b"") if stream is not None else None


def _deliver(session: Session, read: _Read) -> _Part:
    """Deliver messages of one stream to a group, which is made if it is new; the caller logs the effects.

    It raises nothing after `_check`.
    """
    engine, db = session.engine, session.db
    assert read.group is not None
    stream = db.obtain_stream(read.key)
    known = read.group in stream.groups
    group = stream.group(read.group, _place(session, stream, read))
    engine.streams.note(db, read.key, stream)
    if read.consumer is not None:
        engine.stream_members.asked(session, read.key, read.group, group, read.consumer, read.release)
    now = engine.streams.lease_time()
    if stream.hides(now) is None:
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
        engine.streams.token(now),
        stream.delays,
        engine.streams.due_by(),
    )
    if read.retry is not None and (read.retry[1] or read.limit):
        soonest = min(read.retry[1] or read.retry[0], read.retry[0]) if read.limit else read.retry[1]
        stream.expiries.note(read.group, now + soonest)
    if read.consumer is not None and delivery.leases:
        group.members.by_name[read.consumer].got(delivery.leases, group.leases)
    change = delivery.change or (None if known else group.change())
    effects: list[Argv] = []
    if change is not None:
        effects = engine.streams.group_changed(db, read.key, read.group, stream, change, delivery.expired)
    return _Part(stream, group, delivery, effects)


def _leased(stream: Stream, read: _Read, delivery: Delivery) -> RawPieces:
    """The reply with the token of a delivery, 0 if there is nothing in it, and the attempts of its messages."""
    messages = stream.messages
    leases = delivery.leases
    token = leases[0].token if leases else 0
    if read.arrow:
        fields = _fields(stream, read)
        return _bulk(reading.read_arrow_leases(messages, leases, token, read.with_info, fields))
    head = b":%d\r\n" % token
    if read.with_info:
        head += b"*2\r\n:%d\r\n:%d\r\n" % (messages.first, messages.last)
    pieces = reading.read_leases(messages, leases, stream_messages)
    count = sum(lease.end - lease.start for lease in leases) + (2 if read.with_info else 1)
    return RawPieces([b"*%d\r\n" % count, head, *pieces])


def _place(session: Session, stream: Stream, read: _Read) -> int:
    """The start of a group that this read creates."""
    return _only_new(session, stream, stream.messages) if read.offset is None else read.offset or stream.messages.first


def _still_waiting(session: Session, stream: Stream | None) -> _Read | None:
    """The waiting read as it was when it came, if the key still holds the same stream."""
    wish = session.waiter.wish if session.waiter is not None else None
    reads = [wish] if isinstance(wish, _Read) else wish.reads if isinstance(wish, _Several) else []
    return next((read for read in reads if read.came_upon(stream)), None)


def _only_new(session: Session, stream: Stream | None, messages: Messages) -> int:
    """The offset that `$` stands for: the next one when the read came.

    If the key was deleted or replaced while the read waited, all messages of the new stream are new, as `tail -F`
    continues with a file that was replaced.
    """
    if session.waiter is None:
        return messages.last + 1
    first = _still_waiting(session, stream)
    return first.offset if first is not None and first.offset is not None else messages.first


def _bulk(part: ArrowPart) -> RawPieces:
    return RawPieces(chain([b"$%d\r\n" % part.size], part.pieces, [b"\r\n"]))


def _array(pieces: list[Piece], count: int, info: Messages | None) -> RawPieces:
    if info is None:
        return RawPieces([b"*%d\r\n" % count, *pieces])
    return RawPieces([b"*%d\r\n*2\r\n:%d\r\n:%d\r\n" % (count + 1, info.first, info.last), *pieces])
