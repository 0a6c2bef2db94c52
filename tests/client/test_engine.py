"""The engine on scripted bytes: no socket, no clock, no thread."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.client.scripted import World, many, single, transaction

from penstock.client.delivery import Command, Delivery, ServerContact, State
from penstock.client.engine.batch import Batch
from penstock.client.errors import (
    BufferFull,
    ClientClosed,
    DeliveryError,
    ExactlyOnceUnavailable,
    NoReplyInTime,
    NotReplayed,
    NotSent,
    NotSentInTime,
    OutcomeUnknown,
    TransactionLost,
)
from penstock.client.events import Reconnected, Replayed

AT_MOST, AT_LEAST, EXACTLY = Delivery.AT_MOST_ONCE, Delivery.AT_LEAST_ONCE, Delivery.EXACTLY_ONCE


def up(**settings: object) -> World:
    world = World(**settings)
    world.connect()
    world.run_until_idle()
    world.server.log.clear()
    return world


def test_replies_go_to_their_commands_in_order() -> None:
    world = up()
    batches = [world.submit(single("INCR", "a")) for _ in range(3)]
    world.run_until_idle()
    assert [batch.results for batch in batches] == [[1], [2], [3]]
    assert world.finished == batches and batches[0].state(0) is State.REPLIED


def test_all_that_is_queued_is_written_at_once() -> None:
    world = up()
    for _ in range(50):
        world.submit(single("INCR", "a"))
    assert world.write() == 50 * len(single("INCR", "a").data)
    assert world.write() == 0


def test_at_most_once_tells_not_sent_from_unknown() -> None:
    world = up(delivery=AT_MOST)
    written, writing, queued = (world.submit(single("INCR", key)) for key in "abc")
    size = len(written.data)
    world.write(size + 3)
    world.serve()
    world.cut()
    assert [type(batch.results[0]) for batch in (written, writing, queued)] == [OutcomeUnknown, OutcomeUnknown, NotSent]
    assert [batch.state(0) for batch in (written, writing, queued)] == [State.WRITTEN, State.WRITING, State.QUEUED]
    assert isinstance(written.results[0], redis.ConnectionError) and world.server.runs == {b"a": 1}


def test_at_most_once_rejects_new_commands_until_the_next_attempt() -> None:
    world = up(delivery=AT_MOST)
    world.cut()
    world.submit(single("INCR", "a"))  # the first attempt after a loss is made at once
    world.core.connecting()
    world.core.connect_failed(redis.ConnectionError("refused"), world.now)
    world.collect()
    assert isinstance(world.finished[-1].results[0], NotSent)
    with pytest.raises(NotSent, match="holds nothing"):
        world.submit(single("INCR", "a"))
    world.now += 10
    world.submit(single("INCR", "a"))
    world.run_until_idle()
    assert world.finished[-1].results == [1]


def test_at_least_once_replays_in_order_and_new_commands_wait_behind() -> None:
    world = up()
    first = [world.submit(single("SET", "k", number)) for number in range(3)]
    world.write()
    world.serve()
    world.cut()
    later = world.submit(single("SET", "k", 3))
    world.run_until_idle()
    assert [argv[2] for argv in world.server.log] == [b"0", b"1", b"2", b"0", b"1", b"2", b"3"]
    assert all(batch.results == [b"OK"] for batch in (*first, later))
    assert world.core.counters.replayed == 3 and world.core.counters.reconnects == 1


def test_what_was_replied_is_never_sent_again() -> None:
    world = up()
    pipeline = world.submit(many(("INCR", "a"), ("INCR", "b"), ("INCR", "c")))
    world.write()
    world.serve()
    world.read(len(b":1\r\n") + 2)  # the reply to the first, and a part of the second
    world.cut()
    world.run_until_idle()
    assert world.server.runs == {b"a": 1, b"b": 2, b"c": 2} and pipeline.results == [1, 2, 2]


def test_a_transaction_is_replayed_whole() -> None:
    world = up()
    batch = world.submit(transaction(("INCR", "a"), ("INCR", "b")))
    world.write()
    world.serve(len(batch.data) - 5)
    world.read()
    world.cut()
    world.run_until_idle()
    assert batch.results == [b"OK", b"QUEUED", b"QUEUED", [1, 1]] and world.server.runs == {b"a": 1, b"b": 1}


def test_a_filtered_command_fails_and_the_others_are_replayed() -> None:
    world = up(replay_filter=lambda command: command.name == "DECR")
    decr, incr = world.submit(single("decr", "a")), world.submit(single("INCR", "b"))
    world.write()
    unsent = world.submit(single("DECR", "z"))
    world.cut()
    assert isinstance(decr.results[0], NotReplayed) and decr.results[0].state is State.WRITTEN
    world.run_until_idle()
    assert incr.results == [1] and unsent.results == [b"OK"]  # the filter is for what was written
    assert world.core.counters.filtered == 1


def test_a_filter_on_everything_is_reconnecting_without_replay() -> None:
    world = up(replay_filter=lambda command: True)
    batch = world.submit(many(("INCR", "a"), ("INCR", "b")))
    world.write(len(batch.encoded(0)))
    world.cut()
    world.run_until_idle()
    assert isinstance(batch.results[0], NotReplayed) and batch.results[1] == 1
    assert world.submit(single("INCR", "a")) and world.core.up


def test_a_filter_on_a_part_of_a_transaction_fails_all_of_it() -> None:
    world = up(replay_filter=lambda command: command == Command("INCR", ("b",), State.WRITTEN))
    batch = world.submit(transaction(("INCR", "a"), ("INCR", "b")))
    world.write()
    world.cut()
    world.run_until_idle()
    assert all(isinstance(result, NotReplayed) for result in batch.results) and not world.server.runs


def test_a_filter_that_fails_lets_nothing_through() -> None:
    world = up(replay_filter=lambda command: 1 / 0 > 1)
    batch = world.submit(single("INCR", "a"))
    world.write()
    world.cut()
    assert isinstance(batch.results[0].__cause__, ZeroDivisionError)


def test_a_filter_may_be_set_while_there_is_no_connection() -> None:
    world = up()
    batch = world.submit(single("INCR", "a"))
    world.write()
    world.cut()
    world.core.set_replay_filter(lambda command: True)
    world.collect()
    assert isinstance(batch.results[0], NotReplayed)


def test_switching_to_at_most_once_while_down_cancels_what_is_held() -> None:
    world = up()
    written = world.submit(single("INCR", "a"))
    world.write()
    world.cut()
    held = world.submit(single("INCR", "b"))
    world.core.set_delivery(AT_MOST, world.now)
    world.collect()
    assert isinstance(written.results[0], OutcomeUnknown) and isinstance(held.results[0], NotSent)


@pytest.mark.parametrize("raised", [AT_LEAST, EXACTLY])
def test_a_command_handed_over_at_most_once_keeps_to_that_when_the_level_is_raised(raised: Delivery) -> None:
    world = up(delivery=AT_MOST)
    replied, written = world.submit(single("INCR", "a")), world.submit(single("INCR", "a"))
    world.write()
    world.serve()
    world.read(len(b":1\r\n"))
    queued = world.submit(single("INCR", "b"))
    world.core.set_delivery(raised, world.now)
    later = world.submit(single("INCR", "c"))
    world.cut()
    assert type(written.results[0]) is OutcomeUnknown and type(queued.results[0]) is NotSent and not later.is_finished
    world.run_until_idle()
    assert replied.results == [1] and later.results == [1]
    assert world.server.runs == {b"a": 2, b"c": 1}


def test_a_command_handed_over_at_most_once_makes_one_attempt_to_connect_when_the_level_is_raised() -> None:
    world = up(delivery=AT_MOST)
    world.cut()
    first = world.submit(single("INCR", "a"))
    world.core.connecting()
    world.core.set_delivery(AT_LEAST, world.now)
    later = world.submit(single("INCR", "b"))
    world.core.connect_failed(redis.ConnectionError("refused"), world.now)
    world.collect()
    assert type(first.results[0]) is NotSent and not later.is_finished
    world.run_until_idle()
    assert later.results == [1] and world.server.runs == {b"b": 1}


def test_a_cancelled_command_leaves_the_connection_in_step() -> None:
    """redis-py#2624, #2665."""
    world = up()
    first, second = world.submit(single("INCR", "a")), world.submit(single("INCR", "b"))
    world.write()
    world.core.cancel(first, world.now)
    world.run_until_idle()
    assert isinstance(first.results[0], OutcomeUnknown) and second.results == [1]
    assert world.finished.count(first) == 1


