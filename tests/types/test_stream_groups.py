"""Consumer groups: leases, retries, expiry, acknowledgements, and changes that can be replayed."""

from __future__ import annotations

import struct
from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.types.packing import CorruptValue
from penstock.types.stream.changes import Change
from penstock.types.stream.compaction import compact
from penstock.types.stream.groups import Group
from penstock.types.stream.lease_chunk import Lease
from penstock.types.stream.messages import Messages


def filled(count: int) -> Messages:
    messages = Messages()
    messages.append_many(0, [b""] * count, [b"x" * 84] * count)
    return messages


def test_the_longest_times_end_with_the_last_moment_that_can_be_kept() -> None:
    longest = (1 << 63) - 1
    messages, group = filled(1), Group(1)
    (run,) = group.deliver(messages, 1_000_000, 1, (longest, longest), 100).runs
    assert run == (1, 2)
    group.check()
    assert not group.deliver(messages, longest - 1, 1, (1, 0), 100).runs


def test_what_is_acknowledged_leaves_nothing_behind() -> None:
    """Times of leases that are gone would have to be swept out by some later call, all of them at once."""
    messages, group = filled(50), Group(1)
    empty = group.size()
    for now in range(25):
        group.deliver(messages, now, 2, (100, 1000))
        group.ack([(2 * now + 1, 2 * now + 2)])
    group.nack([(1, 51)], at=5000)
    group.deliver(messages, 60, 50, (100, 1000))
    group.ack([(1, 51)])
    assert (group.pending_count, group.size()) == (0, empty)
    assert group.next_deadline() is None


def test_members_of_a_group_get_different_messages() -> None:
    messages, group = filled(10), Group(1)
    assert [group.deliver(messages, 0, 4).runs for _ in range(4)] == [[(1, 5)], [(5, 9)], [(9, 11)], []]


def test_without_retry_a_delivery_is_its_acknowledgement() -> None:
    messages, group = filled(10), Group(1)
    group.deliver(messages, 0, 4)
    assert (group.pending_count, group.done_through, group.next_deadline()) == (0, 4, None)
    assert group.acknowledged == 4


def test_messages_not_acknowledged_in_time_come_again_before_new_ones() -> None:
    messages, group = filled(10), Group(1)
    group.deliver(messages, 1000, 3, (100, 0))
    assert group.deliver(messages, 1099, 3, (100, 0)).runs == [(4, 7)]
    assert group.deliver(messages, 1100, 5, (100, 0)).runs == [(1, 4), (7, 9)]
    assert [lease.attempts for lease in group.pending(1, 11)] == [2, 1, 1]


def test_one_message_that_is_not_due_does_not_hide_those_that_are() -> None:
    """In a plain list of pending messages the first entry that is not due would hide those behind it."""
    messages, group = filled(3), Group(1)
    group.deliver(messages, 0, 1, (10_000, 0))
    group.deliver(messages, 0, 1, (10, 0))
    assert group.deliver(messages, 10, 1, (10, 0)).runs == [(2, 3)]


def test_retries_come_in_the_order_they_fell_due() -> None:
    messages, group = filled(3), Group(1)
    for retry_ms in (30, 10, 20):
        group.deliver(messages, 0, 1, (retry_ms, 0))
    assert group.deliver(messages, 50, 9, (100, 0)).runs == [(2, 4), (1, 2)]


def test_a_retry_is_not_due_in_the_millisecond_of_its_delivery() -> None:
    messages, group = filled(3), Group(1)
    assert group.deliver(messages, 5, 10, (0, 0)).runs == [(1, 4)]
    assert group.deliver(messages, 5, 10, (0, 0)).runs == []
    assert group.deliver(messages, 6, 10, (0, 0)).runs == [(1, 4)]


def test_a_small_count_splits_a_due_lease() -> None:
    messages, group = filled(10), Group(1)
    group.deliver(messages, 0, 10, (100, 0))
    assert group.deliver(messages, 100, 3, (50, 0)).runs == [(1, 4)]
    assert group.deliver(messages, 100, 3, (50, 0)).runs == [(4, 7)]
    assert [lease[:3] for lease in group.pending(1, 11)] == [(1, 4, 150), (4, 7, 150), (7, 11, 100)]


