"""The producer's core on a scripted server that loses windows at any place: what is acknowledged is there once."""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.delivery import State
from penstock.client.errors import (
    BufferFull,
    ClientClosed,
    NoReplyInTime,
    NotSent,
    NotSentInTime,
    OutcomeUnknown,
    reply_error,
)
from penstock.client.producer.core import EPOCH, ProducerCore
from penstock.client.producer.options import ANSWERS, ProducerOptions, ProducerSettings

LOST = OutcomeUnknown("the connection is gone", State.WRITTEN)


class StreamServer:
    """TWRITE with PRODUCER, as the server has it: the last 8 answers of a producer are remembered."""

    def __init__(self) -> None:
        self.entries: list[bytes] = []
        self.answers: OrderedDict[int, int] = OrderedDict()
        self.schema: Any = None
        self.last: Any = None
        self.bad: set[bytes] = set()

    def run(self, command: tuple[Any, ...]) -> Any:
        if command[0] == "TSCHEMA GET":
            return self.schema
        if command[0] == "TPRODUCER":
            return self.last
        name, _, _, _, sequence, whole, _, *words = command
        assert (name, whole) == ("TWRITE", "WHOLE")
        if sequence in self.answers:
            return self.answers[sequence]
        if self.answers and sequence <= max(self.answers):
            return reply_error(f"FENCED PRODUCER p: sequence {sequence} is older")
        entries = words[1::2]
        for place, entry in enumerate(entries):
            if entry in self.bad:
                return reply_error(f"SCHEMAMISFIT entry {place + 1} does not fit version 1 of the schema")
        self.answers[sequence] = len(self.entries) + 1
        self.entries += entries
        while len(self.answers) > ANSWERS:
            self.answers.popitem(last=False)
        return self.answers[sequence]


class World:
    def __init__(self, **terms: Any) -> None:
        self.core = ProducerCore(ProducerSettings("s", **terms))
        self.server = StreamServer()
        self.now = 100.0
        self.outcomes: dict[int, Any] = {}
        self.count = 0

    def add(self, entry: bytes | None = None) -> int:
        number = self.count
        self.count += 1
        self.core.add(b"tag", b"%d" % number if entry is None else entry, number, 100, self.now)
        return number

    def turn(self, run: int = ANSWERS, answered: int = ANSWERS, unsent: bool = False) -> bool:
        """One window, of which the server runs and answers so many commands; False if there was none."""
        at = self.core.act_at(self.now)
        if at == math.inf:
            return False
        self.now = max(self.now, at)
        commands = self.core.take(self.now)
        replies: list[Any] = [self.server.run(command) for command in commands[:run]][:answered]
        lost = NotSent("there is no connection") if unsent else LOST
        replies += [lost] * (len(commands) - len(replies))
        if commands:
            self.core.answered(replies, self.now)
        self.tell()
        return True

    def refuse(self, code: str, *places: int) -> None:
        """One window, of which the server refuses the commands at some places, and runs the others."""
        self.now = max(self.now, self.core.act_at(self.now))
        commands = self.core.take(self.now)
        refused = reply_error(f"{code} not now")
        replies = [refused if at in places else self.server.run(command) for at, command in enumerate(commands)]
        if commands:
            self.core.answered(replies, self.now)
        self.tell()

    def tell(self) -> None:
        for slot, outcome in self.core.outcomes.take_finished():
            assert slot not in self.outcomes, "a message is finished once"
            self.outcomes[slot] = outcome

    def send_until_answered(self) -> None:
        self.core.flush()
        while self.turn():
            pass


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(1, 12)),
            st.tuples(st.just("turn"), st.integers(0, 8), st.integers(0, 8)),
            st.tuples(st.just("wait"), st.floats(0, 3)),
        ),
        max_size=60,
    ),
    st.integers(1, 8),
)
def test_whatever_is_lost_an_acknowledged_message_is_there_once_and_in_order(steps: list[Any], in_flight: int) -> None:
    world = World(linger_ms=5, batch_bytes=300, in_flight=in_flight, timeout=10.0)
    for kind, *numbers in steps:
        if kind == "add":
            for _ in range(numbers[0]):
                world.add()
        elif kind == "turn":
            world.turn(numbers[0], min(numbers))
        else:
            world.now += numbers[0]
    world.send_until_answered()
    entries = [int(entry) for entry in world.server.entries]
    assert entries == sorted(set(entries)), "in order, and none twice"
    assert sorted(world.outcomes) == list(range(world.count)), "every message is finished"
    for number, outcome in world.outcomes.items():
        if isinstance(outcome, int):
            assert entries[outcome - 1] == number
        else:
            assert isinstance(outcome, NoReplyInTime | NotSentInTime)
            assert not (isinstance(outcome, NotSentInTime) and number in entries), "it says that it was not sent"
    assert world.core.held_bytes == 0 and world.core.outcomes.ended == world.core.accepted == world.count


