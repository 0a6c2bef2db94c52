"""Columns by the schema of a stream, and rows with typed columns for it: without Spark, on a real server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import DayTimeIntervalType, StructType

from penstock import Client, Server
from penstock.schema.arrow_types import arrow_schema
from penstock.schema.fields import InvalidSchema
from penstock.schema.json_entries import JsonEntries
from penstock.schema.parser import parse
from penstock.schema.readable import can_be_read
from penstock.schema.widening import merged, narrowing
from penstock.spark import source
from penstock.spark.data_source import PenstockDataSource
from penstock.spark.options import OptionError
from penstock.spark.options import parse as options_of
from penstock.spark.sink import StreamBatchWriter
from penstock.spark.stream_connection import StreamConnection
from penstock.spark.typed_rows import TypedRows, check_types


@pytest.fixture(autouse=True)
def not_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task changes the garbage collector of its process."""
    monkeypatch.setattr(source, "freeze_imports", lambda: None)


@pytest.fixture
def client(ours: Server) -> Iterator[Any]:
    with Client.from_url(ours.url) as client:
        client.flushall()
        yield client


def ask(ours: Server, **options: Any) -> PenstockDataSource:
    return PenstockDataSource({"url": ours.url, **{name: str(value) for name, value in options.items()}})


def ddl(schema: StructType) -> str:
    return ", ".join(
        f"{column.name} {column.dataType.simpleString()}{'' if column.nullable else ' NOT NULL'}" for column in schema
    )


INNER = pa.struct([("x", pa.int32())])
OWN = "stream string NOT NULL, offset bigint NOT NULL, time timestamp NOT NULL, tag binary NOT NULL"


def rows(found: PenstockDataSource) -> list[dict[str, Any]]:
    """A batch, read as Spark would."""
    reader = found.reader(found.schema())
    assert isinstance(reader, source.StreamBatchReader)
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


# -- reading --------------------------------------------------------------------------------------------------------


def test_the_columns_are_those_of_the_stream_s_schema(ours: Server, client: Any) -> None:
    client.tschema_set(
        "s", "user string NOT NULL, at timestamp_ntz, time timestamp, tags array<int>, m map<string, int>"
    )
    found = ask(ours, stream="s")
    fields = "user string NOT NULL, at timestamp_ntz, entry_time timestamp, tags array<int>, m map<string,int>"
    assert ddl(found.schema()) == f"{OWN}, {fields}"
    assert "user string," in ddl(ask(ours, stream="s", badEntries="null").schema())
    assert ddl(ask(ours, stream="s", typed="false").schema()) == f"{OWN}, entry binary NOT NULL"
    assert ddl(ask(ours, stream="other").schema()) == f"{OWN}, entry binary NOT NULL"


def test_columns_that_came_later_are_null_or_their_default_in_older_entries(ours: Server, client: Any) -> None:
    client.tschema_set("s", "a int")
    client.twrite("s", "", '{"a":1}')
    client.tschema_set("s", "a bigint, b string, c int NOT NULL DEFAULT 7")
    client.twrite("s", "", '{"a":4294967296,"b":"x","c":0}')
    assert [(row["a"], row["b"], row["c"]) for row in rows(ask(ours, stream="s"))] == [(1, None, 7), (2**32, "x", 0)]


def test_an_older_version_can_be_asked_for_and_must_exist(ours: Server, client: Any) -> None:
    client.tschema_set("s", "a int")
    client.tschema_set("s", "a int, b int")
    assert ddl(ask(ours, stream="s", schemaVersion=1).schema()) == f"{OWN}, a int"
    with pytest.raises(OptionError, match="stream s has no version 3 of its schema"):
        ask(ours, stream="s", schemaVersion=3).schema()
    client.tschema_del("s")
    with pytest.raises(OptionError, match="stream s has no version 1 of its schema"):
        ask(ours, stream="s", schemaVersion=1).schema()


def test_streams_that_are_read_together_need_one_schema_that_holds_all(ours: Server, client: Any) -> None:
    client.tschema_set("one", "a int")
    client.tschema_set("two", "a bigint, b int")
    assert ddl(ask(ours, stream="one,two").schema()) == ddl(ask(ours, stream="two").schema())
    client.tschema_set("three", "a string")
    with pytest.raises(OptionError, match=r"streams two and three have different schemas .*: give the query columns"):
        ask(ours, stream="two,three").schema()
    client.twrite("four", "", "raw")
    with pytest.raises(OptionError, match="stream one has a schema, and stream four has none: give the query columns"):
        ask(ours, stream="one,four").schema()
    assert "entry binary" in ddl(ask(ours, pattern="*", typed="false").schema())


