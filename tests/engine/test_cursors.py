"""Cursors: no element that stays is missed, whatever is added or removed, and whatever the server forgets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.engine.keyspace.cursors import (
    PLACES,
    RECENT,
    STALE,
    WINDOW_NUMBERS,
    Cursors,
    ScanOptions,
    Step,
    Window,
    to_cursor,
)
from penstock.protocol.errors import ReplyError


def walk(cursors: Cursors, names: set[bytes], count: int = 10, owner: str = "a set") -> Iterator[list[bytes]]:
    """The answers of one iteration; `names` may change between them."""
    cursor = 0
    while True:
        cursor, found = cursors.scan(owner, cursor, count, lambda: names, len(names))
        yield found
        if cursor == 0:
            return


def some_names(count: int, prefix: str = "name") -> set[bytes]:
    return {f"{prefix}:{number}".encode() for number in range(count)}


def test_a_quiet_collection_is_returned_once_each() -> None:
    names = some_names(1000)
    answers = list(walk(Cursors(), names))
    assert sorted(name for answer in answers for name in answer) == sorted(names)
    assert [len(answer) for answer in answers] == [10] * 100


def test_a_finished_iteration_leaves_nothing_behind() -> None:
    cursors = Cursors(window_size=50)
    for _ in walk(cursors, some_names(1000)):
        cursors.check()
    assert (len(cursors), cursors.names_kept) == (0, 0)


def test_abandoned_iterations_take_bounded_memory() -> None:
    cursors = Cursors(max_windows=3, max_names=250)
    for _ in range(20):
        next(walk(cursors, some_names(100)))
        cursors.check()
    assert 200 <= cursors.names_kept <= 250


def test_more_iterations_than_windows_all_end() -> None:
    cursors = Cursors(max_windows=2)
    names = some_names(200)
    walks = [walk(cursors, names) for _ in range(5)]
    seen: list[set[bytes]] = [set() for _ in walks]
    for _ in range(len(names) // 10):
        for one, found in zip(walks, seen, strict=True):
            found.update(next(one))
            cursors.check()
    assert all(found == names for found in seen)
    assert [list(one) for one in walks] == [[]] * 5


class Passes:
    """Names that count how often an iteration goes through all of them."""

    def __init__(self, cursors: Cursors, names: set[bytes], owner: str = "a set", count: int = 10) -> None:
        self.cursors, self.names, self.owner, self.count = cursors, names, owner, count
        self.passes = self.cursor = 0

    def all_names(self) -> set[bytes]:
        self.passes += 1
        return self.names

    def call(self) -> bool:
        """One call; whether the iteration is at its end."""
        self.cursor, _ = self.cursors.scan(self.owner, self.cursor, self.count, self.all_names, len(self.names))
        return self.cursor == 0


@pytest.mark.parametrize("owners", [1, 60])
def test_many_iterations_side_by_side_take_few_passes_each(owners: int) -> None:
    names = some_names(1500)
    alone = Passes(Cursors(max_names=1 << 13, window_size=1 << 9), names)
    while not alone.call():
        pass
    cursors = Cursors(max_names=1 << 13, window_size=1 << 9)
    walks = [Passes(cursors, names, f"set {number % owners}") for number in range(60)]
    while walks:
        walks = [one for one in walks if not one.call()]
        cursors.check()
        assert all(one.passes < 10 * alone.passes for one in walks)
    assert cursors.names_kept == 0


def test_iterations_of_one_collection_share_the_windows_of_each_other() -> None:
    cursors = Cursors(window_size=1 << 10)
    walks = [Passes(cursors, some_names(3000)) for _ in range(60)]
    going = walks
    while going:
        going = [one for one in going if not one.call()]
    assert sum(one.passes for one in walks) < 70, "one for each start, and those that one iteration takes"


def test_iterations_that_only_begin_do_not_push_out_the_windows_of_others() -> None:
    cursors = Cursors(max_windows=64, max_names=1 << 12, window_size=1 << 10)
    names = some_names(1500)
    one = Passes(cursors, names, count=5)
    while not one.call():
        for _ in range(17):
            Passes(cursors, names, "another set", count=1).call()
    assert one.passes < 15, "in some 300 calls"


@given(members=st.sets(st.integers(0, 60), min_size=1), reached=st.integers(0, PLACES - 1))
def test_half_a_window_has_all_names_of_its_places(members: set[int], reached: int) -> None:
    names = sorted([b"plumless", b"buckeroo", *(b"%d" % member for member in members)], key=crc32)
    for first in (crc32(b"plumless"), min(reached, crc32(names[-1]))):
        half = Window("a set", 0, PLACES, names, first).half()
        assert half is None or 0 < len(half.names) <= len(names) // 2
        assert half is None or half.names == [name for name in names if half.start <= crc32(name) < half.end]


def test_windows_that_no_call_used_for_long_make_room() -> None:
    cursors = Cursors(max_names=1 << 11, window_size=1 << 10)
    abandoned = [Passes(cursors, some_names(3000), f"set {number}", count=100) for number in range(8)]
    for one in abandoned:
        one.call()
    used = Passes(cursors, some_names(20_000), count=1)
    for _ in range(STALE + 1):
        used.call()
    Passes(cursors, some_names(3000), "the last", count=100).call()
    cursors.check()
    assert len(cursors) < 8


def test_no_window_serves_an_iteration_that_began_after_its_pass() -> None:
    cursors = Cursors(max_windows=2)
    names = some_names(100)
    slow = cursors.begin("a set", 0, 10, len(names))
    found = slow.find(lambda: names)
    late = names | {b"late"}
    cursor, seen = cursors.scan("a set", 0, 1, lambda: late, len(late))
    cursors.end(slow, found)
    next(walk(cursors, some_names(100), owner="another set"))
    while cursor:
        cursor, some = cursors.scan("a set", cursor, 10, lambda: late, len(late))
        seen += some
    assert sorted(seen) == sorted(late)


def test_cursors_of_another_server_are_served_by_no_window_that_was_here() -> None:
    names = some_names(1000)
    here = Cursors()
    here._last_number = 5 * WINDOW_NUMBERS
    next(walk(here, names))
    late = names | some_names(1000, "late")
    elsewhere = Cursors()
    elsewhere._last_number = WINDOW_NUMBERS - RECENT
    cursor, seen = elsewhere.scan("a set", 0, 1, lambda: late, len(late))
    while cursor:
        cursor, some = here.scan("a set", cursor, 100, lambda: late, len(late))
        seen += some
    assert set(seen) == late


def test_a_later_iteration_sees_what_an_earlier_ones_window_lacks() -> None:
    cursors = Cursors()
    names = some_names(100)
    first = walk(cursors, names)
    next(first)
    late = some_names(100, "late")
    names |= late
    assert late <= {name for answer in walk(cursors, names) for name in answer}


def test_a_cursor_outlives_the_server_that_gave_it() -> None:
    names = some_names(100)
    cursor, before = Cursors().scan("a set", 0, 40, lambda: names, 100)
    end, after = Cursors().scan("a set", cursor, 1000, lambda: names, 100)
    assert end == 0
    assert sorted(before + after) == sorted(names)


def test_cursors_are_exact_in_a_double() -> None:
    names = some_names(1000)
    cursors = Cursors()
    cursor = 0
    while True:
        cursor, _ = cursors.scan("a set", cursor, 1, lambda: names, len(names))
        assert 0 <= cursor < 1 << 53
        if cursor == 0:
            return


def test_names_that_share_a_place_go_together() -> None:
    twins = {b"plumless", b"buckeroo"}
    assert len({crc32(name) for name in twins}) == 1
    names = some_names(20) | twins
    answers = [set(answer) for answer in walk(Cursors(), names, count=1)]
    assert twins in answers


def test_one_collections_cursor_used_on_another_starts_no_loop() -> None:
    cursors = Cursors()
    cursor, _ = cursors.scan("one", 0, 10, lambda: some_names(100), 100)
    others = some_names(100, "other")
    end, found = cursors.scan("other", cursor, 1000, lambda: others, 100)
    assert end == 0
    assert set(found) <= others


@given(cursor=st.integers(0, (1 << 64) - 1), count=st.integers(1, 300))
def test_any_number_is_a_cursor(cursor: int, count: int) -> None:
    names = some_names(200)
    following, found = Cursors(window_size=20).scan("a set", cursor, count, lambda: names, len(names))
    assert following == 0 or following >> 20 > cursor >> 20
    assert following >> 20 < PLACES
    assert set(found) <= names


changes = st.lists(st.tuples(st.booleans(), st.integers(0, 60)), max_size=8)


@settings(deadline=None)
@given(
    stay=st.integers(0, 60),
    steps=st.lists(st.tuples(changes, st.integers(1, 20)), min_size=1, max_size=30),
    window_size=st.integers(1, 40),
    max_windows=st.integers(1, 3),
    max_names=st.integers(1, 60),
)
def test_what_stays_is_returned_whatever_changes(
    stay: int, steps: list[tuple[list[tuple[bool, int]], int]], window_size: int, max_windows: int, max_names: int
) -> None:
    """Names of `stay` are there throughout; others come and go, and other clients' iterations drop our windows."""
    cursors = Cursors(max_windows, max_names, window_size)
    staying = some_names(stay, "stays")
    names = set(staying)
    seen: set[bytes] = set()
    calls = cursor = 0
    while calls == 0 or cursor:
        changed, count = steps[calls % len(steps)]
        for present, number in changed:
            (names.add if present else names.discard)(b"passing:%d" % number)
            if number % 7 == 0:
                next(walk(cursors, names, 3, "another client"))
        following, found = cursors.scan("a set", cursor, count, lambda: names, len(names))
        cursors.check()
        assert following == 0 or following >> 20 > cursor >> 20, "an iteration moves forward"
        seen.update(found)
        cursor = following
        calls += 1
    assert staying <= seen


