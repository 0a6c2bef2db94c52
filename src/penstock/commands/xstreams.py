"""Redis streams without consumer groups: XADD and the commands that read, delete and trim.

Programs keep small journals in them (RQ its results). Programs that need groups, acknowledgements and retries use this
server's own stream type; a second implementation of the same promises was rejected.

An entry is logged under the id it got, and approximate trimming as the equivalent exact trimming.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from penstock.engine.arguments import to_integer
from penstock.engine.concurrency.long_work import LONG
from penstock.engine.declarations import Access, Argv, Effect, Flag, NotLazy, Reply, command, found_keys, key
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError, bad_subcommand, no_such_key, syntax_error, wrong_arity
from penstock.protocol.resp import NULL_ARRAY, OK, RawPieces, array_of_chunks, encode
from penstock.types.kernels import chunks
from penstock.types.xstream import BLOCK, FIRST_ID, HIGHEST, LAST_ID, Id, Row, XStream, after, before

FAST_WRITE = Flag.WRITE | Flag.DENYOOM | Flag.FAST
DEFAULT_LIMIT = 100
"""Full blocks that one approximate trimming drops at most unless LIMIT says otherwise."""
FULL_COUNT = 10
"""Entries that XINFO STREAM FULL shows unless COUNT says otherwise."""
AGES = 1 << 52
"""Milliseconds beyond which BLOCK never times out, because timers cannot take such numbers."""

_id = re.compile(rb"\s*\+?(\d+)(?:-\s*\+?(\d+))?\Z").match


# -- ids ------------------------------------------------------------------------------------------------------


def show(at: Id) -> bytes:
    return b"%d-%d" % at


def to_id(raw: bytes, sequence: int = 0) -> Id:
    """An id, `sequence` where it gives only the milliseconds.

    >>> to_id(b"5-1"), to_id(b"5", HIGHEST)
    ((5, 1), (5, 18446744073709551615))
    """
    parts = _id(raw) if len(raw) < 128 else None
    if parts is not None:
        milliseconds, given = parts.groups()
        at = int(milliseconds), sequence if given is None else int(given)
        if max(at) <= HIGHEST:
            return at
    raise ReplyError("Invalid stream ID specified as stream command argument")


def _to_low(raw: bytes) -> Id:
    """The first id of an interval: `-`, `+`, an id, or `(` and an excluded id."""
    if raw[:1] != b"(" or len(raw) == 1:
        return _to_bound(raw, 0)
    low = after(to_id(raw[1:]))
    if low is None:
        raise ReplyError("invalid start ID for the interval")
    return low


def _to_high(raw: bytes) -> Id:
    """The last id of an interval."""
    if raw[:1] != b"(" or len(raw) == 1:
        return _to_bound(raw, HIGHEST)
    high = before(to_id(raw[1:], HIGHEST))
    if high is None:
        raise ReplyError("invalid end ID for the interval")
    return high


def _to_bound(raw: bytes, sequence: int) -> Id:
    return FIRST_ID if raw == b"-" else LAST_ID if raw == b"+" else to_id(raw, sequence)


def _entry(row: Row) -> list[Any]:
    return [b"%d-%d" % row[0], row[1]]


# -- adding and trimming --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Trimming:
    """What MAXLEN or MINID asks for."""

    word: bytes = b""
    threshold: int | Id = 0  # a length for MAXLEN, an id for MINID
    approximate: bool = False
    limit: int | None = None

    def parse(self, argv: Argv, at: int) -> int:
        """Parse the option at this position; the position after it, or the same one if it is none of these."""
        word = argv[at].upper()
        more = len(argv) - 1 - at
        if not more or word not in (b"MAXLEN", b"MINID", b"LIMIT"):
            return at
        if word == b"LIMIT":
            self.limit = _not_negative(argv[at + 1], "LIMIT")
            return at + 2
        if self.word:
            raise ReplyError("syntax error, MAXLEN and MINID options at the same time are not compatible")
        if more >= 2 and argv[at + 1] in (b"~", b"="):
            self.approximate = argv[at + 1] == b"~"
            at += 1
        self.word = word
        self.threshold = _not_negative(argv[at + 1], "MAXLEN") if word == b"MAXLEN" else to_id(argv[at + 1])
        return at + 2

    def validate(self) -> None:
        if self.limit and not self.word:
            raise ReplyError("syntax error, LIMIT cannot be used without specifying a trimming strategy")
        if self.limit is not None and not self.approximate:
            raise ReplyError("syntax error, LIMIT cannot be used without the special ~ option")

    def apply(self, stream: XStream, full: int) -> int:
        """Trim, and answer how many entries were dropped; `full` blocks have so many."""
        limit = DEFAULT_LIMIT * full if self.limit is None else self.limit
        if isinstance(self.threshold, int):
            return stream.keep_newest(self.threshold, self.approximate, limit if self.approximate else 0)
        return stream.keep_from(self.threshold, self.approximate, limit if self.approximate else 0)

    @staticmethod
    def effect(stream: XStream) -> Argv:
        """The exact trimming that leaves the stream as it is now."""
        return [b"MAXLEN", b"=", b"%d" % len(stream)]


def _not_negative(raw: bytes, name: str) -> int:
    number = to_integer(raw)
    if number < 0:
        raise ReplyError(f"The {name} argument must be >= 0.")
    return number


@dataclass(slots=True)
class Addition:
    """The options of XADD, without the fields."""

    id_at: int = 2  # the position of the id
    make: bool = True  # create a stream if there is none
    trimming: Trimming | None = None
    given: Id | None = None  # None for `*`
    next_of_time: bool = False  # `ms-*`

    @classmethod
    def parse(cls, argv: Argv) -> Addition:
        plan = cls()
        trimming = Trimming()
        at = 2
        while at < len(argv):
            following = trimming.parse(argv, at)
            if following == at:
                if argv[at].upper() != b"NOMKSTREAM":
                    break
                plan.make = False
                following += 1
            at = following
        else:
            raise wrong_arity("xadd")
        plan.id_at = at
        if argv[at] != b"*":
            plan.next_of_time = argv[at].endswith(b"-*") and argv[at].count(b"-") == 1
            plan.given = to_id(argv[at][:-2] if plan.next_of_time else argv[at])
        trimming.validate()
        plan.trimming = trimming if trimming.word else None
        return plan

    def choose(self, last: Id, now: int) -> Id:
        """The id of the new entry, above the last one; ReplyError if there can be none."""
        given = self.given
        if given is None and now > last[0]:
            return now, 0
        following = after(last)
        if following is None:
            raise ReplyError("The stream has exhausted the last possible ID, unable to add more items")
        if given is None or (self.next_of_time and given[0] == last[0] == following[0]):
            return following
        if given <= last:
            raise ReplyError("The ID specified in XADD is equal or smaller than the target stream top item")
        return given


_ADD_NOW = Addition()
"""`XADD key * ...`, by far the most common form."""


@command(
    "XADD",
    arity=-5,
    flags=FAST_WRITE | Flag.TIMED,
    keys=key(1, Access.WRITE),
    group="xstream",
    syntax="key [NOMKSTREAM] [MAXLEN | MINID [= | ~] threshold [LIMIT count]] * | id field value [field value ...]",
    cost="O(1), and O(1) a hundred entries trimmed",
)
def xadd(session: Session, argv: Argv) -> Reply:
    """Append an entry to the stream at key, creating it, and answer the entry's id.

    `*` takes the time in milliseconds and a sequence number, `ms-*` the next sequence number of that time. Ids only
    grow, also when the clock is set back. MAXLEN and MINID then drop the oldest entries; with `~` only whole
    blocks (`stream-node-max-entries`). NOMKSTREAM answers null instead of creating the stream.
    """
    plan = _ADD_NOW if argv[2] == b"*" else Addition.parse(argv)
    fields = tuple(argv[plan.id_at + 1 :])
    if not fields or len(fields) % 2:
        raise wrong_arity("xadd")
    if plan.given == FIRST_ID and not plan.next_of_time:
        raise ReplyError("The ID specified in XADD must be greater than 0-0")
    name = argv[1]
    db = session.db
    stream = db.find(name, XStream)
    if stream is None and not plan.make:
        return None
    chosen = plan.choose(FIRST_ID if stream is None else stream.last_id, db.clock.now)
    if stream is None:
        stream = db.obtain(name, XStream)
    full = session.engine.config.stream_node_max_entries or BLOCK
    stream.append(chosen, fields, full)
    shown = b"%d-%d" % chosen
    if plan.trimming is not None and plan.trimming.apply(stream, full):
        session.log([b"XADD", name, *Trimming.effect(stream), shown, *fields])
    else:
        session.log([b"XADD", name, shown, *fields])
    db.changed(name)
    return shown


@command(
    "XTRIM",
    arity=-4,
    flags=Flag.WRITE,
    keys=key(1, Access.WRITE, Effect.DELETE),
    group="xstream",
    syntax="key MAXLEN | MINID [= | ~] threshold [LIMIT count]",
    cost="O(1) a hundred entries dropped",
    not_lazy=NotLazy("drops as many as is cheap, which may differ in a replay, with ~", lambda argv: b"~" in argv[3:]),
    check_words=lambda session, argv: _to_trimming(argv),
)
def xtrim(session: Session, argv: Argv) -> Reply:
    """Drop the oldest entries of the stream at key and answer how many.

    MAXLEN keeps the newest threshold entries, MINID those with ids from threshold on; with `~` only whole
    blocks are dropped (`stream-node-max-entries`), and at most LIMIT entries.
    """
    trimming = _to_trimming(argv)
    stream = session.db.find(argv[1], XStream)
    if stream is None:
        return 0
    dropped = trimming.apply(stream, session.engine.config.stream_node_max_entries or BLOCK)
    if dropped:
        session.log([b"XTRIM", argv[1], *Trimming.effect(stream)])
        session.db.changed(argv[1])
    return dropped


def _to_trimming(argv: Argv) -> Trimming:
    """What XTRIM asks for."""
    trimming = Trimming()
    at = 2
    while at < len(argv):
        following = trimming.parse(argv, at)
        if following == at:
            raise syntax_error()
        at = following
    if not trimming.word and not trimming.limit:
        raise ReplyError("syntax error, XTRIM must be called with a trimming strategy")
    trimming.validate()
    return trimming


@command(
    "XDEL",
    arity=-3,
    flags=Flag.WRITE | Flag.FAST,
    keys=key(1, Access.WRITE, Effect.DELETE),
    group="xstream",
    syntax="key id [id ...]",
    cost="O(log N) an id",
)
def xdel(session: Session, argv: Argv) -> Reply:
    """Remove entries from the stream at key and answer how many there were. The stream stays, even an empty one."""
    stream = session.db.find(argv[1], XStream)
    if stream is None:
        return 0
    deleted = sum(list(map(stream.delete, [to_id(raw) for raw in argv[2:]])))
    if deleted:
        session.db.changed(argv[1])
    return deleted


@command(
    "XSETID",
    arity=-3,
    flags=FAST_WRITE,
    keys=key(1, Access.WRITE),
    group="xstream",
    syntax="key last-id [ENTRIESADDED entries-added] [MAXDELETEDID max-deleted-id]",
    check_words=lambda session, argv: _to_last_id(argv),
)
def xsetid(session: Session, argv: Argv) -> Reply:
    """Set the last id of the stream at key, which the next entry's must exceed, and what XINFO STREAM counts."""
    last, added, deleted = _to_last_id(argv)
    stream = session.db.find(argv[1], XStream)
    if stream is None:
        raise no_such_key()
    newest = stream.last()
    if newest is not None and last < newest[0]:
        raise ReplyError("The ID specified in XSETID is smaller than the target stream top item")
    if added is not None and added < len(stream):
        raise ReplyError("The entries_added specified in XSETID is smaller than the target stream length")
    stream.last_id = last
    if added is not None:
        stream.entries_added = added
    if deleted != FIRST_ID:
        stream.max_deleted_id = deleted
    session.engine.keyspace.dirty += 1  # logged, but it does not break a WATCH, as in Redis
    return OK


