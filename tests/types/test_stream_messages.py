"""The messages of a stream at the real node size: offsets, reading, nodes and their forms."""

from __future__ import annotations

from array import array
from typing import Any

import pyarrow as pa
import pytest
from tests.support.stream_contents import filled, offsets_of, read_arrow
from tests.support.stream_reading import NULL, read, read_runs

from penstock.protocol import stream_messages
from penstock.types.stream import reading
from penstock.types.stream.arrow import LARGE_SCHEMA
from penstock.types.stream.messages import Messages
from penstock.types.stream.nodes import NODE, Node, Storage
from penstock.types.stream.reading import each
from penstock.types.stream.stream import Stream

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