def test_a_command_cancelled_before_it_is_written_is_not_written() -> None:
    world = up()
    batch = world.submit(single("INCR", "a"))
    world.core.cancel(batch, world.now)
    world.run_until_idle()
    assert isinstance(batch.results[0], NotSent) and not world.server.runs


def test_a_cancelled_command_is_not_replayed() -> None:
    world = up()
    batch, other = world.submit(single("INCR", "a")), world.submit(single("INCR", "b"))
    world.write()
    world.core.cancel(batch, world.now)
    world.cut()
    world.run_until_idle()
    assert world.server.runs == {b"b": 1} and other.results == [1]


def test_a_command_that_waits_too_long_for_a_connection_was_not_sent() -> None:
    world = up(command_timeout=10)
    world.cut()
    batch = world.submit(single("INCR", "a"))
    assert world.core.timeouts.next_tick == world.now + 10
    world.now += 10
    assert world.core.tick(world.now) is False
    world.run_until_idle()
    assert isinstance(batch.results[0], NotSentInTime) and isinstance(batch.results[0], redis.TimeoutError)
    assert not world.server.runs


def test_silence_ends_the_connection_and_the_command_at_its_head() -> None:
    world = up(silence_timeout=5)
    slow, behind = world.submit(single("INCR", "slow")), world.submit(single("INCR", "b"))
    world.write()
    world.now += 5
    assert world.core.tick(world.now) is True and not world.core.up
    world.run_until_idle()
    assert isinstance(slow.results[0], NoReplyInTime) and slow.results[0].state is State.WRITTEN
    assert behind.results == [1] and b"slow" not in world.server.runs


