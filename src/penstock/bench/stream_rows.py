"""The rows of streams: ours against a real Redis's streams, doing the same with the same messages.

Requests are made before the clock starts, and replies are counted, not parsed, so the figures are the servers'. The row
that builds tables in Python is an exception, because it measures the client. Read the row `fanout` with care: at 64
sockets and few bytes each, the generator costs about as much as a server.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from penstock.bench.fanout import fan_out
from penstock.bench.load import Work, drive
from penstock.bench.messages import ARROW_ROWS, KEY, TAG, arrow_write, entry, fill, redis_id, reply_size, xadd
from penstock.bench.pending import Pending
from penstock.bench.row import Measure, Row, throughput
from penstock.bench.servers import Running, configured, unpinned
from penstock.bench.stream_length import Lengths, lengthen
from penstock.client.api.sync import Client
from penstock.protocol.resp import pack

TWRITE = Work("twrite", ("TWRITE", "bench", "field", "value"))
XADD = Work("xadd", ("XADD", "bench", "*", "field", "value"), mark=b"$")

_COLD = {"stream-compression-backlog": "0"}  # all but the newest nodes are compressed as they are written


def _whole(count: float, unit: int) -> int:
    """A count that is a multiple of a unit, and at least one unit."""
    return max(int(count) // unit, 1) * unit


# -- Writing --------------------------------------------------------------------------------------------------


def _write_xadds(server: Running, scale: float) -> float:
    rounds = max(int(2000 * scale), 8)
    batches = [b"".join(xadd(at * 100 + n) for n in range(100)) for at in range(64)]
    return rounds * 100 / drive(server.port, batches, 8, rounds, 100, b"$")


def _write_entries(server: Running, scale: float) -> float:
    """Messages a second, 100 a command or 100 commands a batch."""
    if not server.is_ours:
        return _write_xadds(server, scale)
    rounds = max(int(10_000 * scale), 8)
    batches = [
        pack(b"TWRITE", KEY, b"ENTRIES", *(word for n in range(100) for word in (TAG, entry(at * 100 + n))))
        for at in range(64)
    ]
    return rounds * 100 / drive(server.port, batches, 8, rounds, 1, b"\n")


def _write_arrow(server: Running, scale: float) -> float:
    """Messages a second, 10,000 a command in Arrow's form or 100 commands a batch.

    It is a burst of 360 MB: of what ours writes, stream-compression-backlog bytes are compressed after the clock stops.
    The rest is compressed in a thread, so both servers may use every core here, the load's too.
    """
    with unpinned(server):
        if not server.is_ours:
            return _write_xadds(server, scale)
        rounds = max(int(300 * scale), 4)
        return rounds * ARROW_ROWS / drive(server.port, [arrow_write()], 4, rounds, 1, b"\n")


def _write_arrow_compressed(server: Running, scale: float) -> float:
    """The same where every write compresses as much as it adds, as in a stream without pauses."""
    with server.client() as admin, configured(admin, _COLD if server.is_ours else {}):
        return _write_arrow(server, scale)


# -- Reading --------------------------------------------------------------------------------------------------

_FILLED = 50_000


def _read_1000(server: Running, scale: float) -> float:
    """Messages a second, a thousand a read, at offsets within the newest few thousand."""
    fill(server, _FILLED)
    places = range(_FILLED - 7_500, _FILLED - 1_000, 250)
    if server.is_ours:
        requests = [pack(b"TREAD", KEY, b"%d" % place, b"1000") for place in places]
    else:
        requests = [pack(b"XRANGE", KEY, redis_id(place), b"+", b"COUNT", b"1000") for place in places]
    size = reply_size(server, requests[0])
    rounds = int((20_000 if server.is_ours else 2_000) * scale) + 4
    return rounds * 1000 / drive(server.port, requests, 4, rounds, size, None)


_REDIS_ROWS = 1_000  # a read of redis-py's; it is a seventh slower with ten thousand
_OUR_ROWS = 100_000  # a read of ours by default


def _read_tables(
    read: Callable[[Any, int, int], Any],
    rows_a_read: int = _OUR_ROWS,
    settings: dict[str, str] | None = None,
    redis_py: bool = False,
) -> Measure:
    """Messages a second into tables of pyarrow, in Python: each side with the batch size that is fastest for it."""

    def measure(server: Running, scale: float) -> float:
        with server.client() as admin, configured(admin, settings or {} if server.is_ours else {}):
            fill(server, _FILLED)
        if not server.is_ours:
            with server.client() as client:
                return _tables_a_second(client, _redis_table, max(int(2 * scale), 1), _REDIS_ROWS)
        with server.client() if redis_py else Client(port=server.port) as client:
            return _tables_a_second(client, read, max(int(60 * scale), 1), rows_a_read)

    return measure


def _tables_a_second(client: Any, read: Callable[[Any, int, int], Any], passes: int, rows_a_read: int) -> float:
    read(client, 1, 1)  # a connection, and the first use of everything
    started = time.perf_counter()
    for _ in range(passes):
        tables = [read(client, place, rows_a_read) for place in range(1, _FILLED, rows_a_read)]
        rows = pa.concat_tables(tables).num_rows
        assert rows == _FILLED, f"{rows} rows read, of {_FILLED}"
    return passes * _FILLED / (time.perf_counter() - started)


def _our_table(client: Any, place: int, rows: int) -> Any:
    return client.read_arrow(KEY, place, rows)


def _plain_table(client: Any, place: int, rows: int) -> Any:
    return pa.ipc.open_stream(client.execute_command("TREAD", KEY, place, rows, "FORMAT", "ARROW")).read_all()


def _redis_table(client: Any, place: int, rows: int) -> Any:
    found = client.xrange(KEY, redis_id(place), "+", rows)
    return pa.table(
        {
            "id": [identity for identity, _ in found],
            "tag": [tag for _, fields in found for tag in fields],
            "entry": [value for _, fields in found for value in fields.values()],
        }
    )


def _group(server: Running, scale: float) -> float:
    """Messages a second of one member that takes 100, acknowledges them and takes the next, ten such at a time."""
    start, count = 100_001, _whole(200_000 * scale, ARROW_ROWS)
    fill(server, 100_000 + count)
    if server.is_ours:
        read = pack(b"TREAD", KEY, b"%d" % start, b"100", b"GROUP", b"workers", b"RETRY", b"60000", b"0")
        acks = [pack(b"TACK", KEY, b"workers", b"%d-%d" % (at, at + 99)) for at in range(start, start + count, 100)]
    else:
        with server.client() as client:
            client.xgroup_create(KEY, "workers", redis_id(start - 1))
        read = pack(b"XREADGROUP", b"GROUP", b"workers", b"one", b"COUNT", b"100", b"STREAMS", KEY, b">")
        acks = [
            pack(b"XACK", KEY, b"workers", *(redis_id(n) for n in range(at, at + 100)))
            for at in range(start, start + count, 100)
        ]
    size = reply_size(server, read + acks[0], 2)
    batches = [b"".join(read + ack for ack in acks[at : at + 9]) for at in range(1, len(acks) - 8, 9)]
    return len(batches) * 900 / drive(server.port, batches, 1, len(batches), size * 9, None)


# -- Memory and seeking ---------------------------------------------------------------------------------------


def _bytes_a_message(compression: str) -> Measure:
    """Bytes of memory a message, as each server counts its own."""

    def measure(server: Running, scale: float) -> float:
        count = _whole(300_000 * scale, ARROW_ROWS)
        with server.client() as client:
            if not server.is_ours:
                fill(server, count)
                return float(client.memory_usage(KEY, samples=0)) / int(client.xlen(KEY))
            with configured(client, {"stream-compression": compression, "stream-compression-backlog": "0"}):
                fill(server, count)
                words = client.execute_command("TINFO", KEY)
                info = dict(zip(words[::2], words[1::2], strict=True))
                return float(info[b"bytes-stored"]) / int(info[b"length"])

    return measure


def _seek(length: int) -> Measure:
    """Microseconds to read one message anywhere in a stream of a length, without help of earlier reads."""

    def measure(server: Running, scale: float) -> float:
        with (
            server.client() as client,
            configured(client, {"stream-hot-nodes": "0", "stream-compression-backlog": "0"}),
        ):
            held = _whole(length * min(scale, 1), ARROW_ROWS)
            lengthen(server, held)
            rng = random.Random(1)
            places = [rng.randint(1, held) for _ in range(int(2_000 * scale) + 100)]
            requests = [pack(b"TREAD", KEY, b"%d" % place, b"1") for place in places]
            batches = [b"".join(requests[at : at + 100]) for at in range(0, len(requests) - 99, 100)]
            # "*1\r\n*3\r\n:offset\r\n$5\r\norder\r\n$n\r\nentry\r\n" has seven lines.
            return drive(server.port, batches, 1, len(batches), 700, b"\n") / len(batches) / 100 * 1e6

    return measure


def _rows() -> list[Row]:
    rate = "messages/s"
    lengths, pending = Lengths(), Pending()
    rows = [
        Row("twrite.1", "TWRITE / XADD, 50 clients, depth 1", "req/s", 0.9, throughput(1, TWRITE, XADD)),
        Row("twrite.50", "TWRITE / XADD, 50 clients, depth 50", "req/s", 1.0, throughput(50, TWRITE, XADD)),
        Row("twrite.entries", "TWRITE ENTRIES 100 / XADD depth 100", rate, 3, _write_entries),
        Row("twrite.arrow", "TWRITE ARROW 10,000 / XADD depth 100", rate, 15, _write_arrow),
        Row("twrite.arrow.cold", "the same, compressed as it comes", rate, None, _write_arrow_compressed),
        Row("tread.1000", "TREAD 1000 / XRANGE COUNT 1000", rate, 8, _read_1000),
        Row("tread.arrow", "read_arrow() / redis-py XRANGE, to a table", rate, 30, _read_tables(_our_table)),
        Row("tread.arrow.10k", "the same, 10,000 a read", rate, None, _read_tables(_our_table, ARROW_ROWS)),
        Row("tread.arrow.cold", "the same of what is compressed", rate, None, _read_tables(_our_table, settings=_COLD)),
        Row(
            "tread.arrow.redispy",
            "TREAD ARROW with redis-py / the same",
            rate,
            None,
            _read_tables(_plain_table, redis_py=True),
        ),
        Row("group", "GROUP 100 + TACK / XREADGROUP 100 + XACK", rate, 2, _group),
    ]
    for name, compression, target in (("raw", "none", 0.95), ("lz4", "lz4", None), ("zstd", "zstd", 0.3)):
        what = f"memory of a message, {compression} / Redis stream"
        measure = _bytes_a_message(compression)
        rows.append(Row(f"stream.bytes.{name}", what, "bytes", target, measure, smaller_is_better=True, rounds=1))
    what = "TREAD 1 cold, at 10M messages / at 10k"
    rows.append(Row("seek", what, "us", 1.3, _seek(10_000_000), True, baseline=_seek(10_000)))
    what = "64 blocked readers, TREAD / XREAD"
    rows.append(Row("fanout", what, "delivered/s", None, fan_out("rate")))
    rows.append(Row("fanout.latency", what + ", median", "us", None, fan_out("latency"), smaller_is_better=True))
    what = "TWRITE, TREAD, TEVICT, at 20M / at 10k"
    rows.append(
        Row(
            "length", what, "us", None, lengths.longest, True,
            rounds=1, baseline=lengths.shortest, report=lengths.report,
        )
    )  # fmt: skip
    what = "GROUP read, TACK, wake-up, 1M pending / 1k"
    rows.append(
        Row("pending", what, "us", 1.5, pending.many, True, rounds=1, baseline=pending.few, report=pending.report)
    )
    return rows


STREAM_ROWS = _rows()