@pytest.mark.parametrize(
    ("fields", "wanted", "is_read"),
    [
        ("a bigint", pa.int8(), True),
        ("a bigint", pa.string(), True),
        ("a bigint", pa.bool_(), False),
        ("a bigint", pa.date32(), False),
        ("a bigint", pa.timestamp("us", tz="UTC"), True),
        ("a string", pa.int64(), False),
        ("a string", pa.timestamp("us"), True),
        ("a string", pa.decimal128(10, 2), True),
        ("a timestamp", pa.float64(), False),
        ("a array<int>", pa.list_(pa.int64()), True),
        ("a array<int>", pa.list_(pa.bool_()), False),
        ("a array<int>", pa.struct([("x", pa.int32())]), False),
        ("a struct<x int>", pa.map_(pa.string(), pa.int32()), True),
        ("a struct<x int>", pa.map_(pa.string(), pa.bool_()), False),
        ("a struct<x int>", pa.struct([("x", pa.bool_())]), False),
        ("a struct<x int>", pa.struct([("y", pa.bool_())]), True),
        ("a map<string, int>", pa.struct([("y", pa.bool_())]), False),
    ],
)
def test_what_can_never_be_read_contradicts_a_schema(fields: str, wanted: pa.DataType, is_read: bool) -> None:
    assert can_be_read(parse(fields).fields[0].type, wanted) == is_read


def test_a_query_that_contradicts_the_schema_is_told_before_it_reads(ours: Server, client: Any) -> None:
    client.tschema_set("s", "ms bigint, user string")
    found, wanted = ask(ours, stream="s"), StructType().add("ms", "boolean").add("user", "string")
    why = "column ms is boolean in the query, and the schema of stream s has it as bigint: ask for bigint, or"
    with pytest.raises(OptionError, match=why):
        found.reader(wanted).partitions()
    with pytest.raises(OptionError, match=why):
        found.streamReader(wanted).latestOffset({"s": 1}, None)  # type: ignore[call-arg]
    ask(ours, stream="s", typed="false").reader(wanted).partitions()


def test_a_key_that_is_no_stream_is_named(ours: Server, client: Any) -> None:
    client.set("s", "x")
    with pytest.raises(OptionError, match=r"the key 's' at .* is no stream"):
        ask(ours, stream="s").schema()


# -- writing --------------------------------------------------------------------------------------------------------


def writer(ours: Server, fields: str, **options: str) -> StreamBatchWriter:
    schema = from_arrow_schema(arrow_schema(parse(fields)))
    return StreamBatchWriter(options_of({"url": ours.url, "stream": "s", **options}), schema, overwrite=False)


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ("user string, page string", "column page is string, and the schema of stream s has no such field: drop the "
         "column, or add"),
        ("user string, ms bigint", "column ms is bigint, and the schema of stream s has it as int, which does not hold "
         "all bigint: cast it to int, or widen the schema with .option('mergeSchema', 'true')"),
        ("user string, ms string", "column ms is string, and the schema of stream s has it as int, which does not hold "
         "all string: cast it to int"),
        ("ms int", "there is no column user, and the schema of stream s has user string NOT NULL: add the column"),
        ("user string, inner struct<x: bigint>", "column inner is struct<x bigint>, and the schema of stream s has it "
         "as struct<x int>"),
        ("user string, offset bigint", "column offset cannot be written: the server gives a message its offset. Drop "
         "the column, or rename it to entry_offset to write a field offset"),
        ("user string, time string", "column time is string; write it as a timestamp, or as bigint (milliseconds since "
         "1970). A field time of an entry is the column entry_time"),
        ("tag int, user string", "column tag is int; write it as a string or as binary"),
        ("tag string", "a column 'entry', or columns that are fields of an entry, are needed, and there are only tag"),
        ("key string, value string", "a column 'entry' is needed, and there are key, value, as in Kafka"),
    ],
)  # fmt: skip
def test_columns_that_do_not_fit_are_refused_in_one_line(ours: Server, client: Any, columns: str, why: str) -> None:
    client.tschema_set("s", "user string NOT NULL, ms int, inner struct<x int>")
    with pytest.raises(OptionError) as caught:
        writer(ours, columns)
    assert why in str(caught.value)
    assert client.tschema_get("s").version == 1


