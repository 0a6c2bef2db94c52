"""Both clients on both servers behind the fault proxy: what ran, how often, and which error the caller got."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import redis
from tests.support.client.clients import SHORT_TIMES, Connect, raised
from tests.support.client.interrupts import Interrupt, interrupting

from penstock import Client, Server, State, aio
from penstock.client.drivers import sync as sync_driver
from penstock.client.errors import (
    BufferFull,
    NoReplyInTime,
    NotReplayed,
    NotSent,
    NotSentInTime,
    OutcomeUnknown,
)
from penstock.testing.proxy import FaultProxy
from penstock.testing.redis import RedisServer

QUICK = {"backoff_base": 0.01, "backoff_cap": 0.05}


@pytest.fixture
def witness(peer: str) -> Any:
    """A client that does not go through the proxy."""
    with redis.Redis.from_url(peer) as plain:
        plain.flushall()
        yield plain


def test_at_least_once_runs_again_what_lost_its_reply(connect: Connect, peer_proxy: FaultProxy, witness: Any) -> None:
    client = connect(peer_proxy.url, **QUICK)
    client.ping()
    peer_proxy.cut_after_execution()
    assert client.incr("a") == 2 and witness.get("a") == b"2"
    assert client.counters.replayed == 1 and client.counters.reconnects == 1


def test_at_most_once_does_not(connect: Connect, peer_proxy: FaultProxy, witness: Any) -> None:
    """redis-py 8.1 runs this twice, silently."""
    client = connect(peer_proxy.url, delivery="at-most-once")
    client.ping()
    peer_proxy.cut_after_execution()
    with pytest.raises(OutcomeUnknown) as failure:
        client.incr("a")
    assert failure.value.state is State.WRITTEN and isinstance(failure.value, redis.ConnectionError)
    assert witness.get("a") == b"1" and client.incr("a") == 2  # and it goes on


def test_a_request_that_was_cut_is_sent_again(connect: Connect, peer_proxy: FaultProxy, witness: Any) -> None:
    client = connect(peer_proxy.url, **QUICK)
    client.ping()
    peer_proxy.cut_before_forwarding()
    assert client.incr("a") == 1


def test_the_replay_filter_stops_it(connect: Connect, peer_proxy: FaultProxy, witness: Any) -> None:
    client = connect(peer_proxy.url, replay_filter=lambda command: command.name == "INCRBY", **QUICK)
    client.ping()
    peer_proxy.cut_after_execution()
    with pytest.raises(NotReplayed):
        client.incr("a")
    assert witness.get("a") == b"1" and client.counters.filtered == 1
    client.replay_filter = None
    client.ping()
    peer_proxy.cut_after_execution()
    assert client.incr("a") == 3


def test_levels_change_at_run_time(connect: Connect, peer_proxy: FaultProxy, witness: Any) -> None:
    client = connect(peer_proxy.url, **QUICK)
    client.ping()
    client.delivery = "at-most-once"
    peer_proxy.cut_after_execution()
    with pytest.raises(OutcomeUnknown):
        client.incr("a")
    client.delivery = "at-least-once"
    client.ping()
    peer_proxy.cut_after_execution()
    assert client.incr("a") == 3


@pytest.mark.parametrize("raised", ["at-least-once", "exactly-once"])
def test_a_level_that_is_raised_in_flight_does_not_count_for_what_was_handed_over(
    connect: Connect, proxy: FaultProxy, ours: Server, raised: str
) -> None:
    client = connect(proxy.url, delivery="at-most-once", **QUICK)
    with redis.Redis.from_url(ours.url) as witness, ThreadPoolExecutor(1) as pool:
        witness.delete("a")
        client.ping()
        proxy.hold_replies()
        running = pool.submit(client.incr, "a")
        while not proxy.is_holding:
            time.sleep(0.001)
        client.delivery = raised
        proxy.cut_connections()
        proxy.release_replies()
        with pytest.raises(OutcomeUnknown):
            running.result()
        assert witness.get("a") == b"1" and client.incr("a") == 2


def test_a_transaction_is_not_run_twice_at_most_once(connect: Connect, peer_proxy: FaultProxy, witness: Any) -> None:
    """redis-py 8.1 runs the whole transaction twice."""
    client = connect(peer_proxy.url, delivery="at-most-once")
    client.ping()
    peer_proxy.cut_after_execution(b"EXEC")
    pipe = client.pipeline()
    pipe.incr("a")
    pipe.incr("b")
    with pytest.raises(OutcomeUnknown) as failure:
        pipe.execute()
    assert list(failure.value.states) == [State.WRITTEN] * 2 and witness.mget("a", "b") == [b"1", b"1"]


def test_a_pipeline_says_how_far_each_command_came(connect: Connect, peer_proxy: FaultProxy, witness: Any) -> None:
    client = connect(peer_proxy.url, delivery="at-most-once")
    client.ping()
    peer_proxy.cut_after_execution(nth=4, replies=2)
    pipe = client.pipeline(transaction=False)
    for _ in range(4):
        pipe.incr("a")
    with pytest.raises(OutcomeUnknown) as failure:
        pipe.execute()
    replied, written = State.REPLIED, State.WRITTEN
    assert list(failure.value.states) == [replied, replied, written, written]
    assert failure.value.replies[:2] == [1, 2]


def test_what_a_pipeline_has_replies_for_does_not_run_again(
    connect: Connect, peer_proxy: FaultProxy, witness: Any
) -> None:
    """redis-py's cluster pipeline ran all hundred again, of which fifty were answered."""
    client = connect(peer_proxy.url, **QUICK)
    client.ping()
    peer_proxy.cut_after_execution(nth=6, replies=3)
    pipe = client.pipeline(transaction=False)
    for number in range(6):
        pipe.incr(f"k{number}")
    assert pipe.execute() == [1, 1, 1, 2, 2, 2]


