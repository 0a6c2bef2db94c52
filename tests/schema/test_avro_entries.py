"""Entries in Avro become columns and rows become entries, whatever the bytes are."""

from __future__ import annotations

import io
import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.schema.avro_entries import AvroEntries
from penstock.schema.fields import InvalidSchema

ORDER = {
    "type": "record", "name": "Order", "namespace": "shop", "fields": [
        {"name": "id", "type": "long"},
        {"name": "n", "type": "int"},
        {"name": "paid", "type": "boolean"},
        {"name": "weight", "type": ["null", "float"], "default": None},
        {"name": "price", "type": "double"},
        {"name": "note", "type": ["string", "null"]},
        {"name": "raw", "type": "bytes"},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "SENT"]}},
        {"name": "before", "type": ["null", "State"]},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
        {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {"name": "items", "type": {"type": "array", "items": {"type": "record", "name": "Item", "fields": [
            {"name": "sku", "type": "string"}, {"name": "more", "type": {"type": "map", "values": "Hash"}}]}}},
        {"name": "gift", "type": ["null", "Item"]},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "exact", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
        {"name": "sum", "type": {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2}},
        {"name": "rate", "type": {"type": "fixed", "name": "Rate", "size": 8, "logicalType": "decimal",
            "precision": 12, "scale": 4}},
        {"name": "uuid", "type": {"type": "string", "logicalType": "uuid"}},
    ],
}  # fmt: skip
FORMAT = AvroEntries(json.dumps(ORDER))


def milliseconds(moments: st.SearchStrategy[datetime]) -> st.SearchStrategy[datetime]:
    return moments.map(lambda moment: moment.replace(microsecond=moment.microsecond // 1000 * 1000))


WORDS = st.text(max_size=4)
HASHES = st.binary(min_size=2, max_size=2)
ITEMS = st.fixed_dictionaries({"sku": WORDS, "more": st.dictionaries(WORDS, HASHES, max_size=2)})
ORDERS = st.fixed_dictionaries(
    {
        "id": st.integers(-(2**63), 2**63 - 1), "n": st.integers(-(2**31), 2**31 - 1), "paid": st.booleans(),
        "weight": st.none() | st.floats(width=32, allow_nan=False), "price": st.floats(allow_nan=False),
        "note": st.none() | WORDS, "raw": st.binary(max_size=4), "state": st.sampled_from(["NEW", "SENT"]),
        "before": st.sampled_from([None, "NEW", "SENT"]), "hash": HASHES,
        "tags": st.lists(st.none() | WORDS, max_size=3),
        "counts": st.dictionaries(WORDS, st.integers(-9, 9), max_size=2), "items": st.lists(ITEMS, max_size=2),
        "gift": st.none() | ITEMS, "day": st.dates(), "at": milliseconds(st.datetimes(timezones=st.just(UTC))),
        "exact": st.none() | st.datetimes(timezones=st.just(UTC)), "local": milliseconds(st.datetimes()),
        "sum": st.decimals(-(10**30), 10**30, places=2), "rate": st.decimals(-(10**7), 10**7, places=4),
        "uuid": st.uuids().map(str),
    }
)  # fmt: skip


def encoded(schema: Any, datum: Any) -> bytes:
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, fastavro.parse_schema(schema), datum)
    return sink.getvalue()


def read(schema: AvroEntries, *entries: bytes, columns: pa.Schema = None) -> tuple[list[Any], dict[int, str]]:
    rows, bad = schema.reader(schema.fields() if columns is None else columns).read(pa.array(entries, pa.binary()))
    rows.validate(full=True)
    return rows.to_pylist(maps_as_pydicts="strict"), bad


def record(**fields: Any) -> AvroEntries:
    given = [{"name": name, "type": kind} for name, kind in fields.items()]
    return AvroEntries(json.dumps({"type": "record", "name": "R", "fields": given}))


@given(orders=st.lists(ORDERS, max_size=3))
def test_what_another_program_encodes_is_read_as_it_was(orders: list[Any]) -> None:
    assert read(FORMAT, *(encoded(ORDER, order) for order in orders)) == (orders, {})


@given(orders=st.lists(ORDERS, min_size=1, max_size=3))
def test_rows_that_are_written_are_read_by_another_program(orders: list[Any]) -> None:
    rows = pa.RecordBatch.from_pylist(orders, FORMAT.fields())
    entries = FORMAT.writer(rows.schema)(rows)
    schema = fastavro.parse_schema(ORDER)
    found = [fastavro.schemaless_reader(io.BytesIO(entry), schema, None) for entry in entries]
    assert [{**each, "uuid": str(each["uuid"])} for each in found if isinstance(each, dict)] == orders


@given(order=ORDERS, data=st.data())
def test_bytes_that_were_changed_harm_no_other_entry(order: Any, data: st.DataObject) -> None:
    good = encoded(ORDER, order)
    place = data.draw(st.integers(0, len(good) - 1))
    changed = data.draw(
        st.sampled_from([good[:place], good + b"\0", good[:place] + good[place + 1 :]])
        | st.binary(min_size=1, max_size=9).map(lambda other: good[:place] + other + good[place + len(other) :])
        | st.binary(max_size=40)
    )
    rows, bad = FORMAT.reader(FORMAT.fields()).read(pa.array([good, changed, good], pa.binary()))
    rows.validate(full=True)
    assert (len(rows), set(bad) <= {1}) == (3, True)
    assert [rows.slice(at, 1).to_pylist(maps_as_pydicts="strict")[0] for at in (0, 2)] == [order, order]
    if changed != good and good.startswith(changed):
        assert "it ends too early" in bad[1]
    if changed == good + b"\0":
        assert bad == {1: "1 bytes follow the datum of the Avro schema"}


def number(value: int) -> bytes:
    """A long as Avro has it."""
    left, parts = (value << 1) ^ (value >> 63), []
    while left > 0x7F:
        parts.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*parts, left])


