"""SortedSet against a plain model: a dict, sorted when asked."""

from __future__ import annotations

import math
import sys
import threading
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from sortedcontainers import SortedList

from penstock.types.packing import CorruptValue, pack_many
from penstock.types.zset import SortedSet

MEMBERS = st.sampled_from([bytes([letter]) for letter in b"abcdefghijklmnopqrst"]) | st.just(b"")
SCORES = st.sampled_from([-math.inf, -1.5, -0.0, 0.0, 5e-324, 1.0, 2.0, math.inf]) | st.floats(allow_nan=False)
RANKS = st.integers(0, 25)


class SortedSetMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.zset = SortedSet()
        self.model: dict[bytes, float] = {}

    def rows(self) -> list[tuple[float, bytes]]:
        return sorted((score, member) for member, score in self.model.items())

    @rule(member=MEMBERS, score=SCORES)
    def put(self, member: bytes, score: float) -> None:
        assert self.zset.put(member, score) == self.model.get(member)
        self.model[member] = score

    @rule(scores=st.dictionaries(MEMBERS, SCORES))
    def put_many(self, scores: dict[bytes, float]) -> None:
        for member, score in scores.items():
            self.put(member, score)

    @rule(member=MEMBERS)
    def remove(self, member: bytes) -> None:
        assert self.zset.remove(member) == (self.model.pop(member, None) is not None)

    @rule(start=RANKS, stop=RANKS)
    def remove_span(self, start: int, stop: int) -> None:
        gone = self.rows()[start:stop]
        assert self.zset.remove_span(start, stop) == len(gone)
        for _, member in gone:
            del self.model[member]

    @rule(start=RANKS, stop=RANKS)
    def without_span(self, start: int, stop: int) -> None:
        rows = self.rows()
        stop = max(start, stop)
        rest = self.zset.without_span(start, stop)
        rest.check()
        assert rest.rows(0, len(rows)) == rows[:start] + rows[stop:]

    @rule(count=st.integers(0, 5), from_end=st.booleans())
    def pop(self, count: int, from_end: bool) -> None:
        expected = sorted(self.rows(), reverse=from_end)[:count]
        assert self.zset.pop(count, from_end) == expected
        for _, member in expected:
            del self.model[member]

    @rule(start=RANKS, stop=RANKS, backwards=st.booleans())
    def read_rows(self, start: int, stop: int, backwards: bool) -> None:
        expected = self.rows()[start:stop]
        assert self.zset.rows(start, stop, backwards) == (expected[::-1] if backwards else expected)

    @rule(member=MEMBERS)
    def rank(self, member: bytes) -> None:
        names = [name for _, name in self.rows()]
        assert list(self.zset) == names
        assert self.zset.rank(member) == (names.index(member) if member in self.model else None)

    @rule(low=SCORES, high=SCORES, above=st.booleans(), below=st.booleans())
    def score_span(self, low: float, high: float, above: bool, below: bool) -> None:
        start, stop = self.zset.score_span(low, high, above, below)
        left_out = {low} if above else set()
        left_out |= {high} if below else set()
        inside = [row for row in self.rows() if low <= row[0] <= high and row[0] not in left_out]
        assert self.zset.rows(start, stop) == inside

    @rule()
    def dump_and_load(self) -> None:
        self.zset = SortedSet.load(self.zset.dump())

    @invariant()
    def agrees(self) -> None:
        self.zset.check()
        assert self.zset.scores == self.model
        assert len(self.zset) == len(self.model)
        assert self.zset.size() > sum(map(len, self.model))


TestSortedSet = SortedSetMachine.TestCase
TestSortedSet.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


def test_many_writes_without_a_read_drop_the_order_and_the_next_read_makes_it() -> None:
    zset = SortedSet({b"%d" % n: float(n) for n in range(1000)})
    assert zset.rank(b"999") == 999
    for n in range(500):
        zset.put(b"%d" % n, float(2000 - n))
        zset.check()
    assert zset._order is None
    assert zset.rows(998, 1000) == [(1999.0, b"1"), (2000.0, b"0")]
    assert zset._order is not None
    zset.check()


def test_names_between_bounds_are_found_among_equal_scores() -> None:
    zset = SortedSet(dict.fromkeys([b"a", b"b", b"c", b"d"], 7.0))
    assert zset.name_span(None, None) == (0, 4)
    assert zset.name_span(b"b", b"c") == (1, 3)
    assert zset.name_span(b"b", b"c", above=True) == (2, 3)
    assert zset.name_span(b"b", b"c", above=True, below=True) == (2, 2)
    assert zset.name_span(b"d", b"a") == (3, 3)
    assert SortedSet().name_span(b"a", None) == (0, 0)


