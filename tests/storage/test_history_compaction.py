"""Compaction of messages that are in files: what it keeps survives restarts, also when the files are not needed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import redis
from tests.support.storage.running import running
from tests.support.waiting import wait_until

COUNT = 60_000
SETTINGS = {"appendonly": "yes", "stream_memory": "2mb", "stream_compression": "none"}


def fill(client: redis.Redis) -> None:
    """Of each second message there is no newer one with its tag."""
    tags = [b"kept %d" % number if number % 2 else b"t" for number in range(COUNT)]
    entries = [b"%d " % number * 6 for number in range(COUNT)]
    table = pa.table({"tag": pa.array(tags, pa.binary()), "entry": pa.array(entries, pa.binary())})
    for at in range(0, COUNT, 5000):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table.slice(at, 5000))
        client.execute_command("TWRITE", "orders", "FORMAT", "ARROW", sink.getvalue().to_pybytes())


def offsets(client: redis.Redis) -> list[int]:
    found: list[int] = []
    for at in range(1, COUNT + 1, 10_000):
        reply = client.execute_command("TREAD", "orders", at, 10_000, "FORMAT", "ARROW")
        found += pa.ipc.open_stream(reply).read_all().column("offset").to_pylist()
    return found


def is_at_rest(client: redis.Redis) -> bool:
    info = client.info("persistence")
    is_busy = info["history_files_to_remove"] or info["history_write_in_progress"]
    return not is_busy and 4 * info["stream_memory_held"] < 3 * info["stream_memory_limit"]


def rewrite(client: redis.Redis) -> None:
    count = client.info("persistence")["aof_rewrites"]
    client.bgrewriteaof()
    wait_until(lambda: client.info("persistence")["aof_rewrites"] > count)


def test_what_compaction_keeps_of_files_survives_restarts_and_the_files_go_with_the_next_base(tmp_path: Path) -> None:
    expected = [*range(2, COUNT + 1, 2)]
    with running(tmp_path, **SETTINGS) as (_, client):
        fill(client)
        wait_until(lambda: is_at_rest(client))
        rewrite(client)
        before = {path.name for path in tmp_path.glob("history/*")}
        client.execute_command("TRETAIN", "orders", "COMPACT", "yes")
        wait_until(lambda: client.execute_command("TINFO", "orders")[b"length"] <= COUNT // 2 + 1500)
        wait_until(lambda: is_at_rest(client))
        assert before <= {path.name for path in tmp_path.glob("history/*")}, "the base refers to them"
        kept = offsets(client)
        assert set(expected) <= set(kept)
    for _ in range(2):
        with running(tmp_path, **SETTINGS) as (_, client):
            assert offsets(client) == kept
    with running(tmp_path, **SETTINGS) as (_, client):
        rewrite(client)
        wait_until(lambda: not before & {path.name for path in tmp_path.glob("history/*")})
        assert offsets(client) == kept
    with running(tmp_path, **SETTINGS) as (_, client):
        assert offsets(client) == kept


def test_files_that_only_a_replay_reads_do_not_fill_the_disk_for_ever(tmp_path: Path) -> None:
    settings = {**SETTINGS, "stream_memory": 200_000, "stream_history_max": 600_000, "stream_history_full": "refuse"}
    with running(tmp_path, **settings, stream_hot_nodes=1) as (_, client):
        client.execute_command("TWRITE", "orders", "t", "e")
        client.execute_command("TRETAIN", "orders", "COMPACT", "yes")
        written = 0

        def is_written() -> bool:
            tags = [b"%d" % (number % 7000) for number in range(written, written + 1000)]
            try:
                client.execute_command(
                    "TWRITE", "orders", "ENTRIES", *[word for tag in tags for word in (tag, b"x" * 60)]
                )
            except redis.ResponseError as error:
                assert "stream-history-max" in str(error)
                return False
            return True

        while written < 40_000:
            wait_until(is_written)
            written += 1000
        wait_until(lambda: client.execute_command("TINFO", "orders")[b"length"] < 9000)
