"""The messages of a stream at the real node size: nodes, forms, Arrow, eviction, seeking."""

from __future__ import annotations

import random
from array import array
from typing import Any, Literal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.stream_reading import NULL, read, read_runs

from penstock.protocol import stream_messages
from penstock.types.packing import CorruptValue
from penstock.types.stream import reading
from penstock.types.stream.arrow import LARGE_SCHEMA, READ_SCHEMA, parse_arrow
from penstock.types.stream.compaction import Compacted, compact
from penstock.types.stream.cooling import Packing
from penstock.types.stream.messages import Messages
from penstock.types.stream.nodes import NODE, Node, Storage, load_node
from penstock.types.stream.reading import each, read_arrow_runs
from penstock.types.stream.retention import Retention, apply_retention, keep_last, keep_nodes, outgrows
from penstock.types.stream.seeking import seek_time
from penstock.types.stream.stream import Stream


def filled(count: int, storage: Storage | None = None) -> Messages:
    messages = Messages(storage or Storage())
    messages.append_many(1000, [b"tag"] * count, [b"entry %d" % n for n in range(1, count + 1)])
    return messages


def offsets_of(messages: Messages, offset: int = 1, count: int = 10**6) -> list[int]:
    return [message.offset for message in each(messages, offset, count)]


def ipc(columns: dict[str, Any]) -> bytes:
    table = pa.table(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def read_arrow(messages: Messages, *args: Any) -> Any:
    size, pieces = reading.read_arrow(messages, *args)
    data = b"".join(pieces)
    assert len(data) == size
    return pa.ipc.open_stream(data).read_all()


# Offsets.


def test_offsets_begin_at_one_and_follow_each_other() -> None:
    messages = Messages()
    assert [messages.append(0, b"", b"") for _ in range(3)] == [1, 2, 3]
    assert messages.append_many(0, [b""] * 2500, [b""] * 2500) == 4
    assert messages.append(0, b"", b"") == 2504
    messages.check()


def test_offsets_survive_eviction() -> None:
    messages = filled(2500)
    messages.evict_through(1700)
    assert offsets_of(messages) == [*range(1701, 2501)]
    assert next(each(messages, 1701, 1)).entry == b"entry 1701"


def test_an_emptied_log_goes_on_counting() -> None:
    messages = filled(1500)
    assert messages.evict_through(10**9) == 1500
    assert (messages.first, messages.last, len(messages)) == (1501, 1500, 0)
    assert messages.append(0, b"", b"again") == 1501
    messages.append_many(0, [b""] * 1000, [b""] * 1000)
    messages.check()
    assert offsets_of(messages) == [*range(1501, 2502)]


# Reading.


def test_a_message_is_its_offset_tag_and_entry() -> None:
    messages = Messages()
    messages.append(7, b"tag", b"entry")
    assert read(messages, 1, 1) == (b"*3\r\n:1\r\n$3\r\ntag\r\n$5\r\nentry\r\n", 1)


def test_a_read_is_positional_and_evicted_messages_are_null() -> None:
    messages = filled(2500)
    messages.evict_through(3)
    data, count = read(messages, 2, 4)
    assert (data[:10], count) == (NULL * 2, 4)
    assert read(messages, 2, 4, null=b"_\r\n")[0].startswith(b"_\r\n_\r\n*3\r\n:4\r\n")


def test_a_read_stops_at_the_last_offset() -> None:
    messages = filled(2500)
    assert read(messages, 2499, 10)[1] == 2
    assert read(messages, 2501, 10) == (b"", 0)
    assert read(messages, 1, 0) == (b"", 0)


def test_a_read_of_nothing_but_evicted_messages_is_answered() -> None:
    """redis#5299: reading an emptied stream must not look like reading one that never was."""
    messages = filled(1200)
    messages.evict_through(1200)
    assert read(messages, 1, 5000) == (NULL * 1200, 1200)


@pytest.mark.parametrize("start", [1, 990, 1000, 1001, 2100])
def test_a_read_is_the_same_from_every_form_of_a_node(start: int) -> None:
    messages = filled(2500, Storage("zstd", hot_nodes=0))
    single = b"".join(read(messages, offset, 1)[0] for offset in range(start, start + 30))
    assert read(messages, start, 30) == (single, 30)
    assert read_runs(messages, [(start, start + 10), (start + 10, start + 30)]) == single


def test_max_bytes_ends_with_the_message_that_reaches_it() -> None:
    messages = Messages()
    messages.append_many(0, [b""] * 1500, [b"x" * 84] * 1500)  # 100 bytes each by the stream's count
    for offset in (1, 1200):
        assert [read(messages, offset, 100, limit)[1] for limit in (1, 100, 101, 1000)] == [1, 1, 2, 10]
        assert [len([*each(messages, offset, 100, limit)]) for limit in (1, 100, 101)] == [1, 1, 2]
        assert [read_arrow(messages, offset, 100, limit).num_rows for limit in (1, 100, 101)] == [1, 1, 2]


def test_max_bytes_bounds_the_nulls_of_a_long_evicted_past() -> None:
    messages = filled(3000)
    messages.evict_through(2999)
    assert [read(messages, 1, 3000, limit)[1] for limit in (1, 16, 17, 160, 161)] == [1, 1, 2, 10, 11]
    assert read(messages, 1, 3000, 160) == (NULL * 10, 10)


def test_times_and_tags_come_back() -> None:
    messages = Messages()
    for n in range(1001):
        messages.append(n, b"t%d" % n, b"")
    assert [(m.offset, m.time, m.tag) for m in each(messages, 1000, 5)] == [
        (1000, 999, b"t999"),
        (1001, 1000, b"t1000"),
    ]


# Nodes and their forms.


def test_older_nodes_are_compressed_and_the_newest_are_not() -> None:
    messages = filled(6000, Storage("lz4", hot_nodes=2))
    assert [node.compressed for node in messages.nodes.values()] == [True] * 4 + [False] * 2
    info = messages.info()
    assert (info.nodes, info.hot, info.cold) == (7, 2, 4)
    assert info.stored_bytes < info.raw_bytes


def test_nodes_wait_for_compression_up_to_a_number_of_bytes() -> None:
    node = sum(len(b"tag" + b"entry %d" % n) + 16 for n in range(1001, 2001))
    messages = filled(9000, Storage("lz4", hot_nodes=2, backlog=3 * node))
    assert [node.compressed for node in messages.nodes.values()] == [True] * 5 + [False] * 4
    assert messages.cooling.waiting == 2 * node < messages.storage.backlog
    read(messages, 6001, 1000)
    assert [messages.cooling.do_deferred(), messages.cooling.do_deferred(), messages.cooling.do_deferred()] == [
        True,
        False,
        False,
    ]
    assert [node.compressed for node in messages.nodes.values()] == [True] * 7 + [False] * 2
    assert messages.cooling.waiting == 0
    messages.check()


def test_what_waits_for_compression_may_be_evicted_dumped_and_copied() -> None:
    stream = Stream(Storage("lz4", hot_nodes=1, backlog=1 << 20))
    stream.messages.append_many(1000, [b"tag"] * 5000, [b"entry"] * 5000)
    assert stream.messages.cooling.waiting == 4 * 24_000
    assert read(Stream.load(stream.dump()).messages, 1, 5000) == read(stream.messages, 1, 5000)
    copy = stream.copy()
    stream.messages.evict_through(2500)
    assert stream.messages.cooling.waiting == 2 * 24_000
    assert [stream.messages.cooling.do_deferred(), stream.messages.cooling.do_deferred()] == [True, False]
    assert copy.messages.cooling.waiting == 4 * 24_000
    stream.check()
    copy.check()


def test_only_recently_read_cold_nodes_stay_decoded() -> None:
    messages = filled(8000, Storage("lz4", hot_nodes=2))
    for offset in (1, 1001, 2001, 1001, 3001):
        read(messages, offset, 1)
    messages.check()
    assert [number for number, node in messages.nodes.items() if node.compressed and node.batch is not None] == [1, 3]


def test_without_compression_a_cold_node_only_lacks_its_wire() -> None:
    messages = filled(3000, Storage("none", hot_nodes=1))
    read(messages, 1, 3000)
    messages.append_many(0, [b""] * 3000, [b""] * 3000)
    messages.check()
    assert not any(node.compressed for node in messages.nodes.values())
    assert messages.nodes[2].encoded is None


def test_a_node_that_was_read_while_active_is_sealed_with_its_wire() -> None:
    messages = filled(999)
    read(messages, 1, 999)
    messages.append(0, b"", b"last")
    assert messages.nodes[0].encoded is not None
    messages.check()
    assert read(messages, 1000, 1)[0].endswith(b"$4\r\nlast\r\n")


def test_readers_of_two_encodings_get_each_their_own() -> None:
    class Plain:
        """Offset and entry, a line a message."""

        def encode_more(
            self, encoded: bytearray, begins: array[int], start: int, tags: list[bytes], entries: list[bytes], end: int
        ) -> None:
            for row in range(len(begins) - 1, end):
                encoded += b"%d %b\n" % (start + row, entries[row])
                begins.append(len(encoded))

        def encode_columns(
            self, start: int, offsets: Any, tags: Any, entries: Any, first: int, end: int, wide: bool
        ) -> Any:
            rows = [b"%d entry %d\n" % (start + row, start + row) for row in range(first, end)]
            return b"".join(rows), array("Q", [sum(map(len, rows[:at])) for at in range(len(rows) + 1)])

    messages, plain = filled(1500), Plain()
    for _ in range(2):
        for offset in (1, 1101):
            pieces, count = reading.read(messages, offset, 400, plain, b"gone\n")
            assert b"".join(pieces) == b"".join(b"%d entry %d\n" % (n, n) for n in range(offset, offset + count))
            messages.check()
            assert read(messages, offset, 1)[0] == b"*3\r\n:%d\r\n$3\r\ntag\r\n$%d\r\nentry %d\r\n" % (
                offset, len(f"entry {offset}"), offset
            )  # fmt: skip
            messages.check()


def test_pieces_that_are_held_neither_change_nor_keep_the_log_from_growing() -> None:
    messages = filled(1010)
    pieces, count = reading.read(messages, 1, 1010, stream_messages, NULL)
    before = b"".join(pieces)
    messages.append(0, b"", b"new")
    assert read(messages, 1011, 1)[0].endswith(b"$3\r\nnew\r\n")
    messages.evict_through(1011)
    assert (b"".join(pieces), count) == (before, 1010)


def test_a_node_gets_its_wire_once_a_quarter_of_it_was_asked_for() -> None:
    messages = filled(2000)
    pieces = [read(messages, 1, 100)[0], read(messages, 301, 149)[0]]
    messages.check()
    assert messages.nodes[0].encoded is None
    pieces += [read(messages, 450, 1)[0]]
    messages.check()
    assert messages.nodes[0].encoded is not None
    assert messages.nodes[1].encoded is None
    assert pieces == [read(messages, 1, 100)[0], read(messages, 301, 149)[0], read(messages, 450, 1)[0]]


def test_lowering_the_hot_nodes_takes_effect_with_later_seals() -> None:
    storage = Storage("lz4", hot_nodes=6)
    messages = filled(6000, storage)
    storage.hot_nodes = 1
    messages.append_many(0, [b""] * 6000, [b""] * 6000)
    messages.check()
    assert [node.compressed for node in messages.nodes.values()] == [True] * 11 + [False]


def test_raw_bytes_count_the_tag_the_entry_and_sixteen() -> None:
    messages = Messages()
    messages.append_many(0, [b"abc"] * 1500, [b"12345"] * 1500)
    assert messages.info().raw_bytes == 1500 * 24


def test_a_node_over_two_gigabytes_reads_as_any_other() -> None:
    """Built with the 64-bit schema directly: the form matters here, not the gigabytes."""
    columns = [array("q", [5] * NODE), [b"t"] * NODE, [b"e%d" % n for n in range(NODE)]]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, LARGE_SCHEMA, strict=True)]
    node = Node.of(0, pa.RecordBatch.from_arrays(arrays, schema=LARGE_SCHEMA), 0, 5)
    node.check()
    messages = filled(NODE)
    messages.nodes[0] = node
    messages.sealed_raw = node.raw
    for compression in ("none", "zstd"):
        node.freeze(compression)
        node.check()
        assert read(messages, 3, 1) == (b"*3\r\n:3\r\n$1\r\nt\r\n$2\r\ne2\r\n", 1)
        assert read(messages, 1, 10, 20)[1] == 2
        assert read_arrow(messages, 2, 3).to_pydict() == {
            "offset": [2, 3, 4],
            "time": [5, 5, 5],
            "tag": [b"t"] * 3,
            "entry": [b"e1", b"e2", b"e3"],
        }