def test_names_between_bounds_are_the_first_run_of_them_where_scores_differ() -> None:
    zset = SortedSet({b"c": 1.0, b"a": 2.0, b"b": 2.0, b"d": 3.0, b"b2": 4.0})
    assert zset.name_span(None, None) == (0, 5)
    assert zset.name_span(b"b", b"c") == (0, 3)
    assert zset.name_span(b"b", b"c", below=True) == (0, 0), "the first name is already beyond"
    assert zset.name_span(b"b3", None) == (0, 0), "the last name comes before"


@pytest.mark.parametrize(("low", "high"), [(None, None), (b"m3", b"m7"), (None, b"m5"), (b"m5", None), (b"m", b"n")])
def test_names_between_bounds_are_searched_in_few_steps_where_scores_differ(
    monkeypatch: pytest.MonkeyPatch, low: bytes | None, high: bytes | None
) -> None:
    names = [b"m%d" % number for number in range(10_000)]
    zset = SortedSet({name: float(score) for score, name in enumerate(sorted(names))})
    zset.rank(b"m0")
    looked_at: list[int] = []
    look = SortedList.__getitem__

    def counted(order: SortedList, rank: int) -> Any:
        looked_at.append(rank)
        return look(order, rank)

    monkeypatch.setattr(SortedList, "__getitem__", counted)
    start, stop = zset.name_span(low, high)
    assert len(looked_at) < 50
    between = [name for name in names if (low is None or name >= low) and (high is None or name <= high)]
    assert zset.rows(start, stop) == [(float(start + at), name) for at, name in enumerate(sorted(between))]


def test_minus_zero_is_kept_as_zero_in_the_order_too() -> None:
    zset = SortedSet({b"a": 1.0})
    assert zset.rank(b"a") == 0
    zset.put(b"a", -0.0)
    assert math.copysign(1, zset.scores[b"a"]) == 1
    assert math.copysign(1, zset.rows(0, 1)[0][0]) == 1


@pytest.mark.parametrize(
    "data",
    [b"", b"\0", pack_many([b"12345678"]), pack_many([bytes(16), b"a", b"a"]), pack_many([b"\xff" * 8, b"nan"])],
)
def test_bytes_that_no_sorted_set_dumped_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptValue):
        SortedSet.load(data)


def test_an_indexed_set_can_be_read_by_several_threads() -> None:
    """valkey#4604. Without `build_index`, and with frequent thread switches, about every second round fails."""
    usual = sys.getswitchinterval()
    wrong: list[object] = []
    count = 20_000

    def read(board: SortedSet, start: threading.Barrier) -> None:
        start.wait()
        for rank in (count - 1, count // 2, count - 2):
            try:
                ((score, member),) = board.rows(rank, rank + 1)
                if (score, board.rank(member)) != (float(rank), rank):
                    wrong.append((rank, score, member))
            except Exception as error:
                wrong.append(error)

    sys.setswitchinterval(1e-6)
    try:
        for _ in range(20):
            board = SortedSet({b"%d" % number: float(number) for number in range(count)})
            board.rank(b"5")
            board.put(b"5", 50.0)
            board.put(b"5", 5.0)
            board._order._index.clear()  # as many writes leave it
            board.build_index()
            start = threading.Barrier(3)
            threads = [threading.Thread(target=read, args=(board, start)) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(usual)
    assert wrong == []


@pytest.mark.parametrize(
    "span", [(0, 1), (0, 999), (999, 1001), (400, 1700), (1000, 3000), (10, 4990), (4990, 5000), (0, 5000)]
)
def test_a_span_across_the_parts_of_the_order_is_cut_out(span: tuple[int, int]) -> None:
    scores = {b"%d" % number: float(number * 7_919 % 5000) for number in range(5000)}
    zset = SortedSet(dict(scores))
    rows = zset.rows(0, 5000)
    rest = zset.without_span(*span)
    assert zset.remove_span(*span) == span[1] - span[0]
    for each in (zset, rest):
        each.check()
        assert each.rows(0, 5000) == rows[: span[0]] + rows[span[1] :]
        each.put(b"new", 2500.0)
        each.check()
