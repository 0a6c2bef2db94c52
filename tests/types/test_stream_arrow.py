"""Messages that come and go as Arrow streams."""

from __future__ import annotations

import random
from typing import Any, Literal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.stream_contents import filled, ipc, read_arrow
from tests.support.stream_reading import read

from penstock.types.packing import CorruptValue
from penstock.types.stream import reading
from penstock.types.stream.arrow import READ_SCHEMA, parse_arrow
from penstock.types.stream.compaction import compact
from penstock.types.stream.messages import Messages
from penstock.types.stream.nodes import Storage, load_node
from penstock.types.stream.reading import each, read_arrow_runs


@pytest.mark.parametrize("before", [0, 1, 999, 1000, 1500])
@pytest.mark.parametrize("rows", [0, 1, 999, 1000, 1001, 3456])
def test_arrow_rows_are_appended_as_others_are(before: int, rows: int) -> None:
    arrow, plain = filled(before), filled(before)
    tags, entries = [b"t%d" % n for n in range(rows)], [b"e%d" % n for n in range(rows)]
    assert arrow.append_arrow(7, parse_arrow(ipc({"tag": tags, "entry": entries}))) == before + 1
    plain.append_many(7, tags, entries)
    arrow.check()
    assert [*each(arrow, 1, 10**6)] == [*each(plain, 1, 10**6)]


