"""Administration of streams: description, groups, retention, and the offset at a time."""

from __future__ import annotations

from penstock.commands.streams import log_at, refuse_repeated, to_number, to_ranges
from penstock.engine.arguments import INT64_MAX
from penstock.engine.declarations import Access, Argv, Flag, NotLazy, Reply, command, key
from penstock.engine.keyspace.databases import Database
from penstock.engine.session import Session
from penstock.engine.stream_history import Foreseen, with_history
from penstock.protocol.errors import ReplyError, no_such_key
from penstock.protocol.resp import OK
from penstock.types.stream.groups import Group
from penstock.types.stream.retention import Retention, apply_retention
from penstock.types.stream.seeking import age_of, range_at_time, seek_time
from penstock.types.stream.stream import Stream

_READ = Flag.READONLY
_WRITE = Flag.WRITE


def _existing(session: Session, name: bytes) -> Stream:
    stream = session.db.find(name, Stream)
    if stream is None:
        raise no_such_key()
    return stream


def _group_of(stream: Stream, name: bytes) -> Group:
    group = stream.groups.get(name)
    if group is None:
        raise ReplyError(
            f"no such group '{name.decode(errors='replace')}'; a group is made by its first TREAD ... GROUP"
        )
    return group


def _describe(session: Session, name: bytes, group: Group, stream: Stream) -> dict[bytes, object]:
    streams = session.engine.streams
    now = streams.lease_time()
    consumers = [
        {
            b"name": consumer,
            b"pending": sum(end - start for start, end in member.holds(group.leases)),
            b"idle": max(now - member.asked, 0),
        }
        for consumer, member in group.members.by_name.items()
    ]
    held, free = group.leases.next_retry(), group.leases.next_free()
    retries = [streams.grace.retry_at(now, held)] if held is not None else []
    retries += [free] if free is not None else []
    letters = {group.letter_key} if group.letter_key is not None else group.leases.dead_letter_keys()
    return {
        b"name": name,
        b"position": group.position,
        b"lag": group.lag(stream.messages),
        b"lag-ms": age_of(stream.messages, group.position, session.db.clock.now),
        b"pending": group.pending_count,
        b"delayed": group.waiting.messages,
        b"acknowledged": group.acknowledged,
        b"done-through": group.done_through,
        b"lost": group.lost,
        b"next-retry": session.db.clock.shown(min(retries))[0] if retries else None,
        b"dead-letters": sorted(letters),
        b"consumers": consumers,
    }


@command(
    "TINFO",
    arity=2,
    flags=_READ,
    keys=key(1, Access.READ),
    group="stream",
    syntax="key",
    cost="O(nodes + groups + delays)",
)
def tinfo(session: Session, argv: Argv) -> Reply:
    """Describe a stream: its range of offsets, nodes, bytes raw and stored, retention, producers, stages and groups.

    A group's position is the next offset it delivers. Its lag is the exact number of available messages that were not
    delivered yet, and lag-ms is about how long ago the first of them was written. `acknowledged` counts messages, those
    included that were delivered without RETRY. All messages up to the offset `done-through` are acknowledged, given up
    or lost. `lost` counts evicted offsets that the group had not done. `delayed` counts messages that groups do not get
    yet; of a group, those that it has passed by. `dead-letters` is the stream that gets what the group gives up, if a
    reader since the start of the server, or a lease, names one. `consumers` is as in TGROUP LIST. `history` is the part
    of the messages that is in files; bytes-stored is memory.
    """
    stream = _existing(session, argv[1])
    info = stream.messages.info()
    kept = stream.retention
    return {
        b"first": info.first,
        b"last": info.last,
        b"length": info.length,
        b"nodes": info.nodes,
        b"nodes-hot": info.hot,
        b"nodes-cold": info.cold,
        b"bytes-raw": info.raw_bytes,
        b"bytes-stored": info.stored_bytes,
        b"history": {
            b"length": info.history_length,
            b"bytes": info.history_bytes,
            b"files": info.history_files,
        },
        b"retention": {b"count": kept.count, b"age": kept.age_ms, b"bytes": kept.bytes, b"compact": int(kept.compact)},
        b"producers": len(stream.producers.by_id),
        b"stages": len(stream.stages.by_token),
        b"delayed": stream.delays.count(session.engine.streams.lease_time(), info.first)
        if stream.delays is not None
        else 0,
        b"groups": [_describe(session, name, group, stream) for name, group in stream.groups.items()],
    }


