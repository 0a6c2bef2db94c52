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


def test_a_view_of_a_stream_is_read_and_inserted_into_with_sql(world: World) -> None:
    world.call("TSCHEMA", "SET", "clicks", "user string NOT NULL, ms int")
    sql = world.spark.sql
    options = f"USING penstock OPTIONS (url '{world.url}', stream 'clicks')"
    sql(f"CREATE OR REPLACE TEMPORARY VIEW some_clicks (tag string, user string, ms int) {options}")
    sql("INSERT INTO some_clicks VALUES ('t', 'ada', 5), ('t', 'bob', NULL)")
    assert world.entries("clicks") == [b'{"user":"ada","ms":5}', b'{"user":"bob","ms":null}']
    sql(f"CREATE OR REPLACE TEMPORARY VIEW all_clicks {options}")
    assert [tuple(row) for row in sql("SELECT tag, user, ms FROM all_clicks ORDER BY offset").collect()] == [
        (b"t", "ada", 5), (b"t", "bob", None),
    ]  # fmt: skip
    sql("INSERT OVERWRITE some_clicks SELECT 'x', user, ms FROM some_clicks WHERE ms > 1")
    assert world.entries("clicks") == [b'{"user":"ada","ms":5}']


def test_a_table_is_refused_with_the_way_round(world: World) -> None:
    options = f"USING penstock OPTIONS (url '{world.url}', stream 'clicks')"
    way_round = r"Spark does not pass the OPTIONS of a table on to a data source in Python. CREATE TEMPORARY VIEW"
    with pytest.raises(PySparkException, match=f"CREATE TABLE ... USING penstock is not possible: {way_round}"):
        world.spark.sql(f"CREATE TABLE no_table {options}")
    world.spark.sql(f"CREATE TABLE no_options (tag string, n int) {options}")
    try:
        with pytest.raises(PySparkException, match=way_round):
            world.spark.sql("SELECT * FROM no_options").collect()
        with pytest.raises(PySparkException, match=way_round):
            world.spark.sql("INSERT INTO no_options VALUES ('t', 1)")
    finally:
        world.spark.sql("DROP TABLE no_options")
