"""Servers that do not lead any more, on scripted bytes: what they did not run is sent to the leader, at every level."""

from __future__ import annotations

import pytest
import redis
from tests.support.client.scripted import World, many, single, transaction

from penstock.client.delivery import Delivery, ServerContact, State
from penstock.client.engine.batch import Batch
from penstock.client.engine.refused_by_replica import verdict
from penstock.client.engine.writing import LEADS_FOR
from penstock.client.errors import NoReplyInTime, NotSentInTime, OutcomeUnknown, TransactionLost

AT_MOST, AT_LEAST, EXACTLY = Delivery.AT_MOST_ONCE, Delivery.AT_LEAST_ONCE, Delivery.EXACTLY_ONCE
LEVELS = pytest.mark.parametrize("level", [AT_MOST, AT_LEAST, EXACTLY])


def up(
    level: Delivery = AT_LEAST, finds_leader: bool = True, contact: ServerContact | None = None, **settings: object
) -> World:
    """A client of a server that has just become a replica."""
    world = World(contact or ServerContact(finds_leader=finds_leader), delivery=level, **settings)
    world.connect(("old", 6379))
    world.run_until_idle()
    world.server.log.clear()
    world.server.is_replica = True
    return world


def answer(world: World) -> None:
    """Have the server answer all that is written now, which ends the connection."""
    world.write()
    world.serve()
    world.read(is_the_end=True)


def lead(world: World) -> None:
    world.server.is_replica = world.server.lacks_replicas = False
    world.run_until_idle()


@LEVELS
def test_a_refused_command_is_sent_again_once_there_is_a_leader(level: Delivery) -> None:
    world = up(level)
    batches = [world.submit(single("INCR", key)) for key in "ab"]
    answer(world)
    assert not world.finished
    later = world.submit(single("INCR", "c"))
    lead(world)
    assert [batch.results for batch in (*batches, later)] == [[1], [1], [1]]
    assert world.server.runs == {b"a": 1, b"b": 1, b"c": 1}


@LEVELS
def test_commands_that_wait_behind_it_are_not_failed(level: Delivery) -> None:
    world = up(level)
    world.submit(single("INCR", "a"))
    world.write()
    waiting = world.submit(single("INCR", "b"))
    world.serve()
    world.read(limit=10)
    assert world.core.up, "half of the reply is no reply"
    world.read(is_the_end=True)
    lead(world)
    assert waiting.results == [1]


@LEVELS
def test_it_waits_through_attempts_that_fail_until_its_time_is_up(level: Delivery) -> None:
    world = up(level, command_timeout=10.0)
    batch = world.submit(single("INCR", "a"))
    answer(world)
    while not batch.is_finished:
        assert world.core.connect_at is not None
        world.now = max(min(world.core.connect_at, world.core.timeouts.next_tick), world.now + 0.001)
        if world.core.connect_at <= world.now:
            world.core.connecting()
            world.core.connect_failed(redis.ConnectionError("no leader"), world.now)
        world.core.tick(world.now)
        world.collect()
    assert isinstance(batch.results[0], NotSentInTime) and "no leader" in str(batch.results[0])
    assert batch.state(0) is State.QUEUED


@LEVELS
def test_a_connection_lost_after_the_second_attempt_counts_by_the_level(level: Delivery) -> None:
    world = up(level)
    batch = world.submit(single("INCR", "a"))
    answer(world)
    world.server.is_replica = False
    world.connect(("new", 6379))
    while not world.server.runs:
        world.write()
        world.serve()
        if not world.server.runs:
            world.read()
    world.cut()
    world.run_until_idle()
    if level is AT_MOST:
        assert isinstance(batch.results[0], OutcomeUnknown)
    assert world.server.runs[b"a"] == {AT_MOST: 1, AT_LEAST: 2, EXACTLY: 1}[level]