def test_many_small_batches_are_one_append() -> None:
    table = pa.table({"tag": [b"t"] * 2500, "entry": [b"%d" % n for n in range(2500)]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=7)
    messages = Messages()
    assert messages.append_arrow(1, parse_arrow(bytes(sink.getvalue()))) == 1
    assert [m.entry for m in each(messages, 1, 10**6)] == [b"%d" % n for n in range(2500)]


@pytest.mark.parametrize(
    "kind", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string(), pa.binary_view(), pa.string_view()]
)
def test_any_binary_or_string_column_is_accepted(kind: Any) -> None:
    values = pa.array(["a", None, "b" * 30], pa.string()).cast(kind)
    (batch,) = parse_arrow(ipc({"tag": values, "entry": pa.array(["x", "y", "z"]).cast(kind)}))
    assert batch.to_pydict() == {"tag": [b"a", b"", b"b" * 30], "entry": [b"x", b"y", b"z"]}


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([1, 2], pa.int64()), [1, 2]),
        (pa.array([1, 2], pa.timestamp("s")), [1000, 2000]),
        (pa.array([1_500_000, 2_999_999], pa.timestamp("us", "UTC")), [1500, 2999]),
    ],
)
def test_a_table_may_bring_its_times(column: Any, expected: list[int]) -> None:
    messages = Messages()
    messages.append_arrow(99, parse_arrow(ipc({"time": column, "tag": [b"", b""], "entry": [b"", b""]})))
    assert [m.time for m in each(messages, 1, 2)] == expected


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ({"tag": [b"t"]}, "column 'entry' is missing"),
        ({"entry": [b"e"]}, "column 'tag' is missing"),
        ({"tag": [b"t"], "entry": [1]}, "column 'entry' is int64, not binary or string"),
        ({"tag": [1.5], "entry": [b"e"]}, "column 'tag' is double, not binary or string"),
        ({"tag": [b"t"], "entry": [b"e"], "key": [1]}, "column 'key' is not one of time, tag, entry"),
        ({"tag": [b"t"], "entry": [b"e"], "time": ["now"]}, "column 'time' is string, not int64 or a timestamp"),
        ({"tag": [b"t"], "entry": pa.array([None], pa.binary())}, "column 'entry' has nulls"),
        ({"tag": [b"t"], "entry": [b"e"], "time": pa.array([None], pa.int64())}, "column 'time' has nulls"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_by_name(columns: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_arrow(ipc(columns))


def test_a_column_given_twice_is_refused() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([b"x"])] * 3, names=["tag", "entry", "tag"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    with pytest.raises(ValueError, match="'tag' is given twice"):
        parse_arrow(bytes(sink.getvalue()))


@pytest.mark.parametrize(
    "columns", [{}, {"time": [5] * 4}, {"tag": ["t"] * 4}], ids=["plain", "own times", "to be cast"]
)
def test_no_batch_of_a_stream_is_unpacked_that_makes_it_too_large(columns: dict[str, Any]) -> None:
    columns = {**columns, "tag": columns.get("tag", [b"t"] * 4), "entry": [b"%d" % n * 1000 for n in range(4)]}
    table = pa.table(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table, max_chunksize=1)
    data = bytes(sink.getvalue())
    (batch,) = parse_arrow(data, 5000)
    assert batch.num_rows == 4
    with pytest.raises(ValueError, match=r"it unpacks to \d+ bytes, and proto-max-bulk-len allows 4000"):
        parse_arrow(data, 4000)


def test_a_stream_holds_one_schema_and_batches() -> None:
    whole = ipc({"tag": [b"t"], "entry": [b"e"]})
    schema = pa.schema([("tag", pa.binary()), ("entry", pa.binary())]).serialize().to_pybytes()
    assert whole.startswith(schema)
    for data in (schema + whole, whole[: len(schema)] + whole, b"", schema[:-8]):
        with pytest.raises(ValueError, match="not an Arrow stream"):
            parse_arrow(data)
    assert parse_arrow(schema) == []


@given(st.binary(max_size=300))
def test_bytes_that_are_no_arrow_stream_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"not an Arrow stream|is missing"):
        parse_arrow(data)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_damaged_arrow_bytes_never_get_past_the_door(compression: str | None) -> None:
    table = pa.table({"tag": [f"t{n}" for n in range(50)], "entry": [b"entry %d" % n for n in range(50)]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    whole = bytes(sink.getvalue())
    rng = random.Random(11)
    refused = 0
    for _ in range(700):
        damaged = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        if rng.random() < 0.2:
            del damaged[rng.randrange(len(damaged)) :]
        messages = Messages()
        try:
            batches = parse_arrow(bytes(damaged))
        except ValueError:
            refused += 1
        else:
            messages.append_arrow(1, batches)
            messages.check()
            read(messages, 1, 100)
    assert refused > 50


def test_an_arrow_read_leaves_out_what_is_gone_and_has_a_batch_a_node() -> None:
    messages = filled(2500)
    messages.evict_through(10)
    batches = read_arrow(messages, 5, 2000).to_batches()
    assert [batch.num_rows for batch in batches] == [990, 1000, 4]
    assert batches[0].schema.names == ["offset", "time", "tag", "entry"]
    assert batches[0].column("offset")[0].as_py() == 11
    assert batches[2].to_pylist()[-1] == {"offset": 2004, "time": 1000, "tag": b"tag", "entry": b"entry 2004"}


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
@pytest.mark.parametrize("tag", [b"", b"tag", b"a longer tag"])
def test_whole_nodes_are_sent_as_pyarrow_would_send_them(
    compression: Literal["none", "lz4", "zstd"], tag: bytes
) -> None:
    messages = Messages(Storage(compression, hot_nodes=1))
    for number in range(3500):
        messages.append(number, tag, random.Random(number).randbytes(number % 50))
    messages.nodes[1].keep([0, 5, 999], compression)
    read = read_arrow(messages, 1, 3500)
    read.validate(full=True)
    assert read.schema == READ_SCHEMA
    assert read.to_pylist() == [message._asdict() for message in each(messages.copy(), 1, 3500)]
    assert [batch.num_rows for batch in read.to_batches()] == [1000, 3, 1000, 500]
    as_stored = read_arrow(messages, 1, 3500, None, True, True)
    as_stored.validate(full=True)
    assert as_stored.equals(read) and [batch.num_rows for batch in as_stored.to_batches()] == [1000, 3, 1000, 500]
    assert {name: int(value) for name, value in as_stored.schema.metadata.items()} == {b"first": 1, b"last": 3500}


@pytest.mark.parametrize(("compression", "most"), [("none", 1.01), ("lz4", 0.5), ("zstd", 0.3)])
def test_a_compressed_read_sends_nodes_as_they_are_stored(
    compression: Literal["none", "lz4", "zstd"], most: float
) -> None:
    messages = Messages(Storage(compression, hot_nodes=0))
    messages.append_many(0, [b"order"] * 3000, [b"an entry with the number %09d, as many are" % n for n in range(3000)])
    plain, stored = reading.read_arrow(messages, 1, 3000), reading.read_arrow(messages, 1, 3000, None, True)
    assert stored.size <= plain.size * most
    bodies = [piece for piece in stored.pieces if isinstance(piece, memoryview)]
    assert [body.obj for body in bodies] == [node.payload for node in messages.nodes.values()]
    assert all(node.batch is None for node in messages.nodes.values() if node.compressed)


def test_the_bounds_of_a_log_fit_whatever_their_digits() -> None:
    messages = filled(3)
    for first, last in ((1, 3), (4, 3), (2222222222222222222, 2**63 - 1), (1111111111111111111, 1)):
        messages.first, messages.last = first, last
        metadata = pa.ipc.open_stream(b"".join(read_arrow_runs(messages, [], with_bounds=True).pieces)).schema.metadata
        assert (int(metadata[b"first"]), int(metadata[b"last"])) == (first, last)


def test_an_arrow_read_of_whole_nodes_leaves_them_cold() -> None:
    messages = Messages(Storage("lz4", hot_nodes=1, backlog=0))
    messages.append_many(0, [b"tag"] * 4000, [b"entry"] * 4000)
    cold = [node for node in messages.nodes.values() if node.compressed]
    assert len(cold) == 3
    assert read_arrow(messages, 1, 4000).num_rows == 4000
    assert all(node.batch is None and node.encoded is None for node in cold)


def test_what_is_left_of_an_arrow_reply_does_not_change_with_the_log() -> None:
    """In a transaction it is made after the commands that follow it."""
    messages = Messages(Storage("lz4", hot_nodes=1))
    messages.append_many(0, [b"a", b"b"] * 2000, [b"entry"] * 4000)
    expected = read_arrow(messages, 1, 4000)
    _, pieces = reading.read_arrow(messages, 1, 4000)
    messages.set_compaction(True)
    while compact(messages).more:
        pass
    messages.evict_through(3999)
    assert pa.ipc.open_stream(b"".join(pieces)).read_all() == expected


def test_a_payload_that_is_laid_out_in_another_way_is_refused() -> None:
    """What pyarrow reads is not enough: nodes are sent by where their buffers are."""
    node = filled(1000).nodes[0]
    old_style = node.message()[4:]  # before Arrow 0.15 there was no marker; pyarrow still reads it
    for payload, compressed in ((old_style, False), (node.message(), True), (node.message() + b"x", False)):
        with pytest.raises(CorruptValue, match="node 0"):
            load_node(0, 0, node.newest, compressed, False, None, payload)
    load_node(0, 0, node.newest, False, False, None, node.message()).check()


def test_an_arrow_read_of_nothing_is_an_empty_table() -> None:
    for messages, offset in ((Messages(), 1), (filled(10), 11)):
        table = read_arrow(messages, offset, 100)
        assert (table.num_rows, table.schema.names) == (0, ["offset", "time", "tag", "entry"])
