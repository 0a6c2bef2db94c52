"""Schemas that are proposed from entries."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.schema.fitting import misfit
from penstock.schema.inference import infer
from penstock.schema.parser import parse
from penstock.schema.widening import merged


def proposed(*entries: str) -> str:
    return str(infer(enumerate(entry.encode() for entry in entries)).schema)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "2"], "bigint"),
        (["1", "18446744073709551616"], "decimal(38,0)"),
        (["1", "2.5"], "double"),
        (["1.0"], "double"),
        (["true"], "boolean"),
        (['"a"', '"2026-01-31"'], "string"),
        (['"2026-01-31"'], "date"),
        (['"2026-01-31"', '"2026-01-31T12:00:00"'], "timestamp_ntz"),
        (['"2026-01-31T12:00:00"', '"2026-01-31T12:00:00Z"'], "timestamp"),
        (["[1]", "[2.5, null]"], "array<double>"),
        (["[]"], "array<string>"),
        (["{}"], "map<string, string>"),
        (['{"x":1,"y":null}', '{"x":2,"y":3}'], "struct<x bigint NOT NULL, y bigint>"),
        (['[{"x":1},{}]'], "array<struct<x bigint>>"),
    ],
)
def test_the_type_is_the_narrowest_that_holds_all_values(values: list[str], kind: str) -> None:
    assert proposed(*(f'{{"a":{value}}}' for value in values)) == f"a {kind} NOT NULL"


def test_a_field_that_is_missing_or_null_somewhere_is_optional() -> None:
    assert proposed('{"a":1,"b":1,"c":1}', '{"a":2,"b":null}') == "a bigint NOT NULL, b bigint, c bigint"


def test_what_no_type_holds_is_left_out_and_named() -> None:
    entries = (b'{"a":1,"b":[1],"c":null,"d":1,"D":2,"e":1}', b'{"a":"one","b":{}}', b"[]", b"no")
    found = infer(enumerate(entries, 1))
    assert str(found.schema) == "d bigint, e bigint"
    assert found.left_out == {
        "a": "no type holds both 1 and one", "b": "it has arrays and objects", "c": "it is always null",
        "D": "another field differs only in case",
    }  # fmt: skip
    assert (found.entries, found.refused[3], found.refused[4][:8]) == (2, "not a JSON object", "not JSON")


def test_a_sample_without_objects_gives_no_schema() -> None:
    assert infer([(1, b"x")]).schema is None
    assert infer([]).schema is None


@pytest.mark.parametrize(
    ("known", "entries", "widened"),
    [
        ("a decimal(10,2)", ['{"a":12.50}', '{"a":7}'], "a decimal(10,2)"),
        ("a decimal(10,2)", ['{"a":12.50}', '{"a":12345678901}'], "a decimal(21,2)"),
        ("a binary", ['{"a":"AP8="}'], "a binary"),
        ("a tinyint, b float", ['{"a":1,"b":1.5}', '{"a":300}'], "a bigint, b float"),
        ("a date", ['{"a":"2026-01-31"}', '{"a":null}', "{}"], "a date"),
        ("a timestamp", ['{"a":"2026-01-31"}'], "a timestamp"),
        ("a map<string, int>", ['{"a":{"x":1,"y":null}}', '{"a":{}}'], "a map<string, int>"),
        ("a map<string, int>", ['{"a":{"x":5000000000}}'], "a map<string, bigint>"),
        ("a array<int>", ['{"a":[]}', '{"a":[1]}'], "a array<int>"),
        (
            "a array<struct<p decimal(10,2), q string>>",
            ['{"a":[{"p":1.5,"r":1}]}'],
            "a array<struct<p decimal(10,2), q string, r bigint>>",
        ),
        ("a struct<p binary>", ['{"a":{}}'], "a struct<p binary>"),
        ("a struct<p binary>", ['{"a":{"p":"AP8="}}', '{"a":{"q":"x"}}'], "a struct<p binary, q string>"),
    ],
)
def test_only_values_that_do_not_fit_the_schema_of_the_stream_change_it(
    known: str, entries: list[str], widened: str
) -> None:
    schema = parse(known)
    found = infer(enumerate(entry.encode() for entry in entries), schema)
    assert found.schema is not None and not found.left_out
    assert str(merged(schema, found.schema)) == widened


def test_a_value_that_no_wider_type_holds_is_named_beside_one_that_fits() -> None:
    found = infer([(1, b'{"a":"AP8=","b":1}'), (2, b'{"a":7}')], parse("a binary"))
    assert str(found.schema) == "b bigint"
    assert found.left_out == {"a": "no type holds both AP8= and 7"}


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3) | st.dates().map(str),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["x", "y", "Z"]), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(st.lists(st.dictionaries(st.sampled_from(["a", "b", "`c d"]), values, max_size=3), max_size=5))
def test_every_entry_of_the_sample_fits_what_is_proposed(entries: list[dict[str, Any]]) -> None:
    sample = [json.dumps(entry).encode() for entry in entries]
    found = infer(enumerate(sample))
    if found.schema is not None:
        assert parse(str(found.schema)) == found.schema
        assert [misfit(found.schema, entry) for entry in sample] == [None] * len(sample)