@pytest.mark.parametrize(
    ("kind", "entry", "why"),
    [
        ("bytes", number(2**40) + b"ab", "it ends too early"),
        ("string", number(-5) + b"ab", "it ends too early"),
        ("string", number(1) + b"\xff", "can't decode byte 0xff"),
        ({"type": "array", "items": "int"}, number(2**60) + b"\2", "it ends too early"),
        ({"type": "map", "values": "int"}, number(2**60) + b"\2a\2", "it ends too early"),
        ({"type": "array", "items": {"type": "array", "items": "int"}}, number(2**60) * 5, "it ends too early"),
        (["null", "int"], number(7), "or has a branch of a union that the schema does not have"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, number(-1), "-1 is the number of no symbol"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, number(1), "1 is the number of no symbol"),
        ("int", number(2**31), "a value does not fit its type"),
        ({"type": "int", "logicalType": "date"}, number(2**40), "a value does not fit its type"),
        ({"type": "long", "logicalType": "timestamp-millis"}, number(2**62), "a value does not fit its type"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 3}, number(2) + b"\x03\xe8", "more than 3 digits"),
        ("float", b"\0", "it ends too early"),
    ],
)  # fmt: skip
def test_a_hostile_entry_is_a_bad_one(kind: Any, entry: bytes, why: str) -> None:
    rows, bad = read(record(a=kind), entry)
    assert rows == [{"a": None}]
    assert why in bad[0]
    assert "\n" not in bad[0]


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        (["null", {"type": "array", "items": "R"}], r"field a\[\] of the Avro schema contains itself \(R\)"),
        ({"type": "array", "items": "null"}, "field a of the Avro schema is an array of elements without bytes"),
        (
            {"type": "array", "items": {"type": "record", "name": "E", "fields": []}},
            "field a .* elements without bytes",
        ),
        ({"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}, "field a .* elements without bytes"),
        ("strin", "it is no Avro schema: UnknownType"),
    ],
)
def test_a_schema_by_which_no_entry_can_be_read_safely_is_refused(kind: Any, problem: str) -> None:
    with pytest.raises(InvalidSchema, match=problem):
        record(a=kind)