def _to_last_id(argv: Argv) -> tuple[Id, int | None, Id]:
    """The last id that XSETID sets, how many entries were added, and the largest deleted id."""
    last = to_id(argv[2])
    added: int | None = None
    deleted = FIRST_ID
    if len(argv) % 2 == 0:
        raise syntax_error()
    for word, raw in zip(argv[3::2], argv[4::2], strict=True):
        if word.upper() == b"ENTRIESADDED":
            added = to_integer(raw)
            if added < 0:
                raise ReplyError("entries_added must be positive")
        elif word.upper() == b"MAXDELETEDID":
            deleted = to_id(raw)
            if deleted > last:
                raise ReplyError("The ID specified in XSETID is smaller than the provided max_deleted_entry_id")
        else:
            raise syntax_error()
    return last, added, deleted


# -- reading --------------------------------------------------------------------------------------------------


@command(
    "XLEN",
    arity=2,
    flags=Flag.READONLY | Flag.FAST,
    keys=key(1, Access.READ, Effect.SIGHT),
    group="xstream",
    syntax="key",
)
def xlen(session: Session, argv: Argv) -> Reply:
    """Answer how many entries the stream at key has, 0 if there is none."""
    stream = session.db.find(argv[1], XStream)
    return 0 if stream is None else len(stream)


