"""Exactly once on a real Penstock server behind the fault proxy: a write that is answered has run once.

Servers that are killed are in tests/integration/test_soak.py.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.support.client.clients import Connect, result_of_silence
from tests.support.waiting import wait_until

from penstock import Client, Server, State, aio
from penstock.client.errors import ExactlyOnceUnavailable, NoReplyInTime, NotReplayed, OutcomeUnknown
from penstock.testing.proxy import Fault, FaultProxy
from penstock.testing.redis import free_port

QUICK: dict[str, Any] = {"backoff_base": 0.01, "backoff_cap": 0.05}
EXACT: dict[str, Any] = {"delivery": "exactly-once", **QUICK}

CUTS: dict[str, Callable[[FaultProxy, bytes, int], Fault]] = {
    "before forwarding": lambda proxy, name, nth: proxy.cut_before_forwarding(name, nth),
    "in the request": lambda proxy, name, nth: proxy.cut_mid_request(9, name, nth),
    "after execution": lambda proxy, name, nth: proxy.cut_after_execution(name, nth),
    "in the reply": lambda proxy, name, nth: proxy.cut_mid_reply(1, name, nth),
    "nonsense for a reply": lambda proxy, name, nth: proxy.replace_reply(b"\x00?\r\n", name, nth),
}


@pytest.fixture
def exact(connect: Connect, proxy: FaultProxy, witness: redis.Redis) -> Any:
    client = connect(f"redis://127.0.0.1:{proxy.port}/0", **EXACT)
    client.set("there", 1)
    return client


@pytest.fixture(params=list(CUTS))
def cut(request: pytest.FixtureRequest, proxy: FaultProxy) -> Callable[..., Fault]:
    return lambda name=b"ONCE", nth=1: CUTS[request.param](proxy, name, nth)


def forget(server: Server) -> None:
    """As if once-idle-timeout had passed for all clients."""
    assert server.call(lambda app: app.engine.keyspace.once_records.forget_idle(1 << 62))


# -- what breaks ----------------------------------------------------------------------------------------------


def test_one_command(exact: Any, cut: Callable[..., Fault], witness: redis.Redis) -> None:
    for times in range(1, 4):
        fault = cut()
        assert exact.incr("n") == times and fault.has_fired
    assert witness.get("n") == b"3" and exact.counters.reconnects == 3 and exact.counters.failed == 0


def test_a_message(exact: Any, cut: Callable[..., Fault], witness: redis.Redis) -> None:
    for offset in range(1, 4):
        fault = cut()
        assert exact.twrite("stream", "tag", f"message {offset}") == offset and fault.has_fired
    assert [message.entry for message in exact.tread("stream", 1, 10)] == [b"message 1", b"message 2", b"message 3"]


@pytest.mark.parametrize("nth", [1, 3, 6])
def test_a_pipeline(exact: Any, cut: Callable[..., Fault], witness: redis.Redis, nth: int) -> None:
    fault = cut(nth=nth)
    pipe = exact.pipeline(transaction=False)
    for _ in range(6):
        pipe.incr("n")
        pipe.get("n")
    answers = pipe.execute()
    assert fault.has_fired and witness.get("n") == b"6"
    assert answers[::2] == [1, 2, 3, 4, 5, 6]
    assert all(int(seen) >= counted for counted, seen in zip(answers[::2], answers[1::2], strict=True)), (
        "reads may be late"
    )


@pytest.mark.parametrize(("name", "nth"), [(b"MULTI", 1), (b"ONCE", 2), (b"EXEC", 1)])
def test_a_transaction(exact: Any, cut: Callable[..., Fault], witness: redis.Redis, name: bytes, nth: int) -> None:
    fault = cut(name, nth)
    pipe = exact.pipeline()
    pipe.incr("a")
    pipe.rpush("list", "x")
    pipe.incrby("a", 10)
    assert pipe.execute() == [1, 1, 11] and fault.has_fired
    assert witness.get("a") == b"11" and witness.lrange("list", 0, -1) == [b"x"]


def test_a_script(exact: Any, cut: Callable[..., Fault], witness: redis.Redis) -> None:
    fault = cut()
    script = "return {redis.call('INCR', KEYS[1]), redis.call('RPUSH', KEYS[2], ARGV[1])}"
    assert exact.eval(script, 2, "n", "list", "x") == [1, 1] and fault.has_fired
    fault = cut()
    assert exact.evalsha(exact.script_load(script), 2, "n", "list", "y") == [2, 2] and fault.has_fired
    assert witness.get("n") == b"2" and witness.lrange("list", 0, -1) == [b"x", b"y"]


def test_a_blocking_command_that_finds_something(exact: Any, cut: Callable[..., Fault], witness: redis.Redis) -> None:
    witness.rpush("queue", *range(4))
    fault = cut()
    assert exact.blpop("queue", 5)[1] == b"0" and fault.has_fired
    assert exact.blpop("queue", 5)[1] == b"1" and witness.llen("queue") == 2


def test_a_blocking_command_that_has_to_wait(exact: Any, cut: Callable[..., Fault], witness: redis.Redis) -> None:
    fault = cut()
    popped: list[Any] = []
    thread = threading.Thread(target=lambda: popped.append(exact.blpop("queue", 20)))
    thread.start()
    wait_for_blocked(witness)
    for item in range(4):
        witness.rpush("queue", item)
    thread.join()
    assert fault.has_fired and popped[0][1] == b"0" and witness.llen("queue") == 3


def test_a_connection_lost_while_a_command_waits_on_the_server(
    exact: Any, proxy: FaultProxy, witness: redis.Redis
) -> None:
    popped: list[Any] = []
    thread = threading.Thread(target=lambda: popped.append(exact.blpop("queue", 20)))
    thread.start()
    for _ in range(3):
        wait_for_blocked(witness)
        proxy.cut_connections()
    wait_for_blocked(witness)
    witness.rpush("queue", "first", "second")
    thread.join()
    assert popped[0][1] == b"first" and witness.lrange("queue", 0, -1) == [b"second"]


def wait_for_blocked(witness: redis.Redis) -> None:
    while witness.info("clients")["blocked_clients"] != 1:
        time.sleep(0.005)


@pytest.mark.parametrize("executed", [False, True])
def test_a_half_open_connection(connect: Connect, proxy: FaultProxy, witness: redis.Redis, executed: bool) -> None:
    """The head of the line fails rather than be run again; those behind it are sent again, and run once."""
    client = connect(f"redis://127.0.0.1:{proxy.port}/0", socket_timeout=60, **EXACT)
    client.ping()
    fault = proxy.swallow(b"ONCE", executed=executed)
    pipe = client.pipeline(transaction=False)
    for _ in range(5):
        pipe.incr("n")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(pipe.execute, raise_on_error=False)
        assert fault.wait(60)
        first, *others = result_of_silence(client, running)
    assert isinstance(first, NoReplyInTime) and first.state is State.WRITTEN
    ran = int(witness.get("n") or 0) - 4
    assert ran in (0, 1) and others == [ran + number for number in range(1, 5)]
    assert client.incr("n") == ran + 5


def test_refusals_are_repeated_as_they_were(exact: Any, proxy: FaultProxy, witness: redis.Redis) -> None:
    witness.set("text", "x")
    proxy.cut_after_execution(b"ONCE")
    with pytest.raises(redis.ResponseError, match="not an integer"):
        exact.incr("text")
    witness.set("text", 5)
    assert exact.incr("text") == 6


def test_the_filter_holds_at_this_level_too(exact: Any, proxy: FaultProxy, witness: redis.Redis) -> None:
    exact.replay_filter = lambda command: command.name == "INCRBY"
    proxy.cut_after_execution(b"ONCE")
    with pytest.raises(NotReplayed):
        exact.incr("n")
    assert witness.get("n") == b"1"


def test_many_cuts_in_a_row(exact: Any, proxy: FaultProxy, witness: redis.Redis) -> None:
    for nth in range(1, 9):
        proxy.cut_after_execution(b"ONCE", nth)
    pipe = exact.pipeline(transaction=False)
    for number in range(20):
        pipe.rpush("list", number)
    assert pipe.execute() == list(range(1, 21))
    assert [int(item) for item in witness.lrange("list", 0, -1)] == list(range(20))


def test_over_resp3_and_decoded(connect: Connect, proxy: FaultProxy, witness: redis.Redis) -> None:
    for protocol in (2, 3):
        client = connect(f"redis://127.0.0.1:{proxy.port}/0", decode_responses=True, protocol=protocol, **EXACT)
        witness.flushall()
        client.hset("h", "f", "värde")
        proxy.cut_after_execution(b"ONCE")
        assert client.eval("return redis.call('GETDEL', KEYS[1])", 1, "none") is None
        proxy.cut_after_execution(b"ONCE")
        assert client.execute_command("HINCRBYFLOAT", "h", "x", "0.5") in ("0.5", 0.5)
        assert client.hgetall("h") == {"f": "värde", "x": "0.5"}


# -- servers that do not know, or know no more ----------------------------------------------------------------


def test_a_server_without_once_is_refused_and_nothing_is_sent(connect: Connect, theirs: Any) -> None:
    client = connect(theirs.url, **EXACT)
    for _ in range(2):
        with pytest.raises(ExactlyOnceUnavailable, match="use a Penstock server, or the level at-least-once"):
            client.incr("never")
        with pytest.raises(ExactlyOnceUnavailable):
            client.get("never")
    client.delivery = "at-least-once"
    assert client.get("never") is None


def test_a_server_that_has_forgotten_us_is_no_error_after_a_pause(
    exact: Any, ours: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    every_pause_is_long = lambda numbers, now, seconds: numbers._floor == numbers._next > 2  # noqa: E731
    monkeypatch.setattr("penstock.client.engine.once_numbers.OnceNumbers.is_idle", every_pause_is_long)
    for times in range(1, 4):
        assert exact.incr("n") == times
        forget(ours)


def test_a_server_that_forgets_us_at_work_refuses_one_command_and_we_go_on(exact: Any, ours: Server) -> None:
    exact.incr("n")
    for transaction in (False, True):
        forget(ours)
        pipe = exact.pipeline(transaction)
        pipe.incr("n").incr("n")
        refusals = pipe.execute(raise_on_error=False)
        assert [str(refusal).partition(" ")[0] for refusal in refusals] == ["ONCEUNKNOWN"] * 2
        assert all(isinstance(refusal, redis.ResponseError) and refusal.state is State.REPLIED for refusal in refusals)
        exact.incr("other")
    assert exact.incr("n") == 2


@pytest.mark.parametrize("is_first", [False, True])
def test_a_repeat_that_the_server_cannot_place_has_an_unknown_outcome(
    connect: Connect, proxy: FaultProxy, ours: Server, witness: redis.Redis, is_first: bool
) -> None:
    """The server has forgotten us: it was replaced by one without its memory, or our machine has slept for an hour."""
    client = connect(f"redis://127.0.0.1:{proxy.port}/0", **EXACT)
    client.ping()
    ran = 0 if is_first else client.incr("n")
    proxy.refuse_connections()
    fault = proxy.cut_after_execution(b"ONCE")
    failures: list[Any] = []

    def work() -> None:
        try:
            client.incr("n")
        except OutcomeUnknown as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert fault.wait()
    forget(ours)
    proxy.accept_connections()
    thread.join()
    assert failures[0].state is State.WRITTEN and "forgotten whether it ran: ONCEUNKNOWN" in str(failures[0])
    assert witness.get("n") == b"%d" % (ran + 1) and client.incr("n") == ran + 2


def test_a_full_memory_refuses_and_runs_nothing(exact: Any, witness: redis.Redis) -> None:
    before = witness.config_get("once-max-bytes")
    witness.config_set("once-max-bytes", 1)
    try:
        with pytest.raises(redis.ResponseError, match="ONCEFULL") as failure:
            exact.incr("n")
        assert failure.value.state is State.REPLIED and exact.get("n") is None  # type: ignore[attr-defined]
    finally:
        witness.config_set("once-max-bytes", before["once-max-bytes"])
    assert exact.incr("n") == 1


# -- goodbyes -------------------------------------------------------------------------------------------------


def known_clients(witness: redis.Redis) -> int:
    return int(witness.info("once")["once_clients"])


def test_a_closed_client_leaves_nothing_on_the_server(ours: Server, witness: redis.Redis) -> None:
    before = known_clients(witness)
    with Client.from_url(ours.url, **EXACT) as client:
        client.incr("n")
        assert client.blpop("queue", 0.001) is None  # on a connection of its own
        assert known_clients(witness) == before + 2
    wait_until(lambda: known_clients(witness) == before)


def test_a_closed_asyncio_client_leaves_nothing_either(ours: Server, witness: redis.Redis) -> None:
    async def main() -> None:
        async with aio.Client.from_url(ours.url, **EXACT) as client:
            await client.incr("n")
            assert known_clients(witness) == before + 1

    before = known_clients(witness)
    asyncio.run(main())
    wait_until(lambda: known_clients(witness) == before)


def test_the_next_client_of_a_pool_ends_the_identity_of_the_one_before(ours: Server, witness: redis.Redis) -> None:
    before = known_clients(witness)
    with redis.ConnectionPool.from_url(ours.url) as pool:
        for _ in range(5):
            with Client(connection_pool=pool, **EXACT) as client:
                client.incr("n")
        assert known_clients(witness) == before + 1 and witness.get("n") == b"5"
        with Client(connection_pool=pool, **QUICK) as client:
            client.incr("n")
        assert known_clients(witness) == before


def test_consumers_that_were_closed_or_killed_shut_out_no_writer(tmp_path: Path) -> None:
    """26 consumers, each with a last reply of 100 kB, filled once-max-bytes, and every write failed for an hour."""
    settings = {"dir": tmp_path, "appendonly": "yes", "appendfsync": "always", "once-max-bytes": 2_000_000}
    port = free_port()
    with Server(port=port, **settings) as server, Client.from_url(server.url) as writer:
        writer.twrite("s", "tag", "x" * 100_000)
        consumers = [Client.from_url(server.url, **EXACT) for _ in range(52)]
        for number, consumer in enumerate(consumers):
            assert len(consumer.tread("s", 1, group=f"g{number}")) == 1
        for consumer in consumers[:26]:
            consumer.close()
        wait_until(lambda: writer.info("once")["once_clients"] == 26)
        assert writer.info("once")["once_bytes"] > 2_000_000
        with Client.from_url(server.url, **EXACT) as late:
            assert late.incr("n") == 1
    with Server(port=port, **settings) as server, Client.from_url(server.url, **EXACT) as late:
        assert late.info("once")["once_bytes"] > 2_000_000
        assert late.incr("n") == 2
        for consumer in consumers[26:]:
            consumer.close()


def test_lazy_at_this_level_is_refused_with_the_reason(exact: Any, witness: redis.Redis) -> None:
    with pytest.raises(redis.ResponseError, match="LAZY cannot run under ONCE"):
        exact.execute_command("LAZY", "SADD", "s", "a")
    assert not witness.exists("s")


# -- identities -----------------------------------------------------------------------------------------------


def test_a_level_that_is_left_and_taken_again_uses_no_number_twice(exact: Any, witness: redis.Redis) -> None:
    """With its numbers begun anew, the server would take new commands for repeats, and answer without running them."""
    for times in range(1, 6):
        assert exact.incr("n") == times
        exact.delivery = "at-least-once"
        exact.delivery = "exactly-once"
    assert witness.get("n") == b"5"


def test_a_write_sent_before_the_level_was_this_one_is_not_sent_again(
    connect: Connect, proxy: FaultProxy, witness: redis.Redis
) -> None:
    client = connect(f"redis://127.0.0.1:{proxy.port}/0", **QUICK)
    client.ping()
    fault = proxy.cut_after_execution(b"INCRBY")
    outcomes: list[Any] = []

    def work() -> None:
        pipe = client.pipeline(transaction=False)
        pipe.blpop("gate", 0)
        pipe.incr("n")
        pipe.get("n")
        outcomes.extend(pipe.execute(raise_on_error=False))

    thread = threading.Thread(target=work)
    thread.start()
    while not proxy.forwarded[b"INCRBY"]:
        time.sleep(0.001)
    client.delivery = "exactly-once"
    witness.rpush("gate", "open")
    thread.join()
    assert fault.has_fired and isinstance(outcomes[1], NotReplayed) and outcomes[2] == b"1"
    assert "sent without a number" in str(outcomes[1]) and witness.get("n") == b"1"


def test_a_forked_child_is_another_client_to_the_server(ours: Server, witness: redis.Redis) -> None:
    with Client.from_url(ours.url, **EXACT) as client:
        assert client.incr("n") == 1
        child = os.fork()
        if child == 0:
            try:
                client.incr("n")
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert client.incr("n") == 3


@pytest.mark.parametrize("is_connected", [False, True])
def test_a_forked_child_of_an_asyncio_program_is_too(ours: Server, witness: redis.Redis, is_connected: bool) -> None:
    """The child must also leave the parent's loop alone, with which it shares an epoll."""

    async def count() -> int:
        return int(await client.incr("n"))

    async def main() -> None:
        if is_connected:
            await count()
        child = os.fork()
        if child == 0:
            try:
                asyncio._set_running_loop(None)
                asyncio.run(count())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert await asyncio.wait_for(count(), 10) == 2 + is_connected
        await client.aclose()

    client = aio.Client.from_url(ours.url, **EXACT)
    asyncio.run(main())
