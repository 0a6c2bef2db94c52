"""The schemas of streams, and tables with typed columns, on both clients."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from tests.support.client.clients import Connect

from penstock import Server
from penstock.client.api.schemas import SchemaInfo
from penstock.protocol.errors import SchemaMisfit

EVERY_TYPE = pa.table(
    {
        "yes": pa.array([True, None]),
        "small": pa.array([1, None], pa.int8()),
        "large": pa.array([2**62, None], pa.int64()),
        "half": pa.array([0.5, float("nan")], pa.float32()),
        "double": pa.array([0.1, None], pa.float64()),
        "text": pa.array(['"ü"\n', None]),
        "raw": pa.array([b"\xff\x00", None]),
        "money": pa.array([Decimal("12345678.90"), None], pa.decimal128(10, 2)),
        "day": pa.array([date(2026, 1, 31), None]),
        "at": pa.array([datetime(2026, 1, 31, 12, 0, 0, 123456, UTC), None], pa.timestamp("us", tz="UTC")),
        "local": pa.array([datetime(2026, 1, 31, 12), None], pa.timestamp("us")),
        "tags": pa.array([["a", None], []], pa.list_(pa.string())),
        "counts": pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int32())),
        "inner": pa.array([{"x": 1, "y b": None}, None], pa.struct([("x", pa.int64()), ("y b", pa.string())])),
    }
)
OBJECT = {
    "yes": True, "small": 1, "large": 2**62, "half": 0.5, "double": 0.1, "text": '"ü"\n', "raw": "/wA=",
    "money": Decimal("12345678.90"), "day": "2026-01-31", "at": "2026-01-31T12:00:00.123456+00:00",
    "local": "2026-01-31T12:00:00", "tags": ["a", None], "counts": {"a": 1}, "inner": {"x": 1, "y b": None},
}  # fmt: skip


@pytest.fixture
def streams(connect: Connect, ours: Server) -> Any:
    client = connect(ours.url)
    client.flushall()
    return client


def test_schemas_are_set_and_read_back(streams: Any) -> None:
    assert streams.tschema_get("s") is None
    assert streams.tschema_set("s", "user string NOT NULL", check="refuse") == 1
    assert streams.tschema_set("s", "user string, n long", check="deadletter", dead_letter="bad") == 2
    assert streams.tschema_get("s") == SchemaInfo(2, 1, "user string, n bigint", "deadletter", b"bad")
    assert streams.tschema_get("s", 1) == SchemaInfo(1, 1, "user string NOT NULL", "deadletter", b"bad")
    assert streams.tschema_versions("s") == [
        SchemaInfo(1, 1, "user string NOT NULL"), SchemaInfo(2, 1, "user string, n bigint"),
    ]  # fmt: skip
    assert streams.tschema_del("s") == 2


def test_an_entry_that_does_not_fit_is_an_error_of_its_own(streams: Any) -> None:
    streams.tschema_set("s", "n int", check="refuse")
    with pytest.raises(SchemaMisfit, match="n must be of type int"):
        streams.twrite("s", "t", '{"n":"one"}')


def test_a_dead_letter_needs_its_check(streams: Any) -> None:
    with pytest.raises(ValueError, match="needs check='deadletter'"):
        streams.tschema_set("s", "n int", dead_letter="bad")


def test_a_table_is_written_as_its_own_schema_has_it(streams: Any) -> None:
    assert streams.tschema_set("s", EVERY_TYPE.schema, check="refuse") == 1
    assert streams.write_table("s", EVERY_TYPE, tag="text") == 1
    first, second = streams.tread("s")
    assert json.loads(first.entry, parse_float=lambda digits: Decimal(digits)) == {
        **OBJECT, "half": Decimal("0.5"), "double": Decimal("0.1"),
    }  # fmt: skip
    assert first.tag.decode() == OBJECT["text"]
    assert second.tag == b""
    empty = dict.fromkeys(OBJECT) | {"half": "NaN", "tags": [], "counts": {}}
    assert json.loads(second.entry) == empty


def test_data_frames_and_dicts_are_tables_too(streams: Any) -> None:
    assert streams.write_table("s", pd.DataFrame({"page": ["/", "/tea"], "ms": [1, 2]})) == 1
    assert streams.write_table("s", {"page": ["/cake"]}, producer=("p", 1)) == 3
    assert streams.write_table("s", {"page": ["/cake"]}, producer=("p", 1)) == 3
    assert [json.loads(message.entry) for message in streams.tread("s")] == [
        {"page": "/", "ms": 1}, {"page": "/tea", "ms": 2}, {"page": "/cake"},
    ]  # fmt: skip


class Frame:
    """A data frame as Polars hands it over: by Arrow's protocol, with views."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


def test_frames_by_arrow_s_protocol_are_tables_too(streams: Any) -> None:
    columns = {
        "text": pa.array(["a"], pa.string_view()),
        "raw": pa.array([b"x"], pa.binary_view()),
        "tags": pa.array([["b"]], pa.large_list(pa.string_view())),
        "kind": pa.DictionaryArray.from_arrays(pa.array([0], pa.uint32()), pa.array(["c"], pa.string_view())),
    }
    assert streams.tschema_set("s", pa.table(columns).schema, check="refuse") == 1
    assert streams.tschema_get("s").fields == "text string, raw binary, tags array<string>, kind string"
    assert streams.write_table("s", Frame(pa.table(columns)), tag="text") == 1
    assert json.loads(streams.tread("s")[0].entry) == {"text": "a", "raw": "eA==", "tags": ["b"], "kind": "c"}


@pytest.mark.parametrize(
    ("table", "error"),
    [
        ({"a": pa.array([1], pa.duration("s"))}, "the column a is duration"),
        ({"a": [[pa.scalar(1, pa.time32("s"))]]}, r"the column a\[\] is time32"),
    ],
)
def test_what_json_has_no_form_for_is_refused_by_name(streams: Any, table: Any, error: str) -> None:
    with pytest.raises(TypeError, match=error):
        streams.write_table("s", table)


def test_a_tag_must_be_a_column(streams: Any) -> None:
    with pytest.raises(ValueError, match="tag='user' is no column; there are page"):
        streams.write_table("s", {"page": ["/"]}, tag="user")
