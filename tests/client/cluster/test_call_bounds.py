"""How much the calls of a cluster client may hold, and in which order they wait for room."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from tests.support.client.interrupts import Interrupt

import penstock
from penstock import aio
from penstock.client.cluster.call_bounds import CallBounds, Hold
from penstock.client.cluster.core import ClusterCore
from penstock.client.cluster.driver_requests import Room
from penstock.client.errors import BufferFull


def make_bounds(bound: int) -> CallBounds:
    return ClusterCore("h", max_buffered_commands=bound).bounds


def test_waiting_calls_are_admitted_in_order_and_none_overtakes_a_large_one() -> None:
    bounds, woken = make_bounds(10), list[int]()
    inside = [Hold(5, 1), Hold(4, 1)]
    assert all(bounds.enter(hold) for hold in inside)
    large, small, last = (Hold(count, 1) for count in (8, 1, 2))
    places = [bounds.queue(hold, lambda hold=hold: woken.append(hold.count)) for hold in (large, small, last)]  # type: ignore[misc]
    assert not bounds.enter(Hold(1, 1)), "there is room for one, but others wait"
    bounds.leave(inside[0])
    assert not woken
    bounds.leave(inside[1])
    assert woken == [8, 1] and large.is_held and small.is_held and not last.is_held
    bounds.leave(large)
    assert woken == [8, 1, 2] and bounds.enter(Hold(1, 1)) and len(places) == 3
    assert bounds.counters.buffered_commands == 1 + 2 + 1


def test_a_waiting_call_that_has_given_up_is_skipped() -> None:
    bounds = make_bounds(1)
    inside, next_one = Hold(1, 1), Hold(1, 1)
    assert bounds.enter(inside)
    gone = bounds.queue(Hold(1, 1), lambda: None)
    place = bounds.queue(next_one, lambda: None)
    del gone
    bounds.leave(inside)
    assert next_one.is_held and place.hold is next_one and bounds.counters.buffered_commands == 1


def test_leaving_twice_is_leaving_once() -> None:
    bounds, hold = make_bounds(1), Hold(1, 7)
    assert bounds.enter(hold)
    for _ in range(2):
        bounds.leave(hold)
        assert bounds.counters.buffered_commands == bounds.counters.buffered_bytes == 0


def test_a_wake_up_lost_to_an_interrupt_is_made_up_by_the_next_call_that_ends() -> None:
    bounds, woken = make_bounds(2), list[str]()
    inside, waits, comes = Hold(1, 1), Hold(2, 1), Hold(1, 1)
    assert bounds.enter(inside)

    def wake() -> None:
        if not woken:
            woken.append("interrupted")
            raise Interrupt
        woken.append("told")

    place = bounds.queue(waits, wake)
    with pytest.raises(Interrupt):
        bounds.leave(inside)
    assert waits.is_held and not bounds.enter(comes)
    bounds.leave(inside)  # as a caller that was interrupted in it does
    assert woken == ["interrupted", "told"] and place.hold is waits


# -- those who drive it ---------------------------------------------------------------------------------------


def test_a_kept_exception_blocks_no_waiting_call() -> None:
    async def in_a_loop() -> None:
        async with aio.Cluster("h", max_buffered_commands=1) as client:
            inside, later = Hold(1, 1), Hold(1, 1)
            assert client.core.bounds.enter(inside)
            with pytest.raises(BufferFull) as kept:
                await client._wait_for_room(Room(Hold(1, 1), client.core.rules.clock()))
            client.core.bounds.leave(inside)
            await client._wait_for_room(Room(later, client.core.rules.clock() + 60))
            assert later.is_held and kept.value.__traceback__ is not None

    asyncio.run(in_a_loop())
    with penstock.Cluster("h", max_buffered_commands=1) as client:
        inside, later = Hold(1, 1), Hold(1, 1)
        assert client.core.bounds.enter(inside)
        with pytest.raises(BufferFull) as kept:
            client._wait_for_room(Room(Hold(1, 1), client.core.rules.clock()))
        client.core.bounds.leave(inside)
        client._wait_for_room(Room(later, client.core.rules.clock() + 60))
        assert later.is_held and kept.value.__traceback__ is not None


@pytest.mark.parametrize("forgets", [False, True])
def test_threads_and_tasks_are_admitted_even_without_a_wake_up(forgets: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """`forgets`: the caller that left was interrupted before it let the next one in."""

    def leave(bounds: CallBounds, hold: Hold) -> None:
        if forgets:
            monkeypatch.setattr(bounds, "_admit", lambda: None)
        bounds.leave(hold)
        monkeypatch.undo()

    async def in_a_loop() -> None:
        async with aio.Cluster("h", max_buffered_commands=1) as client:
            inside, later = Hold(1, 1), Hold(1, 1)
            assert client.core.bounds.enter(inside)
            waiting = asyncio.ensure_future(client._wait_for_room(Room(later, client.core.rules.clock() + 60)))
            await asyncio.sleep(0)
            leave(client.core.bounds, inside)
            await waiting
            assert later.is_held

    asyncio.run(in_a_loop())
    with penstock.Cluster("h", max_buffered_commands=1) as client:
        inside, later = Hold(1, 1), Hold(1, 1)
        assert client.core.bounds.enter(inside)
        arguments: list[Any] = [Room(later, client.core.rules.clock() + 60)]
        thread = threading.Thread(target=client._wait_for_room, args=arguments)
        thread.start()
        while not client.core.bounds._queue:
            pass
        leave(client.core.bounds, inside)
        thread.join(60)
        assert later.is_held
