"""What entries become as columns, without a server and without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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
from tests.support.spark.json_cases import SCALARS, SIMPLE, same

from penstock.spark.dead_letters import BadMessage
from penstock.spark.options import OptionError, parse
from penstock.spark.rows import BadEntry, Converter, check_schema, default_schema


def messages_of(tags: list[bytes], entries: list[bytes]) -> pa.RecordBatch:
    """Messages as the server sends them."""
    return pa.record_batch(
        {
            "offset": pa.array(range(1, len(entries) + 1), pa.int64()),
            "time": pa.array([0] * len(entries), pa.int64()), "tag": pa.array(tags, pa.binary()),
            "entry": pa.array(entries, pa.binary()),
        }
    )  # fmt: skip


def rows(schema: StructType, *entries: str, **options: str) -> list[dict[str, Any]]:
    given = parse({"stream": "s", **options})
    check_schema(schema, given)
    batch = messages_of([b""] * len(entries), [entry.encode() for entry in entries])
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


class Letters:
    """Takes letters instead of a server."""

    def __init__(self) -> None:
        self.offsets: list[int] = []

    def write(self, bad: Mapping[int, BadMessage]) -> None:
        self.offsets += bad


MESSAGES = st.tuples(
    st.sampled_from([b"tag", b"\xff"]),
    st.sampled_from([b'{"a": %s}' % value.encode() for value in SCALARS] + [b"", b"null", b"{}{}", b"\xff", b"{}"]),
)


@pytest.mark.parametrize("kind", SIMPLE, ids=DataType.simpleString)
@settings(max_examples=20)
@given(messages=st.lists(MESSAGES, max_size=6))
def test_every_policy_agrees_on_which_messages_are_bad(kind: DataType, messages: list[tuple[bytes, bytes]]) -> None:
    schema = StructType().add("offset", LongType()).add("tag", StringType()).add("a", kind)
    batch = messages_of([tag for tag, _ in messages], [entry for _, entry in messages])
    letters = Letters()

    def convert(policy: str, **options: str) -> pa.RecordBatch:
        given = parse({"stream": "s", "badEntries": policy, **options})
        rows = Converter(schema, given, cast(Any, letters) if options else None).convert("s", batch)
        rows.validate(full=True)
        return rows

    nulls, kept = convert("null"), convert("drop")
    assert same(convert("deadletter", deadLetterStream="dead").to_pylist(), kept.to_pylist())
    assert nulls.column("offset").to_pylist() == list(range(1, len(messages) + 1))
    assert sorted(letters.offsets + kept.column("offset").to_pylist()) == list(range(1, len(messages) + 1))
    good = pa.array([offset not in letters.offsets for offset in range(1, len(messages) + 1)], pa.bool_())
    assert same(nulls.filter(good).column("a").to_pylist(), kept.column("a").to_pylist())
    if letters.offsets:
        with pytest.raises(BadEntry, match=f"stream s, offset {min(letters.offsets)}: "):
            convert("fail")
    else:
        assert convert("fail").num_rows == len(messages)


def test_text_can_be_null_if_what_is_none_is_to_be() -> None:
    def nullable(**options: str) -> list[str]:
        return [column.name for column in default_schema(parse({"stream": "s", **options})) if column.nullable]

    assert nullable() == nullable(text="true") == nullable(badEntries="null") == []
    assert nullable(text="true", badEntries="null") == ["tag", "entry"]
