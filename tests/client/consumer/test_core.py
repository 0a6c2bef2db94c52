"""The parts of a consumer without I/O: how much it fetches, what may begin together, what it asks to be sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import redis

from penstock import GIVE_UP
from penstock.client.consumer.core import ConsumerCore
from penstock.client.consumer.delivered import Delivered, Row
from penstock.client.consumer.holdings import Holdings, Lease
from penstock.client.consumer.options import ConsumerSettings
from penstock.client.consumer.outages import may_pass
from penstock.client.consumer.pace import LONGEST_SHARE, SHARE, WINDOW, Pace
from penstock.client.consumer.queues import Lanes, PlainQueue
from penstock.client.consumer.steps import Call
from penstock.client.consumer.worker_share import WorkerShare
from penstock.client.delivery import State
from penstock.client.errors import ClientClosed, NotSent, OutcomeUnknown


def messages(*attempted: int, tags: Sequence[Any] = "") -> list[Row]:
    """Messages 1, 2, ... with so many attempts before, and tags."""
    letters = tags or "t" * len(attempted)
    return [[offset, letters[offset - 1], b"", 0, attempts] for offset, attempts in enumerate(attempted, start=1)]


def offsets(part: list[Row]) -> list[int]:
    return [row[0] for row in part]


@pytest.mark.parametrize(
    ("seconds", "part", "window"),
    [(0.2, 1, 0), (0.02, 1, int(WINDOW / 0.02)), (0.001, int(SHARE / 0.001), int(WINDOW / 0.001)), (1e-6, 500, 500)],
)
def test_what_is_fetched_is_bounded_by_the_time_of_a_body(seconds: float, part: int, window: int) -> None:
    pace = Pace(500)
    assert (pace.share(), pace.window(1)) == (1, 0), "one message tells how long a body takes"
    for _ in range(20):
        pace.note(seconds * pace.share(), pace.share())
    assert (pace.share(), pace.window(1)) == (pytest.approx(part, abs=1), pytest.approx(window, abs=1))


@pytest.mark.parametrize(("trip", "part"), [(0.0005, SHARE), (0.0015, 20 * 0.0015), (0.5, LONGEST_SHARE)])
def test_shares_are_long_beside_the_round_trips_between_them(trip: float, part: float) -> None:
    pace = Pace(500)
    for _ in range(50):
        pace.note(0.001 * pace.share(), pace.share())
        pace.note_trip(trip)
    assert pace.share() == pytest.approx(part / 0.001, abs=1)
    assert pace.window(1) == pytest.approx(WINDOW / 0.001, abs=1)


def test_one_slow_body_does_not_change_the_pace_for_good() -> None:
    pace = Pace(500)
    for _ in range(20):
        pace.note(0.001 * pace.share(), pace.share())
    pace.note(30, 1)
    for _ in range(10):
        pace.note(0.001 * pace.share(), pace.share())
    assert pace.share() >= 10


def test_a_message_that_was_attempted_before_begins_alone() -> None:
    for queue in (PlainQueue(), Lanes()):
        queue.add(messages(0, 0, 1, 2, 0, 0))
        taken = []
        while part := queue.take(10, now=0):
            taken.append(offsets(part))
            queue.finish(part)
        assert taken == [[1, 2], [3], [4], [5, 6]] and len(queue) == 0


def test_messages_of_a_lane_that_failed_together_come_again_one_after_the_other() -> None:
    lanes = Lanes()
    lanes.add(messages(0, 0, 0))
    failed = lanes.take(3, now=0)
    for row in reversed(failed):
        row[4] += 1
        lanes.retry(row, at=1)
    lanes.finish(failed)
    assert lanes.take(3, now=0.5) == []
    for offset in (1, 2, 3):
        part = lanes.take(3, now=1)
        assert offsets(part) == [offset] and lanes.take(3, now=1) == []
        lanes.finish(part)


def test_what_was_fetched_one_by_one_begins_together() -> None:
    queue = PlainQueue()
    for message in messages(0, 0, 3, 0, 0):
        queue.add([message])
    assert [offsets(queue.take(10, 0.0)) for _ in range(4)] == [[1, 2], [3], [4, 5], []]
    for message in messages(0, 0, 0):
        queue.add([message])
    assert [offsets(queue.take(2, 0.0)) for _ in range(2)] == [[1, 2], [3]]


@pytest.mark.parametrize("ordered_by", [None, "tag"])
def test_a_batch_that_is_not_full_waits_for_its_oldest_message_and_no_longer(ordered_by: Any) -> None:
    now = 0.0
    core = ConsumerCore(ConsumerSettings("s", "g", ordered_by=ordered_by), lambda: now)
    core.batch, core.batch_ms = 2, 1000
    for now in (1.0, 1.25, 1.5):
        core._add([7, [int(now * 100), b"t", b"", 0, 0]])
    assert offsets(core._take()) == [100, 125]
    core.queue.finish(messages(0, tags=[b"t"]))
    now = 2.25
    assert core._take() == [] and core._longest_block() == 250
    now = 2.5
    assert offsets(core._take()) == [150]


def test_a_lane_gives_out_nothing_while_one_of_its_messages_is_processed() -> None:
    lanes = Lanes()
    lanes.add(messages(0, 0, 0, 0, 0, tags="abaab"))
    first, second = lanes.take(1, 0), lanes.take(9, 0)
    assert (offsets(first), offsets(second), lanes.take(9, 0)) == ([1], [2, 5], [])
    lanes.retry(first[0], at=5.0)
    lanes.finish(first)
    assert lanes.take(9, now=4.9) == [] and lanes.next_at() == 5.0
    assert offsets(lanes.take(1, now=5.0)) == [1]


def test_what_is_removed_from_lanes_is_not_given_out() -> None:
    lanes = Lanes()
    lanes.add(messages(0, 0, 0, 0, tags="abab"))
    assert offsets(lanes.remove_tags({"a"})) == [1, 3] and len(lanes) == 2
    assert offsets(lanes.take(9, 0)) == [2, 4] and lanes.take(9, 0) == []


def drive(core: ConsumerCore, steps: Any, replies: list[list[Any]]) -> tuple[list[Any], Any]:
    """The commands that were asked for, and the first step that is no call."""
    asked = []
    step = next(steps)
    while isinstance(step, Call):
        asked.append([words[0] for words in step.commands])
        step = steps.send(replies.pop(0))
    return asked, step


@pytest.mark.parametrize("delay", [GIVE_UP, 10])
def test_a_message_that_was_lost_while_its_body_failed_is_neither_given_up_nor_kept(delay: Any) -> None:
    core = ConsumerCore(ConsumerSettings("s", "g", ordered_by="tag", retry={ValueError: delay}), clock=lambda: 0.0)
    core._add([7, [1, b"t", b"", 0, 0]])
    rows = core._take()
    part = WorkerShare(core, rows)
    for message in part.each():
        part.failed(message, ValueError())
    core.holdings.forget(rows)  # the keeper found that another member has it
    assert list(core._retry(part.failures)) == [] and len(core.queue) == 0


def fetched(token: int, *rows: int) -> list[Any]:
    """The reply of a read: messages of one tag."""
    return [token, *([offset, b"t", b"", 0, 0] for offset in rows)]


def ordered_core() -> ConsumerCore:
    """A consumer that has taken over all that was pending, and whose bodies are quick."""
    core = ConsumerCore(ConsumerSettings("s", "g", ordered_by="tag"), clock=lambda: 0.0)
    core._sender.has_lost_read = False
    for _ in range(9):
        core.pace.note(1e-6, 500)
    return core


def test_what_comes_behind_a_lost_message_of_its_tag_is_not_begun_whatever_delivery_it_came_with() -> None:
    core = ordered_core()
    for token, offset in ((7, 1), (8, 2), (9, 3)):
        core._add(fetched(token, offset))
    steps = core.work()
    # Message 2 was given to another member while it waited: it is not begun, and neither is what comes behind it.
    asked, part = drive(core, steps, [[1, 0, 1, None], [0]])
    assert asked == [["TEXTEND", "TEXTEND", "TEXTEND", "TREAD"], ["TEXTEND"]]
    assert [message.offset for message in part.each()] == [1]
    assert offsets([row for row, verdict in core.holdings.take_settled([])]) == [3], "it is given back"


def test_what_a_read_brings_behind_a_lost_message_of_its_tag_waits_for_it() -> None:
    core = ordered_core()
    core._add(fetched(7, 1, 2))
    questions = core._find_lost([core.holdings.rows[1]])
    next(questions)
    with pytest.raises(StopIteration):
        questions.send([0])  # another member has message 1
    core._add([8, [3, b"t", b"", 0, 0], [4, b"other", b"", 0, 0]])  # the reply of a read that was under way
    assert offsets(core._take()) == [4] and not core._take(), "messages 2 and 3 are fetched again together with 1"
    step = next(core.work())
    assert isinstance(step, Call)
    assert [words[0] for words in step.commands] == ["TGROUP", "TIME"], "before new messages are read"


def test_messages_that_wait_in_their_lane_are_held_as_long_as_others_of_their_delivery_begin() -> None:
    now = 0.0
    core = ConsumerCore(ConsumerSettings("s", "g", ordered_by="tag", retry_ms=30_000), clock=lambda: now)
    core._sender.has_lost_read = False
    core._add(fetched(7, 1, 2, 3))
    steps = core.work()
    asked, part = drive(core, steps, [[1]])
    assert asked == [["TEXTEND"]]
    now = 9.0
    for message in part.each():
        part.done(message.row)
    asked, part = drive(core, steps, [[1, 1]])
    assert asked == [["TACK", "TEXTEND"]], "message 2 begins"
    now = 11.0
    extension = next(core._extend())
    assert isinstance(extension, Call)
    (words,) = extension.commands
    assert words[-1] == 3, "which no command has extended since it was fetched"


def test_a_part_costs_one_round_trip_when_bodies_are_quick() -> None:
    core = ConsumerCore(ConsumerSettings("s", "g"), clock=lambda: 0.0)
    steps = core.work()
    row = [b"t", b"e", 0, 0]
    asked, part = drive(core, steps, [[[9, [1, *row]]], [1]])
    assert asked == [["TREAD"], ["TEXTEND"]] and isinstance(part, WorkerShare)
    for message in part.each():
        part.done(message.row)
    asked, part = drive(core, steps, [[1, [9, *([n, *row] for n in (2, 3, 4))]], [3, [10, [5, *row]]]])
    assert asked == [["TACK", "TREAD"], ["TEXTEND", "TREAD"]]
    for message in part.each():
        part.done(message.row)
    asked, part = drive(core, steps, [[3, 1, [0]]])
    assert asked == [["TACK", "TEXTEND", "TREAD"]], "all in one go"


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (OutcomeUnknown("lost", State.WRITTEN), True), (NotSent("away"), True), (redis.BusyLoadingError("l"), True),
        (redis.ReadOnlyError("r"), True), (ClientClosed("closed"), False), (redis.AuthenticationError("a"), False),
        (redis.ResponseError("WRONGTYPE"), False),
    ],
)  # fmt: skip
def test_only_what_may_pass_is_waited_for(error: Exception, passes: bool) -> None:
    assert may_pass(error) is passes


def test_a_message_that_came_again_is_not_settled_by_its_former_delivery() -> None:
    holdings = Holdings()
    (former,) = holdings.add(Lease(1, 0.0, 0.0), messages(0))
    message = Delivered.of(former, holdings)
    message.nack()
    assert not message.is_open
    assert holdings.take_settled([]) == [(former, 0)]
    holdings.forget([former])
    (later,) = holdings.add(Lease(2, 0.0, 0.0), messages(1))
    message.ack()
    assert holdings.take_settled([]) == [] and holdings.is_open(later)
    assert (message.attempts, Delivered.of(later, holdings).attempts) == (1, 2)


def test_what_was_settled_and_then_lost_does_not_close_its_next_delivery() -> None:
    holdings = Holdings()
    (former,) = holdings.add(Lease(1, 0.0, 0.0), messages(0))
    holdings.settle(former, None)
    holdings.forget([former])  # another member has it
    (later,) = holdings.add(Lease(2, 0.0, 0.0), messages(1))
    assert holdings.is_open(later) and holdings.open_ones([former, later]) == [later]
    holdings.settle(later, None)
    assert holdings.take_settled([]) == [(later, None)]


def test_a_message_is_settled_once() -> None:
    holdings = Holdings()
    first, second = holdings.add(Lease(1, 0.0, 0.0), messages(0, 0))
    Delivered.of(first, holdings).ack()
    Delivered.of(first, holdings).nack()
    done = holdings.open_ones([first, second])
    Delivered.of(second, holdings).ack()  # by another thread, while the end of its body is noticed
    assert (done, holdings.take_settled(done)) == ([second], [(first, None)])


def test_what_is_delivered_again_to_the_same_member_is_processed_once_under_its_new_lease() -> None:
    holdings = Holdings()
    (row,) = holdings.add(Lease(1, 0.0, 0.0), messages(0))
    fresh = holdings.add(Lease(2, 0.0, 0.0), messages(0, 0))
    assert offsets(fresh) == [2]
    assert (holdings.is_open(row), holdings.leases[1].token) == (True, 2)
    holdings.renew([row], Lease(1, 9.0, 0.0))
    assert holdings.leases[1].token == 2, "an extension of the old lease does not touch the new one"