def test_a_blocking_command_may_be_silent_for_as_long_as_it_blocks() -> None:
    world = up(silence_timeout=5)
    batch = single("BLPOP", "a", 30)
    batch.patience = 30
    world.submit(batch)
    world.write()
    world.now += 34
    assert world.core.tick(world.now) is False
    world.now += 1
    assert world.core.tick(world.now) is True


def test_an_idle_connection_is_asked_before_anything_is_sent() -> None:
    world = up(health_check_interval=15)
    world.now += 15
    batch = world.submit(single("INCR", "a"))
    assert world.write() and world.upstream == b"*1\r\n$4\r\nPING\r\n"
    world.now += 5
    assert world.core.tick(world.now) is True  # half open: and the command is provably unsent
    assert not batch.was_written
    world.run_until_idle()
    assert batch.results == [1] and world.server.runs == {b"a": 1}


def test_session_state_is_restored_before_anything_is_replayed() -> None:
    world = up()
    world.submit(single("SELECT", 3))
    world.submit(single("CLIENT SETNAME", "worker"))
    world.run_until_idle()
    world.server.log.clear()
    world.submit(single("INCR", "a"))
    world.submit(single("SELECT", 4))
    world.submit(single("INCR", "b"))
    world.write()
    world.cut()
    world.run_until_idle()
    expected = [b"SELECT 3", b"CLIENT SETNAME worker", b"INCR a", b"SELECT 4", b"INCR b"]
    assert [b" ".join(argv) for argv in world.server.log] == expected


def test_a_select_inside_a_pipeline_that_is_cut_after_it_is_restored() -> None:
    world = up()
    world.submit(many(("SELECT", 3), ("INCR", "a"), ("INCR", "b")))
    world.write()
    world.serve()
    world.read(5)
    world.cut()
    world.server.log.clear()
    world.run_until_idle()
    assert [b" ".join(argv) for argv in world.server.log] == [b"SELECT 3", b"INCR a", b"INCR b"]


def test_a_refused_restore_fails_what_waits_with_the_servers_own_words() -> None:
    world = up()
    world.submit(single("AUTH", "secret"))
    world.run_until_idle()
    batch = world.submit(single("INCR", "a"))
    world.cut()
    world.connect()
    world.write()
    assert world.core.received(b"-WRONGPASS invalid\r\n", world.now)
    assert isinstance(batch.results[0], redis.AuthenticationError) and not world.core.up


