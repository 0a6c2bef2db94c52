"""The text of a schema, entries that fit it, and the schemas that may follow it."""

from __future__ import annotations

import base64
import json
import sys
from datetime import date, datetime
from decimal import Decimal
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.schema import fitting
from penstock.schema.arrow_types import arrow_schema
from penstock.schema.fields import Field, InvalidSchema, Schema, Type
from penstock.schema.fitting import LONG, NOT_FINITE, misfit
from penstock.schema.json_entries import JsonEntries
from penstock.schema.parser import MAX_DEPTH, MAX_FIELDS, parse
from penstock.schema.widening import narrowing

# -- schemas and entries at random ---------------------------------------------------------------------------------

SIMPLE = ["boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "binary", "date", "timestamp"]
BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
NAMES = st.text(min_size=1, max_size=5).filter(lambda name: "\0" not in name)

decimals = st.integers(1, 38).flatmap(
    lambda precision: st.integers(0, precision).map(lambda scale: Type("decimal", precision, scale))
)


def structs(types: st.SearchStrategy[Type]) -> st.SearchStrategy[Type]:
    field = st.builds(Field, NAMES, types, st.booleans())
    fields = st.lists(field, min_size=1, max_size=4, unique_by=lambda field: field.name.lower())
    return st.builds(lambda fields: Type("struct", fields=tuple(fields)), fields)


types = st.recursive(
    st.sampled_from(SIMPLE).map(Type) | decimals,
    lambda inner: st.one_of(
        inner.map(lambda part: Type("array", parts=(part,))),
        inner.map(lambda part: Type("map", parts=(Type("string"), part))),
        structs(inner),
    ),
    max_leaves=6,
)
schemas = structs(types).map(lambda struct: Schema(struct.fields))


def values(kind: Type) -> st.SearchStrategy[Any]:
    """JSON values of a type, as json.dumps takes them."""
    if kind.name in BITS:
        half = 1 << BITS[kind.name] - 1
        return st.integers(-half, half - 1)
    if kind.name == "decimal":
        digits = st.integers(-(10**kind.precision) + 1, 10**kind.precision - 1)
        return digits.map(lambda number: Decimal(f"{number}e-{kind.scale}"))  # arithmetic would round it
    if kind.name == "array":
        return st.lists(st.none() | values(kind.parts[0]), max_size=3)
    if kind.name == "map":
        return st.dictionaries(st.text(max_size=3), st.none() | values(kind.parts[1]), max_size=3)
    if kind.name == "struct":
        return objects(kind.fields)
    simple: dict[str, st.SearchStrategy[Any]] = {
        "boolean": st.booleans(),
        "float": st.floats(width=32, allow_nan=False, allow_infinity=False) | st.sampled_from(NOT_FINITE),
        "double": st.floats(allow_nan=False, allow_infinity=False)
        | st.integers(-(10**30), 10**30)
        | st.sampled_from(NOT_FINITE),
        "string": st.text(max_size=5),
        "binary": st.binary(max_size=5).map(lambda content: base64.b64encode(content).decode()),
        "date": st.dates().map(date.isoformat),
        "timestamp": st.datetimes().map(datetime.isoformat),
    }
    return simple[kind.name]


def objects(fields: tuple[Field, ...]) -> st.SearchStrategy[dict[str, Any]]:
    def of(field: Field) -> st.SearchStrategy[Any]:
        return values(field.type) if field.required else st.none() | values(field.type)

    required = {field.name: of(field) for field in fields if field.required}
    return st.fixed_dictionaries(required, optional={field.name: of(field) for field in fields if not field.required})


def entry_of(value: Any) -> bytes:
    """JSON with the digits of decimals as they are."""
    if isinstance(value, dict):
        return (
            b"{" + b",".join(json.dumps(name).encode() + b":" + entry_of(part) for name, part in value.items()) + b"}"
        )
    if isinstance(value, list):
        return b"[" + b",".join(map(entry_of, value)) + b"]"
    return str(value).encode() if isinstance(value, Decimal) else json.dumps(value).encode()


def wider(kind: Type) -> st.SearchStrategy[Type]:
    """Types that hold all values of a type."""
    if kind.name == "decimal":
        if kind.precision == 38:
            return st.just(kind)
        return st.just(Type("decimal", kind.precision + 1, kind.scale + (kind.precision % 2)))
    if kind.name == "struct":
        return widenings(kind.fields).map(lambda fields: Type("struct", fields=fields))
    if kind.parts:
        return wider(kind.parts[-1]).map(lambda part: Type(kind.name, parts=(*kind.parts[:-1], part)))
    others = {
        "tinyint": ["smallint", "double"],
        "smallint": ["bigint"],
        "int": ["bigint", "double"],
        "float": ["double"],
    }
    return st.sampled_from([kind.name, *others.get(kind.name, [])]).map(Type)


@st.composite
def widenings(draw: st.DrawFn, fields: tuple[Field, ...]) -> tuple[Field, ...]:
    kept = [Field(field.name, draw(wider(field.type)), field.required and draw(st.booleans())) for field in fields]
    taken = {field.name.lower() for field in fields}
    more = draw(st.lists(NAMES.filter(lambda name: name.lower() not in taken), max_size=2, unique_by=str.lower))
    return (*kept, *(Field(name, draw(types)) for name in more))


# -- the text ------------------------------------------------------------------------------------------------------


@given(schemas)
def test_the_text_of_a_schema_is_read_as_that_schema(schema: Schema) -> None:
    assert parse(str(schema)) == schema


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("a int8, b int16, c int32, d int64", "a tinyint, b smallint, c int, d bigint"),
        ("a byte, b short, c integer, d long", "a tinyint, b smallint, c int, d bigint"),
        ("a utf8, b large_string, c float32, d float64", "a string, b string, c float, d double"),
        ("a bool, b date32[day], c large_binary, d date32", "a boolean, b date, c binary, d date"),
        ("a timestamp[us], b timestamp[us, tz=UTC]", "a timestamp_ntz, b timestamp"),
        ("a decimal128(9, 2), b decimal, c numeric(3)", "a decimal(9,2), b decimal(10,0), c decimal(3,0)"),
        ("a list<item: struct<x: int64>>, b MAP<STRING,INT>", "a array<struct<x bigint>>, b map<string, int>"),
        ("`a b``c` int not null default 7", "`a b``c` int NOT NULL DEFAULT 7"),
        (' a : string DEFAULT "x, y" ,b int', 'a string DEFAULT "x, y", b int'),
    ],
)
def test_names_of_spark_and_of_arrow_are_read(text: str, kept: str) -> None:
    assert str(parse(text)) == kept


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "a field's name is expected"),
        ("a", "more is expected after 'a'"),
        ("a int,", "a field's name is expected after 'a int,'"),
        ("a int b int", "before 'b int' is not understood"),
        ("a intt", "there is no type 'intt'; there are "),
        ("a int, A string", "the field 'A' is there twice"),
        ("a map<int, int>", "the keys of a map are strings"),
        ("a decimal(39,0)", "1 to 38 digits"),
        ("a decimal(5,6)", "1 to 38 digits"),
        ("a decimal(1000,6)", "a number of digits is expected"),
        ("a int default x", "DEFAULT of the field 'a' is followed by a JSON value"),
        ('a int default "x"', "DEFAULT of the field 'a' does not fit its type: a must be of type int"),
        ("a int default null", "it is null"),
        ("a int not", "more is expected"),
        ("a int not zero", "NOT is followed by NULL"),
        ("a timestamp[ns]", "timestamps have microseconds"),
        ("a array<int", "'>' is expected"),
        ("a " + "array<" * (MAX_DEPTH + 2) + "int", "nested more than"),
        (", ".join(f"f{n} int" for n in range(MAX_FIELDS + 1)), f"at most {MAX_FIELDS} fields"),
    ],
)
def test_an_invalid_schema_is_refused_with_the_place(text: str, why: str) -> None:
    with pytest.raises(InvalidSchema) as caught:
        parse(text)
    assert why in str(caught.value)