@command(
    "XRANGE",
    arity=-4,
    flags=Flag.READONLY,
    keys=key(1, Access.READ),
    group="xstream",
    syntax="key start end [COUNT count]",
    cost="O(log N + M) with M entries answered",
)
def xrange(session: Session, argv: Argv) -> Reply:
    """Answer the entries with ids from start to end; `-` and `+` are the ends, `(id` excludes the id."""
    return _range(session, argv, _to_low(argv[2]), _to_high(argv[3]), backwards=False)


@command(
    "XREVRANGE",
    arity=-4,
    flags=Flag.READONLY,
    keys=key(1, Access.READ),
    group="xstream",
    syntax="key end start [COUNT count]",
    cost="O(log N + M) with M entries answered",
)
def xrevrange(session: Session, argv: Argv) -> Reply:
    """Answer the entries with ids from end down to start, the newest first."""
    low = _to_low(argv[3])
    return _range(session, argv, low, _to_high(argv[2]), backwards=True)


def _range(session: Session, argv: Argv, low: Id, high: Id, backwards: bool) -> Reply:
    count: int | None = None
    for at in range(4, len(argv), 2):
        if argv[at].upper() != b"COUNT" or at + 1 == len(argv):
            raise syntax_error()
        count = to_integer(argv[at + 1])
    stream = session.db.find(argv[1], XStream)
    if stream is None:
        return []
    if count is not None and count <= 0:
        return NULL_ARRAY
    work = stream.about(low, high, count) if len(stream) > LONG else 0
    if work <= LONG:
        return [_entry(row) for row in stream.range(low, high, count, backwards)]
    protocol = session.protocol
    return session.aside(work, lambda: _in_pieces(stream.parts(low, high, count, backwards), protocol))


