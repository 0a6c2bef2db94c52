"""Cutting ranges and sharing a limit: nothing is lost or read twice, and every stream gets a share."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.ranges import NODE, Range, cut, limited

offsets = st.integers(1, 30_000)
ranges = st.lists(
    st.builds(lambda name, start, rows: Range(name, start, start + rows), st.sampled_from("abc"), offsets, offsets)
)


@given(ranges, st.integers(1, 40))
def test_whole_nodes_are_cut_only_where_a_node_begins(whole: list[Range], partitions: int) -> None:
    starts = {(each.stream, each.start) for each in whole}
    for piece in cut(whole, partitions, whole_nodes=True):
        assert (piece.stream, piece.start) in starts or piece.start % NODE == 1


@given(ranges, st.integers(1, 40))
def test_pieces_are_the_same_messages_in_the_same_order(whole: list[Range], partitions: int) -> None:
    pieces = cut(whole, partitions)
    assert all(piece.rows > 0 for piece in pieces)
    at = 0
    for each in whole:
        place = each.start
        while place < each.end:
            assert pieces[at].stream == each.stream
            assert pieces[at].start == place
            place = pieces[at].end
            at += 1
        assert place == each.end
    assert at == len(pieces)


@given(st.integers(1, 50_000), st.integers(1, 16))
def test_long_pieces_begin_where_nodes_begin(rows: int, partitions: int) -> None:
    pieces = cut([Range("a", 1, 1 + rows)], partitions)
    if rows >= partitions * NODE:
        assert all((piece.start - 1) % NODE == 0 for piece in pieces)
    assert len(pieces) <= max(2 * partitions, 1)


backlogs = st.dictionaries(st.sampled_from("abcdef"), st.tuples(offsets, st.integers(0, 5000)), min_size=1)


@given(backlogs, st.integers(1, 10_000))
def test_a_limit_holds_and_leaves_nobody_out_while_it_can(streams: dict[str, tuple[int, int]], rows: int) -> None:
    start = {name: place for name, (place, _) in streams.items()}
    end = {name: place + behind for name, (place, behind) in streams.items()}
    got = limited(start, end, rows)
    taken = {name: got[name] - start[name] for name in start}
    assert all(0 <= taken[name] <= behind for name, (_, behind) in streams.items())
    waiting = sum(behind for _, behind in streams.values())
    assert sum(taken.values()) <= max(rows, 0) or waiting <= rows
    assert sum(taken.values()) >= min(waiting, 1), "it gets on"
    busy = [name for name, (_, behind) in streams.items() if behind]
    if len(busy) <= rows:
        assert all(taken[name] for name in busy)