@given(st.text(alphabet="ab ,:<>()[]`'\"intNULLdefault0", max_size=40))
def test_any_text_is_a_schema_or_is_refused(text: str) -> None:
    try:
        schema = parse(text)
    except InvalidSchema:
        return
    assert parse(str(schema)) == schema


# -- entries -------------------------------------------------------------------------------------------------------


@given(st.data())
def test_entries_made_for_a_schema_fit_it(data: st.DataObject) -> None:
    schema = data.draw(schemas)
    assert misfit(schema, entry_of(data.draw(objects(schema.fields)))) is None


@given(st.data())
def test_every_entry_that_fits_a_schema_is_read_by_it(data: st.DataObject) -> None:
    schema = data.draw(schemas)
    entries = data.draw(st.lists(objects(schema.fields), min_size=1, max_size=3))
    rows, bad = JsonEntries(arrow_schema(schema)).read(pa.array(map(entry_of, entries), pa.binary()))
    assert not bad
    assert rows.num_rows == len(entries)


@pytest.mark.parametrize(
    ("fields", "entry", "why"),
    [
        ("a int", b"", "it is not JSON"),
        ("a int", b"null", "it is not a JSON object"),
        ("a int", b"[1]", "it is not a JSON object"),
        ("a int", b'{"a":1}{"a":2}', "it is not JSON: Extra data"),
        ("a int", b'{"a":NaN}', "NaN is not a JSON value"),
        ("a int", b'{"a":"\xff"}', "it is not UTF-8"),
        ("a int", '{"a":1}'.encode("utf-16"), "it is not"),
        ("a int", b"[" * 200_000, "it is nested too deeply"),
        ("a int NOT NULL", b"{}", "a is missing"),
        ("a int NOT NULL", b'{"A":1}', "a is missing"),
        ("a int NOT NULL", b'{"a":null}', "a must not be null"),
        ("a int", b'{"a":2147483648}', "a is out of the range of int"),
        ("a int", b'{"a":1.0}', "a must be of type int"),
        ("a int", b'{"a":true}', "a must be of type int"),
        ("a boolean", b'{"a":1}', "a must be true or false"),
        ("a string", b'{"a":12}', "a must be a string"),
        ("a double", b'{"a":"nan"}', "a must be a number"),
        ("a decimal(10,2)", b'{"a":"NaN"}', "a must be a number"),
        ("a double", b'{"a":1e309}', "a is out of the range of double"),
        ("a float", b'{"a":1e39}', "a is out of the range of float"),
        ("a double", b'{"a":1e99999999999999999999}', "an exponent"),
        ("a decimal(10,2)", b'{"a":1650852255}', "a has 10 digits before the point, and decimal(10,2) has 8"),
        ("a decimal(10,2)", b'{"a":0.001}', "a has 3 digits after the point"),
        ("a decimal(10,2)", b'{"a":1e400000}', "digits before the point"),
        ("a date", b'{"a":"2026-02-30"}', "a must be a date such as"),
        ("a timestamp", b'{"a":1700000000}', "a must be a time such as"),
        ("a binary", b'{"a":"?"}', "a must be a string of base64"),
        ("a array<struct<x int NOT NULL>>", b'{"a":[{"x":1},{}]}', "a[1].x is missing"),
        ("a map<string, int>", b'{"a":{"k":"v"}}', "a[k] must be of type int"),
    ],
)
def test_entries_that_do_not_fit_say_where_and_why(fields: str, entry: bytes, why: str) -> None:
    found = misfit(parse(fields), entry)
    assert found is not None
    assert why in found