def test_messages_wait_for_others_and_are_written_together() -> None:
    world = World(linger_ms=5)
    world.add()
    assert world.core.act_at(world.now) == world.now + 0.005
    world.now += 0.004
    world.add()
    world.send_until_answered()
    assert world.core.writes == 1 and world.outcomes == {0: 1, 1: 2}


def test_a_full_write_waits_no_longer() -> None:
    world = World(linger_ms=1000, batch_bytes=300)
    assert [world.core.add(b"", b"x", None, 100, world.now) for _ in range(4)] == [True, False, True, False]
    assert world.core.act_at(world.now) <= world.now


def test_a_window_that_is_lost_is_sent_again_before_anything_newer() -> None:
    world = World(linger_ms=0, batch_bytes=100, in_flight=3)
    for _ in range(5):
        world.add()
    world.turn()  # asks for the schema
    world.turn(run=2, answered=1)
    world.add()
    assert world.outcomes == {0: 1}
    world.send_until_answered()
    assert world.server.entries == [b"%d" % number for number in range(6)]


@pytest.mark.parametrize("code", ["BUSY", "READONLY", "MISCONF", "OOM", "CLUSTERDOWN", "TRYAGAIN"])
def test_what_the_server_refuses_for_a_while_is_sent_again_in_order(code: str) -> None:
    world = World(linger_ms=0, batch_bytes=100, in_flight=2)
    for _ in range(3):
        world.add()
    world.refuse(code, 0)  # the question for the schema
    world.turn()
    world.refuse(code, 1)
    world.refuse(code, 0)
    world.send_until_answered()
    assert world.server.entries == [b"0", b"1", b"2"]
    assert world.outcomes == {0: 1, 1: 2, 2: 3}


def test_a_write_that_was_refused_before_one_that_ran_fails_with_that_error() -> None:
    """Sent again it would be FENCED, and so would be all that follow."""
    world = World(linger_ms=0, batch_bytes=100, in_flight=2)
    for _ in range(3):
        world.add()
    world.turn()
    world.refuse("BUSY", 0)
    world.send_until_answered()
    assert world.server.entries == [b"1", b"2"]
    assert isinstance(world.outcomes[0], type(reply_error("BUSY"))) and (world.outcomes[1], world.outcomes[2]) == (1, 2)


def test_a_message_that_is_refused_until_its_time_is_up_was_not_written() -> None:
    world = World(timeout=10)
    world.add()
    world.turn()
    while not world.outcomes:
        world.refuse("OOM", 0)
    assert isinstance(world.outcomes[0], NotSentInTime) and "not now" in str(world.outcomes[0])


def test_nothing_that_was_held_while_the_server_was_away_is_written_late() -> None:
    world = World(timeout=10.0)
    world.add()
    for _ in range(20):
        world.turn(run=0, unsent=True)
        world.now += 1
    assert isinstance(world.outcomes[0], NotSentInTime) and "there is no connection" in str(world.outcomes[0])
    world.add()
    world.send_until_answered()
    assert world.outcomes[1] == 1


def test_the_error_says_how_far_a_message_came() -> None:
    world = World(timeout=10.0)
    world.add()
    world.add()
    world.turn()
    world.turn(run=1, answered=0)
    world.now += 11
    world.turn()
    for number in (0, 1):
        error = world.outcomes[number]
        assert (
            isinstance(error, NoReplyInTime) and error.state is State.WRITTEN and "may have been written" in str(error)
        )
        assert f"message {number + 1} of 2 in write 1" in str(error)


def test_a_message_that_does_not_fit_the_schema_fails_alone() -> None:
    world = World()
    world.server.schema = {b"check": b"refuse"}
    world.server.bad = {b"bad", b"worse"}
    for entry in (b"a", b"bad", b"b", b"worse", b"c"):
        world.add(entry)
    world.send_until_answered()
    assert world.server.entries == [b"a", b"b", b"c"]
    assert [world.outcomes[number] for number in (0, 2, 4)] == [1, 2, 3]
    assert all("does not fit" in str(world.outcomes[number]) for number in (1, 3))