def test_in_a_pipeline_what_ran_before_is_not_sent_again_and_reads_behind_are() -> None:
    world = up()
    world.server.is_replica = False
    batch = world.submit(many(("INCR", "a"), ("INCR", "b"), ("GET", "b")))
    world.write()
    world.serve(limit=len(single("INCR", "a").data))
    world.server.is_replica = True
    world.serve()
    world.read(is_the_end=True)
    lead(world)
    assert batch.results == [1, 1, 1] and world.server.runs == {b"a": 1, b"b": 1}


def test_in_a_pipeline_a_write_that_ran_behind_a_refused_one_keeps_its_reply() -> None:
    world = up()
    batch = world.submit(many(("INCR", "a"), ("INCR", "b"), ("INCR", "c"), ("GET", "c")))
    world.write()
    one = len(single("INCR", "a").data)
    world.serve(limit=one)
    world.server.is_replica = False
    world.serve(limit=one)
    world.server.is_replica = True
    world.serve()
    world.read(is_the_end=True)
    lead(world)
    assert batch.results == [1, 1, 1, 1] and world.server.runs == {b"a": 1, b"b": 1, b"c": 1}


@LEVELS
def test_a_transaction_is_sent_again_whole(level: Delivery) -> None:
    world = up(level)
    batch = world.submit(transaction(("GET", "a"), ("INCR", "a")))
    answer(world)
    lead(world)
    assert batch.results[-1] == [0, 1]


def test_a_transaction_with_a_watch_is_lost() -> None:
    world = up()
    world.submit(single("WATCH", "a"))
    world.run_until_idle()
    batch = world.submit(transaction(("INCR", "a")))
    answer(world)
    assert isinstance(batch.results[-1], TransactionLost) and not world.server.runs


def test_at_exactly_once_a_command_that_may_have_run_keeps_its_number() -> None:
    world = up(EXACTLY)
    world.server.is_replica = False
    batch = world.submit(single("INCR", "a"))
    world.write()
    world.serve()
    world.cut()
    world.server.is_replica = True
    world.connect(("old", 6379))
    for _ in range(20):  # the handshake, and then the command
        world.write()
        world.serve()
        if world.core.received(world.downstream, world.now):
            break
        world.downstream = b""
    lead(world)
    assert batch.results == [1] and world.server.runs == {b"a": 1}


@pytest.mark.parametrize(("level", "runs"), [(AT_MOST, 1), (AT_LEAST, 2), (EXACTLY, 1)])
def test_a_change_that_too_few_replicas_have_counts_as_one_without_a_reply(level: Delivery, runs: int) -> None:
    world = up(level)
    world.server.is_replica, world.server.lacks_replicas = False, True
    batch = world.submit(single("INCR", "a"))
    answer(world)
    lead(world)
    assert world.server.runs == {b"a": runs}
    if level is AT_MOST:
        assert isinstance(batch.results[0], OutcomeUnknown)
    elif level is AT_LEAST:
        assert batch.results == [2]


def test_a_client_of_one_server_gets_the_error() -> None:
    world = up(finds_leader=False)
    batch = world.submit(single("INCR", "a"))
    world.run_until_idle()
    assert isinstance(batch.results[0], redis.ReadOnlyError)


def test_servers_that_never_lead_are_asked_ever_more_rarely() -> None:
    """Replies to reads, which such a server gives, do not begin the delays anew."""
    world = up(command_timeout=60.0)
    world.submit(single("INCR", "a"))
    attempts, end = 0, world.now + 60
    while world.now < end:
        world.submit(single("GET", "a"))
        answer_or_handshake(world)
        if world.core.connect_at is None:
            continue
        attempts += 1
        world.now = max(world.now, world.core.connect_at)
        world.connect(("old", 6379))
    assert attempts < 60


def answer_or_handshake(world: World) -> None:
    for _ in range(3):
        world.write()
        world.serve()
        data, world.downstream = world.downstream, b""
        if not data or world.core.received(data, world.now):
            return