@pytest.mark.parametrize("text", ["", "[", "7", '"int"', '{"type": "array", "items": "int"}', '{"type": "record"}'])
def test_what_is_no_schema_of_a_record_is_refused_in_a_line(text: str) -> None:
    with pytest.raises(InvalidSchema, match="Avro schema") as caught:
        AvroEntries(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (["int", "string"], "a union of int, string"),
        ("null", "null"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 39}, "a decimal of 39 digits"),
        ({"type": "record", "name": "E", "fields": []}, "record"),
    ],
)
def test_a_field_that_is_no_column_is_named_and_the_others_can_be_read(kind: Any, what: str) -> None:
    schema = record(a={"type": "record", "name": "S", "fields": [{"name": "b", "type": kind}]}, n="int")
    with pytest.raises(InvalidSchema, match=rf"field a\.b of the Avro schema is {what}, which is no column"):
        schema.fields()
    plain = record(a=["int", "string"], n="int")
    assert read(plain, b"\2\2x\6", columns=plain.fields(["n"])) == ([{"n": 3}], {})


def test_columns_may_be_wider_and_fewer_than_the_fields() -> None:
    columns = pa.schema(
        [
            ("price", pa.float64()), ("n", pa.decimal128(12, 1)), ("id", pa.int64()),
            ("items", pa.list_(pa.struct([("sku", pa.string())]))), ("weight", pa.float64()),
        ]
    )  # fmt: skip
    order = {
        "id": 1, "n": 2, "paid": True, "weight": 0.5, "price": 2.5, "note": None, "raw": b"", "state": "NEW",
        "before": None, "hash": b"ab", "tags": [], "counts": {}, "items": [{"sku": "x", "more": {}}], "gift": None,
        "day": date(2026, 1, 2), "at": datetime(2026, 1, 2, tzinfo=UTC), "exact": None, "local": datetime(2026, 1, 2),
        "sum": Decimal("1.50"), "rate": Decimal("0.1"), "uuid": "u",
    }  # fmt: skip
    assert read(FORMAT, encoded(ORDER, order), columns=columns) == (
        [{"price": 2.5, "n": Decimal("2.0"), "id": 1, "items": [{"sku": "x"}], "weight": 0.5}],
        {},
    )


@pytest.mark.parametrize(
    ("column", "problem"),
    [
        (pa.field("id", pa.int32()), "column id is int, and the Avro schema has it as bigint"),
        (
            pa.field("note", pa.string(), nullable=False),
            "column note is NOT NULL, and in the Avro schema it may be null",
        ),
        (pa.field("nix", pa.string()), "the Avro schema has no field nix; it has id, n, paid"),
        (pa.field("tags", pa.list_(pa.field("element", pa.string(), nullable=False))), "column tags is array<string>"),
        (pa.field("gift", pa.struct([("nix", pa.int32())])), "column gift is struct<nix int>, and the Avro schema has"),
    ],
)
def test_a_column_that_the_schema_does_not_give_is_refused(column: pa.Field, problem: str) -> None:
    with pytest.raises(InvalidSchema, match=problem):
        FORMAT.reader(pa.schema([column]))


