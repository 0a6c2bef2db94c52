"""Hashes as a type: a dict with a sampler that updates itself."""

from __future__ import annotations

import copy
from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.types.hash import Hash
from penstock.types.packing import CorruptValue, pack_many

fields = st.sampled_from([b"%d" % number for number in range(20)])


class HashMachine(RuleBasedStateMachine):
    """Against a plain dict; fields are set, removed and drawn in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.ours = Hash()
        self.model: dict[bytes, bytes] = {}

    @rule(field=fields, value=st.binary(max_size=2))
    def put(self, field: bytes, value: bytes) -> None:
        self.ours[field] = self.model[field] = value

    @rule(removed=st.lists(fields, max_size=6))
    def remove(self, removed: list[bytes]) -> None:
        assert self.ours.remove_all(removed) == len(set(removed) & set(self.model))
        for field in removed:
            self.model.pop(field, None)

    @precondition(lambda self: self.model)
    @rule()
    def draw(self) -> None:
        assert self.ours.random_field() in self.model

    @rule(count=st.integers(0, 25))
    def draw_several(self, count: int) -> None:
        drawn = self.ours.random_fields(count)
        assert len(set(drawn)) == len(drawn) == min(count, len(self.model))
        assert set(drawn) <= set(self.model)

    @rule()
    def copy_without_sharing(self) -> None:
        twin = copy.copy(self.ours)
        twin[b"only the copy's"] = b""
        assert twin == self.model | {b"only the copy's": b""}

    @rule()
    def store_and_read_back(self) -> None:
        self.ours = Hash.load(self.ours.dump())

    @rule()
    def check(self) -> None:
        # A rule and not an invariant: it lets the sampler catch up, and what happens while it is behind matters too.
        self.ours.check()

    @invariant()
    def same(self) -> None:
        assert list(self.ours.items()) == list(self.model.items())


TestHash = HashMachine.TestCase


def test_draws_are_even_after_fields_came_and_went() -> None:
    fields = Hash((b"%d" % number, b"") for number in range(16))
    fields.random_field()
    fields.remove_all([b"%d" % number for number in range(8)])
    fields.update({b"0": b"", b"new": b""})
    drawn = Counter(fields.random_field() for _ in range(5000))
    expected = 5000 / len(fields)
    # Nine degrees of freedom: an even draw exceeds 44 once in about 700,000 runs.
    assert sum((drawn[field] - expected) ** 2 / expected for field in fields) < 44
    assert set(drawn) <= set(fields)


def test_half_a_pair_is_corrupt() -> None:
    with pytest.raises(CorruptValue, match="a field and no value"):
        Hash.load(pack_many([b"field", b"value", b"field"]))


def test_its_size_follows_its_bytes() -> None:
    small, large = Hash({b"field": b""}), Hash({b"field": bytes(10_000)})
    assert large.size() - small.size() == 10_000
