"""Readers and writers as Spark calls them, without Spark: errors for mistakes and lost data, and repeated writes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from penstock import Server
from penstock.spark import sink, source
from penstock.spark.data_source import PenstockDataSource
from penstock.spark.options import OptionError, parse
from penstock.spark.source import DataLoss, StreamReader

ENTRY = StructType().add("entry", BinaryType())


@pytest.fixture(autouse=True)
def not_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task changes the garbage collector of its process."""
    monkeypatch.setattr(source, "freeze_imports", lambda: None)


@pytest.fixture
def client(ours: Server) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(ours.url, protocol=3) as client:
        client.flushall()
        yield client


def write(client: redis.Redis, *entries: str, stream: str = "s") -> None:
    client.execute_command("TWRITE", stream, "ENTRIES", *(word for entry in entries for word in ("t", entry)))


def entries(client: redis.Redis, stream: str) -> list[bytes]:
    return [message[2] for message in client.execute_command("TREAD", stream, 1, 100)]


def reader(server: Server, schema: StructType = ENTRY, **options: str) -> StreamReader:
    found = PenstockDataSource({"url": server.url, "stream": "s", **options}).streamReader(schema)
    assert isinstance(found, StreamReader)
    return found


def plan(reader: StreamReader, start: dict[str, int]) -> tuple[dict[str, int], dict[str, Any]]:
    """What Spark asks a reader for a batch: its end, and what is shown of it."""
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    shown = reader.reportLatestOffset()
    reader.partitions(start, end)
    return end, shown["penstock:metrics"]


def commands(client: redis.Redis) -> dict[str, int]:
    """How often commands were called since this was asked last."""
    calls = {name.removeprefix("cmdstat_"): each["calls"] for name, each in client.info("commandstats").items()}
    client.config_resetstat()
    return {name: count for name, count in calls.items() if name not in ("info", "config|resetstat", "config")}


def read(reader: StreamReader, start: dict[str, int], end: dict[str, int]) -> list[bytes]:
    return [
        row["entry"] for part in reader.partitions(start, end) for rows in reader.read(part) for row in rows.to_pylist()
    ]


@pytest.mark.parametrize(
    ("schema", "options", "problem"),
    [
        (
            StructType().add("offset", StringType()),
            {},
            "column offset is string in the schema, and a message has it as",
        ),
        (
            StructType().add("Offset", LongType()),
            {},
            "column Offset in the schema: a message has offset, in lower case",
        ),
        (ENTRY, {"strem": "s"}, "did you mean stream"),
        (ENTRY, {"endingTimestamp": "5"}, "a stream has no end"),
    ],
)
def test_a_mistake_is_told_by_the_first_call_and_not_by_the_making(
    ours: Server, schema: StructType, options: dict[str, str], problem: str
) -> None:
    made = reader(ours, schema, **options)  # Spark loses an error that comes here
    with pytest.raises(OptionError, match=problem):
        made.initialOffset()
    with pytest.raises(OptionError, match=problem):
        made.latestOffset({"s": 1}, ReadAllAvailable())
    made.stop()


def test_a_task_without_a_query_reads(ours: Server, client: redis.Redis) -> None:
    write(client, "no json", '{"n": 1}')
    options = {"badEntries": "deadletter", "deadLetterStream": "dead"}
    made = reader(ours, StructType().add("entry", BinaryType()).add("n", LongType()), **options)
    for _ in range(2):
        assert read(made, {"s": 1}, {"s": 3}) == [b'{"n": 1}']
    assert len(entries(client, "dead")) == 1, "once a start of the query"
    made.stop()


def test_a_stream_that_was_begun_anew_is_read_from_its_beginning_if_loss_is_allowed(
    ours: Server, client: redis.Redis
) -> None:
    write(client, "new", "newer")
    reached = {"s": 101}
    strict = reader(ours)
    with pytest.raises(DataLoss, match="stream s was read up to offset 100, and the stream ends at 2"):
        strict.latestOffset(reached, ReadAllAvailable())
    made = reader(ours, failOnDataLoss="false")
    end = made.latestOffset(reached, ReadAllAvailable())
    assert end == {"s": 3}
    assert read(made, reached, end) == [b"new", b"newer"]
    one = made.latestOffset(reached, ReadMaxRows(1))
    assert (one, read(made, reached, one)) == ({"s": 2}, [b"new"])
    client.delete("s")
    gone = made.latestOffset(reached, ReadAllAvailable())
    assert (gone, read(made, reached, gone)) == ({"s": 1}, [])
    write(client, "newest")
    assert read(made, gone, made.latestOffset(gone, ReadAllAvailable())) == [b"newest"]
    for each in (strict, made):
        each.stop()


