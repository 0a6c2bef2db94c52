"""`stream-memory` bounds what streams take in memory, whatever they are and whatever is done with them."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import redis
from tests.support.server_process import Process
from tests.support.storage.history import (
    SMALL,
    all_of,
    connected,
    fill,
    history,
    started,
    until,
    write,
)

from penstock import Server
from penstock.engine.concurrency.locks import KeyLock
from penstock.engine.directives import DIRECTIVES
from penstock.server.app import App
from penstock.storage import segment_files
from penstock.testing.redis import free_port
from penstock.types.stream import cooling, nodes
from penstock.types.stream.messages import Messages
from penstock.types.stream.stored_nodes import read_back_size
from penstock.types.stream.stream import Stream

MEGABYTE = 1 << 20


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with started(tmp_path) as server:
        yield server


def held(client: redis.Redis) -> int:
    return client.info("persistence")["stream_memory_held"]


def test_many_streams_that_have_only_hot_nodes_stay_within_the_bound(tmp_path: Path, entries: list[bytes]) -> None:
    with started(tmp_path, stream_hot_nodes=8) as server, connected(server) as client:
        for number in range(12):
            write(client, entries[number * 1000 :][:3000], f"s{number}")
        until(lambda: held(client) <= SMALL)
        files = sum(history(client, f"s{number}")["files"] for number in range(12))
        assert files >= 4
        for _ in range(2):  # the second time after a restart of all streams from their files
            for number in range(12):
                assert all_of(client, f"s{number}") == entries[number * 1000 :][:3000]
            server.call(lambda app: app.persistence.reload_log())
            until(lambda: held(client) <= SMALL)


def test_a_stream_that_is_written_and_read_at_its_end_goes_on_without_hot_nodes(
    tmp_path: Path, entries: list[bytes]
) -> None:
    with started(tmp_path, stream_hot_nodes=8, stream_memory=1) as server, connected(server) as client:
        for at in range(0, 12_000, 500):
            part = [word for entry in entries[at : at + 500] for word in (b"", entry)]
            client.execute_command("TWRITE", "s", "ENTRIES", *part)
            rows = client.execute_command("TREAD", "s", max(at - 1000, 1), 2000)
            assert [row[2] for row in rows] == entries[max(at - 1001, 0) : at + 500]
        until(lambda: history(client)["length"] == 12_000)
        server.call(lambda app: app.engine.keyspace[0].data[b"s"].check())
    with started(tmp_path) as server, connected(server) as client:
        assert all_of(client) == entries


def test_nodes_that_were_read_from_files_count_and_are_let_go(tmp_path: Path, entries: list[bytes]) -> None:
    with started(tmp_path) as server, connected(server) as client:
        fill(client, entries)
        client.config_set("stream-hot-nodes", 8)
        client.config_set("stream-memory", SMALL)
        for _ in range(3):
            pipeline = client.pipeline(transaction=True)
            for at in range(1, 8000, 500):
                pipeline.execute_command("TREAD", "s", at, 500)
            assert [row[2] for rows in pipeline.execute() for row in rows] == entries[:8000]
            until(lambda: held(client) <= SMALL)
            until(lambda: server.call(read_back) <= SMALL)


@pytest.mark.parametrize("how", ["copy", "restore", "reload"])
def test_streams_that_were_not_written_here_count_too(tmp_path: Path, entries: list[bytes], how: str) -> None:
    with started(tmp_path, stream_memory="50mb") as server, connected(server) as client:
        write(client, entries)
        if how == "copy":
            client.copy("s", "t")
        elif how == "restore":
            client.restore("t", 0, client.dump("s"))
        else:
            client.rename("s", "t")
            server.call(lambda app: app.persistence.reload(save=True, flush=True))
        client.delete("s")
        client.config_set("stream-memory", SMALL)
        until(lambda: history(client, "t")["length"] > 0)
        until(lambda: held(client) <= SMALL)
        assert all_of(client, "t") == entries


def test_writes_to_other_streams_go_on_while_the_largest_is_locked(server: Server, entries: list[bytes]) -> None:
    with connected(server) as client:
        client.config_set("stream-memory", "50mb")
        write(client, entries)

        def lock(app: App) -> None:
            database = app.engine.keyspace[0]
            database.locked[b"s"] = KeyLock(database.locked, b"s", 0)  # as if a thread worked on it
            app.engine.config.change([(DIRECTIVES["stream-memory"], str(SMALL))])

        server.call(lock)
        write(client, entries[:3000], "t")
        assert all_of(client, "t") == entries[:3000]
        server.call(lambda app: app.engine.keyspace[0].locked.pop(b"s"))
        until(lambda: history(client)["length"] > 0)
        assert all_of(client) == entries


def read_back(app: App) -> int:
    """Bytes of the nodes that were read from files and are still in memory."""
    stream = app.engine.keyspace[0].data[b"s"]
    assert isinstance(stream, Stream)
    return read_back_size(stream.messages)


def write_random(client: redis.Redis, size: int) -> None:
    """Write about so many bytes that cannot be compressed."""
    source = random.Random(size)
    for _ in range(size // 1_000_000):
        table = pa.table({"tag": [b""] * 1000, "entry": [source.randbytes(1000) for _ in range(1000)]})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        client.execute_command("TWRITE", "s", "FORMAT", "ARROW", sink.getvalue().to_pybytes())


def in_kilobytes(process: Process, field: str) -> int:
    lines = Path(f"/proc/{process.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def test_a_process_that_writes_twenty_times_its_stream_memory_stays_small(tmp_path: Path) -> None:
    limit, port = 6 * MEGABYTE, free_port()
    options = f"--stream-memory {limit} --appendfsync everysec --auto-aof-rewrite-percentage 0"
    process = Process(tmp_path, port, options=options)
    try:
        with redis.Redis(port=port) as client:
            client.config_set("save", "")  # no snapshot comes between
            write_random(client, 4 * limit)  # what the server loads and allocates once
            before = in_kilobytes(process, "VmHWM")
            write_random(client, 20 * limit)
            grown = in_kilobytes(process, "VmHWM") - before
            assert history(client)["bytes"] > 22 * limit
            # Without history it would be 20 times the limit and more. Half of that leaves room for any allocator.
            assert grown << 10 < 10 * limit
    finally:
        process.kill()


def test_nodes_and_what_a_thread_makes_of_them_stay_within_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit, held_now = 16 * MEGABYTE, []
    write_file = segment_files.write

    with started(tmp_path, stream_memory=limit, stream_hot_nodes=8) as server, connected(server) as client:

        def noted(*arguments: Any) -> Any:
            held_now.append(server.app.persistence.history.info()["stream_memory_held"])
            return write_file(*arguments)

        monkeypatch.setattr(segment_files, "write", noted)
        write_random(client, 20 * limit)
        assert history(client)["bytes"] > 18 * limit
    assert max(held_now) <= limit + 2 * MEGABYTE, "the bound, and what was written in a turn of the loop"


def test_a_portion_with_a_thread_counts_and_is_compressed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compressed_nodes: list[bytes] = []  # the first message of each
    chores: list[tuple[Callable[[], object], Callable[[], None]]] = []

    def noted(batches: list[Any], compression: str) -> list[bytes]:
        for batch in batches:
            compressed_nodes.extend(batch.column(2)[row].as_py() for row in range(0, batch.num_rows, 1000))
        return nodes.compressed(batches, compression)

    def later(compute: Callable[[], object], over: Callable[[], None]) -> bool:
        chores.append((compute, over))
        return True

    def finish(app: App) -> None:
        for compute, over in chores:
            compute()
            over()

    monkeypatch.setattr(cooling, "compressed", noted)
    with started(tmp_path, stream_memory=16 * MEGABYTE) as server, connected(server) as client:
        server.call(lambda app: setattr(app.engine.compression, "in_background", later))
        write_random(client, 7 * MEGABYTE)
        until(lambda: chores)
        raw = server.call(lambda app: app.engine.compression.in_flight)
        assert 0 < raw <= 2 * MEGABYTE
        assert held(client) >= 7 * 1_016_000 + raw
        assert compressed_nodes == []
        write_random(client, 30 * MEGABYTE)  # the loop cannot wait for a thread that has not begun
        ((_, _, first),) = client.execute_command("TREAD", "s", 1, 1)
        assert compressed_nodes.count(first) == 1, "the loop has done it"
        server.call(finish)
        assert len(set(compressed_nodes)) == len(compressed_nodes), "the thread found nothing to do"
        server.call(lambda app: app.engine.keyspace[0].data[b"s"].check())


def test_nodes_go_to_a_file_when_three_quarters_are_taken_not_at_the_next_tick(tmp_path: Path) -> None:
    options = {"stream_memory": 16 * MEGABYTE, "stream_compression": "none"}
    with started(tmp_path, **options) as server, connected(server) as client:
        server.call(lambda app: setattr(app.persistence.history, "tick", lambda: None))
        write_random(client, 11 * MEGABYTE)
        assert history(client)["files"] == 0
        write_random(client, 2 * MEGABYTE)
        until(lambda: history(client)["files"])
        assert held(client) < 12 * MEGABYTE


def test_streams_that_are_in_files_are_not_looked_at_when_more_goes_to_files(
    tmp_path: Path, entries: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[int] = []

    def nlargest(count: int, streams: Iterable[Messages], key: Callable[[Messages], int]) -> list[Messages]:
        found = [*streams]
        looked_at.append(len(found))
        return heapq.nlargest(count, found, key)

    monkeypatch.setattr("penstock.storage.history_choice.heapq", SimpleNamespace(nlargest=nlargest))
    with started(tmp_path) as server, connected(server) as client:
        for number in range(60):
            write(client, entries[:1000], f"s{number}")
        until(lambda: client.info("persistence")["history_files"] > 50)
        assert all_of(client, "s7") == entries[:1000]
    assert looked_at
    assert max(looked_at) < 30, "memory has room for three of them"
