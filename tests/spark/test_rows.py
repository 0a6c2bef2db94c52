"""What entries become as columns, without a server and without Spark."""

from __future__ import annotations

from datetime import date
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    VariantType,
)

from penstock.spark.options import OptionError, parse
from penstock.spark.rows import BadEntry, Converter, check_schema, default_schema


def rows(schema: StructType, *entries: str, **options: str) -> list[dict[str, Any]]:
    given = parse({"stream": "s", **options})
    check_schema(schema, given)
    count = len(entries)
    batch = pa.record_batch(
        {
            "offset": pa.array(range(1, count + 1), pa.int64()), "time": pa.array([0] * count, pa.int64()),
            "tag": [b""] * count, "entry": [entry.encode() for entry in entries],
        }
    )  # fmt: skip
    found: list[dict[str, Any]] = Converter(schema, given).convert("s", batch).to_pylist()
    return found


def test_dates_are_read_as_json_has_them_at_any_depth() -> None:
    schema = StructType().add("day", DateType()).add("more", StructType().add("days", ArrayType(DateType())))
    assert rows(schema, '{"day": "2026-01-02", "more": {"days": ["1950-03-04", null]}}', '{"day": null}') == [
        {"day": date(2026, 1, 2), "more": {"days": [date(1950, 3, 4), None]}},
        {"day": None, "more": None},
    ]
    day = StructType().add("day", DateType())
    assert rows(day, '{"day": "2026-01-02"}', '{"day": "soon"}', badEntries="null") == [
        {"day": date(2026, 1, 2)},
        {"day": None},
    ]


@pytest.mark.parametrize("kind", [MapType(IntegerType(), StringType()), VariantType(), ArrayType(VariantType())])
def test_a_type_that_json_is_not_read_as_is_refused_not_blamed_on_entries(kind: DataType) -> None:
    with pytest.raises(
        OptionError, match=r"column n is .* in the schema, which .*; read 'entry string' and .* from_json"
    ):
        rows(StructType().add("n", kind), "{}", badEntries="null")


def test_a_column_that_is_not_null_never_is() -> None:
    schema = StructType().add("n", IntegerType(), nullable=False)
    assert rows(schema, '{"n": 1}') == [{"n": 1}]
    for entry in ("{}", '{"n": null}'):
        with pytest.raises(BadEntry, match="stream s, offset 2: there is no n, which is NOT NULL in the schema"):
            rows(schema, '{"n": 1}', entry)
    with pytest.raises(OptionError, match="column n is NOT NULL in the schema, and badEntries=null gives nulls"):
        rows(schema, '{"n": 1}', badEntries="null")
    assert rows(schema, "{}", '{"n": 1}', badEntries="drop") == [{"n": 1}]


def test_a_bad_entry_is_a_row_of_nulls_or_no_row() -> None:
    schema = StructType().add("offset", LongType()).add("n", IntegerType())
    entries = ('{"n": 1}', "no json", '{"n": 3}')
    assert rows(schema, *entries, badEntries="null") == [
        {"offset": 1, "n": 1},
        {"offset": 2, "n": None},
        {"offset": 3, "n": 3},
    ]
    kept = [{"offset": 1, "n": 1}, {"offset": 3, "n": 3}]
    assert rows(schema, *entries, badEntries="drop") == kept
    assert rows(schema, *entries, badEntries="deadletter", deadLetterStream="dead") == kept


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (
            {"Offset": LongType(), "n": IntegerType()},
            "column Offset in the schema: a message has offset, in lower case",
        ),
        (
            {"key": BinaryType(), "value": BinaryType()},
            "columns key, value in the schema are those of Kafka: a message has tag",
        ),
        ({"offset": LongType(), "value": StringType()}, "columns value in the schema are those of Kafka"),
    ],
)
def test_a_name_that_is_nearly_that_of_a_column_is_no_field_of_json(schema: dict[str, DataType], problem: str) -> None:
    columns = StructType()
    for name, kind in schema.items():
        columns.add(name, kind)
    with pytest.raises(OptionError, match=problem):
        rows(columns, "{}")


def test_fields_of_json_may_be_named_as_columns_of_kafka() -> None:
    schema = StructType().add("key", StringType()).add("value", IntegerType())
    assert rows(schema, '{"key": "a", "value": 1}') == [{"key": "a", "value": 1}]


def test_text_can_be_null_if_what_is_none_is_to_be() -> None:
    def nullable(**options: str) -> list[str]:
        return [column.name for column in default_schema(parse({"stream": "s", **options})) if column.nullable]

    assert nullable() == nullable(text="true") == nullable(badEntries="null") == []
    assert nullable(text="true", badEntries="null") == ["tag", "entry"]
