"""Entries as typed columns, by the schema of their stream, on both clients."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from tests.support.client.clients import Connect

from penstock import Client, Server
from penstock.client.api import stream_replies
from penstock.client.api import streams as stream_commands
from penstock.client.api.stream_replies import IncompleteRead
from penstock.client.api.typed import BadEntry


@pytest.fixture
def streams(connect: Connect, ours: Server) -> Any:
    client = connect(ours.url)
    client.flushall()
    return client


def test_fields_of_the_schema_are_columns_beside_offset_time_and_tag(streams: Any) -> None:
    streams.tschema_set("s", "user string NOT NULL, ms bigint")
    rows = pa.table({"tag": ["a"], "entry": ['{"user":"ada","ms":5}'], "time": pa.array([1000])})
    streams.write_arrow("s", rows)
    table = streams.read_arrow("s", typed=True)
    assert table.to_pylist() == [
        {"offset": 1, "time": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), "tag": b"a", "user": "ada", "ms": 5}
    ]
    assert [field.nullable for field in table.schema] == [False, False, False, False, True]
    assert table.schema.metadata is None


def test_older_entries_have_null_or_the_default_in_columns_that_came_later(streams: Any) -> None:
    streams.tschema_set("s", "a int")
    streams.twrite("s", "", '{"a":1}')
    streams.tschema_set("s", "a bigint, b string, c int NOT NULL DEFAULT 7")
    streams.twrite("s", "", '{"a":4294967296,"b":"x","c":0}')
    assert streams.read_arrow("s", typed=True).select(["a", "b", "c"]).to_pylist() == [
        {"a": 1, "b": None, "c": 7}, {"a": 2**32, "b": "x", "c": 0},
    ]  # fmt: skip


def test_a_field_with_the_name_of_a_message_s_own_column_gets_a_longer_one(streams: Any) -> None:
    streams.tschema_set("s", "time string, Tag int, entry_time int")
    streams.twrite("s", "t", '{"time":"noon","Tag":3,"entry_time":4}')
    (row,) = streams.read_arrow("s", typed=True).to_pylist()
    assert (row["tag"], row["entry_time"], row["entry_Tag"], row["entry_entry_time"]) == (b"t", "noon", 3, 4)


def test_an_entry_that_does_not_fit_is_named_or_null_or_dropped(streams: Any) -> None:
    streams.tschema_set("s", "n int NOT NULL")
    for n in (1, '"two"', 3):
        streams.twrite("s", "", f'{{"n":{n}}}')
    with pytest.raises(BadEntry, match=r"""stream 's', offset 2: n is "two", which is no int. The entry begins with"""):
        streams.read_arrow("s", typed=True)
    assert streams.read_arrow("s", typed=True, bad_entries="null").column("n").to_pylist() == [1, None, 3]
    assert streams.read_arrow("s", typed=True, bad_entries="drop").column("offset").to_pylist() == [1, 3]


def test_a_stream_without_a_schema_has_no_typed_columns(streams: Any) -> None:
    streams.twrite("s", "", "{}")
    with pytest.raises(ValueError, match="the stream 's' has no schema: set one with tschema_set, or read raw entries"):
        streams.read_arrow("s", typed=True)


def test_options_that_make_no_sense_are_refused(streams: Any) -> None:
    with pytest.raises(ValueError, match="bad_entries='skip': it is one of fail, null, drop"):
        streams.read_arrow("s", typed=True, bad_entries="skip")
    with pytest.raises(ValueError, match="bad_entries='drop' needs typed=True"):
        streams.read_arrow("s", bad_entries="drop")


def test_groups_and_reads_that_wait_are_typed_too(streams: Any) -> None:
    streams.tschema_set("s", "n int")
    assert streams.read_arrow("s", 1, typed=True, block_ms=1).num_rows == 0
    streams.twrite("s", "", '{"n":1}')
    assert streams.read_arrow("s", group="g", retry_ms=60_000, typed=True).column("n").to_pylist() == [1]


def test_a_group_loses_nothing_to_an_entry_that_does_not_fit(streams: Any) -> None:
    streams.tschema_set("s", "n int")
    streams.twrite_many("s", [("", '{"n":1}'), ("", "no"), ("", '{"n":2}')])
    with pytest.raises(ValueError, match="typed=True with a group needs retry_ms"):
        streams.read_arrow("s", group="g", typed=True)
    with pytest.raises(ValueError, match="bad_entries='drop' with a group would hide offsets"):
        streams.read_arrow("s", group="g", retry_ms=60_000, typed=True, bad_entries="drop")
    table = streams.read_arrow("s", group="g", retry_ms=60_000, typed=True, bad_entries="null")
    assert table.column("offset").to_pylist() == [1, 2, 3], "nothing was taken before"


@pytest.mark.parametrize("day", ["5881580-07-12", "-5877641-06-22"])
def test_a_date_that_arrow_cannot_hold_is_a_bad_entry(streams: Any, day: str) -> None:
    streams.tschema_set("s", "day date")
    streams.twrite("s", "", f'{{"day":"{day}"}}')
    with pytest.raises(BadEntry, match="offset 1"):
        streams.read_arrow("s", typed=True)
    assert streams.read_arrow("s", typed=True, bad_entries="null").column("day").to_pylist() == [None]


def test_a_schema_comes_with_the_info_of_a_read(streams: Any) -> None:
    streams.tschema_set("s", "`1111111111111111111` int")  # as many digits as the bounds have
    streams.twrite("s", "", "{}")
    metadata = streams.read_arrow("s", with_info=True).schema.metadata
    assert {name: value.lstrip(b"0") for name, value in metadata.items()} == {
        b"first": b"1", b"last": b"1", b"schema": b"`1111111111111111111` int",
    }  # fmt: skip


def test_a_read_that_its_default_ends_early_says_so(streams: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (stream_commands, stream_replies):
        monkeypatch.setattr(module, "DEFAULT_ROWS", 3)
    streams.twrite_many("s", [("", "x")] * 5)
    with pytest.warns(IncompleteRead, match="default of 3 messages, before offset 4; the stream goes on to 5"):
        assert streams.read_arrow("s").num_rows == 3
    assert streams.read_arrow("s", 3).num_rows == 3
    assert streams.read_arrow("s", 1, 2).num_rows == 2
    streams.tevict("s", 4)
    with pytest.warns(IncompleteRead):
        assert streams.read_arrow("s").num_rows == 0


def test_tables_one_after_the_other_are_typed_and_bad_rows_do_not_stop_them(ours: Server) -> None:
    with Client.from_url(ours.url) as client:
        client.flushall()
        client.tschema_set("s", "n int")
        client.twrite_many("s", [("", "bad" if n % 2 else f'{{"n":{n}}}') for n in range(6)])
        tables = client.read_tables("s", count=2, typed=True, bad_entries="drop")
        assert [table.column("n").to_pylist() for table in tables] == [[0], [2], [4]]
        with pytest.raises(BadEntry, match="offset 2"):
            list(client.read_tables("s", typed=True))
        with pytest.raises(ValueError, match="needs typed=True"):
            client.read_tables("s", bad_entries="drop")


def test_a_pipeline_reads_typed_columns(ours: Server) -> None:
    with Client.from_url(ours.url) as client:
        client.flushall()
        client.tschema_set("s", "n int")
        with client.pipeline() as pipe:
            pipe.twrite("s", "", '{"n":1}')
            pipe.read_arrow("s", typed=True)
            assert pipe.execute()[1].column("n").to_pylist() == [1]