def test_nothing_runs_outside_of_a_transaction_whose_connection_is_gone() -> None:
    world = up()
    world.submit(single("WATCH", "k"))
    world.run_until_idle()
    reading = world.submit(single("GET", "k"))
    world.write()
    world.cut()
    assert isinstance(reading.results[0], NotReplayed)
    with pytest.raises(TransactionLost):
        world.submit(transaction(("INCR", "a")))
    assert world.submit(single("INCR", "b"))  # that was the end of it


def test_an_undecodable_reply_is_the_loss_of_its_command_alone() -> None:
    world = World(encoding="utf-8")
    world.connect()
    bad, good = world.submit(many(("GET", "a"), ("GET", "b"))), world.submit(single("GET", "c"))
    world.write()
    world.core.received(b"$2\r\n\xff\xfe\r\n$1\r\nb\r\n$1\r\nc\r\n", world.now)
    assert isinstance(bad.results[0], UnicodeDecodeError) and bad.state(0) is State.REPLIED
    assert bad.results[1] == "b" and good.results == ["c"]


@pytest.mark.parametrize("garbage", [b"HTTP/1.1 400 Bad Request\r\n", b"+OK\r\n+OK\r\n"])
def test_replies_that_cannot_be_right_end_the_connection(garbage: bytes) -> None:
    world = up()
    world.submit(single("INCR", "a"))
    world.write()
    assert world.core.received(garbage, world.now) and not world.core.up


def test_pushes_are_no_replies() -> None:
    world = up()
    batch = world.submit(single("INCR", "a"))
    world.write()
    world.core.received(b">2\r\n+invalidate\r\n*0\r\n:7\r\n>1\r\n+x\r\n", world.now)
    assert batch.results == [7]


def test_bounds_count_commands_and_bytes() -> None:
    world = up(max_buffered_commands=2)
    world.submit(many(("INCR", "a"), ("INCR", "b")))
    with pytest.raises(BufferFull, match="max_buffered_commands=2"):
        world.submit(single("INCR", "c"))
    world.run_until_idle()
    world.settings.max_buffered_bytes = 100
    world.submit(single("SET", "k", b"x" * 1000))  # alone, it may be larger than the bound
    with pytest.raises(BufferFull, match="max_buffered_bytes=100"):
        world.submit(single("INCR", "c"))
    world.run_until_idle()
    assert (world.core.counters.buffered_commands, world.core.counters.buffered_bytes) == (0, 0)


def test_before_the_first_connection_a_failure_is_an_error_at_once() -> None:
    world = World()
    batch = world.submit(single("INCR", "a"))
    world.core.connecting()
    world.core.connect_failed(redis.ConnectionError("refused"), world.now)
    assert isinstance(batch.results[0], NotSent) and world.core.connect_at is None


def test_attempts_to_reconnect_are_further_and_further_apart() -> None:
    world = up(backoff_base=1, backoff_cap=4)
    world.submit(single("INCR", "a"))
    world.cut()
    delays = []
    for _ in range(5):
        assert world.core.connect_at is not None
        delays.append(world.core.connect_at - world.now)
        world.now = world.core.connect_at
        world.core.connecting()
        world.core.connect_failed(redis.ConnectionError("refused"), world.now)
    assert delays == [0, 1, 2, 4, 4]


def test_events_tell_of_reconnects_and_replays() -> None:
    world = up()
    world.submit(single("INCR", "a"))
    world.write()
    world.submit(single("INCR", "b"))
    world.cut()
    world.now += 3
    world.run_until_idle()
    assert world.core.take_events() == [Reconnected(3, 1), Replayed([Command("INCR", ("a",), State.WRITTEN)])]


def test_closing_finishes_everything() -> None:
    world = up()
    written = world.submit(single("INCR", "a"))
    world.write()
    queued = world.submit(single("INCR", "b"))
    world.core.close()
    assert isinstance(written.results[0], OutcomeUnknown) and isinstance(queued.results[0], ClientClosed)
    with pytest.raises(ClientClosed):
        world.submit(single("INCR", "c"))


@pytest.mark.parametrize("delivery", [AT_LEAST, EXACTLY])
def test_a_server_that_is_still_loading_is_tried_again(delivery: Delivery) -> None:
    """Its refusal would be given out as the answer to a command that may have run before."""
    world = up(delivery=delivery)
    batch = world.submit(single("INCR", "a"))
    world.write()
    world.cut()
    world.server.is_loading = True
    for _ in range(3):
        world.now += 10
        world.connect()
        world.write()
        world.serve()
        world.read(is_the_end=True)
        world.cut()
        assert not batch.is_finished
    world.server.is_loading = False
    world.now += 10
    world.run_until_idle()
    assert batch.results == [1]


