"""Streams of Redis as a source: on our server, and on a real Redis."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
import redis
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType
from tests.support.spark.world import World

from penstock.spark.options import OptionError, Options, parse
from penstock.spark.redis_streams import (
    EntryRange,
    Id,
    RedisStreamBatchReader,
    RedisStreamReader,
    entry_schema,
    read_entries,
)
from penstock.spark.rows import BadEntry
from penstock.spark.source import DataLoss

FIELDS = StructType().add("id", "string").add("n", "integer")


def of(url: str, **options: str) -> Options:
    return parse({"url": url, "redisStream": "s"} | options)


def rows(options: Options, schema: StructType = FIELDS) -> list[dict[str, Any]]:
    """What a batch query reads."""
    reader = RedisStreamBatchReader(options, schema)
    return [row for part in reader.partitions() for row in read(options, part, schema)]


def read(options: Options, part: InputPartition, schema: StructType = FIELDS) -> list[dict[str, Any]]:
    assert isinstance(part, EntryRange)
    return [row for batch in read_entries(options, schema, part) for row in batch.to_pylist()]


def fill(r: redis.Redis, *ids: str) -> None:
    for id_ in ids:
        r.xadd("s", {"n": int(id_[0])}, id_)


def test_entries_are_rows_with_their_fields(peer: str, r: redis.Redis) -> None:
    r.xadd("s", {"n": 1, "name": "a"}, "1-1")
    r.xadd("s", {"n": 2}, "2-0")
    (first, second) = rows(of(peer), entry_schema(of(peer)))
    time = datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo=UTC)
    assert first == {"stream": "s", "id": "1-1", "time": time, "fields": [("n", "1"), ("name", "a")]}
    assert second["fields"] == [("n", "2")]
    assert rows(of(peer), StructType().add("name", "string").add("time", "long")) == [
        {"name": "a", "time": 1},
        {"name": None, "time": 2},
    ]


def test_a_batch_is_between_two_ids_or_times(peer: str, r: redis.Redis) -> None:
    fill(r, "1-0", "2-0", "2-1", "3-0")

    def ids(**options: str) -> list[str]:
        return [row["id"] for row in rows(of(peer, **options))]

    assert ids() == ["1-0", "2-0", "2-1", "3-0"]
    assert ids(startingOffsets='{"s": "2-0"}', endingOffsets='{"s": "3-0"}') == ["2-0", "2-1"]
    assert ids(startingTimestamp="2", endingTimestamp="3") == ["2-0", "2-1"]
    assert ids(startingOffsets="latest") == []


def test_a_long_stream_is_read_in_pieces(peer: str, r: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.spark.redis_streams.ENTRIES_A_READ", 2)
    fill(r, "1-0", "2-0", "3-0", "4-0", "5-0")
    batches = list(read_entries(of(peer), FIELDS, EntryRange("s", Id(1, 0), Id(4, 0))))
    assert [batch.column("n").to_pylist() for batch in batches] == [[2, 3], [4]]


def test_a_query_goes_on_by_id_and_a_batch_that_is_run_again_is_the_same(peer: str, r: redis.Redis) -> None:
    fill(r, "1-0", "2-0", "3-0")
    options = of(peer, maxRowsPerTrigger="2")
    reader = RedisStreamReader(options, FIELDS)
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert (start, end) == ({"s": "0-0"}, {"s": "2-0"})
    fill(r, "4-0")
    for _ in range(2):
        (part,) = reader.partitions(start, end)
        assert [row["n"] for row in read(options, part)] == [1, 2]
    reader.prepareForTriggerAvailableNow()
    fill(r, "5-0")
    assert reader.latestOffset(end, ReadAllAvailable()) == {"s": "4-0"}
    assert reader.latestOffset({"s": "4-0"}, ReadMaxRows(2)) == {"s": "4-0"}
    assert reader.partitions({"s": "4-0"}, {"s": "4-0"}) == []
    reader.stop()


def test_a_stream_that_is_gone_is_loss_and_one_that_is_trimmed_is_not(peer: str, r: redis.Redis) -> None:
    fill(r, "1-0", "2-0")
    reader = RedisStreamReader(of(peer), FIELDS)
    r.xtrim("s", maxlen=0)
    assert reader.latestOffset({"s": "2-0"}, ReadAllAvailable()) == {"s": "2-0"}
    r.delete("s")
    with pytest.raises(DataLoss, match=r"^stream s was read up to 2-0, and it is gone or begun anew"):
        reader.latestOffset({"s": "2-0"}, ReadAllAvailable())
    waiting = RedisStreamReader(of(peer, startingTimestamp="99"), FIELDS)
    assert waiting.latestOffset(waiting.initialOffset(), ReadAllAvailable()) == waiting.initialOffset()


def test_what_is_no_such_stream_is_named(peer: str, r: redis.Redis) -> None:
    r.set("s", "x")
    with pytest.raises(OptionError, match=r"the key 's' at redis://.* is no stream of Redis \(XADD\)"):
        rows(of(peer))
    r.delete("s")
    r.xadd("s", {"n": "many"}, "1-0")
    with pytest.raises(BadEntry, match=r"^stream s, entry 1-0, n: "):
        rows(of(peer))
    assert rows(of(peer, badEntries="null")) == [{"id": "1-0", "n": None}]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"redisStream": "a", "stream": "b"}, "option redisStream reads streams of Redis; it excludes stream"),
        ({"redisStream": "a", "startingOffsets": '{"a": 5}'}, "an offset of a is 5; it is an id, such as"),
        ({"stream": "a", "startingOffsets": '{"a": "5-0"}'}, "an offset of a is '5-0'; it is a number"),
    ],
)
def test_offsets_are_ids(given: dict[str, str], problem: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse(given)
    assert problem in str(caught.value)


def test_spark_reads_a_stream_of_redis_and_writes_one_of_ours(world: World) -> None:
    for number in range(3):
        world.client.xadd("orders", {"n": number, "user": "ada"})
    frame = world.follow("user string, n int", redisStream="orders").selectExpr(
        "user AS tag", "CAST(n AS STRING) AS entry"
    )
    world.run(frame, stream="out")
    world.client.xadd("orders", {"n": 3, "user": "bob"})
    world.run(frame, stream="out")
    assert world.entries("out") == [b"0", b"1", b"2", b"3"]
    assert world.read(redisStream="orders").where("fields['user'] = 'ada'").count() == 3