# Arrow.


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


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(
    ["append", "upload", "pack", "pack", "run", "unpack", "unpack", "evict", "compact", "settle", "recall", "copy",
        "read"]
), max_size=25))  # fmt: skip
def test_compression_by_a_thread_changes_no_read(steps: list[str]) -> None:
    plain, messages = (Messages(Storage("lz4", 1, backlog)) for backlog in (0, 1 << 30))
    uploads = [parse_arrow(ipc({"tag": [b"%d" % (n % 700) for n in range(3000)], "entry": [b"entry"] * 3000}))]
    away: list[Packing] = []
    for twin in (plain, messages):
        twin.set_compaction(True)
        twin.append_arrow(1, uploads[0])
    for step in steps:
        if step == "pack" and (packing := messages.cooling.pack(40_000)) is not None:
            away.append(packing)
        elif step == "run" and away and not away[0].payloads:
            away[0].run()
        elif step == "unpack" and away:
            whole = bool(away[0].payloads)
            assert messages.cooling.unpack(away.pop(0)) == whole
        elif step == "settle":
            messages.cooling.do_deferred()
        elif step == "recall":
            messages.cooling.recall()
        elif step == "copy":
            messages, copied = messages.copy(), messages
            copied.check()
        elif step == "read":
            read(messages, messages.first, 1200)
        for twin in (plain, messages):
            if step == "append":
                twin.append_many(2, [b"3", b""] * 700, [b"more"] * 1400)
            elif step == "upload":
                twin.append_arrow(3, uploads[0])
            elif step == "evict":
                twin.evict_through(twin.first + 1300)
            elif step == "compact":
                while compact(twin, 8).more:  # to the end: a copy has to index what its original had done
                    pass
        messages.check()
    assert messages.info()[:-1] == plain.info()[:-1]
    assert read(messages, 1, messages.last) == read(plain, 1, plain.last)
    messages.cooling.recall()
    while messages.cooling.do_deferred():
        pass
    messages.check()
    assert [node.compressed for node in messages.nodes.values()] == [node.compressed for node in plain.nodes.values()]


