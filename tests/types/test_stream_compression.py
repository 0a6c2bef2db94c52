"""Nodes that a thread compresses, and uploads that wait for it."""

from __future__ import annotations

import random
from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.memory_files import MemoryFiles
from tests.support.stream_contents import filled, ipc
from tests.support.stream_reading import read

from penstock.types.stream import cooling
from penstock.types.stream.arrow import parse_arrow
from penstock.types.stream.compaction import compact
from penstock.types.stream.cooling import Packing
from penstock.types.stream.ipc import decoded
from penstock.types.stream.messages import Messages
from penstock.types.stream.nodes import Storage, compressed, message_batch
from penstock.types.stream.reading import each
from penstock.types.stream.seeking import seek_time


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(
    ["append", "upload", "pack", "pack", "run", "unpack", "unpack", "evict", "compact", "do_deferred", "recall", "copy",
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
        elif step == "do_deferred":
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
    for state in ("shared", "copied", "deferred_done"):
        twin = sharing.copy() if state == "copied" else sharing
        if state == "deferred_done":
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


def test_a_thread_compresses_a_bounded_number_of_bytes_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def noted(batches: list[Any], compression: str) -> list[bytes]:
        calls.append(sum(batch.num_rows for batch in batches) // 1000)
        return compressed(batches, compression)

    monkeypatch.setattr(cooling, "compressed", noted)
    large = Messages(Storage("lz4", 1, 1 << 30))
    for _ in range(6):
        large.append_many(1, [b""] * 1000, [random.Random(1).randbytes(600)] * 1000)
    packing = large.cooling.pack(1 << 30)
    assert packing is not None and packing.raw == 5 * 616_000
    packing.run()
    assert calls == [2, 2, 1], "each call has a copy of what it compresses"
    small = filled(6000, Storage("lz4", 1, 1 << 30))
    packing = small.cooling.pack(1 << 30)
    assert packing is not None
    packing.run()
    assert calls[3:] == [5]


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_what_cannot_be_compressed_fits_the_room_that_is_made_for_it(compression: str) -> None:
    source = random.Random(3)
    for count in (1, 2, 1000):
        for size in (0, 1, 5, 70, 900, 5000):
            times = array("q", [source.getrandbits(62) for _ in range(count)])
            batch = message_batch(times, *([source.randbytes(size) for _ in range(count)] for _ in range(2)))
            (payload,) = compressed([batch], compression)
            assert decoded(payload, batch.schema).equals(batch)


def test_a_portion_that_was_taken_over_holds_nothing() -> None:
    messages = filled(4000, Storage("lz4", 1, 1 << 30))
    packing = messages.cooling.pack(1 << 30)
    assert packing is not None
    packing.run()
    assert messages.cooling.unpack(packing)
    assert (packing.numbers, packing.payloads, packing.raw) == ([], [], 0)
    assert messages.cooling.unpack(packing), "the end of the thread changes nothing more"
    assert all(node.compressed for number, node in messages.nodes.items() if number < 3)
    messages.check()


def random_nodes(count: int) -> Messages:
    """Nodes of 0.6 MB that cannot be compressed, and one that is hot."""
    source, messages = random.Random(5), Messages(Storage("lz4", 1, 1 << 30))
    for _ in range(count + 1):
        messages.append_many(1, [b""] * 1000, [source.randbytes(600) for _ in range(1000)])
    return messages


def test_a_thread_ends_when_what_it_makes_takes_the_room_and_the_other_nodes_wait_again() -> None:
    messages = random_nodes(8)
    packing = messages.cooling.pack(1 << 30, room=3_000_000)
    assert packing is not None and packing.numbers == list(range(8))
    assert packing.most == 3_000_000
    packing.run()
    assert len(packing.payloads) == 4 and sum(map(len, packing.payloads)) <= 3_000_000
    assert messages.cooling.unpack(packing), "nothing has failed"
    assert [node.compressed for node in messages.nodes.values()] == [True] * 4 + [False] * 5
    messages.check()
    packing = messages.cooling.pack(1 << 30, room=3_000_000)
    assert packing is not None and packing.numbers == [4, 5, 6, 7]
    messages.cooling.recall()
    packing = messages.cooling.pack(1 << 30, room=1)
    assert packing is not None and packing.most == 2 * 616_000, "a call is always made"


def test_what_compresses_well_goes_further_with_the_same_room() -> None:
    messages = Messages(Storage("lz4", 1, 1 << 30))
    for _ in range(9):
        messages.append_many(1, [b""] * 1000, [b"x" * 600] * 1000)
    packing = messages.cooling.pack(1 << 30, room=1_500_000)
    assert packing is not None
    packing.run()
    assert len(packing.payloads) == 8


def test_files_are_told_what_compression_saves() -> None:
    class Told(MemoryFiles):
        saved = 0

        def compressed(self, saved: int) -> None:
            self.saved += saved

    files = Told()
    messages = filled(8000, Storage("lz4", 1, 1 << 30, files))
    packing = messages.cooling.pack(3 * messages.nodes[0].raw)
    assert packing is not None
    packing.run()
    assert files.saved == 0
    messages.cooling.unpack(packing)
    for done in (3, 4, 5):
        assert [node.compressed for node in messages.nodes.values()] == [True] * done + [False] * (8 - done)
        assert files.saved == sum(node.raw - len(node.payload) for node in messages.nodes.values() if node.compressed)
        messages.cooling.do_deferred()


def test_a_thread_that_is_told_to_stop_ends_after_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = random_nodes(8)
    packing = messages.cooling.pack(1 << 30)
    assert packing is not None

    def stopped(batches: list[Any], compression: str) -> list[bytes]:
        packing.stop()
        return compressed(batches, compression)

    monkeypatch.setattr(cooling, "compressed", stopped)
    packing.run()
    assert len(packing.payloads) == 2
    assert messages.cooling.unpack(packing)
    messages.check()