@pytest.mark.parametrize(
    ("fields", "entry"),
    [
        ("a int", b'{"b":"unknown fields are allowed"}'),
        ("a int NOT NULL DEFAULT 3", b"{}"),
        ("a decimal(4,2)", b'{"a":12.3400}'),
        ("a decimal(4,2)", b'{"a":0e9}'),
        ("a double", b'{"a":7}'),
        ("a timestamp", b'{"a":"2026-01-31T12:00:00.123456Z"}'),
    ],
)
def test_entries_that_fit(fields: str, entry: bytes) -> None:
    assert misfit(parse(fields), entry) is None


@given(st.binary(max_size=60) | st.text(alphabet='{}[]",:0123456789.eE-ab \\untrf', max_size=40).map(str.encode))
def test_any_bytes_fit_or_do_not_however_they_are_read(entry: bytes) -> None:
    schema = parse("a int, b array<struct<a decimal(5,2)>>, e double")
    found = misfit(schema, entry)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "LONG", 0)  # as a long entry is read
        assert misfit(schema, entry) == found


@pytest.mark.parametrize("item", [b"7", b"7.25", b"{}", b'{"x":[]}'])
def test_other_threads_can_run_while_a_long_entry_is_read(item: bytes) -> None:
    count = LONG
    calls = 0

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"  # the interpreter may switch to another thread there

    entry = b'{"a":[' + b",".join([item] * count) + b"]}"
    sys.setprofile(profile)
    try:
        found = misfit(parse("b int"), entry)
    finally:
        sys.setprofile(None)
    assert found is None
    assert calls >= count