def test_rows_are_written_with_narrower_columns_and_without_optional_ones() -> None:
    schema = AvroEntries(
        json.dumps(
            {
                "type": "record", "name": "R", "fields": [
                    {"name": "n", "type": "long"}, {"name": "d", "type": ["null", "int"]},
                    {"name": "kind", "type": "string", "default": "click"},
                    {"name": "sum", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 1}},
                    {"name": "m", "type": {"type": "map", "values": {"type": "map", "values": "double"}}},
                ],
            }
        )
    )  # fmt: skip
    maps = pa.map_(pa.string(), pa.map_(pa.string(), pa.float32()))
    columns = pa.schema([("n", pa.int16()), ("sum", pa.int32()), ("m", maps)])
    rows = pa.RecordBatch.from_pylist([{"n": 1, "sum": 2, "m": [("a", [("b", 0.5)])]}], columns)
    assert read(schema, *schema.writer(columns)(rows)) == (
        [{"n": 1, "d": None, "kind": "click", "sum": Decimal("2.0"), "m": {"a": {"b": 0.5}}}],
        {},
    )


def test_rows_that_do_not_fit_are_refused_with_the_field() -> None:
    schema = record(n="int", s={"type": "enum", "name": "E", "symbols": ["A"]})
    fields = pa.schema([("n", pa.int32()), ("s", pa.string())])
    with pytest.raises(InvalidSchema, match="there is no column s, which is neither null nor has a default"):
        schema.writer(pa.schema([("n", pa.int32())]))
    with pytest.raises(InvalidSchema, match="column n is bigint, and the Avro schema has it as int"):
        schema.writer(pa.schema([("n", pa.int64()), ("s", pa.string())]))
    with pytest.raises(InvalidSchema, match="the Avro schema has no field x"):
        schema.writer(pa.schema([("x", pa.int64())]))
    with pytest.raises(ValueError, match="a row does not fit the Avro schema: n must not be null"):
        schema.writer(fields)(pa.RecordBatch.from_pylist([{"n": None, "s": "A"}], fields))
    with pytest.raises(ValueError, match=r"a row does not fit the Avro schema: .*B"):
        schema.writer(fields)(pa.RecordBatch.from_pylist([{"n": 1, "s": "B"}], fields))


def test_entries_of_confluents_serializers_are_read_and_written() -> None:
    text = json.dumps({"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]})
    first, other = b"\0\0\0\1\x02" + number(5), b"\0\0\0\0\x07" + number(6)
    wrong = [b"\1" + first[1:], first[:5], first[:3], b"", number(5), first + b"\0"]
    rows, bad = read(AvroEntries(text, is_framed=True), first, other, *wrong)
    assert ([row["n"] for row in rows[:2]], sorted(bad)) == ([5, 6], [2, 3, 4, 5, 6, 7])
    schema = AvroEntries(text, is_framed=True, schema_id=258)
    rows, bad = read(schema, first, other)
    assert bad == {1: "it was written by the schema with the number 7, not 258"}
    batch = pa.RecordBatch.from_pylist(rows[:1], schema.fields())
    assert schema.writer(batch.schema)(batch) == [first]
    with pytest.raises(InvalidSchema, match="the number of the schema is needed to write"):
        AvroEntries(text, is_framed=True).writer(batch.schema)


def test_one_value_out_of_range_among_many_is_found() -> None:
    entries = [number(place) for place in range(1000)]
    entries[700] = number(2**40)
    rows, bad = read(record(a="int"), *entries)
    assert [place for place, row in enumerate(rows) if row["a"] is None] == list(bad) == [700]


def test_numbers_that_are_none_are_read() -> None:
    ((row,), _) = read(record(a="double"), encoded("double", math.nan))
    assert math.isnan(row["a"])


def test_records_that_name_each_other_twice_are_refused_before_they_fill_the_memory() -> None:
    kinds: list[Any] = [{"type": "record", "name": "T0", "fields": [{"name": "x", "type": "int"}]}]
    for place in range(1, 40):
        fields = [{"name": name, "type": f"T{place - 1}"} for name in "ab"]
        kinds.append({"type": "record", "name": f"T{place}", "fields": fields})
    with pytest.raises(InvalidSchema, match="at most 20000 are read"):
        record(**{f"n{place}": kind for place, kind in enumerate(kinds)})


def test_records_that_are_nested_by_their_names_are_refused_if_they_are_too_deep() -> None:
    kinds: list[Any] = [{"type": "record", "name": "T0", "fields": [{"name": "x", "type": "int"}]}]
    for place in range(1, 130):
        kinds.append({"type": "record", "name": f"T{place}", "fields": [{"name": "a", "type": f"T{place - 1}"}]})
    with pytest.raises(InvalidSchema, match=r"nested 132 times; .* nested 100 times"):
        record(**{f"n{place}": kind for place, kind in enumerate(kinds)})


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ({"type": "long", "logicalType": ["x"]}, "has a logical type that is no name"),
        ({"type": "fixed", "name": "F", "size": -1}, "has the size -1"),
        ({"type": "fixed", "name": "F", "size": 1.5}, "has the size 1.5"),
        ({"type": "array", "items": {"type": "fixed", "name": "F", "size": math.inf}}, "OverflowError"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 0}, "is a decimal without digits"),
        (
            {"type": "record", "name": "S", "fields": [{"name": "x", "type": "int"}, {"name": "x", "type": "string"}]},
            "has the field 'x' twice",
        ),
        ({"type": "record", "name": "S", "fields": [{"name": 1, "type": "int"}]}, "it is no name"),
    ],
)
def test_an_attribute_that_makes_no_sense_is_refused_in_a_line(kind: Any, problem: str) -> None:
    with pytest.raises(InvalidSchema, match=problem) as caught:
        record(a=kind).fields()
    assert "\n" not in str(caught.value)


