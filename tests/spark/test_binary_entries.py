"""Streams whose entries are Avro or Protobuf: the policies for bad entries without Spark, the rest in a real Spark."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql.types import IntegerType, LongType, StringType, StructType
from tests.support.protobuf_file import KINDS, TIMESTAMP, class_of, files, message, optional
from tests.support.spark.world import World

from penstock.spark import entry_formats
from penstock.spark.dead_letters import BadMessage
from penstock.spark.options import OptionError, parse
from penstock.spark.rows import BadEntry, Converter, check_schema
from penstock.spark.sink import check_columns
from penstock.spark.stream_schema import columns_of

CLICK = {
    "type": "record", "name": "Click", "fields": [
        {"name": "user", "type": "string"},
        {"name": "ms", "type": ["null", "int"]},
        {"name": "time", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}  # fmt: skip
AVRO = {"entryFormat": "avro", "avroSchema": json.dumps(CLICK)}
_PARSED = fastavro.parse_schema(CLICK)


def avro(user: str, ms: int | None = None) -> bytes:
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, _PARSED, {"user": user, "ms": ms, "time": 1000})
    return sink.getvalue()


FILES = files(message("Click", user=KINDS.TYPE_STRING, ms=optional(KINDS.TYPE_INT32), time=TIMESTAMP))
_CLICK = class_of(FILES, "shop.Click")


def protobuf(user: str, ms: int | None = None) -> bytes:
    click = _CLICK(user=user, ms=ms)
    click.time.seconds = 1
    return click.SerializeToString()  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def formats(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """The options of each format."""
    file = tmp_path_factory.mktemp("descriptors") / "shop.desc"
    file.write_bytes(FILES)
    options = {"entryFormat": "protobuf", "protobufDescriptorFile": str(file), "protobufMessage": "shop.Click"}
    return {"avro": AVRO, "protobuf": options}


class Letters:
    """Takes letters instead of a server."""

    def __init__(self) -> None:
        self.offsets: list[int] = []

    def write(self, bad: Mapping[int, BadMessage]) -> None:
        self.offsets += bad


def mutated(encode: Callable[[str, int | None], bytes]) -> st.SearchStrategy[bytes]:
    return st.builds(
        lambda entry, place, other: entry[:place] + other + entry[place + len(other) :],
        st.builds(encode, st.text(min_size=1, max_size=3), st.none() | st.integers(-9, 9)),
        st.integers(0, 12),
        st.binary(max_size=3),
    )


@pytest.mark.parametrize(("kind", "encode"), [("avro", avro), ("protobuf", protobuf)])
@given(data=st.data())
def test_every_policy_agrees_on_which_entries_are_bad(
    formats: dict[str, dict[str, str]],
    kind: str,
    encode: Callable[[str, int | None], bytes],
    data: st.DataObject,
) -> None:
    entries = data.draw(st.lists(mutated(encode), max_size=6))
    columns = StructType().add("offset", LongType()).add("user", StringType()).add("ms", IntegerType())
    offsets = list(range(1, len(entries) + 1))
    batch = pa.record_batch(
        {
            "offset": pa.array(offsets, pa.int64()), "time": pa.array([0] * len(entries), pa.int64()),
            "tag": pa.array([b""] * len(entries), pa.binary()), "entry": pa.array(entries, pa.binary()),
        }
    )  # fmt: skip
    letters = Letters()

    def convert(policy: str, **options: str) -> list[Any]:
        given = parse({"stream": "s", "badEntries": policy, **options, **formats[kind]})
        check_schema(columns, given)
        rows = Converter(columns, given, cast(Any, letters) if options else None).convert("s", batch)
        rows.validate(full=True)
        return rows.to_pylist()  # type: ignore[no-any-return]

    nulls, kept = convert("null"), convert("drop")
    assert convert("deadletter", deadLetterStream="dead") == kept
    assert [row["offset"] for row in nulls] == offsets
    assert sorted(letters.offsets + [row["offset"] for row in kept]) == offsets
    assert [row for row in nulls if row["offset"] not in letters.offsets] == kept
    assert all(row["user"] is None for row in nulls if row["offset"] in letters.offsets)
    if letters.offsets:
        with pytest.raises(BadEntry, match=f"stream s, offset {min(letters.offsets)}: "):
            convert("fail")
    else:
        assert convert("fail") == kept


def test_columns_come_from_the_schema_and_may_be_null_where_bad_entries_give_nulls(tmp_path: Path) -> None:
    (tmp_path / "click.avsc").write_text(json.dumps(CLICK), encoding="utf-8")
    columns = columns_of(parse({"stream": "s", "entryFormat": "avro", "avroSchemaFile": str(tmp_path / "click.avsc")}))
    assert columns.names == ["stream", "offset", "time", "tag", "user", "ms", "entry_time"]
    assert [columns[name].dataType.simpleString() for name in ("user", "ms", "entry_time")] == [
        "string", "int", "timestamp",
    ]  # fmt: skip
    assert [columns[name].nullable for name in ("user", "ms", "entry_time")] == [False, True, False]
    assert columns_of(parse({"stream": "s", "badEntries": "null", **AVRO}))["user"].nullable


@pytest.mark.parametrize(("kind", "library"), [("avro", "fastavro"), ("protobuf", "protobuf")])
def test_a_library_that_is_not_there_is_named(
    monkeypatch: pytest.MonkeyPatch, formats: dict[str, dict[str, str]], kind: str, library: str
) -> None:
    entry_formats._avro.cache_clear()
    entry_formats._protobuf.cache_clear()
    monkeypatch.setitem(sys.modules, f"penstock.schema.{kind}_entries", None)
    with pytest.raises(OptionError, match=rf"^entryFormat={kind} needs {library}; `pip install '\.\[{kind}\]'`"):
        columns_of(parse({"stream": "s", **formats[kind]}))


def test_columns_come_from_a_message(formats: dict[str, dict[str, str]]) -> None:
    options = {"stream": "s", **formats["protobuf"]}
    columns = columns_of(parse(options))
    assert columns.simpleString().endswith("user:string,ms:int,entry_time:timestamp>")
    with pytest.raises(OptionError, match=r"no message 'Click'; they have google\.protobuf\.Timestamp, shop\.Click"):
        columns_of(parse({**options, "protobufMessage": "Click"}))


def test_columns_beside_the_schema_are_refused_before_anything_is_read_or_written() -> None:
    options = parse({"stream": "s", **AVRO})
    with pytest.raises(OptionError, match="entryFormat=avro: the Avro schema has no field page; it has user, ms, time"):
        check_schema(StructType().add("page", StringType()), options)
    with pytest.raises(OptionError, match="entryFormat=avro: column ms is bigint, and the Avro schema has it as int"):
        check_columns(StructType().add("user", StringType()).add("ms", LongType()), options)
    with pytest.raises(OptionError, match="and a column 'entry' is written as it is: give one of them"):
        check_columns(StructType().add("entry", StringType()), options)
    with pytest.raises(OptionError, match="option avroSchema: it is no Avro schema"):
        columns_of(parse({"stream": "s", "entryFormat": "avro", "avroSchema": "{"}))


def test_fields_that_differ_only_in_case_are_refused_unless_the_query_chooses(
    world: World, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    double = {"type": "record", "name": "D", "fields": [{"name": name, "type": "int"} for name in ("a", "A")]}
    (tmp_path / "double.desc").write_bytes(files(message("D", a=KINDS.TYPE_INT32, A=KINDS.TYPE_INT32)))
    protobuf_options = {"protobufDescriptorFile": str(tmp_path / "double.desc"), "protobufMessage": "shop.D"}
    for options in (
        {"entryFormat": "avro", "avroSchema": json.dumps(double)},
        {"entryFormat": "protobuf", **protobuf_options},
    ):
        given = parse({"stream": "s", **options})
        with pytest.raises(OptionError, match=r"^the schema has fields a and A, which are one column to Spark: give "):
            columns_of(given)
        check_schema(StructType().add("A", IntegerType()), given)
        check_columns(StructType().add("a", IntegerType()).add("A", IntegerType()), given)
        request.addfinalizer(lambda: world.spark.conf.unset("spark.sql.caseSensitive"))
        world.spark.conf.set("spark.sql.caseSensitive", "true")
        rows = world.spark.sql("SELECT 1 AS a, 2 AS A")
        stream = options["entryFormat"]
        rows.write.format("penstock").options(url=world.url, stream=stream, **options).mode("append").save()
        assert [tuple(row) for row in world.read("A int, a int", stream=stream, **options).collect()] == [(2, 1)]


@pytest.mark.parametrize("options", [{}, {"entryFormat": "avro", "avroSchema": json.dumps(CLICK)}])
def test_a_date_that_python_does_not_have_is_refused_with_its_column(world: World, options: dict[str, str]) -> None:
    rows = world.spark.sql("SELECT 'ada' AS user, 5 AS ms, TIMESTAMP '+12026-01-01 00:00:00' AS entry_time")
    with pytest.raises(
        PySparkException, match=r"column time has a date or time before the year 1 or after 9999: filter"
    ):
        rows.write.format("penstock").options(url=world.url, stream="s", **options).mode("append").save()


def test_rows_go_from_stream_to_stream_in_confluents_framing_by_a_schema_in_a_file(
    world: World, tmp_path: Path
) -> None:
    (tmp_path / "click.avsc").write_text(json.dumps(CLICK), encoding="utf-8")
    options = {"entryFormat": "avro", "avroSchemaFile": str(tmp_path / "click.avsc"), "avroFraming": "confluent"}
    seventh, eighth = b"\0\0\0\0\7", b"\0\0\0\0\10"
    world.write("s", seventh + avro("ada", 5), avro("bob"), eighth + avro("dan"))
    rows = world.follow(stream="s", badEntries="deadletter", deadLetterStream="dead", avroSchemaId=7, **options)
    world.run(rows.select("user", "ms", "entry_time"), stream="copy", avroSchemaId=8, **options)
    assert world.entries("copy") == [eighth + avro("ada", 5)]
    assert [json.loads(letter)["offset"] for letter in world.entries("dead")] == [2, 3]
    found = world.read(stream="copy", **options).select("user", "ms").collect()
    assert [tuple(row) for row in found] == [("ada", 5)]
    with pytest.raises(PySparkException, match="the number of the schema is needed to write with Confluent's framing"):
        copied = world.read(stream="copy", **options).drop("stream", "offset", "time")
        copied.write.format("penstock").options(url=world.url, stream="other", **options).mode("append").save()


def test_rows_go_from_stream_to_stream_in_avro(world: World) -> None:
    world.write("s", avro("ada", 5), avro("bob"))
    frame = world.read(stream="s", **AVRO)
    copied = frame.drop("stream", "offset", "time")
    copied.write.format("penstock").options(url=world.url, stream="copy", **AVRO).mode("append").save()
    assert world.entries("copy") == [avro("ada", 5), avro("bob")]
    chosen = world.read("offset bigint, ms bigint, user string", stream="copy", **AVRO)
    assert [tuple(row) for row in chosen.collect()] == [(1, 5, "ada"), (2, None, "bob")]
    world.call("TSCHEMA", "SET", "typed", "user string")
    with pytest.raises(PySparkException, match="stream typed has a schema, which is one of JSON"):
        copied.write.format("penstock").options(url=world.url, stream="typed", **AVRO).mode("append").save()


def test_a_streaming_query_in_avro_writes_letters_about_what_it_cannot_read(world: World) -> None:
    world.write("s", avro("ada", 5), avro("bob")[:-1], b'{"user": "eve"}', avro("eve") + b"\0", avro("dan"))
    rows = world.follow(stream="s", badEntries="deadletter", deadLetterStream="dead", **AVRO)
    world.run(rows.select("user", "ms", "entry_time"), stream="copy", **AVRO)
    assert world.entries("copy") == [avro("ada", 5), avro("dan")]
    assert [json.loads(letter)["offset"] for letter in world.entries("dead")] == [2, 3, 4]


def test_rows_go_from_stream_to_stream_in_protobuf(world: World, formats: dict[str, dict[str, str]]) -> None:
    world.write("s", protobuf("ada", 5), protobuf("bob")[:-1], b"{}", protobuf(""))
    options = {**formats["protobuf"]}
    rows = world.follow(stream="s", badEntries="deadletter", deadLetterStream="dead", **options)
    world.run(rows.select("user", "ms", "entry_time"), stream="copy", **options)
    assert world.entries("copy") == [protobuf("ada", 5), protobuf("")]
    assert [json.loads(letter)["offset"] for letter in world.entries("dead")] == [2, 3]
    for defaults, user in (("false", None), ("true", "")):
        found = world.read(
            "offset bigint, ms bigint, user string", stream="copy", emitDefaultValues=defaults, **options
        )
        assert [tuple(row) for row in found.collect()] == [(1, 5, "ada"), (2, None, user)]