def test_a_watch_that_is_lost_before_exec_is_a_watch_error(
    connect: Connect, peer_proxy: FaultProxy, witness: Any
) -> None:
    client = connect(peer_proxy.url, **QUICK)
    pipe = client.pipeline()
    pipe.watch("a")
    peer_proxy.cut_connections()
    pipe.multi()
    pipe.incr("a")
    with pytest.raises((redis.WatchError, OutcomeUnknown)):
        pipe.execute()
    assert witness.get("a") is None
    pipe.watch("a")
    pipe.multi()
    pipe.incr("a")
    assert pipe.execute() == [1]


def test_an_exec_that_may_have_run_is_no_watch_error(connect: Connect, peer_proxy: FaultProxy, witness: Any) -> None:
    """redis-py says WatchError, on which every program tries again."""
    client = connect(peer_proxy.url, **QUICK)
    pipe = client.pipeline()
    pipe.watch("a")
    pipe.multi()
    pipe.incr("a")
    peer_proxy.cut_after_execution(b"EXEC")
    with pytest.raises(OutcomeUnknown):
        pipe.execute()
    assert witness.get("a") == b"1"


def test_commands_wait_while_the_server_is_away_and_run_in_order(
    connect: Connect, peer_proxy: FaultProxy, witness: Any
) -> None:
    client = connect(peer_proxy.url, **QUICK)
    client.ping()
    peer_proxy.refuse_connections()
    peer_proxy.cut_connections()
    threads = []
    for number in range(20):
        thread = threading.Thread(target=lambda number=number: client.rpush("list", number))
        thread.start()
        threads.append(thread)
        while client.counters.buffered_commands < number + 1:
            time.sleep(0.001)
    peer_proxy.accept_connections()
    for thread in threads:
        thread.join()
    order = [int(item) for item in witness.lrange("list", 0, -1)]
    assert list(dict.fromkeys(order)) == list(range(20))


def _transaction(client: Any) -> Any:
    with client.pipeline() as pipe:
        pipe.watch("a")
        pipe.multi()
        return pipe.get("a").execute()


def _with_one_connection(client: Any) -> Any:
    twin = client.client()
    if isinstance(twin, aio.Client):
        return client._do(partial(_get_and_close, twin))
    with twin:
        return twin.get("a")


async def _get_and_close(twin: aio.Client) -> Any:
    async with twin:
        return await twin.get("a")