def test_a_decimal_of_too_many_digits_that_is_no_column_is_not_computed() -> None:
    schema = record(a={"type": "bytes", "logicalType": "decimal", "precision": 10**12}, n="int")
    assert read(schema, b"\2\5\6", columns=schema.fields(["n"])) == ([{"n": 3}], {})


def test_a_logical_type_that_only_ends_like_a_timestamp_is_read_as_its_number() -> None:
    schema = record(a={"type": "long", "logicalType": "my-timestamp-millis"})
    assert read(schema, number(7)) == ([{"a": 7}], {})


@pytest.mark.parametrize(
    ("kind", "column", "value"),
    [
        ({"type": "array", "items": "boolean"}, pa.list_(pa.bool_()), [True, None]),
        ({"type": "map", "values": "boolean"}, pa.map_(pa.string(), pa.bool_()), [("k", None)]),
        (
            {"type": "record", "name": "S", "fields": [{"name": "x", "type": "boolean"}]},
            pa.struct([("x", pa.bool_())]),
            {"x": None},
        ),
    ],
)
def test_a_null_inside_of_a_value_is_not_written_as_false(kind: Any, column: pa.DataType, value: Any) -> None:
    fields = pa.schema([("a", column)])
    with pytest.raises(ValueError, match="a row does not fit the schema: there is a null inside"):
        record(a=kind).writer(fields)(pa.RecordBatch.from_pylist([{"a": value}], fields))


@pytest.mark.parametrize(
    ("kind", "default", "value"),
    [
        ("bytes", "\u00ffa", b"\xffa"),
        (["bytes", "null"], "\u00ff", b"\xff"),
        ({"type": "fixed", "name": "F", "size": 1}, "\u00ff", b"\xff"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1}, "\u0005", Decimal("0.5")),
    ],
)
def test_a_default_of_bytes_is_written_for_a_missing_column(kind: Any, default: str, value: Any) -> None:
    fields = [{"name": "n", "type": "int"}, {"name": "a", "type": kind, "default": default}]
    schema = AvroEntries(json.dumps({"type": "record", "name": "R", "fields": fields}))
    columns = schema.fields(["n"])
    entries = schema.writer(columns)(pa.RecordBatch.from_pylist([{"n": 1}], columns))
    assert read(schema, *entries) == ([{"n": 1, "a": value}], {})