def test_a_message_that_compaction_took_does_not_come_back_from_a_thread() -> None:
    messages = Messages(Storage("lz4", 1, 1 << 30))
    messages.set_compaction(True)
    for entry in (b"old", b"new", b"newest"):
        messages.append_many(1, [b"%d" % n for n in range(1000)], [entry] * 1000)
    packing = messages.cooling.pack(1 << 20)
    assert packing is not None and packing.numbers == [0, 1]
    packing.run()
    compact(messages, 8)
    messages.check()
    messages.cooling.unpack(packing)
    messages.check()
    assert {message.entry for message in each(messages, 1, 3000)} == {b"newest"}


def test_what_is_compressed_elsewhere_is_what_would_be_made_here() -> None:
    here, there = (filled(6000, Storage("lz4", 1, 1 << 30)) for _ in range(2))
    packing = there.cooling.pack(3 * there.nodes[0].raw)
    assert packing is not None and packing.numbers == [0, 1, 2]
    packing.run()
    assert not there.nodes[0].compressed and there.cooling.waiting == here.cooling.waiting
    assert there.cooling.unpack(packing)
    while here.cooling.do_deferred():
        pass
    assert [node.payload for node in there.nodes.values()][:3] == [node.payload for node in here.nodes.values()][:3]
    assert there.cooling.waiting == sum(there.nodes[number].raw for number in (3, 4))