def test_acknowledging_inside_a_lease_leaves_the_rest_pending() -> None:
    messages, group = filled(10), Group(1)
    group.deliver(messages, 0, 10, (100, 0))
    assert group.ack([(3, 4), (6, 8), (3, 4), (50, 60)]) == 3
    group.check()
    assert [lease[:2] for lease in group.pending(1, 100)] == [(1, 3), (4, 6), (8, 11)]
    assert group.deliver(messages, 100, 10, (100, 0)).runs == [(1, 3), (4, 6), (8, 11)]
    assert group.ack([(1, 100)]) == 7
    assert (group.pending_count, group.done_through, group.acknowledged) == (0, 10, 10)


def test_the_floor_is_the_first_message_not_acknowledged() -> None:
    messages, group = filled(10), Group(1)
    group.deliver(messages, 0, 6, (100, 0))
    group.ack([(1, 3), (5, 6)])
    assert (group.done_through, group.acknowledged) == (2, 3)


def test_expiry_counts_from_the_first_delivery() -> None:
    messages, group = filled(4), Group(1)
    group.deliver(messages, 0, 2, (100, 250), dead_letter=b"dead")
    group.deliver(messages, 100, 2, (100, 0))
    group.deliver(messages, 200, 2, (100, 9999))
    assert group.next_deadline() == 250
    assert group.expire(messages, 249) == ([], None)
    expired, change = group.expire(messages, 250)
    assert expired == [Lease(1, 3, 300, 250, 0, 3, b"dead", 3)]
    assert change == Change(3, 0, ((1, 3),), (), 3, 0)
    assert (group.pending_count, group.next_deadline()) == (0, None)


def test_a_read_drops_what_expired_rather_than_delivering_it() -> None:
    messages, group = filled(4), Group(1)
    group.deliver(messages, 0, 2, (100, 150))
    delivery = group.deliver(messages, 200, 9, (100, 150))
    assert delivery.runs == [(3, 5)]
    assert [lease[:2] for lease in delivery.expired] == [(1, 3)]


def test_at_the_cap_only_retries_are_given() -> None:
    messages, group = filled(20), Group(1)
    assert group.deliver(messages, 0, 10, (100, 0), cap=6).runs == [(1, 7)]
    assert group.deliver(messages, 50, 10, (100, 0), cap=6).runs == []
    assert group.deliver(messages, 100, 10, (100, 0), cap=6).runs == [(1, 7)]
    group.ack([(2, 4)])
    assert group.deliver(messages, 110, 10, (100, 0), cap=6).runs == [(7, 9)]


def test_reaching_the_cap_does_not_stop_delivery_for_good() -> None:
    """nats-server#4112: nothing was ever acknowledged, everything expired, and no more came."""
    messages, group = filled(20), Group(1)
    group.deliver(messages, 0, 10, (100, 100), cap=5)
    assert group.next_deadline() == 100
    assert group.deliver(messages, 100, 10, (100, 100), cap=5).runs == [(6, 11)]


def test_pending_messages_that_were_evicted_are_lost_and_free_the_cap() -> None:
    """redis#6199, redis#10756: pending entries pointed at trimmed data for ever."""
    messages, group = filled(20), Group(1)
    group.deliver(messages, 0, 5, (10_000, 0), cap=5)
    messages.evict_through(3)
    assert group.deliver(messages, 1, 10, (10_000, 0), cap=5).runs == [(6, 9)]
    assert (group.lost, group.pending_count) == (3, 5)


def test_new_messages_that_were_evicted_are_skipped_and_counted() -> None:
    messages, group = filled(20), Group(1)
    messages.evict_through(7)
    assert group.deliver(messages, 0, 2).runs == [(8, 10)]
    assert (group.lost, group.position) == (7, 10)


def test_a_group_behind_an_emptied_log_catches_up_with_its_losses() -> None:
    messages, group = filled(20), Group(5)
    messages.evict_through(20)
    assert group.deliver(messages, 0, 5, (10, 0)).change == Change(21, 16, acknowledged=0)
    assert group.deliver(messages, 0, 5, (10, 0)).change is None


def test_compacted_messages_are_skipped_and_not_lost() -> None:
    messages, group = Messages(), Group(1)
    messages.append_many(0, [b"k"] * 998 + [b"a", b"b"], [b""] * 1000)
    group.deliver(messages, 0, 10, (100, 0))
    messages.set_compaction(True)
    while compact(messages).more:
        pass
    assert group.lag(messages) == 3
    replica = group.copy()
    delivery = group.deliver(messages, 100, 10, (100, 0))
    assert delivery.runs == [(998, 1001)]
    assert (group.lost, group.pending_count) == (0, 3)
    assert delivery.change is not None
    replica.apply(delivery.change)
    assert replica.dump() == group.dump()


