"""The connection of drivers and tasks: what a cut connection means, and how a long range is read. Without Spark."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest
import redis

from penstock import Server
from penstock.spark import sink, stream_connection
from penstock.spark.options import OptionError, Options
from penstock.spark.stream_connection import ServerUnreachable, StreamConnection
from penstock.testing.proxy import FaultProxy
from penstock.testing.redis import RedisServer

ROWS, SIZE = 4000, 10_000  # 40 MB: several windows


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url, protocol=2) as client:
        client.flushall()
        yield client


@pytest.fixture
def proxy(server: Server) -> Iterator[FaultProxy]:
    with FaultProxy(("127.0.0.1", server.port)) as proxy:
        yield proxy


def through(proxy: FaultProxy, patience: int = 20_000) -> Options:
    return Options(url=f"redis://127.0.0.1:{proxy.port}", retryTimeout=patience, stream=("s",))


def fill(client: redis.Redis) -> None:
    for start in range(0, ROWS, 1000):
        words = [word for number in range(start, start + 1000) for word in (b"t", b"%d" % number + bytes(SIZE))]
        client.execute_command("TWRITE", "s", "ENTRIES", *words)


def offsets(batches: list[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def entries(client: redis.Redis, stream: str = "s") -> list[bytes]:
    return [message[2] for message in client.execute_command("TREAD", stream, 1, 100) if message is not None]


def test_a_long_range_is_read_in_windows_of_some_megabytes(proxy: FaultProxy, client: redis.Redis) -> None:
    fill(client)
    with StreamConnection(through(proxy)) as connection:
        batches = list(connection.read("s", 501, ROWS + 1))
    assert offsets(batches) == list(range(501, ROWS + 1))
    assert len(batches) == -(-(ROWS - 500) * SIZE // stream_connection.BYTES_A_READ)
    assert max(batch.nbytes for batch in batches) < stream_connection.BYTES_A_READ + 2 * SIZE


def test_a_message_larger_than_a_window_is_read(
    proxy: FaultProxy, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_connection, "BYTES_A_READ", 10)
    client.execute_command("TWRITE", "s", "ENTRIES", *[b"t", b"longer than ten bytes"] * 3)
    with StreamConnection(through(proxy)) as connection:
        assert [batch.num_rows for batch in connection.read("s", 1, 4)] == [1, 1, 1]


def test_a_cut_in_the_middle_of_a_window_is_not_seen(proxy: FaultProxy, client: redis.Redis) -> None:
    fill(client)
    fault = proxy.cut_mid_reply(1_000_000, b"TREAD", nth=3)
    with StreamConnection(through(proxy)) as connection:
        assert offsets(list(connection.read("s", 1, ROWS + 1))) == list(range(1, ROWS + 1))
    assert fault.has_fired


def test_a_server_that_goes_away_in_the_middle_of_a_range_is_named(proxy: FaultProxy, client: redis.Redis) -> None:
    fill(client)
    with StreamConnection(through(proxy, patience=300)) as connection:
        windows = connection.read("s", 1, ROWS + 1)
        next(windows)
        proxy.refuse_connections()
        proxy.cut_connections()
        with pytest.raises(ServerUnreachable, match=f"no answer from the server at redis://127.0.0.1:{proxy.port}"):
            list(windows)


def test_a_server_that_is_away_is_asked_until_the_timeout_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return now

        @staticmethod
        def sleep(seconds: float) -> None:
            nonlocal now
            now += seconds

    def ask() -> None:
        raise redis.ConnectionError("refused")

    monkeypatch.setattr(stream_connection, "time", Clock)
    with (
        StreamConnection(Options(retryTimeout=3000)) as connection,
        pytest.raises(ServerUnreachable, match="for 3 seconds"),
    ):
        connection.repeat(ask)
    assert now == pytest.approx(3.0)


def test_a_server_that_is_not_penstock_is_named(theirs: RedisServer) -> None:
    with (
        StreamConnection(Options(url=theirs.url, stream=("s",))) as connection,
        pytest.raises(
            OptionError,
            match=rf"the server at {theirs.url}.* is not a Penstock server: it does not know the command TREAD",
        ),
    ):
        connection.bounds(["s"])


def test_a_reader_that_stops_early_leaves_no_thread_behind(proxy: FaultProxy, client: redis.Redis) -> None:
    fill(client)
    proxy.swallow(b"TREAD", nth=2)
    with StreamConnection(through(proxy)) as connection:
        windows = connection.read("s", 1, ROWS + 1)
        next(windows)
        windows.close()  # type: ignore[attr-defined]
    for thread in threading.enumerate():
        if thread.name.startswith("penstock-fetch"):
            thread.join(100)
            assert not thread.is_alive()


def test_entries_that_may_have_been_staged_are_staged_again_under_another_token(
    proxy: FaultProxy, client: redis.Redis
) -> None:
    fault = proxy.cut_after_execution(b"TSTAGE")
    with StreamConnection(through(proxy)) as connection:
        stager = sink._Stager(connection, "query")
        stager.add("s", pa.RecordBatch.from_pylist([{"tag": b"t", "entry": b"once"}], sink._ENTRIES))
        stager.flush_all()
    assert fault.has_fired
    assert proxy.forwarded[b"TSTAGE"] == 2
    sink.commit(through(proxy), [sink.Staged("query", 0, stager.tokens)], "query", 0)
    assert entries(client) == [b"once"]


def test_an_overwrite_whose_answer_was_lost_keeps_what_it_wrote(proxy: FaultProxy, client: redis.Redis) -> None:
    from pyspark.sql.types import BinaryType, StructType

    client.execute_command("TWRITE", "s", "t", "old")
    client.execute_command("TSTAGE", "s", "token", "ENTRIES", "t", "new")
    fault = proxy.cut_after_execution(b"EXEC")
    writer = sink.StreamBatchWriter(through(proxy), StructType().add("entry", BinaryType()), overwrite=True)
    writer.commit([sink.Staged("batch", 0, {"s": ["token"]})])
    assert fault.has_fired
    assert entries(client) == [b"new"]


def test_what_a_worker_imported_is_out_of_the_collectors_sight() -> None:
    program = (
        "import gc, penstock.spark.source, penstock.spark.executor_setup as executor\n"
        "print(gc.get_freeze_count() == 0)  # this process is no worker yet\n"
        "executor.freeze_imports(); first = gc.get_freeze_count(); executor.freeze_imports()\n"
        "print(first > 50_000, gc.get_freeze_count() <= first, len(gc.get_objects()) < 1000)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"] * 4


def test_a_server_that_is_away_is_told_of_before_the_query_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_connection, "SILENT_FOR", 0.1)
    with (
        StreamConnection(Options(url="redis://:secret@127.0.0.1:1", retryTimeout=500)) as connection,
        pytest.raises(ServerUnreachable),
    ):
        connection.call("PING")
    said = capsys.readouterr().err
    assert said.startswith("penstock: no answer from the server at redis://127.0.0.1:1 yet: ")
    assert said.endswith("s more (option retryTimeout)\n")
    assert said.count("\n") == 1
    assert "secret" not in said