WITH_A_CONNECTION_OF_THEIR_OWN: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "blpop": (lambda client: list(client.blpop("list", 1)), [b"list", b"item"]),
    "tread": (lambda client: [entry.entry for entry in client.tread("log", 1, block_ms=1000)], [b"tea"]),
    "xread": (lambda client: len(client.xread({"stream": "0"}, block=1000)), 1),
    "watch": (_transaction, [b"1"]),
    "client": (_with_one_connection, b"1"),
}


@pytest.mark.parametrize("which", WITH_A_CONNECTION_OF_THEIR_OWN)
def test_what_needs_a_connection_of_its_own_waits_for_the_server_like_all_others(
    connect: Connect, proxy: FaultProxy, ours: Server, which: str
) -> None:
    ask, expected = WITH_A_CONNECTION_OF_THEIR_OWN[which]
    client = connect(proxy.url, **QUICK)
    with Client.from_url(ours.url) as witness, ThreadPoolExecutor(1) as pool:
        witness.flushall()
        witness.set("a", 1)
        witness.rpush("list", "item")
        witness.xadd("stream", {"f": "v"})
        witness.twrite("log", "tag", "tea")
        client.ping()
        proxy.refuse_connections()
        proxy.cut_connections()
        running = pool.submit(ask, client)
        while proxy.refused < 3 and not running.done():
            time.sleep(0.001)
        assert not running.done(), running.exception()
        proxy.accept_connections()
        assert running.result() == expected


def test_before_the_first_connection_of_a_client_failure_is_an_error_at_once(
    connect: Connect, proxy: FaultProxy
) -> None:
    proxy.refuse_connections()
    proxy.cut_connections()
    for ask, _ in WITH_A_CONNECTION_OF_THEIR_OWN.values():
        with pytest.raises(redis.ConnectionError) as failure:
            ask(connect(proxy.url, **QUICK))
        assert failure.value.state is State.QUEUED  # type: ignore[attr-defined]


def test_events_tell_of_a_reconnect(connect: Connect, peer_proxy: FaultProxy, witness: Any) -> None:
    seen: list[Any] = []
    client = connect(peer_proxy.url, on_reconnect=seen.append, on_replay=seen.append, **QUICK)
    client.ping()
    peer_proxy.cut_after_execution()
    client.incr("a")
    assert [type(event).__name__ for event in seen] == ["Reconnected", "Replayed"]
    assert [command.name for command in seen[1].commands] == ["INCRBY"]


def test_a_listener_may_use_the_client_and_may_fail(
    connect: Connect, peer_proxy: FaultProxy, witness: Any, caplog: Any
) -> None:
    seen: list[Any] = []

    def listen(event: Any) -> None:
        if hasattr(client, "real"):  # a coroutine there: for later
            seen.append(event)
        else:
            seen.append(client.get("a"))
        raise RuntimeError("listener")

    client = connect(peer_proxy.url, on_reconnect=listen, **QUICK)
    client.ping()
    peer_proxy.cut_after_execution()
    assert client.incr("a") == 2 and len(seen) == 1 and client.ping()
    assert "a listener failed on Reconnected" in caplog.text


def test_a_command_that_outlives_its_time_was_not_sent(connect: Connect, peer_proxy: FaultProxy, witness: Any) -> None:
    client = connect(peer_proxy.url, **QUICK)
    client.ping()
    peer_proxy.refuse_connections()
    peer_proxy.cut_connections()
    client.settings.command_timeout = 0.3
    with pytest.raises(NotSent) as failure:
        client.incr("a")
    assert isinstance(failure.value, NotSentInTime) and isinstance(failure.value, redis.TimeoutError)
    client.settings.command_timeout = 60
    peer_proxy.accept_connections()
    assert client.incr("b") == 1


def test_a_half_open_connection_is_given_up(connect: Connect, peer_proxy: FaultProxy, witness: Any) -> None:
    client = connect(peer_proxy.url, socket_timeout=60, **QUICK)
    client.ping()
    peer_proxy.swallow()
    client.settings.silence_timeout = 0.3
    with pytest.raises(NoReplyInTime):
        client.incr("a")
    client.settings.silence_timeout = 60
    assert client.incr("a") == 1 and client.counters.reconnects == 1