@pytest.mark.parametrize("times", [{}, {"time": list(range(5500))}], ids=["now", "own times"])
def test_nodes_that_are_cut_from_an_upload_together_are_those_that_would_be_cut_one_by_one(
    times: dict[str, Any],
) -> None:
    upload = parse_arrow(ipc({**times, "tag": [b"tag"] * 5500, "entry": [b"entry %d" % n for n in range(5500)]}))
    single, several = (Messages(Storage("lz4", 1, 1 << 30)) for _ in range(2))
    for messages in (single, several):
        for now in (7, 8, 9):  # the same rows again, at another time, and from other places on
            messages.append_arrow(now, upload)
        messages.append_many(10, [b"tag"] * 1000, [b"entry"] * 1000)
    for node in single.nodes.values():
        node.freeze("lz4")
    packing = several.cooling.pack(1 << 30)
    assert packing is not None and packing.numbers == list(range(16))
    packing.run()
    assert packing.payloads == [single.nodes[number].payload for number in packing.numbers]


def test_an_upload_that_is_more_than_may_wait_compresses_what_is_too_much() -> None:
    rows = 40_000
    upload = parse_arrow(ipc({"tag": [b"tag"] * rows, "entry": [b"entry"] * rows}))
    messages = Messages(Storage("lz4", 2, backlog=3 * 24_000))
    messages.append_arrow(7, upload)
    assert [node.compressed for node in messages.nodes.values()] == [True] * 36 + [False] * 4
    assert messages.cooling.waiting == 2 * 24_000
    messages.check()