@pytest.mark.parametrize("has_failed", [False, True])
def test_a_new_connection_of_a_client_waits_for_a_server_that_is_still_loading(has_failed: bool) -> None:
    """One for a blocking command, say: it, too, knows the server from before."""
    world = World(ServerContact(was_reached=True))
    world.server.is_loading = True
    batch = world.submit(single("INCR", "a"))
    if has_failed:
        world.core.connecting()
        world.core.connect_failed(redis.ConnectionError("refused"), world.now)
    world.connect()
    world.write()
    world.serve()
    world.read(is_the_end=True)
    world.cut()
    world.server.is_loading = False
    world.now += 10
    world.run_until_idle()
    assert batch.results == [1]


def test_a_lower_level_cancels_at_once_what_waits_for_a_first_connection() -> None:
    """One for a blocking command, say, of a client that knows the server from before."""
    world = World(ServerContact(was_reached=True))
    batch = world.submit(single("INCR", "a"))
    world.core.connecting()
    world.core.connect_failed(redis.ConnectionError("refused"), world.now)
    assert not batch.is_finished
    world.core.set_delivery(AT_MOST, world.now)
    assert isinstance(batch.results[0], NotSent) and world.core.connect_at is None


def test_exactly_once_numbers_writes_and_not_reads() -> None:
    world = up(delivery=EXACTLY)
    world.submit(many(("INCR", "a"), ("GET", "a"), ("INCR", "b")))
    world.write()
    assert world.upstream.count(b"ONCE") == 2 and world.upstream.count(b"GET") == 1
    world.run_until_idle()
    world.submit(single("INCR", "a"))
    world.write()
    assert b"$1\r\n4\r\n$1\r\n4\r\n$4\r\nINCR" in world.upstream  # the floor follows the replies


def test_exactly_once_against_a_server_without_it_is_refused() -> None:
    world = World(delivery=EXACTLY)
    world.server.has_once = False
    batch = world.submit(single("INCR", "a"))
    world.connect()
    for is_the_end in (False, True):  # it does not know ONCEBEGIN, and its COMMAND says why
        world.write()
        world.serve()
        world.read(is_the_end=is_the_end)
    assert isinstance(batch.results[0], ExactlyOnceUnavailable) and not world.server.runs


@pytest.mark.parametrize("make", [many, transaction])
def test_a_repeat_the_server_has_forgotten_has_an_unknown_outcome(make: Callable[..., Batch]) -> None:
    world = up(delivery=EXACTLY)
    sent_before = world.submit(make(("INCR", "a"), ("INCR", "b")))
    world.write()
    world.cut()
    world.server.is_forgetful = True
    new = world.submit(single("INCR", "c"))
    world.run_until_idle()
    results = sent_before.results[-1] if sent_before.atomic else sent_before.results
    assert all(isinstance(result, OutcomeUnknown) for result in results)
    assert isinstance(new.results[0], redis.ResponseError)  # that one is known: it did not run


def test_a_command_that_may_wait_for_ever_has_no_time_limit() -> None:
    world = up()
    batch = single("BLPOP", "a", 0)
    batch.patience = math.inf
    world.submit(batch)
    world.write()
    assert world.core.timeouts.next_tick == math.inf and world.core.tick(world.now + 1e9) is False


STEPS = st.one_of(
    st.tuples(st.just("single"), st.integers(0, 3)),
    st.tuples(st.just("many"), st.integers(1, 4)),
    st.tuples(st.just("transaction"), st.integers(1, 3)),
    st.tuples(st.just("write"), st.integers(1, 120)),
    st.tuples(st.just("serve"), st.integers(1, 120)),
    st.tuples(st.just("read"), st.integers(1, 40)),
    st.tuples(st.just("cut"), st.just(0)),
    st.tuples(st.just("connect"), st.just(0)),
    st.tuples(st.just("cancel"), st.integers(0, 10)),
    st.tuples(st.just("wait"), st.integers(0, 8)),
)