def test_lag_is_exact_whatever_was_evicted_or_added() -> None:
    """redis#13337, redis#13957: lag was wrong after a trim, and below zero after a reset."""
    messages, group = filled(20), Group(1)
    assert group.lag(messages) == 20
    group.deliver(messages, 0, 5)
    assert group.lag(messages) == 15
    messages.evict_through(12)
    assert group.lag(messages) == 8
    group.position = 500
    assert group.lag(messages) == 0
    group.position = 1
    assert group.lag(messages) == 8


def test_max_bytes_is_shared_by_retries_and_new_messages() -> None:
    messages, group = filled(20), Group(1)  # 100 bytes each
    group.deliver(messages, 0, 2, (100, 0))
    assert group.deliver(messages, 100, 10, (100, 0), max_bytes=450).runs == [(1, 6)]
    assert group.deliver(messages, 200, 10, (100, 0), max_bytes=1).runs == [(1, 2)]


def test_a_refused_message_is_due_when_asked_for() -> None:
    messages, group = filled(5), Group(1)
    group.deliver(messages, 0, 5, (10_000, 0))
    assert group.nack([(2, 4), (9, 12)], at=50) == 2
    assert group.leases.next_retry() == 50
    assert group.deliver(messages, 50, 5, (10_000, 0)).runs == [(2, 4)]


def test_a_rewound_group_delivers_again_and_counts_pending_once() -> None:
    messages, group = filled(10), Group(1)
    group.deliver(messages, 0, 6, (100, 0))
    group.position = 4
    assert group.deliver(messages, 10, 10, (100, 0)).runs == [(4, 11)]
    group.check()
    assert group.pending_count == 10


def test_pending_is_listed_by_range_and_count() -> None:
    messages, group = filled(100), Group(1)
    for _ in range(10):
        group.deliver(messages, 0, 10, (100, 0))
    assert [lease[:2] for lease in group.pending(15, 35)] == [(15, 21), (21, 31), (31, 35)]
    assert [lease[:2] for lease in group.pending(15, 35, 8)] == [(15, 21), (21, 23)]
    assert group.pending(101, 200) == []


def test_a_hundred_messages_are_one_lease_in_and_one_out() -> None:
    messages, group = filled(1000), Group(1)
    group.deliver(messages, 0, 100, (100, 1000))
    assert len(group.leases) == 1
    group.ack([(1, 101)])
    assert len(group.leases) == 0


def test_acknowledged_leases_do_not_pile_up_in_the_heaps() -> None:
    messages, group = filled(5000), Group(1)
    group.deliver(messages, 0, 1, (9_000, 9_000))  # stays on top, so that none is swept in passing
    for offset in range(2, 5001):
        group.deliver(messages, 0, 1, (10_000, 10_000))
        group.ack([(offset, offset + 1)])
    assert group.size() < 30_000


@given(
    st.lists(
        st.tuples(st.sampled_from(["read", "ack", "nack", "expire"]), st.integers(1, 30), st.integers(0, 8)),
        max_size=40,
    ),
    st.integers(0, 40),
)
def test_replaying_changes_on_an_older_copy_gives_the_same_group(
    steps: list[tuple[str, int, int]], copied_at: int
) -> None:
    """redis#5433: acknowledgements and positions must be the same after a failover."""
    messages, group = filled(30), Group(1)
    replica = Group.load(group.dump(), messages.last)
    now = 0
    for number, (action, offset, amount) in enumerate(steps):
        now += amount
        if number == copied_at:
            replica = Group.load(group.dump(), messages.last)
        change = None
        if action == "read":
            change = group.deliver(messages, now, amount, (offset, 3 * offset), cap=12, dead_letter=b"d").change
        elif action == "expire":
            _, change = group.expire(messages, now)
        elif action == "ack":
            assert group.ack([(offset, offset + amount)]) == replica.ack([(offset, offset + amount)])
        else:
            assert group.nack([(offset, offset + amount)], now) == replica.nack([(offset, offset + amount)], now)
        if change is not None:
            replica.apply(Change.decode(change.encode()))
        group.check()
        replica.check()
        assert replica.dump() == group.dump()
        assert replica.next_deadline() == group.next_deadline()
        assert replica.pending_count == group.pending_count


def test_a_read_that_finds_nothing_changes_nothing() -> None:
    messages, group = filled(2), Group(3)
    for retry in (None, (10, 10)):
        assert group.deliver(messages, 0, 5, retry)[:3] == ([], [], None)


