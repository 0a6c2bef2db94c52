"""The list type against a plain Python list."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.types.kernels import finish
from penstock.types.list import List
from penstock.types.packing import CorruptValue

elements = st.lists(st.sampled_from([b"a", b"b", b"c"]), max_size=300)
long_lists = st.integers(0, 2000).map(lambda n: [b"%d" % i for i in range(n)])


def join(places: Iterable[list[int]]) -> list[int]:
    return list(chain.from_iterable(places))


@given(st.one_of(elements, long_lists), st.data())
def test_a_slice_is_what_a_python_list_gives(model: list[bytes], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(model)))
    stop = data.draw(st.integers(start, len(model)))
    assert List(model).slice(start, stop) == model[start:stop]


@given(long_lists, st.data())
def test_keep_drops_everything_outside(model: list[bytes], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(model)))
    stop = data.draw(st.integers(start, len(model)))
    items = List(model)
    items.keep(start, stop)
    assert list(items) == model[start:stop]


@given(elements, st.integers(-5, 5))
def test_elements_are_removed_from_the_given_end(model: list[bytes], count: int) -> None:
    items = finish(List(model).without(b"a", count))
    removed = len(model) - len(items)
    rest = list(reversed(model)) if count < 0 else list(model)
    for _ in range(removed):
        rest.remove(b"a")
    assert removed == (min(abs(count), model.count(b"a")) if count else model.count(b"a"))
    assert list(items) == (list(reversed(rest)) if count < 0 else rest)


@given(elements, st.data())
def test_a_part_is_a_list_of_its_own(model: list[bytes], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(model)))
    stop = data.draw(st.integers(start, len(model)))
    items = List(model)
    part = finish(items.part(start, stop))
    assert (list(part), type(part), list(items)) == (model[start:stop], List, model)


def test_long_lists_are_searched_and_copied_across_chunks() -> None:
    model = [b"%d" % (number % 1000) for number in range(3000)]
    items = List(model)
    assert join(items.positions(b"999", 3000)) == [999, 1999, 2999]
    assert join(items.positions(b"0", 3000, from_tail=True)) == [2000, 1000, 0]
    assert list(finish(items.without(b"999", 2))) == [*model[:999], *model[1000:1999], *model[2000:]]
    assert list(finish(items.without(b"0", -2))) == [*model[:1000], *model[1001:2000], *model[2001:]]
    assert list(finish(items.part(700, 2500))) == model[700:2500]


@given(elements, st.integers(1, 300), st.booleans())
def test_positions_are_found_from_either_end_within_the_limit(model: list[bytes], limit: int, from_tail: bool) -> None:
    places = list(range(len(model)))
    looked_at = places[::-1][:limit] if from_tail else places[:limit]
    expected = [at for at in looked_at if model[at] == b"a"]
    assert join(List(model).positions(b"a", limit, from_tail)) == expected


@given(elements)
def test_a_dumped_list_loads_as_it_was(model: list[bytes]) -> None:
    items = List.load(List(model).dump())
    items.check()
    assert list(items) == model


def test_a_damaged_dump_is_refused() -> None:
    data = List([b"abc", b"d"]).dump()
    with pytest.raises(CorruptValue):
        List.load(data[:-1])


def test_the_size_grows_with_what_is_in_it() -> None:
    assert List([b"x" * 1000]).size() > List([b"x"]).size() + 990


class CountingList(List):
    """Counts the elements that iteration visits."""

    visited = 0

    def __iter__(self):  # type: ignore[no-untyped-def]
        for item in super().__iter__():
            CountingList.visited += 1
            yield item

    def __reversed__(self):  # type: ignore[no-untyped-def]
        for item in super().__reversed__():
            CountingList.visited += 1
            yield item


@pytest.mark.parametrize("start", [0, 10, 50_000, 99_980])
def test_a_short_slice_does_not_walk_the_list(start: int) -> None:
    items = CountingList(b"%d" % i for i in range(100_000))
    CountingList.visited = 0
    assert items.slice(start, start + 10) == [b"%d" % i for i in range(start, start + 10)]
    assert CountingList.visited <= 50