class Machine:
    """Runs steps, each command with a key of its own, so that the server's count tells how often it ran."""

    def __init__(self, delivery: Delivery) -> None:
        self.world = World(delivery=delivery, health_check_interval=0)
        self.keys: list[tuple[Batch, list[bytes]]] = []
        self.cancelled: set[Batch] = set()
        self.number = 0

    def commands(self, count: int) -> tuple[list[bytes], list[tuple[str, bytes]]]:
        keys = [b"k%d" % number for number in range(self.number, self.number + count)]
        self.number += count
        return keys, [("INCR", key) for key in keys]

    def step(self, action: str, size: int) -> None:
        world = self.world
        if action in ("single", "many", "transaction"):
            keys, commands = self.commands(1 if action == "single" else size)
            make = {"single": lambda *c: single(*c[0]), "many": many, "transaction": transaction}[action]
            batch = make(*commands)
            try:
                world.submit(batch)
            except NotSent:
                self.check_unsent(keys)
            else:
                self.keys.append((batch, keys))
        elif action == "cut":
            world.cut()
        elif action == "connect":
            if world.core.connect_at is not None:
                world.now = max(world.now, world.core.connect_at)
                world.connect()
        elif action == "cancel":
            if size < len(self.keys):
                world.core.cancel(self.keys[size][0], world.now)
                world.collect()
                self.cancelled.add(self.keys[size][0])
        elif action == "wait":
            world.now += size
            if world.core.tick(world.now):
                world.cut()
            world.collect()
        elif world.core.up:
            getattr(world, action)(size)

    def check_unsent(self, keys: list[bytes]) -> None:
        assert not any(self.world.server.runs[key] for key in keys), "told that it was not sent, and it ran"

    def check(self, delivery: Delivery) -> None:
        world = self.world
        world.run_until_idle()
        assert sorted(map(id, world.finished)) == sorted(id(batch) for batch, _ in self.keys), (
            "each is finished exactly once"
        )
        assert (world.core.counters.buffered_commands, world.core.counters.buffered_bytes) == (0, 0)
        for batch, keys in self.keys:
            results = batch.results[1:-1] if batch.atomic else batch.results
            for key, result in zip(keys, results, strict=True):
                runs = world.server.runs[key]
                if isinstance(result, NotSent):
                    assert runs == 0, "not sent, and it ran"
                elif isinstance(result, OutcomeUnknown):
                    assert result.state in (State.WRITING, State.WRITTEN)
                else:
                    assert runs >= 1, "replied, and it did not run"
                if isinstance(result, DeliveryError) and delivery is not Delivery.AT_MOST_ONCE:
                    gave_up = isinstance(result, redis.TimeoutError) or batch in self.cancelled
                    assert gave_up, "lost, and nobody gave it up"
                if delivery is not Delivery.AT_LEAST_ONCE:
                    assert runs <= 1, "ran twice"
        firsts = list(dict.fromkeys(argv[1] for argv in world.server.log if argv[0] == b"INCR"))
        assert firsts == sorted(firsts, key=lambda key: int(key[1:])), "first executions are in the order of invocation"
        for batch, keys in self.keys:
            if batch.atomic:
                assert len({world.server.runs[key] for key in keys}) == 1, "a transaction ran in part"


@pytest.mark.parametrize("delivery", list(Delivery))
@given(steps=st.lists(STEPS, max_size=60))
@settings(max_examples=150, deadline=None)
def test_any_interleaving_of_sending_cutting_replying_and_cancelling(
    delivery: Delivery, steps: list[tuple[str, int]]
) -> None:
    machine = Machine(delivery)
    machine.world.connect()
    machine.world.run_until_idle()
    for action, size in steps:
        machine.step(action, size)
    machine.check(delivery)


def test_an_identity_ends_with_a_pause_in_writing_whatever_is_read() -> None:
    """The server counts a client as idle when it sends no writes."""
    world = up(delivery=EXACTLY)
    world.submit(single("INCR", "a"))
    world.run_until_idle()
    for _ in range(5):
        world.now += 400
        world.submit(single("GET", "a"))
        world.run_until_idle()
    world.submit(single("INCR", "a"))
    world.run_until_idle()
    assert len(world.server.kept) == 2 and len({client for client, _ in world.server.kept}) == 2


