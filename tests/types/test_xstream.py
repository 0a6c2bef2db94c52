"""XStream against a plain model: a dict by id, sorted when asked."""

from __future__ import annotations

import struct

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.types.packing import CorruptValue, pack_many
from penstock.types.xstream import BLOCK, FIRST_ID, HIGHEST, LAST_ID, Fields, Id, XStream, after, before

IDS = st.tuples(st.integers(0, 12), st.integers(0, 60)) | st.sampled_from([FIRST_ID, LAST_ID])
FIELDS = st.lists(st.binary(max_size=3), min_size=1, max_size=2).map(lambda words: tuple(words * 2))


def filled(count: int) -> XStream:
    stream = XStream()
    for number in range(1, count + 1):
        stream.append((number, 0), (b"n", b"%d" % number))
    return stream


def numbers(stream: XStream) -> list[int]:
    return [at[0] for at, _ in stream]


class XStreamMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.stream = XStream()
        self.model: dict[Id, Fields] = {}
        self.added = 0

    @rule(many=st.integers(1, 150), step=st.integers(1, 3), fields=FIELDS)
    def append(self, many: int, step: int, fields: Fields) -> None:
        for _ in range(many):
            milliseconds, sequence = self.stream.last_id
            at = (milliseconds + 1, 0) if sequence > 50 else (milliseconds, sequence + step)
            self.stream.append(at, fields)
            self.model[at] = fields
            self.added += 1
            assert self.stream.last_id == at

    @rule(at=IDS)
    def delete(self, at: Id) -> None:
        highest = self.stream.max_deleted_id
        found = self.model.pop(at, None) is not None
        assert self.stream.delete(at) == found
        assert self.stream.max_deleted_id == (max(highest, at) if found else highest)

    @rule(data=st.data())
    def delete_a_present_one(self, data: st.DataObject) -> None:
        if self.model:
            self.delete(data.draw(st.sampled_from(sorted(self.model))))

    @rule(count=st.integers(0, 300))
    def keep_newest(self, count: int) -> None:
        going = sorted(self.model)[: max(len(self.model) - count, 0)]
        assert self.stream.keep_newest(count) == len(going)
        for at in going:
            del self.model[at]

    @rule(lowest=IDS)
    def keep_from(self, lowest: Id) -> None:
        going = [at for at in self.model if at < lowest]
        assert self.stream.keep_from(lowest) == len(going)
        for at in going:
            del self.model[at]

    @rule(lowest=IDS, limit=st.integers(0, 250))
    def keep_about_from(self, lowest: Id, limit: int) -> None:
        gone = self.stream.keep_from(lowest, whole_blocks=True, limit=limit)
        going = sorted(self.model)[:gone]
        assert all(at < lowest for at in going)
        assert gone <= limit or not limit
        for at in going:
            del self.model[at]
        if not limit:
            assert sum(at < lowest for at in self.model) < BLOCK

    @rule(low=IDS, high=IDS, count=st.none() | st.integers(0, 120), backwards=st.booleans())
    def read(self, low: Id, high: Id, count: int | None, backwards: bool) -> None:
        inside = sorted((row for row in self.model.items() if low <= row[0] <= high), reverse=backwards)
        assert self.stream.range(low, high, count, backwards) == inside[:count]

    @rule()
    def dump_and_load(self) -> None:
        before_dump = self.stream
        self.stream = XStream.load(before_dump.dump())
        assert self.stream.last_id == before_dump.last_id
        assert self.stream.max_deleted_id == before_dump.max_deleted_id

    @invariant()
    def agrees(self) -> None:
        self.stream.check()
        rows = sorted(self.model.items())
        assert list(self.stream) == rows
        assert len(self.stream) == len(rows)
        assert self.stream.first() == (rows[0] if rows else None)
        assert self.stream.last() == (rows[-1] if rows else None)
        assert self.stream.entries_added == self.added