def test_a_timed_out_command_leaves_the_connection_in_step(
    connect: Connect, peer_proxy: FaultProxy, witness: Any
) -> None:
    client = connect(peer_proxy.url, socket_timeout=60, **QUICK)
    client.set("a", "right")
    peer_proxy.hold_replies()
    for seconds in SHORT_TIMES:
        client.settings.command_timeout = seconds
        error = raised(lambda: client.get("other"))
        if not isinstance(error, NotSent):
            break
    assert isinstance(error, NoReplyInTime)
    client.settings.command_timeout = 60
    peer_proxy.release_replies()
    assert client.get("a") == b"right" and client.counters.reconnects == 0


def test_session_state_survives(connect: Connect, peer_proxy: FaultProxy, witness: Any) -> None:
    client = connect(peer_proxy.url, **QUICK)
    client.select(2)
    client.client_setname("worker")
    peer_proxy.cut_after_execution()
    client.set("a", 1)
    assert client.client_getname() in ("worker", b"worker")
    witness.select(2)
    assert witness.get("a") == b"1"


def test_a_full_buffer_raises_or_waits(connect: Connect, peer_proxy: FaultProxy, witness: Any) -> None:
    client = connect(peer_proxy.url, max_buffered_commands=1, when_full="raise", **QUICK)
    client.ping()
    peer_proxy.refuse_connections()
    peer_proxy.cut_connections()
    thread = threading.Thread(target=lambda: client.incr("a"))
    thread.start()
    while not client.counters.buffered_commands:
        time.sleep(0.001)
    with pytest.raises(BufferFull):
        client.incr("b")
    client.settings.when_full = "block"
    second = threading.Thread(target=lambda: client.incr("b"))
    second.start()
    peer_proxy.accept_connections()
    thread.join()
    second.join()
    assert witness.mget("a", "b") == [b"1", b"1"]


def test_a_server_that_is_killed_and_comes_back(connect: Connect) -> None:
    with RedisServer() as server, RedisServer() as heir, FaultProxy(("127.0.0.1", server.port)) as proxy:
        client = connect(proxy.url, **QUICK)
        client.set("a", 1)
        os.kill(server.pid, signal.SIGKILL)
        answers: list[Any] = []
        thread = threading.Thread(target=lambda: answers.append(client.incr("a")))
        thread.start()
        proxy.target = ("127.0.0.1", heir.port)
        thread.join()
        assert answers == [1]


def test_many_threads_through_many_cuts_lose_nothing(connect: Connect, peer_proxy: FaultProxy, witness: Any) -> None:
    client = connect(peer_proxy.url, **QUICK)
    client.ping()
    failures: list[Exception] = []

    def work(name: int) -> None:
        for number in range(30):
            try:
                client.rpush(f"list{name}", number)
            except Exception as error:
                failures.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        time.sleep(0.02)
        peer_proxy.cut_after_execution()
    for thread in threads:
        thread.join()
    assert not failures
    for name in range(8):
        order = [int(item) for item in witness.lrange(f"list{name}", 0, -1)]
        assert list(dict.fromkeys(order)) == list(range(30))


def test_cancelled_tasks_leave_the_connection_in_step(peer: str) -> None:
    """redis-py#2624, #2665: the next caller must not get the reply of the cancelled one."""

    async def main() -> None:
        async with aio.Client.from_url(peer) as client:
            await client.execute_many([("SET", f"k{number}", number) for number in range(50)])
            tasks = [asyncio.create_task(client.get(f"k{number}")) for number in range(50)]
            await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            answers = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(answer, asyncio.CancelledError) for answer in answers[::2])
            assert answers[1::2] == [b"%d" % number for number in range(1, 50, 2)]
            assert await client.get("k7") == b"7" and client.counters.reconnects == 0

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_client_may_be_used_in_one_loop_after_another(peer: str) -> None:
    client = aio.Client.from_url(peer)
    assert asyncio.run(client.ping()) and asyncio.run(client.ping())
    asyncio.run(client.aclose())
    gc.collect()  # asyncio itself complains of a loop that ended with its transport open: here, not in another test


@pytest.fixture
def interrupt_when() -> Iterator[Callable[[Callable[[], bool]], None]]:
    """Call it with a condition: when that is met the thread of the test is interrupted, wherever it then is."""

    def wait(condition: Callable[[], bool], thread: int) -> None:
        while not condition():
            time.sleep(0.001)
        signal.pthread_kill(thread, signal.SIGALRM)

    def begin(condition: Callable[[], bool]) -> None:
        waiters.append(threading.Thread(target=wait, args=(condition, threading.get_ident())))
        waiters[-1].start()

    waiters: list[threading.Thread] = []
    with interrupting():
        yield begin
        for waiter in waiters:
            waiter.join()