def test_a_type_that_json_has_no_form_for_is_refused() -> None:
    with pytest.raises(OptionError, match="column i is interval day to second, which is not written as JSON; cast it"):
        check_types(StructType().add("i", DayTimeIntervalType()), options_of({"stream": "s"}))


def test_a_schema_is_made_or_widened_if_that_is_wanted(ours: Server, client: Any) -> None:
    writer(ours, "tag string, user string NOT NULL, ms int, entry_time timestamp", mergeSchema="true")
    assert client.tschema_get("s").fields == "user string NOT NULL, ms int, time timestamp"
    writer(ours, "user string, ms bigint, page string NOT NULL", mergeSchema="true")
    assert client.tschema_get("s").fields == "user string NOT NULL, ms bigint, time timestamp, page string"
    writer(ours, "user string, ms int", mergeSchema="true")
    assert client.tschema_get("s").version == 2
    with pytest.raises(OptionError, match=r"stream s cannot be widened .*: ms is bigint and string, and no type holds"):
        writer(ours, "user string, ms string", mergeSchema="true")
    with pytest.raises(OptionError, match="mergeSchema needs typed columns and one stream"):
        writer(ours, "entry string", mergeSchema="true")


@pytest.mark.parametrize(
    ("fields", "column", "why"),
    [
        ("user string NOT NULL", pa.array([None], pa.string()), "user must not be null"),
        ("user struct<x int NOT NULL>", pa.array([{"x": None}], INNER), "user.x must not be null"),
    ],
)  # fmt: skip
def test_a_null_where_the_schema_says_not_null_is_refused(
    ours: Server, client: Any, fields: str, column: pa.Array, why: str
) -> None:
    client.tschema_set("s", fields)
    batch = pa.RecordBatch.from_pydict({"user": column})
    with StreamConnection(options_of({"url": ours.url, "stream": "s"})) as connection:
        typed = TypedRows(connection, "s", batch.schema)
        with pytest.raises(ValueError, match=f"a row does not fit the schema of stream s: {why}"):
            typed.entries(batch)


@pytest.mark.parametrize("fields", ["user double NOT NULL", "user struct<x double NOT NULL>", None])
def test_numbers_that_are_none_are_written_as_they_are_read(ours: Server, client: Any, fields: str | None) -> None:
    if fields:
        client.tschema_set("s", fields, check="refuse")
    values = [float(each) for each in ("nan", "inf", "-inf")]
    is_struct = fields is not None and "struct" in fields
    batch = pa.RecordBatch.from_pylist([{"user": {"x": each} if is_struct else each} for each in values])
    with StreamConnection(options_of({"url": ours.url, "stream": "s"})) as connection:
        entries = TypedRows(connection, "s", batch.schema).entries(batch)
    assert [b'"NaN"' in entries[0], b'"Infinity"' in entries[1], b'"-Infinity"' in entries[2]] == [True] * 3
    client.twrite_many("s", [("", entry) for entry in entries])
    rows, refused = JsonEntries(batch.schema).read(pa.array(entries, pa.binary()))
    assert (str(rows.to_pylist()), refused) == (str(batch.to_pylist()), {})


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ("a int", "a int", "a int"),
        ("a tinyint", "a smallint NOT NULL", "a smallint"),
        ("a bigint", "a int", "a bigint"),
        ("a int", "a float", "a double"),
        ("a bigint", "a decimal(10,2)", "a decimal(21,2)"),
        ("a decimal(10,2)", "a decimal(5,4)", "a decimal(12,4)"),
        ("a array<struct<x int>>", "a array<struct<x bigint, y int>>", "a array<struct<x bigint, y int>>"),
        ("a struct<x int NOT NULL>", "a struct<y int NOT NULL>", "a struct<x int NOT NULL, y int>"),
        ("a int DEFAULT 1", "b int", "a int DEFAULT 1, b int"),
        ("a int", "a string", None),
        ("a bigint", "a double", None),
        ("a array<int>", "a int", None),
        ("a decimal(38,0)", "a decimal(38,38)", None),
    ],
)
def test_the_schema_of_both_widens_the_first(one: str, other: str, both: str | None) -> None:
    if both is None:
        with pytest.raises(InvalidSchema, match="and no type holds both"):
            merged(parse(one), parse(other))
    else:
        found = merged(parse(one), parse(other))
        assert str(found) == both
        assert narrowing(parse(one), found) is None
