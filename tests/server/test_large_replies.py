"""Replies that are sent in pieces: whole, in order, and the same whatever else happens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis

import penstock

COUNT = 30_000
READS: list[tuple[Any, ...]] = [
    ("TREAD", "k", 1, COUNT),
    ("TREAD", "k", 1, COUNT, "FORMAT", "ARROW"),
    ("TREAD", "k", 0, COUNT, "GROUP", "g"),
    ("TREAD", "k", 700, 2, "WITHINFO"),
    ("TREAD", "k", 0, 2, "GROUP", "h", "RETRY", 1000, 0),
]


def _rows(reply: Any) -> list[Any]:
    if isinstance(reply, list):
        return reply
    table = pa.ipc.open_stream(reply).read_all()
    return [[row["offset"], row["tag"], row["entry"]] for row in table.to_pylist()]


@pytest.mark.parametrize("sync", ["always", "everysec", None])
@pytest.mark.parametrize("transaction", [False, True])
def test_replies_in_pieces_come_whole_and_in_order(tmp_path: Path, sync: str | None, transaction: bool) -> None:
    log = {"appendonly": True, "appendfsync": sync, "dir": tmp_path} if sync else {}
    with penstock.Server(**log) as server, redis.Redis.from_url(server.url) as client:
        messages = [[n, b"t", b"entry %d" % n] for n in range(1, COUNT + 1)]
        client.execute_command("TWRITE", "k", "ENTRIES", *(word for message in messages for word in message[1:]))
        with client.pipeline(transaction=transaction) as pipe:
            for words in READS:
                pipe.execute_command(*words)
                pipe.execute_command("ECHO", words[2])
            pipe.execute_command("TEVICT", "k", COUNT)
            plain, _, arrow, _, grouped, _, info, _, retried, echo, evicted = pipe.execute()
    assert _rows(plain) == _rows(arrow) == grouped == messages
    assert info == [[1, COUNT], *messages[699:701]]
    assert retried == messages[:2]
    assert (echo, evicted) == (b"0", COUNT)
