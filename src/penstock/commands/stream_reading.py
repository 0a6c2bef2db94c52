"""TREAD: reading a stream by offset, or as a member of a group (stream_group_reading.py)."""

from __future__ import annotations

import weakref
from itertools import islice

from penstock.commands.stream_group_reading import read_group, read_several
from penstock.commands.stream_read_arguments import Read, also_keys, dead_letter_key, only_new, tread_access
from penstock.commands.stream_read_replies import bulk, plain_reply, schema_text, timed_reply
from penstock.commands.streams import to_number
from penstock.engine.declarations import Access, Argv, Flag, KeySpec, Reply, command, key
from penstock.engine.keyspace.databases import Database
from penstock.engine.session import Session
from penstock.engine.stream_history import Foreseen, with_history
from penstock.protocol.resp import NULL_ARRAY
from penstock.types.stream import reading
from penstock.types.stream.groups import SLICE
from penstock.types.stream.nodes import Range, Storage
from penstock.types.stream.stream import Stream

_NO_STREAM = Stream(Storage())  # the result where there is none
_NOTHING = _NO_STREAM.messages
FORESEEN = 1000
"""Leases that a group read looks through for those that are due, to fetch their messages."""


def _foresee_tread(session: Session, database: Database, argv: Argv) -> Foreseen:
    read = Read.parse(argv)
    return _foreseen(session, read, [database.find(name, Stream) for name in (read.key, *read.also)])


@command(
    "TREAD",
    arity=-4,
    flags=Flag.WRITE | Flag.BLOCKING | Flag.MOVABLEKEYS | Flag.BRIEF,
    keys=(
        *key(1, Access.UPDATE, narrow=tread_access),
        KeySpec(Access.UPDATE, find=also_keys),
        KeySpec(Access.WRITE, find=dead_letter_key),
    ),
    group="stream",
    syntax="key offset count [BLOCK ms] [GROUP name] [RETRY retry-ms expire-ms] [MAXATTEMPTS count] "
    "[CONSUMER name [RELEASE]] [RESERVE] [WITHLEASE] [MAXBYTES bytes] [DEADLETTER key] [WITHINFO] [WITHTIME] "
    "[FORMAT ARROW [COMPRESSED]] [ALSO numkeys key [key ...] [FAIR]]",
    cost="O(1) to find the offset, at any length, and O(bytes) to send; a group adds O(leases touched)",
    foresees=_foresee_tread,
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
            return plain_reply(session, stream.messages if stream is not None else _NOTHING, offset, count)
    read = Read.parse(argv)
    handle = _read_plain if read.group is None else read_several if read.also else read_group
    stream = session.db.find(read.key, Stream)
    if not read.also and (stream is None or not stream.messages.history):
        return handle(session, read)
    streams = [stream, *[session.db.find(name, Stream) for name in read.also]]
    if not any(stream is not None and stream.messages.history for stream in streams):
        return handle(session, read)
    return with_history(session, _foreseen(session, read, streams), lambda: handle(session, read))


def _foreseen(session: Session, read: Read, streams: list[Stream | None]) -> Foreseen:
    ranges = [
        (stream.messages, each)
        for stream in streams
        if stream is not None and stream.messages.history
        for each in _upcoming(session, read, stream)
    ]
    return Foreseen(ranges, read.max_bytes)


def _upcoming(session: Session, read: Read, stream: Stream) -> list[Range]:
    """The offsets that a read will probably touch; what it touches beside them is fetched in its middle."""
    offset = read.offset if read.offset is not None else stream.messages.last + 1
    if read.group is None:
        return [(offset, offset + read.count)]
    group = stream.groups.get(read.group)
    if group is None:
        return [(offset or stream.messages.first, (offset or stream.messages.first) + read.count)]
    streams = session.engine.streams
    now, due_by = streams.lease_time(), streams.due_by()
    leases = [*islice(group.leases, FORESEEN)]
    due = [lease for lease in leases if lease.retry_at <= (now if lease.given_back else due_by)]
    letters = [lease for lease in leases if lease.dead_letter is not None and 0 < lease.end_at <= due_by]
    return [
        (group.position, group.position + read.count),
        *[(lease.start, lease.end) for lease in (*due[: read.count], *letters[:SLICE])],
    ]


def _read_plain(session: Session, read: Read) -> Reply:
    stream = session.db.find(read.key, Stream)
    messages = stream.messages if stream is not None else _NOTHING
    if read.offset is None:
        read.offset = only_new(session, stream, messages)
    if read.wait is not None and read.count and read.offset > messages.last:
        read.origin = weakref.ref(stream) if stream is not None else None
        return session.block([read.key], read.deadline(session), NULL_ARRAY, read)
    if read.with_time:
        return timed_reply(session, stream if stream is not None else _NO_STREAM, read, read.offset)
    if read.arrow:
        fields = schema_text(stream, read)
        return bulk(
            reading.read_arrow(
                messages, read.offset, read.count, read.max_bytes, read.compressed, read.with_info, fields
            )
        )
    return plain_reply(session, messages, read.offset, read.count, read.max_bytes, read.with_info)