TestXStream = XStreamMachine.TestCase
TestXStream.settings = settings(max_examples=80, stateful_step_count=25, deadline=None)


def test_approximate_trimming_drops_only_whole_blocks() -> None:
    stream = filled(3 * BLOCK + 5)
    assert stream.keep_newest(2 * BLOCK + 6, whole_blocks=True) == 0
    assert stream.keep_newest(2 * BLOCK + 5, whole_blocks=True) == BLOCK
    assert numbers(stream)[0] == BLOCK + 1
    assert stream.keep_from((2 * BLOCK + 50, 0), whole_blocks=True) == BLOCK
    assert stream.keep_newest(0, whole_blocks=True) == BLOCK + 5
    stream.check()


def test_a_block_that_was_thinned_out_is_dropped_for_fewer_entries() -> None:
    stream = filled(2 * BLOCK)
    assert stream.keep_newest(BLOCK + 10) == BLOCK - 10
    assert stream.keep_newest(BLOCK + 1, whole_blocks=True) == 0
    assert stream.keep_newest(BLOCK, whole_blocks=True) == 10


def test_a_limit_stops_approximate_trimming() -> None:
    stream = filled(4 * BLOCK)
    assert stream.keep_newest(0, whole_blocks=True, limit=BLOCK - 1) == 0
    assert stream.keep_newest(0, whole_blocks=True, limit=2 * BLOCK + 1) == 2 * BLOCK


def test_a_range_finds_what_lies_at_the_edge_of_a_block() -> None:
    stream = filled(3 * BLOCK)
    for edge in (BLOCK, BLOCK + 1, 2 * BLOCK):
        assert [at[0] for at, _ in stream.range((edge, 0), LAST_ID, 2)] == [edge, edge + 1]
        assert [at[0] for at, _ in stream.range(FIRST_ID, (edge, 0), 2, backwards=True)] == [edge, edge - 1]
    assert stream.delete((BLOCK + 1, 0))
    assert [at[0] for at, _ in stream.range((BLOCK, 1), LAST_ID, 1)] == [BLOCK + 2]
    assert [at[0] for at, _ in stream.range(FIRST_ID, (BLOCK + 1, 5), 1, backwards=True)] == [BLOCK]


def test_ids_have_neighbours_up_to_the_ends() -> None:
    assert after((1, HIGHEST)) == (2, 0)
    assert before((2, 0)) == (1, HIGHEST)
    assert after(LAST_ID) is None
    assert before(FIRST_ID) is None


def packed(ids: list[int], widths: list[int], *words: bytes, last: int = 9) -> bytes:
    header = struct.pack("<5Q", last, 0, 0, 0, 2)
    return pack_many([header, struct.pack(f"<{len(ids)}Q", *ids), struct.pack(f"<{len(widths)}I", *widths), *words])


def test_what_is_packed_like_a_dump_is_loaded() -> None:
    assert list(XStream.load(packed([1, 0, 9, 0], [2, 2], b"a", b"b", b"c", b"d"))) == [
        ((1, 0), (b"a", b"b")),
        ((9, 0), (b"c", b"d")),
    ]
    assert XStream.load(packed([], [])).last_id == (9, 0)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        pack_many([]),
        pack_many([b"short", b"", b""]),
        packed([1, 0], [1], b"a"),
        packed([1, 0], [0]),
        packed([1, 0], [2], b"a"),
        packed([1, 0], [2], b"a", b"b", b"c"),
        packed([1, 0], [2, 2], b"a", b"b", b"c", b"d"),
        packed([2, 0, 1, 0], [2, 2], b"a", b"b", b"c", b"d"),
        packed([1, 0, 1, 0], [2, 2], b"a", b"b", b"c", b"d"),
        packed([0, 0], [2], b"a", b"b"),
        packed([10, 0], [2], b"a", b"b"),
    ],
)
def test_bytes_that_no_stream_dumped_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptValue):
        XStream.load(data)