def _foresee_tseek(session: Session, database: Database, argv: Argv) -> Foreseen:
    stream = database.find(argv[1], Stream)
    return Foreseen([(stream.messages, range_at_time(stream.messages, to_number(argv[3], "TIME")))] if stream else [])


@command(
    "TSEEK",
    arity=4,
    flags=_READ | Flag.FAST,
    keys=key(1, Access.READ),
    group="stream",
    syntax="key TIME ms",
    cost="O(log nodes)",
    foresees=_foresee_tseek,
)
def tseek(session: Session, argv: Argv) -> Reply:
    """Answer the first available offset that was written at or after a time, or the next offset if there is none."""
    if argv[2].upper() != b"TIME":
        raise ReplyError(f"unknown option '{argv[2][:64].decode(errors='replace')}' of TSEEK; it takes TIME ms")
    moment = to_number(argv[3], "TIME")
    stream = session.db.find(argv[1], Stream)
    if stream is None:
        return 1
    messages = stream.messages
    foreseen = Foreseen([(messages, range_at_time(messages, moment))])
    return with_history(session, foreseen, lambda: seek_time(messages, moment))


@command(
    "TPRODUCER",
    arity=3,
    flags=_READ | Flag.FAST,
    keys=key(1, Access.READ),
    group="stream",
    syntax="key id",
)
def tproducer(session: Session, argv: Argv) -> Reply:
    """Answer a producer's last sequence number and the offset of that write's first entry, or null.

    A producer that restarts continues with the next number. The answer is null if the stream does not know the
    producer: it wrote nothing with PRODUCER, or was forgotten. The offset is null if no entry of the write fitted.
    """
    stream = session.db.find(argv[1], Stream)
    last = stream.producers.last(argv[2]) if stream is not None else None
    return [last[0], last[1] or None] if last is not None else None


@command(
    "TRETAIN",
    arity=-2,
    flags=_WRITE | Flag.TIMED,
    keys=key(1, Access.UPDATE),
    group="stream",
    syntax="key [COUNT messages] [AGE ms] [BYTES bytes] [COMPACT yes | no]",
    cost="O(nodes freed)",
)
def tretain(session: Session, argv: Argv) -> Reply:
    """Set what a stream keeps. A limit that is not named stays, and 0 removes a limit.

    COUNT evicts nodes as long as so many messages are left. AGE evicts a node when its newest message is too old,
    including the node that is being written. BYTES is the most that the stream holds, but the newest message always
    stays. COMPACT keeps the last entry of every tag, with its offset. A message stays only if all rules keep it. Old
    messages are evicted by whole nodes, sometimes a little later than the limit says; messages so large that one node
    would exceed BYTES are evicted one by one.
    """
    stream = _existing(session, argv[1])
    limits = _retention(stream.retention, argv[2:])
    if limits == stream.retention:
        return OK
    stream.retain(limits)
    streams = session.engine.streams
    first = stream.messages.first
    if not streams.replaying:
        apply_retention(stream.messages, limits, session.db.clock.now)
    streams.note(session.db, argv[1], stream)
    session.db.changed(argv[1])
    log_at(session, argv, stream.messages.first - 1 if stream.messages.first != first else 0)
    return OK


def _retention(kept: Retention, words: Argv) -> Retention:
    if len(words) % 2:
        raise ReplyError("TRETAIN takes pairs of COUNT, AGE, BYTES or COMPACT and a value")
    count, age, size, compact = kept.count, kept.age_ms, kept.bytes, kept.compact
    seen: set[bytes] = set()
    for word, value in zip(words[::2], words[1::2], strict=True):
        name = word.upper()
        refuse_repeated(seen, name, "TRETAIN")
        if name == b"COUNT":
            count = to_number(value, "COUNT")
        elif name == b"AGE":
            age = to_number(value, "AGE")
        elif name == b"BYTES":
            size = to_number(value, "BYTES")
        elif name == b"COMPACT" and value.lower() in (b"yes", b"no"):
            compact = value.lower() == b"yes"
        elif name == b"COMPACT":
            raise ReplyError("COMPACT must be yes or no")
        else:
            raise ReplyError(f"unknown limit '{word[:64].decode(errors='replace')}' of TRETAIN")
    return Retention(count, age, size, compact)


