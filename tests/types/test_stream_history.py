"""Streams whose old nodes lie in files: nobody can tell, except by where the bytes are."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.memory_files import MemoryFiles
from tests.support.stream_reading import read

from penstock.types.packing import CorruptValue, made
from penstock.types.stream.compaction import compact
from penstock.types.stream.groups import Group
from penstock.types.stream.lease_chunk import Lease
from penstock.types.stream.messages import Messages
from penstock.types.stream.nodes import NODE, Storage
from penstock.types.stream.reading import each, read_arrow
from penstock.types.stream.retention import Retention, apply_retention, keep_last
from penstock.types.stream.seeking import seek_time
from penstock.types.stream.segments import MissingHistory, Segment
from penstock.types.stream.stored_nodes import forget_segment, wanted_places, with_fetched
from penstock.types.stream.stream import Stream


def stored(count: int, **settings: Any) -> tuple[Messages, MemoryFiles]:
    """A stream with so many messages, all that can go in files."""
    files = MemoryFiles()
    messages = Messages(Storage(hot_nodes=1, files=files, **settings))
    messages.append_many(1000, [b"tag"] * count, [b"entry %d" % n for n in range(1, count + 1)])
    while messages.cooling.do_deferred():
        pass
    assert files.store_coldest(messages)
    messages.check()
    return messages, files


def test_the_hot_tail_stays_in_memory() -> None:
    messages, _ = stored(5500)
    assert list(messages.nodes) == [4]
    info = messages.info()
    assert (info.length, info.nodes, info.history_length, info.history_files) == (5500, 6, 4000, 1)
    assert 0 < info.history_bytes < info.raw_bytes
    in_memory = Messages()
    in_memory.append_many(1, [b"tag"] * 1500, [b"entry %d" % n for n in range(1500)])
    assert messages.size() < in_memory.size() + 2000


def test_hot_nodes_go_when_it_is_said_so_and_are_kept_when_they_were_read() -> None:
    messages, files = stored(5500)
    assert not files.store_coldest(messages)
    assert files.store_coldest(messages, hot=True)
    assert not messages.nodes
    assert [message.offset for message in each(messages, 4001, 1500)] == [*range(4001, 5501)]
    assert [*messages.recent] == [4]
    messages.append_many(1, [b""] * 1000, [b"x"] * 1000)
    messages.check()


def test_reading_fetches_what_it_needs_and_keeps_the_last() -> None:
    messages, files = stored(5500)
    assert [message.offset for message in each(messages, 1500, 1000)] == [*range(1500, 2500)]
    assert files.fetched == 2
    assert [message.offset for message in each(messages, 2400, 100)] == [*range(2400, 2500)]
    assert files.fetched == 2


def test_what_a_thread_has_fetched_is_not_fetched_again() -> None:
    messages, files = stored(9500)
    places = wanted_places(messages, 1500, 6200, 1 << 30)
    assert [segment.first + place for segment, place in places] == [1, 2, 3, 4, 5, 6]
    fetched = [(place, place[0].fetch([place[1]])[0]) for place in places]
    files.contents.clear()
    with with_fetched(messages, fetched):
        assert [message.offset for message in each(messages, 1500, 4700)] == [*range(1500, 6200)]
    assert next(each(messages, 6200, 1)).entry == b"entry 6200", "where the reader stopped is kept"
    with pytest.raises(MissingHistory):
        [*each(messages, 1500, 1)]
    messages.recent.clear()
    messages.fetched.clear()


def test_what_is_newer_than_every_file_is_known_to_be_in_memory() -> None:
    messages, _ = stored(5500)
    assert [messages.is_in_memory_from(offset) for offset in (1, 4000, 4001, 6000)] == [False, False, True, True]
    assert wanted_places(messages, 4001, 5501, 1 << 30) == []
    assert Messages().is_in_memory_from(1)


@pytest.mark.parametrize("stored_again", [False, True])
def test_what_was_rewritten_while_a_thread_fetched_it_is_read_as_it_is_now(stored_again: bool) -> None:
    messages, files = stored(5500)
    places = wanted_places(messages, 1, 2001, 1 << 30)
    fetched = [*zip(places, places[0][0].fetch([0, 1]), strict=True)]
    messages.set_compaction(True)
    while compact(messages).more:
        pass
    if stored_again:
        assert files.store_coldest(messages)
    with with_fetched(messages, fetched):
        assert [message.offset for message in each(messages, 1, 10**6)] == [*range(5000, 5501)]
    messages.check()
    messages.evict_through(3000)
    with with_fetched(messages, fetched):
        assert not messages.fetched
    messages.check()


def test_a_budget_bounds_what_is_fetched() -> None:
    messages, _ = stored(9500)
    assert len(wanted_places(messages, 1, 9501, 1)) == 1
    assert len(wanted_places(messages, 1, 9501, 1 << 30)) == 8
    assert wanted_places(messages, 9400, 9501, 1 << 30) == []


def test_a_snapshot_refers_and_a_dump_holds() -> None:
    files = MemoryFiles()
    storage = Storage(hot_nodes=1, files=files)
    stream = Stream(storage)
    stream.messages.append_many(1, [b""] * 9500, [b"%d" % n for n in range(9500)])
    while stream.messages.cooling.do_deferred():
        pass
    assert files.store_coldest(stream.messages, 1)
    assert files.store_coldest(stream.messages)
    assert len(stream.messages.history) == 2
    small = stream.dump_referring()
    parts = [*map(made, stream.parts())]
    assert small == b"".join([len(parts).to_bytes(4, "little"), *_packed(parts)])
    assert 3 * len(small) < len(stream.dump())
    again = Stream.load(small, storage=storage)
    whole = Stream.load(stream.dump())
    for loaded in (again, whole):
        loaded.check()
        assert [*each(loaded.messages, 1, 10**6)] == [*each(stream.messages, 1, 10**6)]
    assert again.messages.history
    assert not whole.messages.history


def _packed(parts: list[bytes]) -> list[bytes]:
    return [*(len(part).to_bytes(4, "little") for part in parts), *parts]


def test_bytes_of_a_client_cannot_refer_to_files() -> None:
    stream = Stream(Storage(hot_nodes=1, files=(files := MemoryFiles())))
    stream.messages.append_many(1, [b""] * 5000, [b"x"] * 5000)
    while stream.messages.cooling.do_deferred():
        pass
    files.store_coldest(stream.messages)
    with pytest.raises(CorruptValue, match="a stream of format 5"):
        Stream.load(stream.dump_referring(), limit=1 << 30, storage=stream.messages.storage)
    with pytest.raises(CorruptValue, match="none are kept here"):
        Stream.load(stream.dump_referring())


def test_a_lost_segment_becomes_a_gap() -> None:
    messages, _ = stored(5500)
    assert forget_segment(messages, messages.history[0]) == (1, 4001)
    messages.check()
    assert [message.offset for message in each(messages, 1, 10**6)] == [*range(4001, 5501)]
    assert len(messages) == 1500


@pytest.mark.parametrize("cut", range(0, 400, 7))
def test_a_damaged_index_is_refused(cut: int) -> None:
    messages, _ = stored(3500)
    data = messages.history[0].dump()
    Segment.load(data)
    with pytest.raises(CorruptValue):
        Segment.load(data[: min(cut, len(data) - 1)])


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 3500), st.integers(0, 5)),
        st.tuples(st.just("store"), st.sampled_from([1, 20_000, 1 << 40]), st.booleans()),
        st.tuples(st.just("evict"), st.integers(0, 9000)),
        st.tuples(st.just("keep"), st.integers(0, 6000)),
        st.tuples(st.just("bytes"), st.integers(20_000, 200_000)),
        st.tuples(st.just("compact"), st.integers(1, 5)),
        st.tuples(st.just("copy")),
        st.tuples(st.just("reload")),
        st.tuples(st.just("dump")),
        st.tuples(st.just("read"), st.integers(1, 9000), st.integers(1, 3000), st.integers(1, 100_000)),
        st.tuples(st.just("seek"), st.integers(0, 40)),
    ),
    max_size=25,
)


@settings(deadline=None, max_examples=60)
@given(STEPS, st.sampled_from(["none", "lz4"]), st.booleans())
def test_whatever_happens_a_stream_with_history_reads_the_same(steps: Any, compression: Any, compacting: bool) -> None:
    files = MemoryFiles()
    plain = Stream(Storage(compression, 1))
    mine = Stream(Storage(compression, 1, files=files))
    now = 0
    for stream in (plain, mine):
        stream.retain(Retention(compact=compacting))
    for step, *numbers in steps:
        if step == "append":
            count, kinds = numbers
            now += 1
            tags = [b"%d" % (n % 7000) if n % (kinds + 1) else b"" for n in range(count)]
            for stream in (plain, mine):
                stream.messages.append_many(now, tags, [b"e%d" % n for n in range(count)])
                while stream.messages.cooling.do_deferred():
                    pass
        elif step == "store":
            files.store_coldest(mine.messages, *numbers)
        elif step == "copy":
            mine = mine.copy()
        elif step == "reload":
            mine = Stream.load(mine.dump_referring(), storage=mine.messages.storage)
        elif step == "dump":
            mine = Stream.load(mine.dump(), storage=mine.messages.storage)
        else:
            assert _do(step, plain, numbers) == _do(step, mine, numbers)
    mine.check()
    plain.messages.recent.clear()
    assert _described(plain) == _described(mine)


def _do(step: str, stream: Stream, numbers: list[int]) -> Any:
    messages = stream.messages
    if step == "evict":
        return messages.evict_through(*numbers)
    if step == "keep":
        return keep_last(messages, *numbers)
    if step == "bytes":
        return apply_retention(messages, Retention(bytes=numbers[0]), 0)
    if step == "compact":
        while compact(messages, nodes=1000).more:
            pass
        return len(messages)
    if step == "seek":
        return seek_time(messages, *numbers), messages.count_from(seek_time(messages, *numbers))
    offset, count, budget = numbers
    arrow = b"".join(read_arrow(messages, offset, count, budget).pieces)
    return read(messages, offset, count), read(messages, offset, count, budget), arrow


def _described(stream: Stream) -> Any:
    messages = stream.messages
    info = messages.info()
    return info[:4], info.raw_bytes, messages.complete, [*each(messages, 1, 10**6)], NODE


def test_messages_that_lie_in_many_files_are_given_up_a_few_nodes_at_a_time() -> None:
    messages, _ = stored(20_500)
    group = Group(20_501)
    for node in range(19):
        for offset in (node * NODE + 5, node * NODE + 500):
            group.leases.put(Lease(offset, offset + 1, 1000, 2000, 0, 3, b"dead"))
    expired = []
    while (slice_ := group.expire(messages, 3000)[0]) != []:
        nodes = {(lease.start - 1) // NODE for lease in slice_}
        assert len(nodes) <= 5, "their letters are made in one step, which would read all of these"
        expired += slice_
    assert len(expired) == 38