@LEVELS
def test_a_client_that_only_reads_notices_that_its_server_does_not_lead_any_more(level: Delivery) -> None:
    world = up(level)
    old = world.submit(single("GET", "a"))
    world.run_until_idle()
    assert old.results == [0], "it is believed to lead for a moment"
    world.now += LEADS_FOR
    batch = world.submit(single("GET", "a"))
    answer(world)
    assert not batch.is_finished
    world.server.runs[b"a"] = 7
    lead(world)
    assert batch.results == [7] and world.core.counters.reconnects == 1


@pytest.mark.parametrize("how", ["a write is refused", "it asks for the role", "it finds another server"])
def test_what_one_connection_learns_of_the_leader_the_others_ask_about_at_once(how: str) -> None:
    contact = ServerContact(finds_leader=True)
    first, second = (up(contact=contact) for _ in range(2))
    assert first.core.counters.reconnects == 0
    if how == "it finds another server":
        silent(first)
        first.connect(("new", 6379))
    else:
        if how == "it asks for the role":
            first.now += LEADS_FOR
        first.submit(single("GET" if how == "it asks for the role" else "INCR", "a"))
        answer(first)
    batch = second.submit(single("GET", "a"))
    answer(second)
    assert not batch.is_finished, "the server does not lead any more, so its data may be old"
    second.server.runs[b"a"] = 7
    lead(second)
    assert batch.results == [7]
    second.server.log.clear()
    second.submit(single("GET", "a"))
    second.run_until_idle()
    assert b"ROLE" not in [command[0] for command in second.server.log], "it is asked once"


def test_a_transaction_by_hand_is_not_disturbed_by_the_question_who_leads() -> None:
    world = up()
    world.server.is_replica = False
    for command in (("MULTI",), ("INCR", "a"), ("EXEC",)):
        batch = world.submit(single(*command))
        world.run_until_idle()
        world.now += 2 * LEADS_FOR
    assert batch.results == [[1]]


def silent(world: World) -> Batch:
    """A command that the server does not answer until it counts as silent."""
    world.server.is_replica = False
    batch = world.submit(single("INCR", "a"))
    world.write()
    world.now = world.core.timeouts.next_tick
    assert world.core.tick(world.now)
    world.collect()
    return batch


def test_a_command_that_a_server_does_not_answer_goes_to_another_one() -> None:
    world = up(EXACTLY)
    batch = silent(world)
    assert not batch.is_finished
    world.connect(("new", 6379))
    world.run_until_idle()
    assert batch.results == [1]


def test_a_command_that_a_server_does_not_answer_is_not_sent_there_again() -> None:
    world = up()
    batch = silent(world)
    world.connect(("old", 6379))
    world.run_until_idle()
    assert isinstance(batch.results[0], NoReplyInTime) and not world.server.runs


@pytest.mark.parametrize(
    ("line", "reached"),
    [
        ("READONLY You can't write against a read only replica.", State.QUEUED),
        ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", State.QUEUED),
        ("NOREPLICAS Not enough good replicas to write.", State.QUEUED),
        ("NOREPLICAS The change was made here, but too few replicas have it.", State.WRITTEN),
        ("EXECABORT Transaction discarded because of: READONLY You can't write", State.QUEUED),
        ("EXECABORT Transaction discarded because of previous errors.", None),
        ("UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)", State.QUEUED),
        ("UNBLOCKED client unblocked via CLIENT UNBLOCK", None),
        ("ERR READONLY is no option", None),
    ],
)
def test_which_errors_say_that_a_command_did_not_run(line: str, reached: State | None) -> None:
    assert verdict(line) is reached


@LEVELS
@pytest.mark.parametrize("command", [("WAIT", 1, 0), ("WAITAOF", 1, 1, 0)])
def test_a_wait_for_replicas_is_not_asked_of_another_server(level: Delivery, command: tuple[object, ...]) -> None:
    world = up(level)
    batch = world.submit(single(*command))
    world.write()
    world.serve()
    world.downstream = b"-UNBLOCKED force unblock from blocking operation, instance state changed\r\n"
    world.read()
    world.run_until_idle()
    assert "UNBLOCKED" in str(batch.results[0]) and len(world.server.log) == 1
