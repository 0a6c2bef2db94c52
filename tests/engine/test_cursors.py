"""Cursors: no element that stays is missed, whatever is added or removed, and whatever the server forgets."""

from __future__ import annotations

from collections.abc import Iterator
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.keyspace.cursors import PLACES, Cursors, ScanOptions, to_cursor
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
    assert cursors.names_kept == 200


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
