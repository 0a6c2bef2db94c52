"""A field of an entry is what Spark's own from_json makes of it; where it is not, this says so."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import functions
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, DoubleType, IntegerType, MapType, StringType, StructType
from tests.support.spark.json_cases import SCALARS, SIMPLE, same
from tests.support.spark.world import World

from penstock.schema.json_entries import JsonEntries

KINDS: tuple[DataType, ...] = (
    *SIMPLE,
    ArrayType(IntegerType()),
    ArrayType(StringType()),
    MapType(StringType(), StringType()),
    StructType().add("x", DoubleType()).add("y", StringType()),
)
VALUES = (
    *SCALARS, '"0000-01-01"', '"-0001-01-01"', '"+12345-01-01"', '"2026-01-02T03Z"', '"2026-01-02T03:04:05.Z"',
    '"1234567-01-01"', '"2026-01-02 03:04:05 UTC+1"', "[]", "[1]", '[1, "2", null]', '["a"]', "[1.0, 1e10]", "{}",
    '{"x": 1}', '{"x": "1", "y": 2}', '{"y": [1, 2.50, {"q" : null, "r": "\\ud83d\\ude00"}]}', '[{"x": 1}]',
)  # fmt: skip
REFUSED = {
    "tinyint": {"128"},  # Spark takes the last bits of a number that is too large
    "timestamp": {"9223372036854775807", "-9223372036854775808", '"03:04:05"'},  # the same, and "today"
    "date": {'"12"', '"1700000000"', '"20260102"'},  # Spark takes a number in a string for days
    "binary": {'" "', '"\\u0000"', '"\t"'},  # base64 without a character of base64
}
"""What Spark reads as something, and we refuse, by type."""


def test_fields_are_what_from_json_makes_of_them(world: World) -> None:
    texts = [f'{{"a":{value}}}' for value in VALUES]
    frame = world.spark.createDataFrame([(text,) for text in texts], "text string").coalesce(1)
    found = frame.select(*(_from_json(kind).alias(f"kind{at}") for at, kind in enumerate(KINDS))).toArrow()
    for at, kind in enumerate(KINDS):
        theirs = found.column(f"kind{at}").combine_chunks()
        is_bad = theirs.field("_corrupt_record").is_valid().to_pylist()
        reader = JsonEntries(to_arrow_schema(StructType().add("a", kind), timezone="UTC"))
        rows, bad = reader.read(pa.array(texts, pa.string()).cast(pa.binary()))
        values = zip(_plain(theirs.field("a")), _plain(rows.column("a")), strict=True)
        refused = {VALUES[place] for place in bad if not is_bad[place]}
        assert refused == REFUSED.get(kind.simpleString(), set()), kind
        for place, (spark, ours) in enumerate(values):
            if place not in bad:
                assert not is_bad[place], (kind, texts[place])
                assert same(spark, ours), (kind, texts[place], spark, ours)


def _from_json(kind: DataType) -> Any:
    return functions.from_json("text", StructType().add("a", kind).add("_corrupt_record", StringType()))


def _plain(column: pa.Array) -> list[Any]:
    """As Python has it; dates and timestamps, of which Python does not have all, as numbers."""
    if pa.types.is_temporal(column.type):
        column = column.cast(pa.int32() if pa.types.is_date(column.type) else pa.int64())
    values: list[Any] = column.to_pylist()
    return values
