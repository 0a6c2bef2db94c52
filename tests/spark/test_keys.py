"""Keys as tables, on our server and on a real Redis Cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest
import redis
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType, _parse_datatype_string
from tests.support.spark.world import World

import penstock
from penstock.protocol.slots import key_slot
from penstock.spark.data_source import PenstockDataSource
from penstock.spark.keys import by_slot
from penstock.spark.options import OptionError
from penstock.testing.cluster import RedisCluster


class Place:
    """Where the keys are, and a client to look at them with."""

    def __init__(self, spark: SparkSession, url: str, client: Any) -> None:
        self.spark = spark
        self.url = url
        self.client = client

    def read(self, schema: str = "", **options: Any) -> Any:
        reader = self.spark.read.format("penstock").option("url", self.url).options(**options)
        return (reader.schema(schema) if schema else reader).load()

    def save(self, frame: Any, mode: str = "append", **options: Any) -> None:
        frame.write.format("penstock").option("url", self.url).options(**options).mode(mode).save()


@pytest.fixture(params=["penstock", "cluster"])
def place(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[Place]:
    if request.param == "penstock":
        world: World = request.getfixturevalue("world")
        yield Place(spark, world.url, world.client)
        return
    cluster: RedisCluster = request.getfixturevalue("cluster")
    port = cluster.masters[0].port
    with penstock.Cluster("127.0.0.1", port) as client:
        for node in cluster.masters:
            node.ask("FLUSHALL")
        yield Place(spark, f"redis://127.0.0.1:{port}", client)


def test_hashes_are_written_and_read_as_tables(place: Place) -> None:
    rows = [(f"user:{n}", f"name {n}", n, n / 2, None if n % 2 else "x") for n in range(500)]
    frame = place.spark.createDataFrame(rows, "key string, name string, age int, score double, note string")
    place.save(by_slot(frame, 3), type="hash", ttl=600_000)
    assert place.client.hgetall("user:7") == {b"name": b"name 7", b"age": b"7", b"score": b"3.5"}
    assert 0 < place.client.pttl("user:8") <= 600_000
    place.client.set("user:string", "of another type")
    schema = "key string, age int, score double, note string, missing string"
    table = place.read(schema, keys="user:*", minPartitions=6)
    assert table.rdd.getNumPartitions() >= 6
    found = {row.key: row for row in table.collect()}
    assert len(found) == table.count() == 500
    assert (found["user:8"].age, found["user:8"].score, found["user:8"].note, found["user:8"].missing) == (
        8,
        4.0,
        "x",
        None,
    )
    names = place.read(keys="user:*").columns
    assert names == ["key", "age", "name", "note", "score"], "without a schema: the fields there are"


def test_strings_and_a_set_of_keys(place: Place) -> None:
    rows = [(f"page:{n}", f"{n}") for n in range(100)]
    place.save(place.spark.createDataFrame(rows, "key string, value string"), type="string")
    place.client.sadd("pages", *(f"page:{n}" for n in range(0, 100, 10)), "page:gone")
    assert place.read("key string, value int", keys="page:*", type="string").agg(f.sum("value")).collect()[0][0] == 4950
    chosen = place.read("key string, value int", keySet="pages", type="string", minPartitions=4).collect()
    assert sorted(row.value for row in chosen) == list(range(0, 100, 10))


def test_lists_sets_and_sorted_sets_are_tables_of_their_elements(place: Place) -> None:
    for name in ("a", "b"):
        place.client.rpush(f"list:{name}", 3, 1)
        place.client.sadd(f"set:{name}", "x")
        place.client.zadd(f"zset:{name}", {"one": 1.5, "two": float("inf")})
    found = {kind: place.read(type=kind, keys="*:*", text=True, minPartitions=2) for kind in ("list", "set", "zset")}
    assert {kind: frame.columns for kind, frame in found.items()} == {
        "list": ["key", "index", "value"], "set": ["key", "value"], "zset": ["key", "score", "value"],
    }  # fmt: skip
    lists = sorted(tuple(row) for row in found["list"].collect())
    assert lists == [("list:a", 0, "3"), ("list:a", 1, "1"), ("list:b", 0, "3"), ("list:b", 1, "1")]
    assert sorted(tuple(row) for row in found["set"].collect()) == [("set:a", "x"), ("set:b", "x")]
    scores = place.read("value string, score double", type="zset", keys="zset:a").collect()
    assert [tuple(row) for row in scores] == [("one", 1.5), ("two", float("inf"))]
    assert place.read("value int", type="list", keys="list:*").agg(f.sum("value")).collect()[0][0] == 8


def test_a_key_is_a_row_also_with_none_of_the_fields_or_for_its_name_alone(place: Place) -> None:
    place.client.hset("u:1", "n", 1)
    place.client.hset("u:2", "other", 2)
    place.client.sadd("all", "u:1", "u:2", "u:gone")
    for options in ({"keys": "u:*"}, {"keySet": "all"}):
        rows = place.read("n int, key string", **options).collect()
        assert sorted((row.key, row.n) for row in rows) == [("u:1", 1), ("u:2", None)]
    assert sorted(row.key for row in place.read("key string", keySet="all").collect()) == ["u:1", "u:2"]


def test_append_adds_fields_and_overwrite_replaces_keys(place: Place) -> None:
    place.client.hset("h", mapping={"a": 1, "b": 2})
    place.client.hset("other", mapping={"a": 1})
    place.save(place.spark.createDataFrame([("h", 3)], "key string, b int"), type="hash")
    assert place.client.hgetall("h") == {b"a": b"1", b"b": b"3"}
    place.save(place.spark.createDataFrame([("h", 4)], "key string, b int"), "overwrite", type="hash")
    assert place.client.hgetall("h") == {b"b": b"4"}
    assert place.client.hgetall("other") == {b"a": b"1"}, "keys that no row has stay"


def test_the_level_that_rows_are_written_at_is_an_option(place: Place) -> None:
    frame = place.spark.range(20).selectExpr("concat('level:', id) AS key", "id AS n")
    for level in ("at-most-once", "at-least-once"):
        place.save(frame, type="hash", delivery=level)
        assert all(place.client.delete(f"level:{n}") for n in range(20))
    if isinstance(place.client, penstock.Cluster):
        with pytest.raises(PySparkException, match="ONCE"):
            place.save(frame, type="hash", delivery="exactly-once")
    else:
        place.client.config_resetstat()
        place.save(frame, type="hash", delivery="exactly-once")
        assert place.client.info("commandstats")["cmdstat_once"]["calls"] >= 20
        assert all(place.client.delete(f"level:{n}") for n in range(20))


def test_rows_are_partitioned_by_the_slots_of_their_keys(world: World) -> None:
    frame = world.spark.range(2000).select(f.concat(f.lit("k"), "id").alias("key"))
    spread = by_slot(frame, 4).select("key", f.spark_partition_id().alias("part")).collect()
    assert {row.part for row in spread} == {0, 1, 2, 3}
    assert all(key_slot(row.key.encode()) * 4 // 16384 == row.part for row in spread)


def test_a_stream_of_rows_updates_hashes(world: World) -> None:
    world.write("s", '{"key": "u:1", "n": "1"}', '{"key": "u:2", "n": "2"}')
    frame = world.follow("key string, n string", stream="s")
    world.run(frame, type="hash")
    world.write("s", '{"key": "u:1", "n": "3"}')
    world.run(frame, type="hash")
    assert (world.client.hget("u:1", "n"), world.client.hget("u:2", "n")) == (b"3", b"2")


def test_a_value_that_is_no_number_is_named_or_null(world: World) -> None:
    world.client.hset("h:1", "n", "1")
    world.client.hset("h:2", "n", "two")
    with pytest.raises(PySparkException, match=r"key h:2, n: .*badEntries=null"):
        world.read("key string, n int", keys="h:*").collect()
    rows = world.read("key string, n int", keys="h:*", badEntries="null").collect()
    assert sorted((row.key, row.n) for row in rows) == [("h:1", 1), ("h:2", None)]


@pytest.mark.parametrize(
    ("columns", "options", "problem"),
    [
        ("id string, n int", {"type": "hash"}, "column 'key' (option keyColumn) is the key, and there are id, n"),
        ("key string", {"type": "hash"}, "a hash needs a field"),
        ("key string, n int", {"type": "string"}, "strings need the columns key and value"),
        ("key string, n array<int>", {"type": "hash"}, "column n is array<int>; write it as text"),
        ("key string, n int", {"type": "list"}, "type=list can be read, not written"),
        ("key string, n int", {"type": "stream"}, "it takes hash or string or list or set or zset"),
        ("key string, n int", {"type": "hash", "stream": "s"}, "are about keys as a table"),
    ],
)
def test_rows_that_are_no_keys_are_refused(world: World, columns: str, options: dict[str, str], problem: str) -> None:
    frame = world.spark.createDataFrame([], columns)
    with pytest.raises(PySparkException) as caught:
        frame.write.format("penstock").option("url", world.url).options(**options).mode("append").save()
    assert problem in str(caught.value)


def test_a_read_that_cannot_work_says_why(world: World) -> None:
    world.client.set("string", "x")
    world.client.sadd("set", "string")
    world.client.hset("hash", "key", "x")
    for options, problem in (
        ({"type": "hash"}, "name the keys to read"),
        ({"keys": "nothing:*"}, "no hashes match 'nothing:*', so their fields are unknown"),
        ({"keySet": "string"}, "option keySet: 'string' is no set"),
        ({"keySet": "set"}, "the key 'string' holds something else than a hash (option type)"),
        ({"keys": "hash"}, "some hashes have a field 'key', which is also the name of the key's column"),
    ):
        with pytest.raises(PySparkException) as caught:
            world.read(**options).collect()
        assert problem in str(caught.value)
    for kind, schema, problem in (
        ("hash", "key string, n array<int>", "column n is array<int> in the schema; read it as a string"),
        ("hash", "key string, n int not null", "column n is NOT NULL in the schema"),
        ("zset", "key string, index int", "columns index in the schema: an element of a zset has key, score, value"),
        ("string", "key string, a int, b int", "a string is one value, and the schema has key, a, b"),
    ):
        with pytest.raises(OptionError, match=problem):
            PenstockDataSource({"keys": "*", "type": kind}).reader(cast(StructType, _parse_datatype_string(schema)))
    with pytest.raises(PySparkException, match="they are no streaming source"):
        world.run(world.follow("key string, n int", keys="h:*"), type="hash")


def test_a_server_that_is_not_there_is_named(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match=r"no answer from the server at redis://127.0.0.1:1 for 0.3 seconds"):
        Place(spark, "redis://127.0.0.1:1", redis).read("key string, n int", keys="h:*", retryTimeout=300).collect()