def test_a_check_that_begins_later_keeps_the_order() -> None:
    """The writes behind the refused one have run: what is left of it cannot be written any more without a disorder."""
    world = World(linger_ms=0, batch_bytes=200)
    world.add()
    world.send_until_answered()
    world.server.bad = {b"bad"}
    for entry in (b"a", b"bad", b"b", b"c", b"bad", b"d"):
        world.add(entry)
    world.send_until_answered()
    assert world.server.entries == [b"0", b"b", b"c", b"d"]
    assert "message 1 of 2" in str(world.outcomes[1]) and "does not fit" in str(world.outcomes[1])
    assert [world.outcomes[number] for number in (3, 4, 6)] == [2, 3, 4]


def test_a_write_that_is_not_whole_claims_no_offset() -> None:
    world = World()
    world.turn()
    world.add()
    world.core.take(world.now)
    world.core.answered([None], world.now)  # no schema
    world.core.take(world.now)
    world.core.answered([None], world.now)
    world.tell()
    assert world.outcomes == {0: None} and world.core.outcomes.written == 1


def test_a_successor_begins_above_its_predecessor_which_is_fenced() -> None:
    world = World(name="p")
    world.server.last = [7, 70]
    world.server.answers[7] = 70
    world.add()
    world.send_until_answered()
    assert EPOCH < max(world.server.answers) <= EPOCH + EPOCH // 2 and world.core.last == (7, 70)
    old = World(name="p")
    old.server = world.server
    old.core._is_begun, old.core._next = True, 8
    old.add()
    old.add()
    old.send_until_answered()
    assert all("FENCED" in str(outcome) for outcome in old.outcomes.values()) and len(old.outcomes) == 2
    with pytest.raises(Exception, match="FENCED"):
        old.add()


@pytest.mark.parametrize("last", [None, [7, 70]])
def test_two_producers_of_one_name_that_begin_together_share_no_number(last: Any) -> None:
    """The server would answer the write of the second as a repeat, and the message would be nowhere."""
    numbers = []
    for _ in range(2):
        world = World(name="till")
        world.server.last = last
        world.add()
        world.send_until_answered()
        numbers.append(max(world.server.answers))
    assert abs(numbers[0] - numbers[1]) > 8


def test_a_server_that_knows_no_producers_is_named_in_the_error() -> None:
    world = World(name="p")
    world.server.last = reply_error("ERR unknown command 'TPRODUCER'")
    world.add()
    world.send_until_answered()
    assert "TPRODUCER" in str(world.outcomes[0])


def test_room_is_bounded_and_a_message_larger_than_all_of_it_fits_alone() -> None:
    world = World(max_bytes=250)
    assert world.core.has_room(1000)
    world.add()
    assert world.core.has_room(150) and not world.core.has_room(151)
    assert isinstance(world.core.full(), BufferFull)
    world.send_until_answered()
    assert world.core.has_room(1000)


def test_a_closed_producer_takes_nothing_and_writes_what_it_has() -> None:
    world = World(linger_ms=1_000_000)
    world.add()
    world.core.close()
    with pytest.raises(ClientClosed):
        world.core.add(b"", b"", None, 1, world.now)
    world.send_until_answered()
    assert world.outcomes == {0: 1} and world.core.is_empty


def test_a_failure_that_no_caller_waits_for_is_told_once() -> None:
    world = World(timeout=1.0)
    for _ in range(2):
        world.core.add(b"", b"", None, 1, world.now)
    world.now += 2
    world.turn()
    assert isinstance(world.core.outcomes.take_unheard(), NotSentInTime) and world.core.outcomes.take_unheard() is None
    assert world.core.outcomes.failed == 2


@pytest.mark.parametrize(
    "wrong",
    [{"linger_ms": -1}, {"batch_bytes": 0}, {"max_bytes": 0}, {"timeout": 0}, {"in_flight": 9}, {"name": ""}],
)
def test_terms_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ProducerSettings("s", **wrong)


def test_type_checkers_know_every_option() -> None:
    assert [*ProducerOptions.__annotations__] == [
        field.name for field in fields(ProducerSettings) if field.name != "key"
    ]


def test_messages_of_one_write_came_within_a_tenth_of_their_timeout() -> None:
    world = World(timeout=10.0)
    for _ in itertools.repeat(None, 5):
        world.add()
        world.now += 0.5
    world.send_until_answered()
    assert world.core.writes == 2, "messages that came 2 s apart do not share a deadline"
