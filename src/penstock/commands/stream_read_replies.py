"""The replies of TREAD: messages as RESP or as Arrow, with or without their times, leases and the stream's range."""

from __future__ import annotations

from itertools import chain

from penstock.commands.stream_read_arguments import Read
from penstock.engine.session import Session
from penstock.protocol import stream_messages
from penstock.protocol.resp import RawPieces
from penstock.protocol.stream_messages import NULL2, NULL3
from penstock.types.stream import reading
from penstock.types.stream.arrow import TIMED_SCHEMA
from penstock.types.stream.delays import Delays
from penstock.types.stream.groups import Delivery
from penstock.types.stream.ipc import ArrowPart, Piece, stream_of
from penstock.types.stream.messages import Messages
from penstock.types.stream.stream import Stream

MAX_NULLS = 1_000_000
"""The most evicted messages that one plain read reports: a stream may have lost more than a reply can hold."""


def plain_reply(
    session: Session, messages: Messages, offset: int, count: int, max_bytes: int | None = None, with_info: bool = False
) -> RawPieces:
    """The reply of a read by offset: evicted messages are null."""
    if messages.first - offset > MAX_NULLS:
        count = min(count, MAX_NULLS)
    null = NULL2 if session.protocol == 2 else NULL3
    pieces, count = reading.read(messages, offset, count, stream_messages, null, max_bytes)
    return array(pieces, count, messages if with_info else None)


def timed_reply(session: Session, stream: Stream, read: Read, offset: int) -> RawPieces:
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
        return bulk(stream_of(arrow, bounds, schema_text(stream, read), TIMED_SCHEMA))
    null = NULL2 if session.protocol == 2 else NULL3
    pieces: list[Piece] = []
    at_offset = offset
    for block, start, end, at in parts:
        pieces += [null * (start - at_offset), block.leased(start, end, at, stream_messages)]
        at_offset = end
    pieces.append(null * max(stop - at_offset, 0))
    return array(pieces, max(stop - offset, 0), messages if read.with_info else None)


def leased_reply(stream: Stream, read: Read, delivery: Delivery) -> RawPieces:
    """The reply with the token of a delivery, 0 if there is nothing in it, and the attempts of its messages."""
    messages = stream.messages
    leases = delivery.leases
    token = leases[0].token if leases else 0
    if read.arrow:
        fields = schema_text(stream, read)
        return bulk(reading.read_arrow_leases(messages, leases, token, read.with_info, fields))
    head = b":%d\r\n" % token
    if read.with_info:
        head += b"*2\r\n:%d\r\n:%d\r\n" % (messages.first, messages.last)
    pieces = reading.read_leases(messages, leases, stream_messages)
    count = sum(lease.end - lease.start for lease in leases) + (2 if read.with_info else 1)
    return RawPieces([b"*%d\r\n" % count, head, *pieces])


def schema_text(stream: Stream | None, read: Read) -> str | None:
    """The newest schema of a stream, if the reader asks about the stream and there is one."""
    if not read.with_info or stream is None or stream.schemas is None:
        return None
    return str(stream.schemas.newest)


def bulk(part: ArrowPart) -> RawPieces:
    """An Arrow stream as one bulk string."""
    return RawPieces(chain([b"$%d\r\n" % part.size], part.pieces, [b"\r\n"]))


def array(pieces: list[Piece], count: int, info: Messages | None) -> RawPieces:
    """Encoded messages as an array, with the range of the stream in front if `info` is given."""
    if info is None:
        return RawPieces([b"*%d\r\n" % count, *pieces])
    return RawPieces([b"*%d\r\n*2\r\n:%d\r\n:%d\r\n" % (count + 1, info.first, info.last), *pieces])
