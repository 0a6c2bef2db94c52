"""The messages that the stream rows write, prepared for both servers, and streams filled with them.

A message is a JSON object of about 100 bytes under a tag; on Redis the tag is the field's name. Lengths are fixed, and
Redis gets its ids, so that the size of a reply is known before it is sent.
"""

from __future__ import annotations

import functools

import pyarrow as pa

from penstock.bench.load import connect, drive, exchange
from penstock.bench.servers import Running
from penstock.protocol.resp import pack

KEY = b"bench"
TAG = b"order"
ARROW_ROWS = 10_000
_EPOCH = 1_700_000_000_000  # so that ids have their usual length


def entry(number: int) -> bytes:
    """A message's JSON: 100 bytes, some of which differ from one to the next, as in real data."""
    user, item, cents = number * 7919 % 10_000, number * 104_729 % 100_000, number * 611_953 % 1_000_000
    return b'{"id":%09d,"user":"u-%04d","item":"sku-%05d","cents":%06d,"country":"NL","state":"paid","retry":0}' % (
        number, user, item, cents,
    )  # fmt: skip


def redis_id(number: int) -> bytes:
    """The id of the message with a number, from 1."""
    return b"%d-0" % (_EPOCH + number)


def xadd(number: int, identity: bytes = b"*") -> bytes:
    return pack(b"XADD", KEY, identity, TAG, entry(number))


@functools.cache
def arrow_write(rows: int = ARROW_ROWS) -> bytes:
    """A TWRITE of so many rows in Arrow's form."""
    table = pa.table({"tag": [TAG] * rows, "entry": [entry(number) for number in range(rows)]})
    return arrow_command(table)


def arrow_command(table: pa.Table) -> bytes:
    """A TWRITE of a table with the columns tag and entry."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return pack(b"TWRITE", KEY, b"FORMAT", b"ARROW", sink.getvalue().to_pybytes())


@functools.cache
def _redis_batches(count: int) -> list[bytes]:
    numbers = range(1, count + 1)
    return [b"".join(xadd(n, redis_id(n)) for n in numbers[at : at + 1000]) for at in range(0, count, 1000)]


def fill(server: Running, count: int) -> None:
    """Make the stream at KEY have `count` messages, a multiple of ARROW_ROWS, by the fastest method of each server."""
    if server.is_ours:
        drive(server.port, [arrow_write()], 1, count // ARROW_ROWS, 1, b"\n")
    else:
        batches = _redis_batches(count)
        drive(server.port, batches, 1, len(batches), 1000, b"$")


def reply_size(server: Running, request: bytes, replies: int = 1) -> int:
    """How many bytes the server answers to a request."""
    with connect(server.port) as sock:
        return exchange(sock, request, replies)
