"""Commands that change streams: TWRITE and TEVICT, and the parsing that stream commands share.

Writes are logged with their time, inside TAPPLY ... AT, so that a replay at another time gives the same stream. TREAD
is in stream_reading.py, TACK in stream_acknowledging.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from penstock.commands.stream_checks import Misfit, check_aside, find_misfits, write_letters
from penstock.engine.arguments import INT64_MAX, to_integer
from penstock.engine.declarations import Access, Argv, Flag, NotLazy, Reply, command, key
from penstock.engine.keyspace.databases import Database
from penstock.engine.session import Session
from penstock.protocol.errors import Fenced, ReplyError
from penstock.protocol.resp import RawPieces, encode
from penstock.types.kernels import listed
from penstock.types.stream.arrow import INVALID, InvalidArrow, parse_arrow, rows_of, size_of_rows, without_rows
from penstock.types.stream.arrow_size import unpacked_size
from penstock.types.stream.messages import Messages
from penstock.types.stream.nodes import NODE, Range
from penstock.types.stream.producers import ProducerFenced
from penstock.types.stream.retention import apply_retention, keep_last, keep_nodes, outgrows
from penstock.types.stream.stream import Stream

# -- parsing that stream commands share -----------------------------------------------------------------------


def to_number(raw: bytes, name: str, least: int = 0) -> int:
    """An integer argument; the error names it."""
    if raw.isdigit() and len(raw) < 19 and (raw[0] != 48 or raw == b"0") and (number := int(raw)) >= least:
        return number  # nearly all calls end here
    number = to_integer(raw, lambda: ReplyError(f"{name} is not an integer or out of range"))
    if number < least:
        raise ReplyError(f"{name} must be at least {least}")
    return number


def refuse_repeated(seen: set[bytes], word: bytes, command: str) -> None:
    """Refuse an option that is given twice."""
    if word in seen:
        raise ReplyError(f"option '{word.decode()}' of {command} is given twice")
    seen.add(word)


def _to_offset(raw: bytes, word: bytes) -> int:
    """One end of a range."""
    if raw.isdigit() and len(raw) < 19 and raw[0] != 48:
        return int(raw)
    return to_number(raw, f"offset '{word.decode(errors='replace')}'", 1)


def to_ranges(words: Sequence[bytes]) -> list[Range]:
    """Offsets and ranges such as `7` or `3-9`. The end is included on the wire and excluded here."""
    ranges: list[Range] = []
    for word in words:
        start, dash, end = word.partition(b"-")
        first = _to_offset(start, word)
        last = _to_offset(end, word) if dash else first
        if last < first:
            raise ReplyError(f"range '{word.decode(errors='replace')}' ends before it starts")
        ranges.append((first, last + 1))
    return ranges


def to_token(words: Argv) -> tuple[int | None, Argv]:
    """The token of `[TOKEN t] offset ...`, None if there is none, and the other words."""
    if words[0].upper() != b"TOKEN":
        return None, words
    if len(words) < 3:
        raise ReplyError("TOKEN takes a number, and offsets follow it")
    return to_number(words[1], "TOKEN", 1), words[2:]  # 0 is what is given back, and no delivery


def parse_entries(argv: Argv, at: int) -> tuple[list[bytes], list[bytes]]:
    """Tags and entries of `tag entry tag entry ...`, from a position on."""
    if at == len(argv) or (len(argv) - at) % 2:
        raise ReplyError("ENTRIES takes pairs of tag and entry")
    return argv[at::2], argv[at + 1 :: 2]


def to_batches(session: Session, payload: bytes) -> list[object]:
    """Record batches of an ARROW argument, completely checked. Those from the log have no limit."""
    engine = session.engine
    applied = engine.loading or engine.streams.replaying
    try:
        return parse_arrow(payload, None if applied else engine.config.proto_max_bulk_len)
    except InvalidArrow as error:
        raise ReplyError(f"ARROW payload refused: {error}") from None


def size_of_batches(payload: bytes) -> int:
    """How many bytes an ARROW argument takes when it is unpacked; 0 if there is none."""
    try:
        return unpacked_size(payload)
    except INVALID:
        return 0


def _growth_of_twrite(session: Session, argv: Argv) -> int:
    return size_of_batches(argv[-1]) if len(argv) > 4 and argv[-2].upper() == b"ARROW" else 0


# -- TWRITE ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Write:
    """A TWRITE in its long form."""

    backlog: int | None = None
    producer: tuple[bytes, int] | None = None
    entries: tuple[list[bytes], list[bytes]] | None = None
    batches: list[object] | None = None
    visible_at: int = 0  # groups get the entries then, as lease time; 0 is now
    delayed_by: int = 0  # the position of the option that says so
    whole: bool = False  # the reply is null if not all entries were written
    left_out: bool = False  # some entries did not fit the schema

    @classmethod
    def parse(cls, session: Session, argv: Argv) -> _Write:
        write = cls()
        seen: set[bytes] = set()
        at = 2
        while at < len(argv):
            word = argv[at].upper()
            if word == b"FORMAT" and at + 3 == len(argv):
                at += 1  # FORMAT ARROW payload, as in TREAD; without options the form without FORMAT has four words
                word = argv[at].upper()
            if word == b"ENTRIES":
                write.entries = parse_entries(argv, at + 1)
                return write
            if word == b"ARROW" and at + 2 == len(argv):
                write.batches = to_batches(session, argv[at + 1])
                return write
            refuse_repeated(seen, word, "TWRITE")
            if word == b"BACKLOG" and at + 1 < len(argv):
                write.backlog = to_number(argv[at + 1], "BACKLOG", 1)
                at += 2
            elif word == b"PRODUCER" and at + 2 < len(argv):
                write.producer = (argv[at + 1], to_number(argv[at + 2], "PRODUCER's sequence"))
                at += 3
            elif word == b"WHOLE":
                write.whole = True
                at += 1
            elif word in (b"DELAY", b"AT") and at + 1 < len(argv) and not write.delayed_by:
                write.visible_at = _visible_at(session, word, to_number(argv[at + 1], word.decode()))
                write.delayed_by = at
                at += 2
            else:
                raise ReplyError(f"unknown or incomplete option '{argv[at][:64].decode(errors='replace')}' of TWRITE")
        raise ReplyError("TWRITE needs 'tag entry', 'ENTRIES tag entry ...' or 'FORMAT ARROW payload'")

    def reply(self, answer: int) -> int | None:
        """The reply for an answer that is kept for a producer (types/stream/producers.py)."""
        return None if not answer or (self.whole and answer < 0) else abs(answer)

    def logged(self, argv: Argv) -> Argv:
        """The command for the log, in which the time is absolute."""
        at = self.delayed_by
        return [*argv[:at], b"AT", b"%d" % self.visible_at, *argv[at + 2 :]] if at else argv

    @property
    def size(self) -> int:
        """About how many bytes its rows have."""
        if self.entries is not None:
            return sum(map(len, self.entries[1]))
        return size_of_rows(self.batches or [])

    def rows(self) -> Iterable[tuple[bytes, bytes]]:
        return zip(*self.entries, strict=True) if self.entries is not None else rows_of(self.batches or [])

    def leave_out(self, places: list[int]) -> None:
        """Write all rows but those at these places, which are in order."""
        self.left_out = bool(places)
        if places and self.entries is not None:
            gone = set(places)
            kept = [at for at in range(len(self.entries[0])) if at not in gone]
            self.entries = [self.entries[0][at] for at in kept], [self.entries[1][at] for at in kept]
        elif places:
            self.batches = without_rows(self.batches or [], places)


def _visible_at(session: Session, word: bytes, number: int) -> int:
    """The lease time that DELAY or AT says. In an effect that is applied, AT is the lease time itself."""
    streams = session.engine.streams
    if word == b"DELAY":
        return min(streams.lease_time() + number, INT64_MAX)
    return number if streams.replaying else min(max(number + session.db.clock.lease_lead(), 0), INT64_MAX)


def _one_by_one(session: Session, run: list[Argv]) -> RawPieces:
    """Several TWRITEs, each of which may be refused alone."""
    replies: list[bytes] = []
    effects: list[Argv] = []
    for argv in run:
        session.effects = None
        try:
            replies.append(encode(twrite(session, argv), session.protocol))
        except ReplyError as error:
            session.engine.stats.count_error(error)
            replies.append(b"-%b\r\n" % error.wire())
        effects += session.effects or []
    session.log(*effects)
    return RawPieces(replies)


def _twrite_together(session: Session, run: list[Argv]) -> int | RawPieces:
    """Several `TWRITE key tag entry` with the same key, as if one came after the other; logged as one with ENTRIES."""
    db = session.db
    name = run[0][1]
    stream = db.obtain_stream(name)
    if stream.checked is not None:
        return _one_by_one(session, run)
    first = stream.messages.first
    offset = stream.messages.append_many(db.clock.now, [argv[2] for argv in run], [argv[3] for argv in run])
    retain(session, name, stream, offset)
    if session.engine.log is not None:
        pairs = chain.from_iterable([argv[2:] for argv in run])
        log_at(
            session,
            [b"TWRITE", name, b"ENTRIES", *pairs],
            stream.messages.first - 1 if stream.messages.first != first else 0,
        )
    db.keyspace.dirty += len(run) - 1
    db.changed(name)
    return offset


@command(
    "TWRITE",
    arity=-4,
    flags=Flag.WRITE | Flag.DENYOOM | Flag.FAST | Flag.TIMED,
    keys=key(1, Access.UPDATE),
    group="stream",
    syntax="key tag entry"
    " | key [BACKLOG count] [PRODUCER id sequence] [DELAY ms | AT ms] [WHOLE] ENTRIES tag entry [tag entry ...]"
    " | key [BACKLOG count] [PRODUCER id sequence] [DELAY ms | AT ms] [WHOLE] FORMAT ARROW payload",
    cost="O(1) an entry; BACKLOG and retention add O(nodes freed)",
    together=_twrite_together,
    grows=_growth_of_twrite,
)
def twrite(session: Session, argv: Argv) -> Reply:
    """Append to the stream at key, creating it, and answer the first new entry's offset.

    Atomic: all entries get contiguous offsets, or none is appended. BACKLOG frees old nodes as long as count entries
    stay. FORMAT ARROW takes an Arrow IPC stream with the columns tag and entry, and optionally time; the word FORMAT
    may be left out after an option. A repeat of the same PRODUCER id and sequence appends nothing and gets the first
    answer again. With DELAY ms, or AT a time in milliseconds since 1970, groups get the entries then; plain reads see
    them at once (TREAD ... WITHTIME shows the time). If the stream checks its schema (TSCHEMA SET ... CHECK), an entry
    that does not fit makes the command fail, or goes to the dead-letter stream; the reply is null if all of them do.
    With WHOLE it is null if any of them does, also for a repeat: the entries have offsets in a row from the reply on,
    or the reply claims nothing.
    """
    db = session.db
    name = argv[1]
    if len(argv) == 4:
        stream = db.get(name)
        if type(stream) is not Stream:
            stream = db.obtain_stream(name)
        if stream.checked is not None:
            return _write_checked(session, argv, stream, _Write(entries=([argv[2]], [argv[3]])))
        messages: Messages = stream.messages
        offset = messages.append(db.clock.now, argv[2], argv[3])
        # Between two seals there is nothing to evict or to log, unless a message is large.
        if offset % NODE and session.engine.log is None and not stream.retention.bytes:
            db.changed(name)
            return offset
        first = messages.first
    else:
        write = _Write.parse(session, argv)
        found = db.find(name, Stream)
        if write.producer is not None and found is not None:
            repeated = _repeated(found, *write.producer)
            if repeated is not None:
                session.acknowledge_again()
                return write.reply(repeated)
        if found is not None and found.checked is not None:
            return _write_checked(session, argv, found, write)
        stream = found if found is not None else db.obtain_stream(name)
        messages = stream.messages
        first = messages.first
        offset = _append(session, stream, write)
        argv = write.logged(argv)
    if offset != messages.last or not offset % NODE or stream.retention.bytes:
        retain(session, name, stream, offset)
    if session.engine.log is not None:
        log_at(session, argv, messages.first - 1 if messages.first != first else 0)
    db.changed(name)
    return offset


def _write_checked(session: Session, argv: Argv, stream: Stream, write: _Write) -> Reply:
    """A write to a stream that checks entries. Null if all of them went to its dead-letter stream."""

    def check() -> tuple[list[tuple[bytes, bytes]], list[Misfit]]:
        rows = listed(write.rows())
        return rows, find_misfits(argv[1], stream, (entry for _, entry in rows))

    return check_aside(session, write.size, check, lambda found: _commit_checked(session, argv, stream, write, *found))


def _commit_checked(
    session: Session,
    argv: Argv,
    stream: Stream,
    write: _Write,
    rows: list[tuple[bytes, bytes]],
    misfits: list[Misfit],
) -> Reply:
    db, name = session.db, argv[1]
    evictions = write_letters(session, name, stream, [(*rows[at], why) for at, why in misfits]) if misfits else []
    write.leave_out([at for at, _ in misfits])
    first = stream.messages.first
    offset = _append(session, stream, write) if len(misfits) < len(rows) else 0
    if offset:
        retain(session, name, stream, offset)
    elif write.producer is not None:
        stream.producers.remember(*write.producer, 0, db.clock.now)
    if session.engine.log is not None:
        evicted = stream.messages.first - 1 if stream.messages.first != first else 0
        log_at(session, write.logged(argv), evicted, more=evictions)
    db.changed(name)
    return write.reply(-offset if misfits else offset)


def _repeated(stream: Stream, producer: bytes, sequence: int) -> int | None:
    try:
        return stream.producers.repeated(producer, sequence)
    except ProducerFenced as error:
        raise Fenced(f"PRODUCER {producer.decode(errors='replace')}: {error}") from None


def _append(session: Session, stream: Stream, write: _Write) -> int:
    now = session.db.clock.now
    if write.entries is not None:
        offset = stream.messages.append_many(now, *write.entries)
    else:
        assert write.batches is not None
        offset = stream.messages.append_arrow(now, write.batches)
    if write.producer is not None:
        stream.producers.remember(*write.producer, -offset if write.left_out else offset, now)
    streams = session.engine.streams
    if write.visible_at:
        stream.delay(offset, write.visible_at, 0 if streams.replaying else streams.lease_time())
    if write.backlog is not None and not streams.replaying:
        keep_nodes(stream.messages, write.backlog)
    return offset


def retain(session: Session, key: bytes, stream: Stream, offset: int) -> None:
    """Enforce retention if appending from an offset on sealed a node; between two seals only large messages can exceed
    it.
    """
    streams = session.engine.streams
    messages, limit = stream.messages, stream.retention.bytes
    if (offset - 1) // NODE != messages.last // NODE:
        session.engine.compression.later(messages)
    elif not limit or not outgrows(messages, limit, offset):
        return
    if not streams.replaying:
        apply_retention(messages, stream.retention, session.db.clock.now)
        streams.note(session.db, key, stream)


def log_at(
    session: Session, argv: Argv, evicted: int = 0, moment: int | None = None, more: Iterable[Argv] = ()
) -> None:
    """Log a command together with the time it ran at, and the offset through which it evicted.

    `moment` is the time if it is the clock of leases and stages, not the time of day. `more` are effects on other keys.

    Evictions are logged, because a replay may run with another configuration and another clock.
    """
    at = session.db.clock.now if moment is None else moment
    effects: list[Argv] = [[b"TAPPLY", argv[1], b"AT", b"%d" % at, *argv]]
    if evicted:
        effects.append([b"TEVICT", argv[1], b"%d" % evicted])
    session.log(*effects, *more)


# -- TEVICT ---------------------------------------------------------------------------------------------------


@command(
    "TEVICT",
    arity=3,
    flags=Flag.WRITE | Flag.FAST,
    keys=key(1, Access.UPDATE),
    group="stream",
    syntax="key offset | -count",
    cost="O(nodes freed), whatever the length",
    not_lazy=NotLazy("counts what is there, which compaction changes, with -count", lambda argv: argv[2][:1] == b"-"),
    check_words=lambda session, argv: to_number(argv[2], "offset", -INT64_MAX),
)
def tevict(session: Session, argv: Argv) -> Reply:
    """Remove messages up to an offset, or all but the last count, and answer how many were removed.

    The other messages keep their offsets, and no offset is used again. Memory is freed by whole nodes.
    """
    offset = to_number(argv[2], "offset", -INT64_MAX)
    db: Database = session.db
    stream = db.find(argv[1], Stream)
    if stream is None or offset == 0:
        return 0
    messages = stream.messages
    first = messages.first
    removed = messages.evict_through(offset) if offset > 0 else keep_last(messages, -offset)
    if messages.first != first:
        session.log([b"TEVICT", argv[1], b"%d" % (messages.first - 1)])  # for the reason that log_at gives
        db.changed(argv[1])
    return removed