@command(
    "TGROUP LIST",
    arity=3,
    flags=_READ,
    keys=key(2, Access.READ),
    group="stream",
    syntax="key",
    cost="O(groups + deliveries that named members hold)",
)
def tgroup_list(session: Session, argv: Argv) -> Reply:
    """List a stream's groups with their position, lag and pending messages.

    `consumers` has the members that read with CONSUMER: how many messages each holds, and the milliseconds since it
    last asked. A name that holds nothing is forgotten when it has not asked for an hour.
    """
    stream = session.db.find(argv[2], Stream)
    return (
        [_describe(session, name, group, stream) for name, group in stream.groups.items()] if stream is not None else []
    )


@command(
    "TGROUP SET",
    arity=5,
    flags=_WRITE,
    keys=key(2, Access.UPDATE),
    group="stream",
    syntax="key group offset | $ | 0",
    not_lazy=NotLazy("is logged by its effect, which is not known before it runs"),
)
def tgroup_set(session: Session, argv: Argv) -> Reply:
    """Move a group to an offset, creating it; pending messages stay pending. 0 is the first available message."""
    stream = _existing(session, argv[2])
    messages = stream.messages
    place = messages.last + 1 if argv[4] == b"$" else to_number(argv[4], "offset") or messages.first
    if argv[3] not in stream.groups:
        session.engine.require_memory(argv)
    group = stream.group(argv[3], place)
    group.position = place
    session.engine.streams.note(session.db, argv[2], stream)
    session.db.changed(argv[2])
    session.log([b"TAPPLY", argv[2], b"GROUP", argv[3], group.change().encode()])
    return OK


@command(
    "TGROUP DEL",
    arity=4,
    flags=_WRITE,
    keys=key(2, Access.UPDATE),
    group="stream",
    syntax="key group",
    cost="O(1); its memory is freed in small steps",
)
def tgroup_del(session: Session, argv: Argv) -> Reply:
    """Delete a group with its position and pending messages; answer 1 if it existed. Waiting members get an error."""
    stream = session.db.find(argv[2], Stream)
    if stream is None or stream.groups.pop(argv[3], None) is None:
        return 0
    session.db.changed(argv[2])
    return 1


@command(
    "TGROUP PENDING",
    arity=-4,
    flags=_READ,
    keys=key(2, Access.READ),
    group="stream",
    syntax="key group [start-end] [COUNT messages]",
    cost="O(log L + leases shown), with L leases pending",
)
def tgroup_pending(session: Session, argv: Argv) -> Reply:
    """List the messages that a group got and has not acknowledged, as runs of offsets delivered together.

    Each row is [first, last, attempts, first delivered, next retry, expiry or 0], times in milliseconds since 1970. A
    message that is reserved and was never begun has 0 attempts and no expiry yet.
    """
    words = argv[4:]
    bounds = (1, INT64_MAX)
    count = 1000
    if words and words[0].upper() != b"COUNT":
        bounds = to_ranges(words[:1])[0]
        words = words[1:]
    if words:
        if len(words) != 2 or words[0].upper() != b"COUNT":
            raise ReplyError("TGROUP PENDING takes a range and COUNT messages, nothing else")
        count = to_number(words[1], "COUNT")
    shown = session.db.clock.shown
    group = _group_of(_existing(session, argv[2]), argv[3])
    streams = session.engine.streams
    now = streams.lease_time()
    return [
        [
            lease.start,
            lease.end - 1,
            lease.attempts,
            *shown(
                lease.first_delivered,
                lease.retry_at if lease.given_back else streams.grace.retry_at(now, lease.retry_at),
            ),
            *(shown(lease.expire_at) if lease.expire_at > 0 else [0]),
        ]
        for lease in group.pending(*bounds, count)
    ]
