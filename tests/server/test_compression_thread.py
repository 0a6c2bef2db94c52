"""A server compresses in a thread (with two processors or more) while clients write, read, copy, save and delete."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import redis

from penstock import Server

ROWS = 10_000


def upload(number: int) -> bytes:
    """An Arrow stream of as many rows, none like another."""
    entries = [b"upload %d, entry %d" % (number, row) for row in range(ROWS)]
    sink = pa.BufferOutputStream()
    table = pa.table({"tag": [b"tag"] * ROWS, "entry": entries})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def entries(r: redis.Redis, key: str, first: int, count: int) -> list[bytes]:
    table = pa.ipc.open_stream(r.execute_command("TREAD", key, first, count, "FORMAT", "ARROW")).read_all()
    column: list[bytes] = table.column("entry").to_pylist()
    return column


def test_clients_cannot_tell_that_a_thread_is_compressing(tmp_path: Path) -> None:
    uploads = 30
    expected = [b"upload %d, entry %d" % (number, row) for number in range(uploads) for row in range(ROWS)]
    directives = {"dir": str(tmp_path), "stream_compression_backlog": "1mb", "stream_hot_nodes": 1}
    with Server(**directives) as server, redis.Redis.from_url(server.url) as r:
        for number in range(uploads):
            assert r.execute_command("TWRITE", "s", "FORMAT", "ARROW", upload(number)) == number * ROWS + 1
            r.execute_command("TWRITE", "gone", "FORMAT", "ARROW", upload(number))
            if number % 5 == 4:
                r.copy("s", "copied", replace=True)
                r.delete("gone")
                assert entries(r, "s", number * ROWS - 1500, ROWS) == expected[number * ROWS - 1501 :][:ROWS]
        assert entries(r, "s", 1, len(expected)) == entries(r, "copied", 1, len(expected)) == expected
        r.execute_command("TEVICT", "copied", 250_500)
        assert entries(r, "copied", 250_501, len(expected)) == expected[250_500:]
        r.execute_command("DEBUG", "RELOAD")
        assert entries(r, "s", 1, len(expected)) == expected
