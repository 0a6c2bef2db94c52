"""Dead letters come once, however the messages are cut into partitions. Without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import redis
from pyspark.sql.types import IntegerType, StructType

from penstock import Server
from penstock.spark import source
from penstock.spark.options import Options, parse
from penstock.spark.ranges import Range

SCHEMA = StructType().add("n", IntegerType())


@pytest.fixture(autouse=True)
def not_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task changes the garbage collector of its process."""
    monkeypatch.setattr(source, "freeze_imports", lambda: None)


@pytest.fixture
def client(ours: Server) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(ours.url) as client:
        client.flushall()
        yield client


def read(options: Options, start: int, end: int, query: str) -> int:
    """Read a batch, the last partition first; how many partitions it had."""
    parts = source._cut([Range("s", start, end)], options)
    for part in reversed(parts):
        list(source.read_partition(options, SCHEMA, source.StreamPartition(part), query))
    return len(parts)


def letters(client: redis.Redis) -> list[int]:
    return sorted(json.loads(message[2])["offset"] for message in client.execute_command("TREAD", "dead", 1, 10_000))


def test_a_batch_that_is_cut_otherwise_when_it_is_read_again_writes_no_letter_twice(
    ours: Server, client: redis.Redis
) -> None:
    rows = [b"bad" if number % 100 == 0 else b"{}" for number in range(1, 5001)]
    client.execute_command("TWRITE", "s", "ENTRIES", *(word for row in rows for word in (b"t", row)))
    given = {"url": ours.url, "stream": "s", "badEntries": "deadletter", "deadLetterStream": "dead"}
    counts = [read(parse({**given, "minPartitions": f"{count}"}), 1, 4551, "query") for count in (2, 5, 1, 100)]
    assert len(set(counts)) == 3, "the batches are cut differently"
    expected = list(range(100, 4551, 100))
    assert letters(client) == expected
    read(parse({**given, "minPartitions": "3"}), 4551, 5001, "query")
    assert letters(client) == [*expected, *range(4600, 5001, 100)], "the next batch begins in the middle of a node"
    read(parse(given), 1, 151, "another query")
    assert letters(client)[:2] == [100, 100]