def test_a_write_whose_compression_fails_leaves_the_nodes_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    upload = parse_arrow(ipc({"tag": [b"tag"] * 4000, "entry": [b"entry"] * 4000}))
    messages = Messages(Storage("lz4", 1, backlog=24_000))

    def no_memory(self: Packing) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Packing, "run", no_memory)
        with pytest.raises(MemoryError):
            messages.append_arrow(7, upload)
    messages.check()
    assert messages.cooling.waiting == 3 * 24_000
    messages.append_arrow(8, upload)
    messages.check()
    assert [node.compressed for node in messages.nodes.values()] == [True] * 7 + [False]
    assert len([*each(messages, 1, 10_000)]) == 8000


@pytest.mark.parametrize("compression", ["none", "lz4"])
@pytest.mark.parametrize("times", [{}, {"time": list(range(5500))}], ids=["now", "own times"])
def test_nodes_share_an_upload_only_until_there_is_time(compression: Any, times: dict[str, Any]) -> None:
    upload = parse_arrow(ipc({**times, "tag": [b"tag"] * 5500, "entry": [b"entry %d" % n for n in range(5500)]}))
    plain, sharing = (Messages(Storage(compression, 2, backlog)) for backlog in (0, 1 << 30))
    for messages in (plain, sharing):
        messages.append_many(1, [b""] * 100, [b"first"] * 100)
        messages.append_arrow(7, upload)
    assert [node.source is not None for node in sharing.nodes.values()] == [False] + [True] * 4
    for state in ("shared", "copied", "settled"):
        twin = sharing.copy() if state == "copied" else sharing
        if state == "settled":
            while twin.cooling.do_deferred():
                pass
            assert all(node.source is None for node in twin.nodes.values())
            assert not (twin.cooling.has_deferred)
        twin.check()
        assert twin.info()[:-1] == plain.info()[:-1]
        assert [*each(twin.copy(), 1, 6000)] == [*each(plain, 1, 6000)]
        assert seek_time(twin.copy(), 3000) == seek_time(plain, 3000)
    assert read(sharing, 1, 6000) == read(plain, 1, 6000)


