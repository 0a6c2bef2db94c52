"""The chunked kernels give the same as the one long call, for every size of a chunk."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.types import kernels, scores
from penstock.types.scores import Operand
from penstock.types.set import Set
from penstock.types.zset import SortedSet

names = st.integers(0, 30).map(lambda number: b"%d" % number)
sets = st.lists(st.sets(names, max_size=25), min_size=1, max_size=4)
sizes = st.sampled_from([1, 2, 7, kernels.CHUNK])
weights = st.sampled_from([0.0, 1.0, -2.0, 0.5, float("inf")])
numbers = st.sampled_from([0.0, 1.0, -1.5, 3.0, float("inf"), float("-inf")])
scored = st.dictionaries(names, numbers, max_size=25).map(SortedSet)
operands = st.lists(st.builds(Operand, scored | st.sets(names, max_size=25).map(Set), weights), min_size=1, max_size=4)


@given(st.lists(st.integers()), sizes)
def test_chunks_are_all_the_items_in_their_order(items: list[int], size: int) -> None:
    parts = list(kernels.chunks(items, size))
    assert [item for part in parts for item in part] == items
    assert all(len(part) == size for part in parts[:-1])


@given(st.lists(st.integers()), st.integers(0, 40), sizes)
def test_skipping_is_slicing(items: list[int], count: int, size: int) -> None:
    rest = iter(items)
    kernels.skip(rest, count, size)
    assert list(rest) == items[count:]


@given(st.lists(st.integers()))
def test_consuming_a_list_empties_it(items: list[int]) -> None:
    consumed = items.copy()
    assert list(kernels.consume(consumed)) == items
    assert consumed == []


# -- sets -----------------------------------------------------------------------------------------------------


@given(sets, sizes)
def test_a_union_has_the_members_of_any(found: list[set[bytes]], size: int) -> None:
    assert kernels.union(found, size) == set().union(*found)


@given(sets, sizes)
def test_an_intersection_has_the_members_of_all(found: list[set[bytes]], size: int) -> None:
    assert kernels.intersection(found, size) == set.intersection(*found)


@given(sets, sizes)
def test_a_difference_has_the_members_of_the_first_only(found: list[set[bytes]], size: int) -> None:
    assert kernels.difference(found, size) == found[0].difference(*found[1:])


@given(sets, st.integers(0, 30), sizes)
def test_common_members_are_counted_up_to_the_limit(found: list[set[bytes]], limit: int, size: int) -> None:
    expected = len(set.intersection(*found))
    assert kernels.count_common(found, limit, size) == (min(expected, limit) if limit else expected)


@pytest.mark.parametrize("kernel", [kernels.union, kernels.intersection, kernels.difference])
def test_a_result_shares_nothing_with_its_only_argument(kernel: Callable[[list[Set]], Set]) -> None:
    only = Set([b"a"])
    result = kernel([only])
    result.insert([b"b"])
    assert only == {b"a"}


# -- order ----------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 9) | st.integers()), sizes)
def test_runs_in_order_are_the_items_sorted(items: list[int], size: int) -> None:
    assert [item for run in kernels.sort(items, size=size) for item in run] == sorted(items)


@given(st.lists(st.tuples(st.floats(allow_nan=False), names)), sizes)
def test_a_hint_changes_nothing(rows: list[tuple[float, bytes]], size: int) -> None:
    assert [row for run in kernels.sort(rows, itemgetter(0), size) for row in run] == sorted(rows)


class Equal(int):
    """Numbers that are equal if their tens are."""

    def __lt__(self, other: int) -> bool:
        return self // 10 < other // 10


@given(st.lists(st.integers(0, 99).map(Equal)), sizes)
def test_equal_items_stay_in_their_order(items: list[Equal], size: int) -> None:
    found = [int(item) for run in kernels.sort(items, size=size) for item in run]
    assert found == [int(item) for item in sorted(items)]


@pytest.mark.parametrize("different", [1, 2, 3, 5_000])
def test_long_sorts_divide_their_parts_again(different: int) -> None:
    items = [(at * 7919) % different for at in range(10_000)]
    runs = list(kernels.sort(items, size=8))
    assert [item for run in runs for item in run] == sorted(items)
    if different == 5_000:
        assert max(map(len, runs)) <= 16  # two runs at most are sorted by one call


# -- scores ---------------------------------------------------------------------------------------------------


def _plain(operand: Operand) -> dict[bytes, float]:
    value = operand.value
    return dict(value.scores) if isinstance(value, SortedSet) else dict.fromkeys(value, 1.0)


def _product(score: float, weight: float) -> float:
    product = score * weight
    return product if product == product else 0.0


@given(operands, st.sampled_from([scores.add, min, max]))
def test_a_union_of_scores_aggregates_them(found: list[Operand], aggregate: scores.Aggregate) -> None:
    expected: dict[bytes, float] = {}
    for operand in sorted(found, key=len):
        for member, score in _plain(operand).items():
            value = _product(score, operand.weight)
            expected[member] = aggregate(expected[member], value) if member in expected else value
    assert scores.union(found, aggregate) == expected


@given(operands, st.sampled_from([scores.add, min, max]), sizes)
def test_an_intersection_of_scores_aggregates_them(
    found: list[Operand], aggregate: scores.Aggregate, size: int
) -> None:
    first, *others = sorted(found, key=len)
    common = set.intersection(*(set(_plain(operand)) for operand in found))
    result = scores.intersection(found, aggregate, size)
    assert result.keys() == common
    for member in common:
        value = _product(_plain(first)[member], first.weight)
        for other in others:
            value = aggregate(value, _plain(other)[member] * other.weight)
        assert repr(result[member]) == repr(value)
    assert scores.count_common(found, 0, size) == len(common)
    assert scores.count_common(found, 2, size) == min(len(common), 2)


@given(operands, sizes)
def test_a_difference_of_scores_keeps_those_of_the_first(found: list[Operand], size: int) -> None:
    gone = set().union(*(_plain(operand) for operand in found[1:]))
    expected = {member: score for member, score in _plain(found[0]).items() if member not in gone}
    assert scores.difference(found, size) == expected
