"""A group with very many leases: no call may pay for how many there are. Operations are counted, not timed."""

from __future__ import annotations

import gc
import sys
from array import array
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from penstock.types.stream import lease_due_times
from penstock.types.stream.groups import SLICE, Group
from penstock.types.stream.lease_chunk import Lease
from penstock.types.stream.leases import Leases
from penstock.types.stream.messages import Messages

FEW, MANY = 1_000, 100_000


def filled(count: int) -> Messages:
    messages = Messages()
    messages.append_many(0, [b""] * count, [b"x"] * count)
    return messages


def with_leases(count: int, expire_at: int = 10**6, dead_letter: bytes | None = None) -> Group:
    """A group that was given `count` messages one by one."""
    group = Group(count + 1)
    for offset in range(1, count + 1):
        group.leases.put(Lease(offset, offset + 1, 1000 + offset // 10, expire_at, 0, 1, dead_letter))
    return group


def operations(call: Callable[[], object]) -> int:
    """Calls of functions, of C ones too, that a call makes."""
    count = 0

    def profile(frame: Any, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(before)
    return count


def worst_calls(messages: Messages, count: int) -> dict[str, int]:
    """The most operations that each kind of call took, at a group with so many leases."""
    group = with_leases(count)
    worst: dict[str, int] = {}
    for turn in range(400):
        offset = count // 2 + turn
        for name, call in {
            "read": partial(group.deliver, messages, 500, 1, (5000, 0), cap=10**7),
            "retry": partial(group.deliver, messages, 1000 + turn // 10, 1, (5000, 0), cap=10**7),
            "acknowledge": partial(group.ack, [(offset, offset + 1)]),
            "nack": partial(group.nack, [(offset + 1, offset + 2)], 4000),
            "ask": partial(group.has_work, messages, 500, 10**7),
            "wake": group.next_deadline,
            "list": partial(group.pending, offset, offset + 10**9, 3),
        }.items():
            worst[name] = max(worst.get(name, 0), operations(call))
    group.check()
    return worst


def test_a_call_with_many_leases_costs_what_it_costs_with_few() -> None:
    messages = filled(MANY + 5000)
    few, many = worst_calls(messages, FEW), worst_calls(messages, MANY)
    assert all(many[name] <= 1.5 * few[name] + 10 for name in few), (few, many)


def test_what_many_leases_are_kept_in_neither_grows_as_one_nor_is_walked_by_the_collector() -> None:
    leases = with_leases(MANY).leases
    gc.collect()
    seen: set[int] = set()
    found: list[Any] = [leases]
    lengths, tracked = [], 0
    while found:
        thing = found.pop()
        if id(thing) in seen or isinstance(thing, type) or callable(thing):
            continue
        seen.add(id(thing))
        tracked += gc.is_tracked(thing)
        if isinstance(thing, dict | list | array):
            lengths.append(len(thing))
        found += gc.get_referents(thing)
    assert sum(lengths) > MANY  # it did look at them
    assert max(lengths) < MANY / 10
    assert tracked < MANY / 30
    assert leases.size() < 100 * MANY


def test_a_wide_range_is_acknowledged_and_given_back_with_little_work_a_lease() -> None:
    group = with_leases(MANY)
    assert operations(partial(group.nack, [(MANY // 8, MANY // 8 * 7)], 4000)) < MANY / 10
    assert operations(partial(group.ack, [(MANY // 4, MANY // 4 * 3)])) < MANY / 30
    assert group.pending_count == MANY // 2
    assert len([lease for lease in group.leases if lease.retry_at == 4000]) == MANY // 4
    group.check()


def test_a_narrow_range_does_not_look_at_every_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Going through the times of all chunks is no call that would be counted above."""
    group = with_leases(MANY)
    monkeypatch.setattr(lease_due_times, "_forget", None)
    assert group.nack([(MANY // 2, MANY // 2 + 400)], 4000) == 400
    assert group.ack([(MANY // 2, MANY // 2 + 400)]) == 400
    group.check()


def test_evicted_leases_are_dropped_in_slices() -> None:
    messages, group = filled(5001), with_leases(5000)
    messages.evict_through(5000)
    assert group.deliver(messages, 500, 10, (5000, 0), cap=10**6).runs == [(5001, 5002)]
    assert len(group.leases) == 5000 - SLICE + 1
    assert group.lost == SLICE
    while group.has_work(messages, 500, 10**6):
        group.deliver(messages, 500, 10, (5000, 0), cap=10**6)
    assert (group.lost, group.pending_count) == (5000, 1)


def test_at_the_cap_enough_is_dropped_to_go_on() -> None:
    messages, group = filled(5001), with_leases(5000)
    messages.evict_through(4000)
    assert group.deliver(messages, 500, 10, (5000, 0), cap=2000).runs == [(5001, 5002)]
    assert 1000 < group.pending_count <= 2000


@pytest.mark.parametrize("dead_letter", [None, b"dead"])
def test_expired_leases_are_dropped_in_slices_and_never_delivered(dead_letter: bytes | None) -> None:
    messages, group = filled(5001), with_leases(5000, expire_at=2000, dead_letter=dead_letter)
    delivery = group.deliver(messages, 5000, 10, (5000, 0), cap=10**6)
    assert delivery.runs == [(5001, 5002)]
    assert SLICE <= len(delivery.expired) <= 2 * SLICE
    expired = len(delivery.expired)
    while (slice_ := group.expire(messages, 5000)[0]) != []:
        assert len(slice_) <= SLICE
        expired += len(slice_)
    assert (expired, group.pending_count) == (5000, 1)


def test_a_long_lease_with_a_dead_letter_key_expires_in_pieces() -> None:
    messages, group = filled(10_000), Group(10_001)
    group.leases.put(Lease(1, 10_001, 1000, 2000, 0, 3, b"dead"))
    given_up, change = group.expire(messages, 3000)
    assert [lease[:2] for lease in given_up] == [(1, 1 + SLICE)]
    assert change is not None
    assert change.removed == ((1, 1 + SLICE),)
    assert group.pending_count == 10_000 - SLICE
    assert group.next_deadline() == 1000
    group.check()


def test_a_lease_of_messages_that_are_not_there_expires_at_once() -> None:
    messages, group = filled(10), Group(1)
    group.leases.put(Lease(5, 1 << 62, 1000, 2000, 0, 3, b"dead"))
    assert group.deliver(messages, 3000, 2, (5000, 0), cap=1).runs == [(1, 2)]
    assert group.pending_count == 1


def test_offsets_and_times_as_large_as_they_get_are_kept_apart() -> None:
    largest = (1 << 63) - 1
    leases = Leases()
    leases.put(Lease(largest - 1, largest, largest, largest, largest, 1, None))
    leases.put(Lease(1, 2, largest, 1, 0, 1, None))
    leases.check()
    assert leases.next_deadline() == 1
    assert leases.due(largest) == next(iter(leases))
    assert leases.drop(1, largest) == 2
    leases.check()