def _in_pieces(parts: Iterable[list[Row]], protocol: int) -> RawPieces:
    """The reply with the entries of these rows, encoded."""
    return array_of_chunks(([_entry(row) for row in rows] for part in parts for rows in chunks(part)), protocol)


def _streams_at(argv: Argv) -> int:
    """The position of the first key of XREAD; options and their values come before STREAMS."""
    for at in range(1, len(argv), 2):
        if argv[at].upper() == b"STREAMS":
            return at + 1
    return len(argv)


def _read_keys(argv: Argv) -> range:
    first = _streams_at(argv)
    return range(first, first + (len(argv) - first) // 2)


@command(
    "XREAD",
    arity=-4,
    flags=Flag.READONLY | Flag.BLOCKING | Flag.MOVABLEKEYS,
    keys=found_keys(_read_keys, Access.READ),
    group="xstream",
    syntax="[COUNT count] [BLOCK milliseconds] STREAMS key [key ...] id [id ...]",
    cost="O(log N + M) a stream with M entries answered",
)
def xread(session: Session, argv: Argv) -> Reply:
    """Answer the entries above an id of each stream, for those streams that have any; null if none has.

    COUNT limits the entries of each stream. With BLOCK, wait that long, 0 for ever, until one of the streams gets
    an entry. The id `$` is the stream's last one: only what comes from now on.
    """
    count, timeout = _read_options(argv)
    positions = _read_keys(argv)
    names = argv[positions.start : positions.stop]
    ids = [_to_read_above(session, name, raw) for name, raw in zip(names, argv[positions.stop :], strict=True)]
    tried = session.candidates(names)
    found: list[tuple[bytes, XStream, Id]] = []
    for name, above in zip(names, ids, strict=True):
        stream = session.db.find(name, XStream) if name in tried else None
        low = after(above)
        if stream is not None and low is not None and stream.range(low, LAST_ID, 1):
            found.append((name, stream, low))
    if found:
        return _read(session, found, count)
    if timeout is None:
        return NULL_ARRAY
    if session.current is not None:
        # The command runs again when a key changes, and the meaning of `$` must not change with it.
        session.current = session.current[0], [*argv[: positions.stop], *map(show, ids)]
    deadline = session.engine.clock.now + timeout if 0 < timeout < AGES else 0
    return session.block(names, deadline, NULL_ARRAY)


def _read(session: Session, found: list[tuple[bytes, XStream, Id]], count: int | None) -> Reply:
    """The reply of XREAD, with what each stream has from an id on."""
    work = sum(stream.about(low, LAST_ID, count) for _, stream, low in found if len(stream) > LONG)
    protocol = session.protocol
    if work <= LONG:
        rows = [(name, [_entry(row) for row in stream.range(low, LAST_ID, count)]) for name, stream, low in found]
        return rows if protocol == 2 else dict(rows)

    def compute() -> RawPieces:
        pieces: list[bytes | memoryview] = [b"%b%d\r\n" % (b"*" if protocol == 2 else b"%", len(found))]
        for name, stream, low in found:
            pieces.append((b"*2\r\n" if protocol == 2 else b"") + encode(name))
            pieces += _in_pieces(stream.parts(low, LAST_ID, count), protocol).pieces
        return RawPieces(pieces)

    return session.aside(work, compute)


def _read_options(argv: Argv) -> tuple[int | None, int | None]:
    """COUNT and BLOCK, each None if it is not given (COUNT also if it is no limit)."""
    count: int | None = None
    timeout: int | None = None
    start = _streams_at(argv)
    for at in range(1, start - 1, 2):
        word, raw = argv[at].upper(), argv[at + 1]
        if word == b"COUNT":
            count = max(to_integer(raw), 0) or None
        elif word == b"BLOCK":
            timeout = to_integer(raw, lambda: ReplyError("timeout is not an integer or out of range"))
            if timeout < 0:
                raise ReplyError("timeout is negative")
        elif word in (b"GROUP", b"NOACK"):
            option = word.decode()
            raise ReplyError(f"The {option} option is only supported by XREADGROUP. You called XREAD instead.")
        else:
            raise syntax_error()
    if start >= len(argv):
        raise syntax_error()
    if (len(argv) - start) % 2:
        raise ReplyError("Unbalanced XREAD list of streams: for each stream key an ID or '$' must be specified.")
    return count, timeout


def _to_read_above(session: Session, name: bytes, raw: bytes) -> Id:
    """The id that XREAD reads on from."""
    stream = session.db.find(name, XStream)
    if raw == b"$":
        return FIRST_ID if stream is None else stream.last_id
    if raw == b">":
        raise ReplyError(
            "The > ID can be specified only when calling XREADGROUP using the GROUP <group> <consumer> option."
        )
    return to_id(raw)


@command(
    "XINFO STREAM",
    arity=-3,
    flags=Flag.READONLY,
    keys=key(2, Access.READ),
    group="xstream",
    syntax="key [FULL [COUNT count]]",
    cost="O(1), and O(1) an entry shown",
)
def xinfo_stream(session: Session, argv: Argv) -> Reply:
    """Answer what is known of the stream at key: its length, its ids, its first and last entry.

    FULL shows the first entries instead, 10 or COUNT, all for 0. There are never any groups.
    """
    stream = session.db.find(argv[2], XStream)
    if stream is None:
        raise no_such_key()
    count = _full_count(argv)
    first, last = stream.first(), stream.last()
    facts: dict[str, Any] = {
        "length": len(stream),
        "radix-tree-keys": stream.blocks,
        "radix-tree-nodes": stream.blocks + 1,
        "last-generated-id": show(stream.last_id),
        "max-deleted-entry-id": show(stream.max_deleted_id),
        "entries-added": stream.entries_added,
        "recorded-first-entry-id": show(first[0] if first is not None else FIRST_ID),
    }
    if count is not None:
        return _full_info(session, facts, stream, count or None)
    return facts | {
        "groups": 0,
        "first-entry": None if first is None else _entry(first),
        "last-entry": None if last is None else _entry(last),
    }


def _full_info(session: Session, facts: dict[str, Any], stream: XStream, count: int | None) -> Reply:
    """The reply of XINFO STREAM FULL."""
    work = stream.about(FIRST_ID, LAST_ID, count)
    if work <= LONG:
        return facts | {"entries": [_entry(row) for row in stream.range(FIRST_ID, LAST_ID, count)], "groups": []}
    protocol = session.protocol
    size = len(facts) + 2
    head = [b"*%d\r\n" % (2 * size) if protocol == 2 else b"%%%d\r\n" % size]
    head += [encode(value, protocol) for pair in facts.items() for value in pair]

    def compute() -> RawPieces:
        entries = _in_pieces(stream.parts(FIRST_ID, LAST_ID, count), protocol).pieces
        return RawPieces([*head, encode("entries"), *entries, encode("groups"), encode([])])

    return session.aside(work, compute)


def _full_count(argv: Argv) -> int | None:
    """How many entries XINFO STREAM FULL shows, 0 for all; None without FULL."""
    words = [word.upper() for word in argv[3:5]]
    if not words:
        return None
    if words == [b"FULL"] and len(argv) == 4:
        return FULL_COUNT
    if words != [b"FULL", b"COUNT"] or len(argv) != 6:
        raise bad_subcommand(argv)
    count = to_integer(argv[5])
    return count if count >= 0 else FULL_COUNT
