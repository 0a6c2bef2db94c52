"""Times against a plain set: what is least, whatever is added and taken out, with shelves that are small enough to be many."""

from __future__ import annotations

import random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.types.stream import times as module
from penstock.types.stream.times import Times

NUMBERS = st.integers(-10, 200) | st.integers(-(1 << 126), (1 << 126) - 1)


@pytest.fixture(autouse=True, scope="module")
def small_shelves() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_FULL", 8)
        patch.setattr(module, "_FEW", 4)
        yield


class TimesMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.times = Times()
        self.model: set[int] = set()

    @rule(numbers=st.lists(NUMBERS, max_size=30, unique=True), ask=st.booleans())
    def add(self, numbers: list[int], ask: bool) -> None:
        for number in numbers:
            if number not in self.model:
                self.times.add(number)
                self.model.add(number)
            if ask:
                assert self.times.least == min(self.model)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.model)))
        self.times.remove(number)
        self.model.remove(number)

    @precondition(lambda self: self.model)
    @rule()
    def remove_the_least(self) -> None:
        least = self.times.least
        assert least == min(self.model)
        self.times.remove(least)
        self.model.remove(least)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove_a_range(self, data: st.DataObject) -> None:
        numbers = sorted(self.model)
        start = data.draw(st.integers(0, len(numbers)))
        gone = numbers[start : data.draw(st.integers(start, len(numbers)))]
        gone = gone[:: data.draw(st.integers(1, 3))]
        self.model.difference_update(gone)
        self.times.remove_all(gone[::-1])

    @rule()
    def ask(self) -> None:
        assert self.times.least == min(self.model, default=None)

    @invariant()
    def has_the_same(self) -> None:
        assert list(self.times) == sorted(self.model)
        assert len(self.times) == len(self.model)


class CheckedTimesMachine(TimesMachine):
    """`check` asks for the least, which puts the front in order: so the other machine goes without it."""

    @invariant()
    def holds(self) -> None:
        self.times.check()


TestTimes = TimesMachine.TestCase
TestCheckedTimes = CheckedTimesMachine.TestCase


def test_what_is_left_of_many_is_on_few_shelves() -> None:
    times = Times()
    numbers = random.Random(1).sample(range(10**9), 4000)
    for number in numbers:
        times.add(number)
    assert len(times._shelves) >= 4000 / 8
    for number in numbers[20:]:
        times.remove(number)
    times.check()
    assert len(times._shelves) <= 20
    times.remove_all(numbers[:20])
    assert (len(times), len(times._shelves), times.least) == (0, 1, None)