def test_an_interrupted_thread_leaves_the_others_in_step(
    peer_proxy: FaultProxy, witness: Any, interrupt_when: Any
) -> None:
    with Client.from_url(peer_proxy.url, **QUICK) as client:
        client.set("a", "right")
        peer_proxy.hold_replies()
        with pytest.raises(Interrupt):
            interrupt_when(lambda: peer_proxy.is_holding)
            client.get("a")
        peer_proxy.release_replies()
        assert client.get("a") == b"right" and client.counters.buffered_commands == 0


def test_a_signal_handler_may_use_the_client_that_it_interrupts(peer_proxy: FaultProxy, interrupt_when: Any) -> None:
    """The thread that reads for all is the one that the handler runs in: it must not wait for itself."""
    answers: list[Any] = []
    with Client.from_url(peer_proxy.url) as client:
        client.set("a", "right")

        def use(*_: object) -> None:
            peer_proxy.release_replies()
            answers.append(client.get("a"))

        before = signal.signal(signal.SIGALRM, use)
        try:
            peer_proxy.hold_replies()
            interrupt_when(lambda: peer_proxy.is_holding)
            assert client.get("a") == b"right" and answers == [b"right"]
        finally:
            signal.signal(signal.SIGALRM, before)


def test_a_signal_handler_that_uses_the_shared_client_delays_no_thread(peer: str) -> None:
    """Wherever it comes in between: also while its thread is the one to wake the next, or to write for all."""
    answers: list[Any] = []
    with Client.from_url(peer) as client:
        client.set("a", "right")

        def work() -> None:
            for _ in range(300):
                assert client.get("a") == b"right"
                done.append(1)

        def handle(*_: object) -> None:
            answers.append(client.get("a"))
            signal.setitimer(signal.ITIMER_REAL, 0.001)

        done: list[int] = []
        threads = [threading.Thread(target=work) for _ in range(8)]
        before = signal.signal(signal.SIGALRM, handle)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.001)
            for thread in threads:
                thread.start()
            work()
            for thread in threads:
                thread.join()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
    assert len(done) == 9 * 300 and answers and set(answers) == {b"right"}


def test_an_interrupted_follower_leaves_the_connection_alone(
    peer_proxy: FaultProxy, witness: Any, interrupt_when: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the others, each of whom is woken by the one before."""
    monkeypatch.setattr(sync_driver, "PATROL", 600.0)
    thread_of_the_test = threading.get_ident()
    with Client.from_url(peer_proxy.url, delivery="at-most-once", socket_timeout=60) as client:
        client.set("a", "right")
        peer_proxy.hold_replies()
        answers: list[Any] = []
        others = [threading.Thread(target=lambda: answers.append(client.get("a"))) for _ in range(9)]

        def waits() -> bool:
            """Whether the thread of the test does nothing but wait for another to wake it."""
            waiting = sys._current_frames()[thread_of_the_test].f_locals
            return bool(waiting.get("only_waits")) and waiting.get("patience") == sync_driver.PATROL

        def all_wait() -> bool:
            if not waits():
                return False
            for thread in others[4:]:
                if thread.ident is None:
                    thread.start()
            return client.counters.buffered_commands == 10

        for thread in others[:4]:
            thread.start()
        while client.counters.buffered_commands < 4:
            time.sleep(0.001)
        with pytest.raises(Interrupt):
            interrupt_when(all_wait)
            client.get("b")
        peer_proxy.release_replies()
        for thread in others:
            thread.join()
        assert answers == [b"right"] * 9 and client.get("a") == b"right" and client.counters.reconnects == 0


def test_a_forked_child_has_a_connection_of_its_own(peer: str) -> None:
    with Client.from_url(peer) as client:
        client.delete("child")
        mine = client.client_id()
        child = os.fork()
        if child == 0:
            try:
                client.set("child", client.client_id())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert int(client.get("child") or mine) != mine and client.client_id() == mine