@dataclass
class Iteration:
    """An iteration of a client, and what it must have answered at its end."""

    owner: int
    staying: set[bytes]  # there since it began
    cursor: int = 0
    seen: set[bytes] = field(default_factory=set)
    step: Step | None = None  # a thread does this
    names: frozenset[bytes] = frozenset()  # for that step


class IterationsSideBySide(RuleBasedStateMachine):
    """Clients iterate over two collections, which change, and their passes take as long as they like."""

    @initialize(
        windows=st.integers(1, 6), names=st.integers(1, 60), size=st.integers(1, 40), last=st.integers(0, 2 * RECENT)
    )
    def begin(self, windows: int, names: int, size: int, last: int) -> None:
        self.cursors = Cursors(windows, names, size)
        self.cursors._last_number = WINDOW_NUMBERS - last
        self.collections: list[set[bytes]] = [some_names(30), some_names(20)]
        self.iterations: list[Iteration] = []

    @rule(owner=st.integers(0, 1))
    def start(self, owner: int) -> None:
        self.iterations.append(Iteration(owner, set(self.collections[owner])))

    @rule(owner=st.integers(0, 1), name=st.integers(0, 40), present=st.booleans())
    def change(self, owner: int, name: int, present: bool) -> None:
        if present:
            self.collections[owner].add(b"name:%d" % name)
            return
        self.collections[owner].discard(b"name:%d" % name)
        for one in self.iterations:
            if one.owner == owner:
                one.staying.discard(b"name:%d" % name)

    @rule(at=st.integers(0, 20), count=st.integers(1, 12), at_once=st.booleans())
    def call(self, at: int, count: int, at_once: bool) -> None:
        idle = [one for one in self.iterations if one.step is None]
        if idle:
            one = idle[at % len(idle)]
            one.names = frozenset(self.collections[one.owner])
            one.step = self.cursors.begin(one.owner, one.cursor, count, len(one.names))
            if at_once:
                self.answer(one)

    @rule(at=st.integers(0, 20))
    def end_of_a_pass(self, at: int) -> None:
        busy = [one for one in self.iterations if one.step is not None]
        if busy:
            self.answer(busy[at % len(busy)])

    def answer(self, one: Iteration) -> None:
        assert one.step is not None
        found = one.step.find(lambda: one.names)
        following = self.cursors.end(one.step, found)
        assert following == 0 or following >> 20 > one.cursor >> 20, "an iteration moves forward"
        one.seen.update(found.names)
        one.cursor, one.step = following, None
        if not following:
            assert one.staying <= one.seen
            self.iterations.remove(one)

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "cursors"):
            self.cursors.check()


