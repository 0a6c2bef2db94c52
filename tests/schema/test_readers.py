"""Entries as columns of Arrow, by the schema of their stream."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.schema.arrow_types import arrow_schema, fields_of
from penstock.schema.fitting import misfit
from penstock.schema.json_entries import JsonEntries
from penstock.schema.parser import parse


def read(fields: str, *entries: bytes) -> tuple[list[dict[str, Any]], dict[int, str]]:
    rows, bad = JsonEntries(arrow_schema(parse(fields))).read(pa.array(entries, pa.binary()))
    rows.validate(full=True)
    found: list[dict[str, Any]] = rows.to_pylist()
    return found, bad


def test_a_field_that_an_entry_does_not_have_is_its_default() -> None:
    entries = (b'{"b":5}', b'{"a":null}', b'{"a":7,"b":null}', b'{"b":null}')
    rows, bad = read("a int DEFAULT 3, b int", *entries)
    assert rows == [{"a": 3, "b": 5}, {"a": None, "b": None}, {"a": 7, "b": None}, {"a": 3, "b": None}]
    assert not bad


@pytest.mark.parametrize("among", [0, 200])
def test_null_is_no_default_for_a_field_that_must_not_be_null(among: int) -> None:
    rows, bad = read("a int NOT NULL DEFAULT 3", *[b"{}"] * among, b"{}", b'{"a":null}')
    assert [row["a"] for row in rows] == [3] * among + [3, None]
    assert list(bad) == [among + 1]


@pytest.mark.parametrize(
    "field",
    [
        "a boolean DEFAULT true", "a decimal(10,2) DEFAULT 1e1", 'a date DEFAULT "2026-01-31"', "a float DEFAULT 0.5",
        'a timestamp DEFAULT "2026-01-31T12:00:00+01:00"', 'a timestamp_ntz DEFAULT "2026-01-31T12:00:00"',
        'a string DEFAULT "x"', 'a binary DEFAULT "YQ=="', "a array<int> DEFAULT [1]",
        'a map<string, int> DEFAULT {"x":1}',
        'a struct<x int DEFAULT 4> DEFAULT {}',
    ],
)  # fmt: skip
def test_a_default_of_any_type_is_read_as_if_the_entry_had_it(field: str) -> None:
    default = field.partition(" DEFAULT ")[2] if field.count("DEFAULT") == 1 else "{}"
    rows, bad = read(field, b"{}", b'{"a":%s}' % default.encode(), b'{"x":null}')
    assert not bad
    assert rows[0] == rows[1] == rows[2]
    assert rows[0]["a"] is not None


def test_a_default_inside_of_a_struct_is_read() -> None:
    rows, bad = read("a struct<x int NOT NULL DEFAULT 1, y int>", b'{"a":{"y":2}}', b"{}", b'{"a":{"x":null}}')
    assert rows[:2] == [{"a": {"x": 1, "y": 2}}, {"a": None}]
    assert list(bad) == [2]


@pytest.mark.parametrize(
    ("kind", "text", "fits"),
    [
        ("date", "2026-01-31", True),
        ("date", "20260131", False),
        ("date", "2026-W05-6", False),
        ("timestamp", "2026-01-31", True),
        ("timestamp", "2026-01-31 12:00", True),
        ("timestamp", "2026-01-31T12:00:00.1234567Z", True),
        ("timestamp", "2026-01-31T12:00:00+0530", True),
        ("timestamp", "2026-01-31T12:00:00-18:00", True),
        ("timestamp", "2026-01-31T12:00:00+18:01", False),
        ("timestamp", "2026-01-31T12:00Z", False),
        ("timestamp", "2026-01-31T120000", False),
        ("timestamp", "2026-01-31x12:00", False),
        ("timestamp_ntz", "2026-01-31T12:00:00.5", True),
        ("timestamp_ntz", "2026-01-31T12:00:00Z", False),
    ],
)
def test_a_date_or_time_that_fits_is_one_that_readers_know(kind: str, text: str, fits: bool) -> None:
    entry = f'{{"a":"{text}"}}'.encode()
    assert (misfit(parse(f"a {kind}"), entry) is None) == fits
    if fits:
        assert read(f"a {kind}", entry)[1] == {}


def test_a_decimal_keeps_all_its_digits() -> None:
    rows, bad = read("a array<decimal(33,0)>, b binary", b'{"a":[999999999999999999999999999950000]}')
    assert not bad
    assert rows[0]["a"] == [Decimal("999999999999999999999999999950000")]


def test_a_schema_is_the_same_by_way_of_arrow() -> None:
    text = (
        "a boolean, b tinyint NOT NULL, c smallint, d int, e bigint, f float, g double, h string, i binary, j date, "
        "k timestamp, l timestamp_ntz, m decimal(38,3), `n o` array<struct<x int NOT NULL>>, p map<string, array<int>>"
    )
    assert fields_of(arrow_schema(parse(text))) == text
