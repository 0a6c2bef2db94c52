"""After an outage groups wait before they deliver again or give up."""

from __future__ import annotations

import pytest
from tests.support.commands.stream_world import World

from penstock.engine.lease_grace import LONGEST, STOOD_STILL

READ = "TREAD k 0 1 GROUP g RETRY 3000 0"
PERIOD = 100  # the loop's


@pytest.fixture
def world() -> World:
    world = World()
    world.engine.streams.started()
    world.write("k", "a")
    world.engine.streams.tick()
    return world


def work(world: World, milliseconds: int) -> None:
    """Time passes, and the loop is at work all the time."""
    for _ in range(milliseconds // PERIOD):
        world.pass_time(PERIOD)


def test_a_lease_that_ends_while_the_loop_works_is_due_at_once(world: World) -> None:
    assert world.offsets(READ) == [1]
    work(world, 3000)
    assert world.offsets(READ) == [1]


def test_a_lease_that_ends_in_a_standstill_is_due_after_as_long_a_time(world: World) -> None:
    assert world.offsets(READ) == [1]
    world.clock.advance(4000)
    assert world.offsets(READ) == []  # also before the first round of upkeep
    work(world, 3900)
    assert world.offsets(READ) == []
    work(world, 100)
    assert world.offsets(READ) == [1]


def test_a_grace_has_an_end_however_long_the_standstill_was(world: World) -> None:
    assert world.offsets(READ) == [1]
    world.pass_time(10 * LONGEST)
    assert world.offsets(READ) == []
    work(world, LONGEST)
    assert world.offsets(READ) == [1]


def test_what_was_due_before_a_standstill_is_due_after_it(world: World) -> None:
    assert world.offsets(READ) == [1]
    work(world, 3000)
    world.pass_time(10 * LONGEST)
    assert world.offsets(READ) == [1]


def test_pending_messages_show_when_they_really_come_again(world: World) -> None:
    """A consumer that keeps order waits for that time before it reads: a read in the grace would give new messages."""
    assert world.offsets(READ) == [1]
    world.clock.advance(4000)
    ((_, _, _, _, retry, _),) = world.run("TGROUP PENDING k g")
    assert retry - world.clock.now == 4000
    work(world, 4000)
    ((_, _, _, _, retry, _),) = world.run("TGROUP PENDING k g")
    assert retry <= world.clock.now
    assert world.offsets(READ) == [1]


def test_new_messages_do_not_wait(world: World) -> None:
    world.pass_time(10 * LONGEST)
    assert world.offsets(READ) == [1]


def test_a_short_delay_is_no_standstill(world: World) -> None:
    assert world.offsets(READ) == [1]
    work(world, 2500)
    world.clock.advance(STOOD_STILL)
    assert world.offsets(READ) == [1]


def test_a_waiting_member_sleeps_until_the_grace_is_over(world: World) -> None:
    assert world.offsets(READ) == [1]
    waiting = world.client(f"{READ} BLOCK 0")
    world.clock.advance(4000)
    work(world, 3900)
    assert waiting.replies == []
    work(world, 200)
    assert waiting.replies == [[[1, b"", b"a"]]]


def test_an_extension_in_the_grace_saves_the_last_attempt(world: World) -> None:
    world.run(f"{READ} MAXATTEMPTS 1 DEADLETTER dead")
    world.pass_time(10 * LONGEST)
    assert world.run("TEXTEND k g 60000 1") == 1
    work(world, 2 * LONGEST)
    assert world.group()[b"pending"] == 1 and world.run("EXISTS dead") == 0


def test_after_a_start_with_leases_there_is_a_grace(world: World) -> None:
    assert world.offsets(READ) == [1]
    again = world.restarted()
    again.engine.streams.started()
    assert again.offsets(READ) == []
    work(again, LONGEST)
    assert again.offsets(READ) == [1]


def test_after_a_start_without_leases_there_is_none(world: World) -> None:
    again = world.restarted()
    again.engine.streams.started()
    assert again.offsets("TREAD k 0 1 GROUP g RETRY 100 0") == [1]
    work(again, 100)
    assert again.offsets("TREAD k 0 1 GROUP g RETRY 100 0") == [1]


def started_with_a_lease(world: World) -> World:
    """The server again after a restart, in the grace: a member holds message 1."""
    assert world.offsets(READ) == [1]
    again = world.restarted()
    again.engine.streams.started()
    assert again.offsets(READ) == []
    return again


def test_a_message_that_is_given_back_in_the_grace_does_not_wait_for_its_end(world: World) -> None:
    again = started_with_a_lease(world)
    waiting = again.client(f"{READ} BLOCK 0")
    assert again.run("TNACK k g 1") == 1
    assert waiting.replies == [[[1, b"", b"a"]]]


def test_a_message_that_is_given_back_in_the_grace_comes_after_its_delay(world: World) -> None:
    again = started_with_a_lease(world)
    assert again.run("TNACK k g 1 DELAY 1000") == 1
    ((_, _, _, _, retry, _),) = again.run("TGROUP PENDING k g")
    assert retry - again.clock.now == 1000 == again.group()[b"next-retry"] - again.clock.now
    waiting = again.client(f"{READ} BLOCK 0")
    work(again, 900)
    assert waiting.replies == []
    work(again, 100)
    assert waiting.replies == [[[1, b"", b"a"]]]


def test_a_message_that_was_given_back_before_a_restart_does_not_wait_for_the_grace(world: World) -> None:
    world.write("k", "b")
    assert world.offsets(READ) == [1]
    assert world.offsets(READ) == [2]
    assert world.run("TNACK k g 1") == 1
    again = world.restarted()
    again.engine.streams.started()
    assert again.offsets("TREAD k 0 9 GROUP g RETRY 3000 0") == [1]


def test_a_message_that_is_given_back_in_the_grace_after_its_last_attempt_is_given_up(world: World) -> None:
    assert world.offsets(f"{READ} MAXATTEMPTS 1 DEADLETTER dead") == [1]
    again = world.restarted()
    again.engine.streams.started()
    assert again.run("TNACK k g 1") == 1
    assert again.offsets(READ) == []
    assert again.run("TINFO dead")
    assert again.group()[b"pending"] == 0
