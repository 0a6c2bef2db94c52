"""Sets as a type: a plain set with a sampler that is always up to date."""

from __future__ import annotations

import copy
from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.types.set import Set

names = st.lists(st.sampled_from([b"%d" % number for number in range(20)]), max_size=6)


class SetMachine(RuleBasedStateMachine):
    """Against a plain set; members are drawn, added and removed in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.ours = Set()
        self.model: set[bytes] = set()

    @rule(members=names)
    def insert(self, members: list[bytes]) -> None:
        assert self.ours.insert(members) == len(set(members) - self.model)
        self.model.update(members)

    @rule(members=names)
    def remove(self, members: list[bytes]) -> None:
        assert self.ours.remove_all(members) == len(set(members) & self.model)
        self.model.difference_update(members)

    @precondition(lambda self: self.model)
    @rule()
    def draw(self) -> None:
        assert self.ours.random_member() in self.model

    @rule(count=st.integers(0, 25))
    def draw_several(self, count: int) -> None:
        drawn = self.ours.random_members(count)
        assert len(set(drawn)) == len(drawn) == min(count, len(self.model))
        assert set(drawn) <= self.model

    @precondition(lambda self: self.model)
    @rule()
    def take(self) -> None:
        self.model.remove(self.ours.take_random_member())

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def take_several(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, len(self.model)))
        taken = self.ours.take_random_members(count)
        assert len(taken) == count
        assert taken <= self.model
        self.model -= taken

    @rule()
    def copy_without_sharing(self) -> None:
        twin = copy.copy(self.ours)
        twin.insert([b"only the copy's"])
        assert twin == self.model | {b"only the copy's"}

    @rule()
    def store_and_read_back(self) -> None:
        self.ours = Set.load(self.ours.dump())

    @invariant()
    def same(self) -> None:
        self.ours.check()
        assert self.ours == self.model


TestSet = SetMachine.TestCase


def chi_square(drawn: Counter[bytes], members: set[bytes]) -> float:
    expected = drawn.total() / len(members)
    assert set(drawn) <= members
    return sum((drawn[member] - expected) ** 2 / expected for member in members)


# Nine degrees of freedom: an even draw exceeds 44 once in about 700,000 runs.


def test_draws_are_even_after_removals_and_returns() -> None:
    members = Set(b"%d" % number for number in range(16))
    members.random_member()
    members.remove_all([b"%d" % number for number in range(8)])
    members.insert([b"0", b"1"])
    assert chi_square(Counter(members.random_member() for _ in range(5000)), members) < 44


def test_several_draws_are_even() -> None:
    members = Set(b"%d" % number for number in range(10))
    drawn = Counter(member for _ in range(2000) for member in members.random_members(3))
    assert chi_square(drawn, members) < 44


def test_taken_members_are_even() -> None:
    members = {b"%d" % number for number in range(10)}
    drawn: Counter[bytes] = Counter()
    for _ in range(2000):
        fresh = Set(members)
        drawn.update([fresh.take_random_member(), *fresh.take_random_members(2)])
    assert chi_square(drawn, members) < 44


def test_a_set_without_random_reads_has_no_sampler() -> None:
    members = Set([b"a"])
    members.insert([b"b"])
    members.remove_all([b"a"])
    assert members.random_members(5) == [b"b"]
    assert members.sampler is None
    unsampled = members.size()
    members.random_member()
    assert members.size() > unsampled


def test_drawing_while_members_come_and_go_builds_the_sampler_once() -> None:
    members = Set(b"%d" % number for number in range(1000))
    members.random_member()
    sampler = members.sampler
    for number in range(1000, 1100):
        members.insert([b"%d" % number])
        members.remove_all([b"%d" % (number - 1000)])
        members.random_member()
        members.take_random_member()
    members.check()
    assert members.sampler is sampler