def test_a_sealed_node_does_not_keep_the_table_it_came_from() -> None:
    messages = Messages(Storage("none"))
    messages.append_arrow(1, parse_arrow(ipc({"tag": [b""] * 5000, "entry": [b"x" * 100] * 5000})))
    messages.evict_through(4000)
    (node,) = messages.nodes.values()
    assert node.batch.get_total_buffer_size() < 150_000


# Eviction and retention.


def test_keeping_the_last_is_exact_and_keeping_nodes_is_not() -> None:
    messages = filled(5500)
    assert keep_nodes(messages, 2100) == 3000
    assert (messages.first, len(messages)) == (3001, 2500)
    assert keep_last(messages, 2100) == 400
    assert (messages.first, len(messages)) == (3401, 2100)
    assert keep_last(messages, 5000) == 0
    assert keep_last(messages, 0) == 2100
    messages.check()


def test_evicting_backwards_or_nothing_changes_nothing() -> None:
    messages = filled(1500)
    messages.evict_through(700)
    assert [messages.evict_through(offset) for offset in (0, -5, 700)] == [0, 0, 0]
    assert messages.first == 701


def test_memory_goes_back_by_whole_nodes() -> None:
    messages = filled(5000)
    messages.evict_through(1999)
    assert [*messages.nodes] == [1, 2, 3, 4]
    messages.evict_through(2000)
    assert [*messages.nodes] == [2, 3, 4]


def test_retention_by_age_counts_from_a_nodes_newest_message() -> None:
    messages = Messages()
    for time in (100, 200, 300):
        messages.append_many(time, [b""] * NODE, [b""] * NODE)
    assert apply_retention(messages, Retention(age_ms=100), now=300) == 1000
    assert apply_retention(messages, Retention(age_ms=100), now=300) == 0
    assert apply_retention(messages, Retention(age_ms=100), now=1000) == 2000


def test_retention_by_bytes_holds_at_most_that() -> None:
    """redis#5853 asks for it."""
    messages = Messages()
    messages.append_many(0, [b""] * 5500, [b"x" * 84] * 5500)
    assert apply_retention(messages, Retention(bytes=260_000), now=0) == 3000
    assert messages.info().raw_bytes == 250_000
    assert apply_retention(messages, Retention(bytes=50_000), now=0) == 2000
    assert len(messages) == 500


def test_large_messages_do_not_wait_for_their_node_to_be_whole() -> None:
    messages = Messages()
    messages.append_many(5, [b""] * 500, [b"x" * 84] * 500)  # 100 bytes each by the stream's count
    assert apply_retention(messages, Retention(bytes=1234), now=0) == 488
    assert (messages.first, messages.info().raw_bytes) == (489, 1200)
    assert (outgrows(messages, 100_000, 500), outgrows(messages, 99_999, 500)) == (False, True)
    assert apply_retention(messages, Retention(bytes=1), now=0) == 11  # the newest stays
    messages.check()
    messages.append_many(6, [b""] * 501, [b"y"] * 501)
    messages.check()
    assert (messages.first, messages.last, len(messages), seek_time(messages, 6), seek_time(messages, 5)) == (
        500,
        1001,
        502,
        501,
        500,
    )


def test_the_newest_message_stays_though_it_was_the_last_of_a_node() -> None:
    messages = Messages()
    messages.append_many(5, [b""] * NODE, [b"x" * 84] * NODE)
    assert apply_retention(messages, Retention(bytes=50_000), now=5) == NODE - 1
    assert apply_retention(messages, Retention(bytes=50_000), now=5) == 0
    assert [message.offset for message in each(messages, 1, 9999)] == [NODE]
    messages.append(6, b"", b"")
    assert apply_retention(messages, Retention(bytes=50_000), now=6) == 1
    assert messages.info().raw_bytes == 16
    messages.append_many(7, [b""] * (NODE - 1), [b""] * (NODE - 1))
    assert apply_retention(messages, Retention(bytes=50, age_ms=1), now=9) == NODE  # unless it is too old
    messages.check()


