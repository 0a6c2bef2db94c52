"""Leases against a plain list of them, with chunks small enough to be many."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock import freeing
from penstock.types.stream import lease_chunk, lease_chunks, lease_due_times
from penstock.types.stream.lease_chunk import MOST_LIMIT, Lease
from penstock.types.stream.leases import Leases

OFFSETS = st.integers(1, 150)
LENGTHS = st.integers(1, 4) | st.integers(1, 60)
TIMES = st.integers(1, 30)
NAMES = st.sampled_from([None, None, b"a", b"b", *(b"%d" % number for number in range(40))])


@pytest.fixture(autouse=True, scope="module")
def small_chunks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lease_chunks, "FULL", 8)
        patch.setattr(lease_chunk, "FULL", 8)
        patch.setattr(lease_chunks, "_FEW", 4)
        patch.setattr(lease_due_times, "_LAGGING", 2)
        patch.setattr(lease_chunks, "_GIANT", 3)
        yield
    freeing.drain()


def parts_of(leases: list[Lease], start: int, end: int) -> tuple[list[Lease], list[Lease]]:
    """What is inside a range and what is outside, leases that are in both cut; an empty range cuts none."""
    inside: list[Lease] = []
    outside: list[Lease] = []
    if start >= end:
        return inside, leases
    for lease in leases:
        cuts = sorted({lease.start, lease.end, *(at for at in (start, end) if lease.start < at < lease.end)})
        for a, b in pairwise(cuts):
            (inside if start <= a < end else outside).append(lease._replace(start=a, end=b))
    return inside, outside


def end_of(lease: Lease) -> int | None:
    """When a lease is given up."""
    ends = [lease.expire_at] if lease.expire_at > 0 else []
    if lease.limit and lease.attempts >= lease.limit:
        ends.append(lease.retry_at)
    return min(ends, default=None)


def messages(leases: list[Lease]) -> int:
    return sum(lease.end - lease.start for lease in leases)


class LeasesMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.leases = Leases()
        self.model: list[Lease] = []

    def put_one(self, lease: Lease) -> None:
        self.leases.put(lease)
        self.model = sorted([*parts_of(self.model, lease.start, lease.end)[1], lease])

    @rule(
        start=OFFSETS,
        length=LENGTHS,
        retry=TIMES,
        expiry=st.just(0) | TIMES,
        attempts=TIMES,
        name=NAMES,
        token=st.integers(0, 3),
        limit=st.sampled_from([0, 0, 1, 10, 20, MOST_LIMIT]),
        reserved=st.booleans(),
    )
    def put(
        self,
        start: int,
        length: int,
        retry: int,
        expiry: int,
        attempts: int,
        name: bytes | None,
        token: int,
        limit: int,
        reserved: bool,
    ) -> None:
        self.put_one(Lease(start, start + length, retry, expiry, 7, attempts, name, token, limit, reserved))

    @rule(start=OFFSETS, length=LENGTHS, retry=TIMES, expiry=st.just(0) | TIMES, token=st.integers(0, 3))
    def reserve(self, start: int, length: int, retry: int, expiry: int, token: int) -> None:
        self.put_one(Lease(start, start + length, retry, -expiry, 7, 0, None, token, 1, True))

    @rule(start=OFFSETS, length=st.integers(0, 200), token=st.integers(0, 3))
    def ask_who_holds(self, start: int, length: int, token: int) -> None:
        inside, _ = parts_of(self.model, start, start + length)
        offsets = [offset for lease in inside if lease.token == token for offset in range(lease.start, lease.end)]
        runs = self.leases.held(start, start + length, token)
        assert [offset for run in runs for offset in range(*run)] == offsets
        assert all(a[1] < b[0] for a, b in pairwise(runs))

    @rule(start=OFFSETS, length=st.integers(0, 200), now=TIMES)
    def begin(self, start: int, length: int, now: int) -> None:
        inside, outside = parts_of(self.model, start, start + length)
        self.leases.begin(start, start + length, now)
        begun = [
            lease._replace(
                attempts=lease.attempts + 1,
                reserved=False,
                expire_at=lease.expire_at if lease.expire_at >= 0 else now - lease.expire_at,
            )
            if lease.reserved
            else lease
            for lease in inside
        ]
        self.model = sorted([*outside, *begun])

    @rule(
        first=OFFSETS, count=st.integers(1, 40), every=st.integers(1, 3), time=TIMES, expires=st.booleans(), name=NAMES
    )
    def put_many(self, first: int, count: int, every: int, time: int, expires: bool, name: bytes | None) -> None:
        """As readers do: one after the other, later and later."""
        for at in range(count):
            start = first + at * every
            self.put_one(Lease(start, start + 1, time + at // 5, (time + at) * expires, time, 1, name))

    @precondition(lambda self: self.model)
    @rule(data=st.data(), retry=TIMES, expiry=st.just(0) | TIMES)
    def give_out_again(self, data: st.DataObject, retry: int, expiry: int) -> None:
        lease = data.draw(st.sampled_from(self.model))
        self.put_one(lease._replace(retry_at=retry, expire_at=expiry, attempts=lease.attempts + 1))

    @precondition(lambda self: self.model)
    @rule(count=st.integers(1, 20), seed=st.integers(0, 1000))
    def drop_as_given(self, count: int, seed: int) -> None:
        for lease in random.Random(seed).sample(self.model, min(count, len(self.model))):
            assert self.leases.drop(lease.start, lease.end) == lease.end - lease.start
            self.model.remove(lease)

    @rule(start=st.integers(0, 160), length=st.integers(0, 200))
    def drop(self, start: int, length: int) -> None:
        inside, self.model = parts_of(self.model, start, start + length)
        assert self.leases.drop(start, start + length) == messages(inside)

    @rule(end=OFFSETS, limit=st.integers(1, 30))
    def drop_before(self, end: int, limit: int) -> None:
        first = self.model[0].start if self.model else end
        reach = self.model[limit].start if limit < len(self.model) else 10**6
        gone = self.leases.drop_before(end, limit)
        inside, self.model = parts_of(self.model, 0, min(end, reach))
        assert gone == ((first, min(end, self.model[0].start if self.model else end)) if inside else None)

    @rule(start=OFFSETS, length=st.integers(0, 200), time=TIMES, give_back=st.booleans())
    def postpone(self, start: int, length: int, time: int, give_back: bool) -> None:
        inside, outside = parts_of(self.model, start, start + length)
        assert self.leases.postpone(start, start + length, time, give_back) == messages(inside)
        inside = [lease._replace(token=0) if give_back else lease for lease in inside]
        self.model = sorted([*outside, *(lease._replace(retry_at=time) for lease in inside)])

    @rule(now=st.integers(0, 40))
    def ask(self, now: int) -> None:
        due = min(self.model, key=lambda lease: (lease.retry_at, lease.start), default=None)
        assert self.leases.due(now) == (due if due is not None and due.retry_at <= now else None)
        ends = {lease: end for lease in self.model if (end := end_of(lease))}
        expired = min(ends, key=lambda lease: (ends[lease], lease.start), default=None)
        assert self.leases.expired(now) == (expired if expired is not None and ends[expired] <= now else None)

    @rule(now=st.integers(0, 40), before=st.integers(0, 40))
    def ask_in_the_grace(self, now: int, before: int) -> None:
        held_by = max(now - before, 0)
        due = [lease for lease in self.model if lease.retry_at <= (now if lease.token == 0 else held_by)]
        found = self.leases.due(now, held_by)
        assert (found in due) if due else (found is None)
        assert self.leases.any_due(now, held_by) == (bool(due) or self.leases.expired(held_by) is not None)

    @rule()
    def ask_when(self) -> None:
        retries = [lease.retry_at for lease in self.model]
        assert self.leases.next_retry() == min(retries, default=None)
        free = [lease.retry_at for lease in self.model if lease.token == 0]
        assert self.leases.next_free() == min(free, default=None)
        expiries = [end for lease in self.model if (end := end_of(lease))]
        assert self.leases.next_deadline() == min(retries + expiries, default=None)

    @rule(start=OFFSETS, length=st.integers(0, 100))
    def look(self, start: int, length: int) -> None:
        end = start + length
        overlapping = [lease for lease in self.model if length and lease.start < end and start < lease.end]
        assert list(self.leases.overlapping(start, end)) == overlapping

    @rule()
    def go_on_with_a_copy(self) -> None:
        before, self.leases = self.leases, self.leases.copy()
        before.drop(0, 1000)

    @invariant()
    def has_the_same(self) -> None:
        assert list(self.leases) == self.model
        assert (self.leases.count, self.leases.messages) == (len(self.model), messages(self.model))
        assert self.leases.first_offset == (self.model[0].start if self.model else None)
        self.leases.check()


TestLeases = LeasesMachine.TestCase


def with_leases(count: int, times: range) -> Leases:
    leases = Leases()
    for offset, time in zip(range(1, count + 1), times, strict=True):
        leases.put(Lease(offset, offset + 1, time, 0, 0, 1, None))
    return leases


def test_what_is_left_of_many_is_on_few_chunks() -> None:
    leases = with_leases(4000, range(4000))
    assert len(leases._chunks.all) == 4000 / 8, "chunks that nothing more comes to are full"
    offsets = list(range(1, 4001))
    random.Random(1).shuffle(offsets)
    for offset in offsets[400:]:
        leases.drop(offset, offset + 1)
    leases.check()
    assert len(leases._chunks.all) < 200, "chunks with few leases were not put together"
    assert leases.drop(1, 5000) == 400
    assert (leases.count, len(leases._chunks.all), leases.next_deadline()) == (0, 1, None)


def test_a_chunk_that_takes_a_neighbours_leases_takes_over_that_its_times_may_be_too_early() -> None:
    leases = with_leases(16, range(99, 83, -1))
    for offset in [16, 15, 14, 13, 12, 11, 1, 2, 3, 4, 5, 6]:
        leases.drop(offset, offset + 1)
    assert [len(chunk.starts) for chunk in leases._chunks.all] == [4]
    leases.check()
    assert leases.next_retry() == 90


def test_what_comes_before_all_that_ever_was_has_a_chunk() -> None:
    leases = with_leases(16, range(16))
    assert leases.drop(1, 9) == 8
    for offset in range(9, 17):
        leases.drop(offset, offset + 1)
    leases.put(Lease(3, 5, 7, 0, 0, 1, None))
    leases.check()
    assert leases.next_retry() == 7


def test_the_middle_of_a_chunk_is_given_back_and_the_rest_is_due_as_before() -> None:
    leases = with_leases(8, range(10, 18))
    assert leases.postpone(3, 7, 50) == 4
    leases.check()
    assert leases.next_retry() == 10


def test_a_lease_is_found_from_its_middle_and_an_empty_range_has_none() -> None:
    leases = Leases()
    lease = Lease(1, 10, 5, 0, 0, 1, None)
    leases.put(lease)
    assert list(leases.overlapping(4, 6)) == [lease]
    assert list(leases.overlapping(4, 4)) == []
    assert (leases.drop(4, 4), leases.postpone(4, 4, 9)) == (0, 0)
    assert list(leases) == [lease]


def test_a_chunk_forgets_the_dead_letter_keys_of_leases_that_are_gone() -> None:
    leases = Leases()
    for number in range(1000):
        leases.put(Lease(1, 2, 5, 0, 0, 1, b"key %d" % number))
        leases.check()
    assert [lease.dead_letter for lease in leases] == [b"key 999"]
    assert len(leases._chunks.all[0].letters) < 20


def test_taking_out_one_by_one_leaves_few_chunks_to_look_at() -> None:
    """What is first in a chunk is looked for when it is asked for, so at no time may many chunks wait for that."""
    leases = Leases()
    for offset in range(1, 401):
        leases.put(Lease(offset, offset + 1, offset, 0, 0, 1, None))
    for offset in range(1, 401, 8):
        leases.drop(offset, offset + 1)
        assert len(leases._chunks.times.stale) <= 2
    assert leases.next_retry() == 2


def test_many_chunks_are_freed_in_small_steps() -> None:
    leases = Leases()
    for offset in range(1, 401):
        leases.put(Lease(offset, offset + 1, offset, 0, 0, 1, None))
    freeing.drain()
    taken: list[object] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lease_chunks, "dispose", taken.append)
        leases.drop(1, 200)
        assert sum(len(chunk.starts) for chunk in taken.pop()) == 192  # those of whole chunks
        rest = leases._chunks.all
        del leases
        assert taken == [rest]