def test_a_new_identity_is_known_to_the_server_before_it_is_used() -> None:
    """Otherwise, after the server has forgotten it, a repeat of its first command would look like the first time."""
    world = up(delivery=EXACTLY)
    for pause in (0, 3600, 3600):
        world.now += pause
        batch = world.submit(single("INCR", "a"))
        while not batch.is_finished:
            world.write()
            assert b"ONCEBEGIN" not in world.upstream or b"INCR" not in world.upstream
            world.serve()
            world.read()
    assert world.server.met == 3 and world.server.runs[b"a"] == 3


def test_a_repeat_of_the_first_command_of_all_does_not_run_again_however_long_we_slept() -> None:
    """While the machine sleeps its clock stands still: only the server can know that too much time has passed."""
    world = up(delivery=EXACTLY)
    batch = world.submit(single("INCR", "a"))
    world.write()
    world.serve()
    world.cut()
    world.server.known.clear()
    world.server.kept.clear()
    world.run_until_idle()
    assert isinstance(batch.results[0], OutcomeUnknown) and batch.results[0].state is State.WRITTEN
    assert world.server.runs[b"a"] == 1
    batch = world.submit(single("INCR", "b"))
    world.run_until_idle()
    assert batch.results == [1]


def test_a_refused_welcome_lets_reads_pass_and_runs_no_write() -> None:
    """A full disk, or no room for another client: the caller gets the server's own error."""
    world = up(delivery=EXACTLY)
    world.cut()
    world.server.refuses_clients = True
    read = world.submit(single("GET", "a"))
    world.run_until_idle()
    assert read.results == [0]
    refused = [world.submit(make(("INCR", "a"), ("INCR", "a"))) for make in (many, transaction)]
    world.run_until_idle()
    assert "ONCEFULL no room" in str(refused[0].results[1]) and not world.server.runs
    assert "ONCEFULL no room" in str(refused[1].results[-1][1])
    world.server.refuses_clients = False
    world.submit(single("INCR", "b"))
    world.run_until_idle()
    ran = world.submit(single("INCR", "a"))  # by then another identity was tried
    world.run_until_idle()
    assert ran.results == [1]


def test_an_old_server_is_asked_for_its_table_and_told_no_goodbye() -> None:
    world = World(delivery=EXACTLY)
    world.server.is_old = True
    batch = world.submit(single("INCR", "a"))
    world.connect()
    world.run_until_idle()
    assert batch.results == [1] and len(world.server.known) == 1
    assert world.core.exactly_once.farewell() == b""


def test_only_the_first_connection_to_a_kind_of_server_asks_for_its_table() -> None:
    for _ in range(2):
        world = World(delivery=EXACTLY)
        world.submit(single("INCR", "a"))
        world.connect()
        world.run_until_idle()
    world.cut()
    again = world.submit(single("INCR", "a"))
    world.connect()
    world.write()
    assert b"ONCEBEGIN" in world.upstream and b"COMMAND" not in world.upstream
    world.run_until_idle()
    assert again.results == [2]


def test_an_identity_is_ended_when_all_its_commands_are_answered_and_not_before() -> None:
    world = up(delivery=EXACTLY)
    world.submit(single("INCR", "a"))
    world.write()
    assert not world.core.is_idle and world.core.exactly_once.farewell() == b"", "a reply is owed"
    world.serve()
    world.cut()  # and lost: another identity begins, and the command keeps its own
    world.run_until_idle()
    assert len(world.server.known) == 2
    world.server.feed(world.core.exactly_once.farewell())
    assert not world.server.known and world.server.runs[b"a"] == 1


def test_an_identity_that_was_idle_is_ended_when_the_next_one_begins() -> None:
    world = up(delivery=EXACTLY)
    for _ in range(5):
        world.now += 3600
        world.submit(single("INCR", "a"))
        world.run_until_idle()
    assert len(world.server.known) == 1 and world.server.runs[b"a"] == 5


def test_a_level_that_was_taken_back_in_time_refuses_nothing() -> None:
    world = up()
    world.server.has_once = False
    world.core.set_delivery(EXACTLY, world.now)
    world.write()
    world.core.set_delivery(AT_LEAST, world.now)
    batch = world.submit(single("INCR", "a"))
    world.run_until_idle()
    assert batch.results == [1] and world.core.counters.reconnects == 0