def test_damaged_leases_are_refused() -> None:
    overlapping = Change(9, 0, (), (Lease(1, 5, 1, 0, 0, 1, None), Lease(3, 6, 1, 0, 0, 1, None)))
    reversed_lease = Change(9, 0, (), (Lease(5, 1, 1, 0, 0, 1, None),))
    never_written = Change(9, 0, (), (Lease(1, 10, 1, 0, 0, 1, None),))
    for data in (overlapping.encode(), reversed_lease.encode(), never_written.encode(), b"", overlapping.encode()[:-1]):
        with pytest.raises(CorruptValue):
            Group.load(data, 8)


def test_a_lease_beyond_the_log_is_dropped_when_due() -> None:
    messages, group = filled(2), Group(3)
    group.apply(Change(3, 0, (), (Lease(1, 9, 5, 0, 0, 1, None),)))
    assert group.deliver(messages, 10, 100, (10, 0)).runs == [(1, 3)]
    assert (group.pending_count, group.lost) == (2, 0)


@pytest.mark.parametrize(("start", "end"), [(-3, 5), (0, 5), (5, 5), (6, 5)])
def test_a_lease_of_no_offsets_is_refused(start: int, end: int) -> None:
    change = Change(7, 0, (), (Lease(start, end, 50, 60, 40, 1, None),))
    with pytest.raises(CorruptValue, match="no offsets"):
        Change.decode(change.encode())


@pytest.mark.parametrize(("position", "lost"), [(0, 0), (-(2**63), 0), (1, -1), (1, 2**63 - 1)])
def test_a_change_to_numbers_that_cannot_be_is_refused(position: int, lost: int) -> None:
    """With them the next read would count beyond 64 bits, and no snapshot could be written any more."""
    written = Change(1, 0).encode().replace(struct.pack("<qq", 1, 0), struct.pack("<qq", position, lost), 1)
    with pytest.raises(CorruptValue, match="cannot be"):
        Change.decode(written)


def test_attempts_are_counted_as_far_as_a_snapshot_can_tell() -> None:
    messages, group = filled(1), Group(2)
    group.apply(Change(2, 0, (), (Lease(1, 2, 5, 0, 0, 0xFFFFFFFF - 1, None),)))
    for now in (10, 30):
        assert group.deliver(messages, now, 1, (10, 0)).runs == [(1, 2)]
        assert [lease.attempts for lease in Group.load(group.dump(), 1).leases] == [0xFFFFFFFF]


@pytest.mark.parametrize("dead_letter", [None, b"dead"])
def test_what_was_evicted_before_it_was_given_up_is_lost(dead_letter: bytes | None) -> None:
    messages, group = filled(20), Group(1)
    group.deliver(messages, 0, 5, (10, 100), dead_letter=dead_letter)
    messages.evict_through(3)
    replica = group.copy()
    leases, change = group.expire(messages, 100)
    assert [lease[:2] for lease in leases] == [(1, 6)]
    assert (group.lost, group.pending_count) == (3, 0)
    assert change is not None
    replica.apply(change)
    assert replica.dump() == group.dump()


def test_a_token_costs_little_however_many_leases_it_has() -> None:
    """Each lease was postponed by itself: 200,000 of them stopped the server for seconds."""
    messages, group = filled(20_000), Group(1)
    group.deliver(messages, 0, 20_000, (100, 0), cap=20_000, token=7)
    group.ack([(offset, offset + 1) for offset in range(2, 20_000, 2)])
    assert len(group.leases) > 9_000

    def cost(token: int | None) -> float:
        begin = perf_counter()
        assert group.extend([(1, 20_001)], 1000, token) == group.pending_count
        return perf_counter() - begin

    assert min(cost(7) for _ in range(5)) < 10 * min(cost(None) for _ in range(5))


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 9), st.integers(1, 2))), st.integers(1, 40))
def test_a_token_changes_what_is_leased_under_it_and_nothing_else(rows: list[tuple[int, int, int]], start: int) -> None:
    group, tokens = Group(1), dict[int, int]()
    for first, length, token in rows:
        group.leases.put(Lease(first, first + length, 50, 0, 0, 1, None, token))
        tokens |= dict.fromkeys(range(first, first + length), token)
    mine = [offset for offset, token in tokens.items() if token == 1 and start <= offset < 45]
    assert group.extend([(start, 45)], 99, 1) == len(mine)
    postponed = [range(lease.start, lease.end) for lease in group.leases if lease.retry_at == 99]
    assert sorted(mine) == [offset for run in postponed for offset in run]
    group.check()
