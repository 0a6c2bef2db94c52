"""What a stream keeps: eviction, retention, compaction, and the offset at a time."""

from __future__ import annotations

import pyarrow as pa
from tests.support.stream_contents import filled, ipc, offsets_of, read_arrow
from tests.support.stream_reading import NULL, read, read_runs

from penstock.types.stream.arrow import parse_arrow
from penstock.types.stream.compaction import Compacted, compact
from penstock.types.stream.messages import Messages
from penstock.types.stream.nodes import NODE, Storage
from penstock.types.stream.reading import each
from penstock.types.stream.retention import Retention, apply_retention, keep_last, keep_nodes, outgrows
from penstock.types.stream.seeking import seek_time

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