def test_evicted_messages_of_the_active_node_give_their_memory_back() -> None:
    messages = Messages()
    messages.append_many(5, [b""] * 10, [b"x" * 1000] * 10)
    whole = messages.size()
    assert messages.evict_through(5) == 5
    assert messages.size() == whole  # until they are more than half of it
    assert messages.evict_through(6) == 1
    assert messages.size() < whole / 2
    messages.check()
    assert [message.offset for message in each(messages, 1, 99)] == [7, 8, 9, 10]
    assert seek_time(messages, 5) == 7


def test_retention_by_count_keeps_at_least_that() -> None:
    messages = filled(5500)
    assert apply_retention(messages, Retention(count=1500), now=0) == 4000
    assert apply_retention(messages, Retention(), now=10**15) == 0


# Compaction.


def compacted(messages: Messages) -> Messages:
    messages.set_compaction(True)
    while compact(messages).more:
        pass
    messages.check()
    return messages


def test_compaction_keeps_the_newest_of_every_tag_and_all_without_one() -> None:
    messages = Messages()
    tags = [b"k%d" % (n % 10) if n % 100 else b"" for n in range(3000)]
    messages.append_many(0, tags, [b"%d" % n for n in range(3000)])
    messages.append(0, b"k1", b"newest")
    newest = {tag: offset for offset, tag in enumerate(tags, 1)}
    expected = [offset for offset, tag in enumerate(tags, 1) if not tag or newest[tag] == offset]
    assert offsets_of(compacted(messages)) == [*expected, 3001]
    assert len(messages) == len(expected) + 1


def test_compacted_messages_read_as_null_and_offsets_stay() -> None:
    messages = Messages()
    messages.append_many(0, [b"k"] * 1500, [b"%d" % n for n in range(1, 1501)])
    data, count = read(compacted(messages), 998, 5)
    assert count == 5
    assert data == NULL * 2 + read_runs(messages, [(1000, 1003)])
    assert read_arrow(messages, 1, 1002).column("offset").to_pylist() == [1000, 1001, 1002]


def test_compaction_works_in_slices_and_goes_on_where_it_was() -> None:
    messages = Messages()
    messages.append_many(0, [b"k"] * 10_000, [b""] * 10_000)
    messages.set_compaction(True)
    steps = 1
    while compact(messages, nodes=1).more:
        steps += 1
        messages.check()
    assert steps == 20  # ten nodes indexed, ten rewritten
    assert offsets_of(messages) == [10_000]


def test_compaction_waits_for_enough_to_gain() -> None:
    messages = Messages()
    messages.append_many(0, [b"k%d" % n for n in range(1000)] * 2, [b""] * 2000)
    messages.append_many(0, [b"k1"] * 1000, [b""] * 1000)
    messages.set_compaction(True)
    while compact(messages, least=500).more:
        pass
    messages.check()
    assert [node.count for node in messages.nodes.values()] == [0, 1000, 1]


def test_the_index_forgets_evicted_tags() -> None:
    messages = Messages()
    messages.append_many(0, [b"k%d" % n for n in range(2000)], [b""] * 2000)
    compacted(messages).evict_through(1000)
    assert messages.compactor is not None
    compacted(messages)
    assert len(messages.compactor.latest) == 1000
    messages.check()


def test_compacting_gives_memory_back() -> None:
    messages = filled(20_000, Storage("none", hot_nodes=0))
    before = messages.size()
    assert compacted(messages).size() < before / 10
    assert messages.info().raw_bytes < 100


