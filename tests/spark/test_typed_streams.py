"""Typed columns from a stream to another, in a real Spark."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.errors import PySparkException
from tests.support.spark.world import World

FIELDS = "user string NOT NULL, ms bigint, tags array<string>, at timestamp, money decimal(10,2), m map<string, int>"
ROW = '{"user":"ada","ms":5,"tags":["x"],"at":"2026-01-31T12:00:00Z","money":1.50,"m":{"a":1}}'


def test_rows_with_typed_columns_go_from_stream_to_stream(world: World) -> None:
    world.call("TSCHEMA", "SET", "s", FIELDS)
    world.write("s", ROW, '{"user":"bob"}')
    frame = world.read(stream="s")
    assert frame.columns == ["stream", "offset", "time", "tag", "user", "ms", "tags", "at", "money", "m"]
    copied = frame.drop("stream", "offset", "time")
    copied.write.format("penstock").options(url=world.url, stream="copy", mergeSchema=True).mode("append").save()
    assert world.call("TSCHEMA", "GET", "copy")[5].decode() == FIELDS
    first, second = map(json.loads, world.entries("copy"))
    assert first == {**json.loads(ROW), "at": "2026-01-31T12:00:00+00:00"}
    assert {name for name, value in second.items() if value is not None} == {"user"}
    assert world.read(stream="copy").drop("stream", "offset", "time").collect() == copied.collect()


def test_a_query_that_starts_again_follows_a_wider_schema_and_writes_each_row_once(world: World) -> None:
    world.call("TSCHEMA", "SET", "s", "n int")
    world.write("s", '{"n":1}')

    def run() -> None:
        rows = world.follow(stream="s", maxRowsPerTrigger=1).drop("stream", "offset", "time", "tag")
        world.run(rows, stream="copy", mergeSchema="true")

    run()
    world.write("s", '{"n":2}')
    world.call("TSCHEMA", "SET", "s", 'n bigint, page string, kind string DEFAULT "click"')
    world.write("s", '{"n":4294967296,"page":"/","kind":"tap"}')
    run()
    run()
    assert list(map(json.loads, world.entries("copy"))) == [
        {"n": 1}, {"n": 2, "page": None, "kind": "click"}, {"n": 2**32, "page": "/", "kind": "tap"},
    ]  # fmt: skip
    assert world.call("TSCHEMA", "GET", "copy")[5] == b"n bigint, page string, kind string"


def test_a_mistake_is_told_in_one_line(world: World) -> None:
    world.call("TSCHEMA", "SET", "s", "n int")
    rows: Any = world.spark.range(1).selectExpr("'x' AS n")
    with pytest.raises(PySparkException, match="column n is string, and the schema of stream s has it as int"):
        rows.write.format("penstock").options(url=world.url, stream="s").mode("append").save()
    with pytest.raises(
        PySparkException, match="column n is boolean in the query, and the schema of stream s has it as int"
    ):
        world.read("n boolean", stream="s").collect()


def test_rows_that_choose_their_streams_are_checked_against_each(world: World) -> None:
    world.call("TSCHEMA", "SET", "a", "n bigint")
    rows: Any = world.spark.createDataFrame([("a", 1), ("b", 2)], "stream string, n bigint")
    rows.write.format("penstock").option("url", world.url).mode("append").save()
    assert (world.entries("a"), world.entries("b")) == ([b'{"n":1}'], [b'{"n":2}'])
    world.call("TSCHEMA", "SET", "c", "n int")
    with pytest.raises(PySparkException, match="column n is bigint, and the schema of stream c has it as int"):
        rows.replace("b", "c").write.format("penstock").option("url", world.url).mode("append").save()
    assert world.entries("c") == []
    assert world.entries("a") == [b'{"n":1}']
