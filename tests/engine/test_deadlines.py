"""Deadlines against a model, and what keeps them small."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.engine.keyspace.expiry_times import SPARE, WIDTH_BITS, Deadlines

keys = st.sampled_from([b"a", b"b", b"c", b"d", b"e"])
times = st.integers(-300, 5000)


class DeadlinesMachine(RuleBasedStateMachine):
    """A dict of deadlines is the model."""

    def __init__(self) -> None:
        super().__init__()
        self.deadlines = Deadlines()
        self.model: dict[bytes, int] = {}

    @rule(key=keys, when=times)
    def set_time(self, key: bytes, when: int) -> None:
        if key in self.model:
            self.deadlines.remove(key, self.model[key])
        self.deadlines.add(key, when)
        self.model[key] = when

    @rule(key=keys)
    def remove(self, key: bytes) -> None:
        self.deadlines.remove(key, self.model.pop(key, 0))

    @rule(now=times)
    def take_all(self, now: int) -> None:
        taken = set(iter(lambda: self.deadlines.take(now), None))
        assert taken == {key for key, when in self.model.items() if when >> WIDTH_BITS < now >> WIDTH_BITS}
        assert all(self.model.pop(key) <= now for key in taken)

    @invariant()
    def invariants_hold(self) -> None:
        self.deadlines.check(self.model)


TestDeadlines = DeadlinesMachine.TestCase
TestDeadlines.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_new_times_for_the_same_keys_do_not_pile_up() -> None:
    deadlines = Deadlines()
    for when in range(0, 50_000_000, 1000):
        if when:
            deadlines.remove(b"key", when - 1000)
        deadlines.add(b"key", when)
    assert len(deadlines._order) <= SPARE + 2
    assert len(deadlines._buckets) == 1


def test_the_earliest_bucket_is_taken_first() -> None:
    deadlines = Deadlines()
    for when in (9000, 1000, 5000):
        deadlines.add(b"%d" % when, when)
    assert [deadlines.take(10_000) for _ in range(4)] == [b"1000", b"5000", b"9000", None]