def test_a_compressed_node_stays_compressed_when_it_is_compacted() -> None:
    messages = Messages(Storage("zstd", hot_nodes=1))
    messages.append_many(0, [b"k%d" % (n // 2) for n in range(3000)], [b"entry"] * 3000)
    assert [node.compressed for node in compacted(messages).nodes.values()] == [True, True, False]
    assert [node.count for node in messages.nodes.values()] == [500, 500, 500]


# Time.


def test_seeking_by_time_finds_the_first_message_not_before_it() -> None:
    messages = Messages()
    for n in range(3500):
        messages.append(n // 10, b"", b"")
    assert [seek_time(messages, ms) for ms in (-1, 0, 1, 99, 100, 349, 350)] == [1, 1, 11, 991, 1001, 3491, 3501]
    messages.evict_through(1234)
    assert seek_time(messages, 0) == 1235


def test_a_clock_that_jumps_back_does_not_hide_messages() -> None:
    messages = Messages()
    messages.append_many(500, [b""] * 1200, [b""] * 1200)
    messages.append_many(100, [b""] * 1200, [b""] * 1200)  # the clock was set back
    messages.append_many(600, [b""] * 100, [b""] * 100)
    assert [seek_time(messages, ms) for ms in (50, 300, 500, 501, 601)] == [1, 1, 1, 2401, 2501]
    messages.evict_through(1000)
    assert seek_time(messages, 500) == 1001
    messages.evict_through(2000)
    assert seek_time(messages, 500) == 2001


def test_what_was_evicted_still_counts_for_the_time_of_what_follows() -> None:
    messages = Messages()
    messages.append_many(500, [b""] * 1000, [b""] * 1000)
    messages.append_many(100, [b""] * 2000, [b""] * 2000)
    messages.evict_through(1000)
    assert (seek_time(messages, 300), seek_time(messages, 501)) == (1001, 3001)


def test_an_emptied_log_remembers_the_latest_time_it_saw() -> None:
    messages = Messages()
    for time in (100, 500, 200):
        messages.append(time, b"", b"")
    messages.evict_through(3)
    messages.append(300, b"", b"")
    assert (seek_time(messages, 400), seek_time(messages, 501)) == (4, 5)


def test_a_seek_costs_the_same_at_any_length() -> None:
    """Blocks looked at, not time: a read far inside a long stream touches one node."""
    messages = filled(50_000, Storage("lz4", hot_nodes=0))
    read(messages, 25_500, 10)
    assert [*messages.recent] == [25]
    seek_time(messages, 1000)
    assert [*messages.recent] == [0]


def test_a_table_of_far_future_times_does_not_stop_appending() -> None:
    messages = Messages()
    columns = {"time": pa.array([2**62] * 1000), "tag": [b""] * 1000, "entry": [b""] * 1000}
    messages.append_arrow(5, parse_arrow(ipc(columns)))
    messages.append(6, b"", b"")
    messages.check()
    assert seek_time(messages, 2**62) == 1


def test_eviction_under_compaction_does_not_look_into_what_goes() -> None:
    """It costs a look-up a node; the tags that were there are forgotten by later slices."""
    messages = Messages(Storage(hot_nodes=0))
    messages.set_compaction(True)
    tags = [b"tag %d" % number for number in range(3000)]
    messages.append_many(1, tags, [b"old"] * 3000)
    while compact(messages).more:
        pass
    assert messages.compactor is not None
    messages.recent.clear()
    for node in messages.nodes.values():
        node.rest()
    messages.evict_through(2000)
    assert [node.batch for node in messages.compactor.evicted] == [None, None]
    messages.append_many(2, tags[:1000], [b"new"] * 1000)  # supersede what is gone, which counts for nothing
    assert compact(messages, nodes=1) == Compacted([], True)  # the new node is known
    messages.check()
    assert len(messages.compactor.latest) == 3000
    assert compact(messages, nodes=2) == Compacted([], False)
    messages.check()
    assert sorted(messages.compactor.latest) == sorted(tags[:1000] + tags[2000:])
    assert len(messages) == 2000
    messages.append_many(3, tags[:1500], [b""] * 1500)
    messages.evict_through(messages.last)  # one node that the index knows, and one that it does not
    messages.check()
    while compact(messages).more:
        pass
    assert messages.compactor.latest == {}
