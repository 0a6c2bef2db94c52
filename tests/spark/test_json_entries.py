"""Entries read together mean what each means by itself, whatever is among them. Without a server and without Spark."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    IntegerType,
    MapType,
    StringType,
    StructType,
)
from tests.support.spark.json_cases import SCALARS, SIMPLE, same

from penstock.schema.json_entries import FEW, JsonEntries
from penstock.schema.json_values import Parser

TYPES: tuple[DataType, ...] = (
    *SIMPLE,
    *(ArrayType(kind) for kind in SIMPLE),
    *(StructType().add("x", kind).add("y", ArrayType(StructType().add("z", kind))) for kind in SIMPLE),
    *(MapType(StringType(), kind) for kind in SIMPLE),
)
NUMBER = StructType().add("a", IntegerType())


def read(schema: StructType, *entries: str | bytes) -> tuple[list[dict[str, Any]], dict[int, str]]:
    raw = [entry.encode() if isinstance(entry, str) else entry for entry in entries]
    rows, bad = JsonEntries(to_arrow_schema(schema, timezone="UTC")).read(pa.array(raw, pa.binary()))
    rows.validate(full=True)
    assert rows.num_rows == len(entries)
    return rows.to_pylist(), bad


def alone(schema: StructType, entry: bytes) -> dict[str, Any] | None:
    """What the specification says of an entry, in the form that arrays give; None if it does not fit."""
    try:
        row = Parser(to_arrow_schema(schema, timezone="UTC")).parse(entry)
    except ValueError:
        return None
    found: dict[str, Any] = pa.RecordBatch.from_pylist([row], to_arrow_schema(schema, timezone="UTC")).to_pylist()[0]
    return found


def test_an_entry_of_two_objects_and_an_empty_one_do_not_shift_the_rows_of_others() -> None:
    rows, bad = read(NUMBER, '{"a":1}{"a":2}', "", '{"a":9}')
    assert rows == [{"a": None}, {"a": None}, {"a": 9}]
    assert sorted(bad) == [0, 1]


ODD = (
    "", " ", "\n", "null", "[]", "1", '"a"', "{", "}", "{}", " {} ", "{}{}", "{}\n{}", "}{", '{"a":1', '"a":2}',
    '{"a":"', '"}', '{"a":1},', ',{"a":2}', '{"a":1}\x00', "\ufeff{}", '{"a":[{', "}]}", '{"a":1}]', "[{}]",
    '{"a":{}}{', '{"a":1,\n"b":"}\\n{"}', '{"a":"\n"}', "{'a':1}", '{"a":1}//', '{"a":1,"a":2}', '{"a":01}', "\x0b{}",
    '{"b":' + "[" * 2000 + "]" * 2000 + "}",
)  # fmt: skip


@given(st.lists(st.sampled_from(ODD), max_size=8))
def test_entries_that_are_odd_from_the_outside_are_read_as_if_alone(entries: list[str]) -> None:
    rows, bad = read(NUMBER, *entries)
    for place, entry in enumerate(entries):
        (row,), refused = read(NUMBER, entry)
        assert (rows[place], place in bad) == (row, bool(refused)), entry


@pytest.mark.parametrize("place", [0, 1, 2])
def test_null_is_a_bad_entry_wherever_it_stands(place: int) -> None:
    entries = ['{"a": 1}', '{"a": 2}']
    entries.insert(place, "null")
    rows, bad = read(NUMBER, *entries)
    assert [row["a"] for row in rows if row["a"]] == [1, 2]
    assert bad == {place: "the entry is not a JSON object but null"}


def test_a_number_with_too_many_digits_for_a_decimal_is_a_bad_entry() -> None:
    rows, bad = read(StructType().add("a", DecimalType(10, 2)), '{"a":1650852255}', '{"a":1.005}')
    assert rows == [{"a": None}, {"a": Decimal("1.01")}]
    assert bad == {0: "a is 1650852255, which is no decimal(10,2)"}


def test_not_null_holds_inside_of_structs_and_arrays() -> None:
    required = StructType().add("x", IntegerType(), nullable=False)
    schema = StructType().add("s", required).add("l", ArrayType(required))
    rows, bad = read(schema, '{"s": {"x": 1}}', '{"s": {}}', '{"l": [{"x": 1}, {}]}', '{"l": [null]}')
    assert sorted(bad) == [1, 2]
    assert rows[0]["s"] == {"x": 1}
    assert rows[3]["l"] == [None]


def test_the_reason_names_the_field_and_its_value() -> None:
    schema = StructType().add("a", StructType().add("b", ArrayType(IntegerType())))
    _, bad = read(schema, '{"a": {"b": [1, "x"]}}', '{"a": 1}', "{nonsense", b'"\xff"')
    assert bad[0] == 'an element of a.b is "x", which is no int'
    assert bad[1] == "a is 1, which is no struct<b array<int>>"
    assert bad[2].startswith("the entry is not JSON: ")
    assert bad[3].startswith("the entry is not JSON: ")


# -- every type -------------------------------------------------------------------------------------------------


def nested(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    names = st.sampled_from(["x", "y", "z", "a", "X", "other"])
    members = st.lists(st.tuples(names, values).map(lambda pair: f'"{pair[0]}" : {pair[1]}'), max_size=3)
    return st.lists(values, max_size=3).map(lambda items: f"[{', '.join(items)}]") | members.map(
        lambda pairs: "{" + ",".join(pairs) + "}"
    )


VALUES = st.recursive(st.sampled_from(SCALARS), nested, max_leaves=4)
ENTRIES = VALUES.map(lambda value: f'{{"a":{value}}}')


def check_together(kind: DataType, entries: list[str]) -> None:
    schema = StructType().add("a", kind)
    rows, bad = read(schema, *entries)
    for place, entry in enumerate(entries):
        expected = alone(schema, entry.encode())
        assert (place in bad) == (expected is None), entry
        assert same(rows[place], expected or {"a": None}), entry


@pytest.mark.parametrize("kind", TYPES, ids=DataType.simpleString)
@settings(max_examples=25)
@given(entries=st.lists(ENTRIES, min_size=1, max_size=3))
def test_an_entry_of_any_type_means_the_same_among_others_as_alone(kind: DataType, entries: list[str]) -> None:
    check_together(kind, entries)


@pytest.mark.parametrize("kind", TYPES, ids=DataType.simpleString)
def test_a_value_of_any_type_is_read_as_the_specification_says(kind: DataType) -> None:
    for value in SCALARS:
        for form in ("%s", "[%s]", '{"x": %s}', '{"y": [{"z": %s}]}'):
            check_together(kind, [f'{{"a":{form % value}}}'])


# -- many entries -----------------------------------------------------------------------------------------------


@given(
    st.sets(st.integers(0, 499), max_size=40), st.sampled_from(["null", "{}{}", '{"a":"x"}', "", "\x00", '{"a":1.0}'])
)
def test_the_bad_ones_among_many_are_found(places: set[int], wrong: str) -> None:
    entries = [wrong if place in places else json.dumps({"a": place}) for place in range(500)]
    rows, bad = read(NUMBER, *entries)
    assert set(bad) == places
    assert [row["a"] for row in rows] == [None if place in places else place for place in range(500)]


@pytest.mark.parametrize("where", [0, 70_000, 199_999])
def test_one_bad_entry_among_many_costs_few_reads(where: int, monkeypatch: pytest.MonkeyPatch) -> None:
    count, one_by_one = 200_000, 0
    plain = Parser.parse

    def counted(self: Parser, entry: bytes) -> dict[str, Any]:
        nonlocal one_by_one
        one_by_one += 1
        return plain(self, entry)

    monkeypatch.setattr(Parser, "parse", counted)
    entries = pa.array([b"no json" if place == where else b'{"a":%d}' % place for place in range(count)], pa.binary())
    rows, bad = JsonEntries(to_arrow_schema(NUMBER, timezone="UTC")).read(entries)
    assert list(bad) == [where]
    assert rows.column("a").null_count == 1
    assert one_by_one <= 2 * FEW