# -- versions ------------------------------------------------------------------------------------------------------


@given(st.data())
def test_what_fits_a_schema_fits_all_that_may_follow_it(data: st.DataObject) -> None:
    schema = data.draw(schemas)
    newer = Schema(data.draw(widenings(schema.fields)))
    assert narrowing(schema, newer) is None
    entry = data.draw(objects(schema.fields))
    names = {field.name for field in newer.fields}
    assert set(entry) <= names
    assert misfit(newer, entry_of(entry)) is None


@pytest.mark.parametrize(
    ("older", "newer", "why"),
    [
        ("a int, b int", "a int", "the field b is gone"),
        ("a int", "A int", "the field a is gone"),
        ("a bigint", "a int", "the field a was bigint, which int does not hold"),
        ("a bigint", "a double", "the field a was bigint, which double does not hold"),
        ("a int", "a string", "the field a was int, which string does not hold"),
        ("a int", "a float", "the field a was int, which float does not hold"),
        ("a int", "a int NOT NULL", "the field a was optional and is NOT NULL now"),
        ("a int", "a int, b int NOT NULL", "the new field b is NOT NULL without a DEFAULT"),
        ("a int DEFAULT 1", "a int DEFAULT 2", "the default of a was 1"),
        ("a decimal(10,2)", "a decimal(11,4)", "was decimal(10,2), which decimal(11,4) does not hold"),
        ("a decimal(10,2)", "a decimal(12,1)", "was decimal(10,2), which decimal(12,1) does not hold"),
        ("a bigint", "a decimal(18,0)", "was bigint, which decimal(18,0) does not hold"),
        ("a array<int>", "a array<string>", "the field a[] was int"),
        ("a struct<x int>", "a struct<x int, y int NOT NULL>", "the new field a.y is NOT NULL"),
    ],
)
def test_what_narrows_is_refused(older: str, newer: str, why: str) -> None:
    found = narrowing(parse(older), parse(newer))
    assert found is not None
    assert why in found


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("a int", "b string, a int"),
        ("a int NOT NULL", "a bigint"),
        ("a int", "a int, b int NOT NULL DEFAULT 1"),
        ("a bigint", "a decimal(19,0)"),
        ("a decimal(10,2)", "a decimal(12,4)"),
        ("a int", "a int DEFAULT 5"),
    ],
)
def test_what_widens_may_follow(older: str, newer: str) -> None:
    assert narrowing(parse(older), parse(newer)) is None