def test_a_place_to_begin_at_is_waited_for(ours: Server, client: redis.Redis) -> None:
    write(client, "a")
    made = reader(ours, failOnDataLoss="false", startingOffsets='{"s": 3}')
    start = made.initialOffset()
    assert made.latestOffset(start, ReadAllAvailable()) == start == {"s": 3}
    write(client, "b", "c")
    assert read(made, start, made.latestOffset(start, ReadAllAvailable())) == [b"c"]
    made.stop()


# -- writes that are repeated -----------------------------------------------------------------------------------


def save(server: Server, client: redis.Redis, entry: str, **options: str) -> None:
    """What a batch write of one row does."""
    made = PenstockDataSource({"url": server.url, "stream": "out", **options}).writer(ENTRY, overwrite=False)
    token = f"token of {entry}"
    client.execute_command("TSTAGE", "out", token, "ENTRIES", "t", entry)
    made.commit([sink.Staged("batch", 0, {"out": [token]})])


def test_a_write_under_a_number_happens_once(ours: Server, client: redis.Redis) -> None:
    save(ours, client, "a", txnAppId="app", txnVersion="0")
    save(ours, client, "a again", txnAppId="app", txnVersion="0")
    save(ours, client, "b", txnAppId="app", txnVersion="7")
    save(ours, client, "older", txnAppId="app", txnVersion="3")
    save(ours, client, "another", txnAppId="another app", txnVersion="3")
    assert entries(client, "out") == [b"a", b"b", b"another"]
    described = client.execute_command("TINFO", "out")
    assert described[b"stages"] == 0, "nothing is left behind"


def test_an_overwrite_has_no_number(ours: Server) -> None:
    options = {"url": ours.url, "stream": "out", "txnAppId": "app", "txnVersion": "0"}
    with pytest.raises(OptionError, match="cannot be repeated safely"):
        PenstockDataSource(options).writer(ENTRY, overwrite=True)


def test_a_table_of_sql_names_its_provider() -> None:
    assert parse({"stream": "s", "provider": "penstock"}).stream == ("s",)


def test_all_columns_of_a_stream_are_not_written_and_the_error_says_what_is() -> None:
    everything = StructType([*ENTRY]).add("stream", StringType()).add("offset", LongType()).add("tag", BinaryType())
    with pytest.raises(OptionError, match=r"columns offset cannot be written .* \.select\('tag', 'entry'\) copies"):
        sink.check_columns(everything, parse({"stream": "copy"}))


@pytest.mark.parametrize("options", [{}, {"maxBytesPerTrigger": "1000000"}])
def test_a_batch_is_planned_with_one_question_to_the_server(
    ours: Server, client: redis.Redis, options: dict[str, str]
) -> None:
    found = reader(ours, **options)
    write(client, *["x" * 100] * 50)
    end, _ = plan(found, {"s": 1})
    commands(client)
    assert plan(found, end) == (end, {"s": {"rows": 0, "bytes": 0, "lag": 0}})
    assert commands(client) == {"exists": 1, "tread": 1}, "of an idle trigger"
    write(client, "y" * 100)
    commands(client)
    end, metrics = plan(found, end)
    assert 100 <= metrics["s"].pop("bytes") <= 200
    assert (end, metrics) == ({"s": 52}, {"s": {"rows": 1, "lag": 0}})
    assert commands(client) == {"exists": 1, "tread": 1}
    found.stop()


def test_sizes_of_messages_are_asked_for_again_when_a_stream_has_grown_much_or_was_begun_anew(
    ours: Server, client: redis.Redis
) -> None:
    found = reader(ours, failOnDataLoss="false")
    write(client, "x")
    end, _ = plan(found, {"s": 1})
    write(client, *["x" * 10_000] * 9)
    end, metrics = plan(found, end)
    assert metrics["s"]["bytes"] > 9 * 9000
    client.delete("s")
    write(client, "x")
    _, metrics = plan(found, end)
    assert metrics["s"]["bytes"] < 1000
    found.stop()