IterationsSideBySide.TestCase.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
TestIterationsSideBySide = IterationsSideBySide.TestCase


def test_options_are_read_from_the_left() -> None:
    options = ScanOptions.parse([b"SCAN", b"0", b"match", b"a*", b"COUNT", b"7", b"type", b"SET"], 2, with_type=True)
    assert options.count == 7
    assert options.type_name == b"set"
    assert options.matches is not None
    assert (options.matches(b"abc"), options.matches(b"b")) == (True, False)
    assert ScanOptions.parse([b"SCAN", b"0", b"MATCH", b"*"], 2) == ScanOptions()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("COUNT", "syntax error"),
        ("COUNT 0", "syntax error"),
        ("COUNT x", "value is not an integer or out of range"),
        ("COUNT x MATCH", "value is not an integer or out of range"),
        ("MATCH a NONSENSE", "syntax error"),
        ("TYPE set", "syntax error"),
    ],
)
def test_bad_options_are_refused(words: str, error: str) -> None:
    with pytest.raises(ReplyError, match=error):
        ScanOptions.parse([b"SSCAN", b"key", b"0", *words.encode().split()], 3)


def test_cursors_are_read_as_redis_reads_them() -> None:
    assert [to_cursor(raw) for raw in (b"0", b"", b"007", b"+5", b"18446744073709551615")] == [0, 0, 7, 5, 2**64 - 1]
    assert to_cursor(b"-1") == 2**64 - 1
    for raw in (b"x", b"-", b" 1", b"1 ", b"1_0", b"18446744073709551616", b"9" * 5000):
        with pytest.raises(ReplyError, match="invalid cursor"):
            to_cursor(raw)


def test_a_few_names_more_than_a_large_count_are_answered_at_once() -> None:
    names = [b"%d" % number for number in range(1003)]
    cursors = Cursors(window_size=100)
    assert cursors.scan("a", 0, 1000, lambda: names, len(names)) == (0, names)
    cursor, some = cursors.scan("a", 0, 900, lambda: names, len(names))
    assert cursor and len(some) < 1000
