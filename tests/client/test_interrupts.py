"""A thread that is interrupted between any two steps does not hold up others: they get their replies.

Every line of the client is interrupted once, by a trace function. Waiting threads normally check from time to time
whether they must act themselves. That is turned off here, so a thread that depended on it would wait for ever.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis
from tests.support.client.echo import Echo
from tests.support.client.interrupts import Interrupt, interrupt_at
from tests.support.client.scripted import World, many, single

from penstock import Client
from penstock.client.api.calls import call
from penstock.client.delivery import Delivery
from penstock.client.drivers import sync as sync_driver
from penstock.client.drivers.socket_io import ClientSocket
from penstock.client.errors import NotSent
from penstock.testing.redis import RedisServer


def first_and_second(client: Client, server: Echo, step: int) -> tuple[str, Any]:
    """Two threads, of which the first leads and is interrupted; where that was, and what the second got."""
    where: list[str] = []
    outcome: list[Any] = []

    def lead() -> None:
        sys.settrace(interrupt_at(step, where.append))
        try:
            client.echo(b"first")
        except (Interrupt, redis.RedisError):
            pass
        finally:
            sys.settrace(None)

    def follow() -> None:
        try:
            outcome.append(client.echo(b"second"))
        except redis.RedisError as error:
            outcome.append(error)

    leader, follower = (threading.Thread(target=work, daemon=True) for work in (lead, follow))
    leader.start()
    while leader.is_alive() and not server.heard[b"first"].wait(0.001):
        pass
    follower.start()
    leader.join(20)
    assert not leader.is_alive(), where
    server.may_answer[b"second"].set()
    follower.join(20)
    assert not follower.is_alive(), f"interrupted at {where}, and the other waits for ever"
    return (where or [""])[0], outcome[0]


@pytest.mark.parametrize(("is_connected", "cuts"), [(False, False), (True, False), (True, True)])
def test_an_interrupt_at_any_line_leaves_no_call_waiting(no_patrol: None, is_connected: bool, cuts: bool) -> None:
    step, where = 0, "begin"
    while where:
        server = Echo(cuts)
        try:
            client = Client(port=server.port, protocol=2, socket_timeout=60, backoff_base=0.001)
            if is_connected:
                client.echo(b"before")
            where, outcome = first_and_second(client, server, step)
            assert outcome == b"second", where
            assert client.echo(b"third") == b"third", where
            assert client.counters.buffered_commands == 0, where
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                client.close()
                assert client._connection._wake_up._receiver.fileno() == -1, where
        finally:
            server.close()
        step += 1
    assert step > 60


@pytest.mark.parametrize(("level", "method"), [(Delivery.AT_MOST_ONCE, "send"), (Delivery.AT_LEAST_ONCE, "receive")])
def test_a_second_interrupt_during_the_first_leaves_no_call_waiting(
    level: Delivery, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when Ctrl-C is pressed twice. The state of the connection is unknown then, so another thread closes it."""
    monkeypatch.setattr(sync_driver, "PATROL", 0.01)
    step, where = 0, ["begin"]
    while where:
        server, where = Echo(False), []
        for event in server.may_answer.values():
            event.set()
        with Client(port=server.port, protocol=2, socket_timeout=60, delivery=level, backoff_base=0.001) as client:
            client.echo(b"before")
            _interrupt_twice(client, method, step, where)
            replies = [_echo(client, word) for word in (b"second", b"third", b"third")]
            if level is Delivery.AT_MOST_ONCE:
                replies = [b"second" if isinstance(replies[0], redis.ConnectionError) else replies[0], *replies[1:]]
            assert replies == [b"second", b"third", b"third"], where
            assert client.counters.buffered_commands == 0, where
        server.close()
        step += 1
    assert step > 20


def _echo(client: Client, word: bytes) -> Any:
    """The reply, or an error; a thread that waits for ever is none."""
    outcome: list[Any] = []

    def call() -> None:
        try:
            outcome.append(client.echo(word))
        except redis.RedisError as error:
            outcome.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(20)
    return outcome[0] if outcome else "waits for ever"


def _interrupt_twice(client: Client, method: str, step: int, where: list[str]) -> None:
    """A thread is interrupted when it has used the socket, and so many lines later again."""
    use = getattr(ClientSocket, method)

    def used(sock: ClientSocket, data: Any) -> Any:
        use(sock, data)
        sys.settrace(interrupt_at(step, where.append))  # in what is called from now on
        raise Interrupt

    def call() -> None:
        try:
            client.echo(b"first")
        except Interrupt:
            pass
        finally:
            sys.settrace(None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClientSocket, method, used)
        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive(), where


def interrupted(step: int, work: Callable[[], object]) -> str:
    """Where work was interrupted; nowhere if it has fewer steps."""
    where: list[str] = []
    sys.settrace(interrupt_at(step, where.append))
    try:
        work()
    except Interrupt:
        pass
    finally:
        sys.settrace(None)
    return (where or [""])[0]


@pytest.mark.parametrize("work", ["write", "read", "lose", "write again"])
@pytest.mark.parametrize("level", [Delivery.AT_LEAST_ONCE, Delivery.EXACTLY_ONCE])
def test_an_interrupt_at_any_line_of_the_engine_costs_others_no_command(level: Delivery, work: str) -> None:
    """The engine alone: the batch that an interrupted thread was working on is found again."""
    step, where = 0, "begin"
    while where:
        world = World(delivery=level, replay_filter=lambda command: False)
        world.connect()
        world.run_until_idle()
        world.server.runs.clear()
        core = world.core
        mine, *others = (world.submit(single("INCR", key)) for key in "mabc")
        others.append(world.submit(many(("INCR", "d"), ("INCR", "e"))))
        if work != "write":
            world.write()
            world.serve()
        if work == "write again":
            world.cut()
            world.connect()
            world.write()
            world.serve()
            world.read()
        if work.startswith("write"):
            where = interrupted(step, core.output)
        elif work == "read":
            where = interrupted(step, partial(core.received, world.downstream, world.now))
        else:
            where = interrupted(step, partial(core.lost, redis.ConnectionError("cut"), world.now))
        world.upstream = world.downstream = b""
        core.cancel(mine, world.now)
        core.interrupted(world.now)
        core.rescue([mine, *others], True, world.now)
        world.collect()
        world.run_until_idle()
        results = [result for batch in others for result in batch.results]
        assert not any(isinstance(result, Exception) for result in results), (where, results)
        if level is Delivery.EXACTLY_ONCE:
            assert results == [1] * 5 and all(world.server.runs[key] == 1 for key in (b"a", b"b", b"c", b"d", b"e")), (
                where
            )
        assert core.counters.buffered_commands == 0, where
        step += 1
    assert step > 20


@pytest.mark.parametrize("level", [Delivery.AT_LEAST_ONCE, Delivery.EXACTLY_ONCE])
def test_a_second_interrupt_in_giving_up_a_command_leaves_replies_with_their_commands(level: Delivery) -> None:
    """Ctrl-C twice: the thread has begun to cancel its command and does not come to the end of it; others go on."""
    step, where = 0, "begin"
    while where:
        world = World(delivery=level)
        world.connect()
        world.run_until_idle()
        mine = world.submit(single("INCR", "m"))
        where = interrupted(step, partial(world.core.cancel, mine, world.now))
        others = [world.submit(many(("INCR", key), ("ECHO", key))) for key in "ab"]
        world.core.interrupted(world.now)
        world.core.rescue(others, True, world.now)
        world.run_until_idle()
        assert [batch.results[0] for batch in others] == [1, 1], where
        assert world.core.counters.buffered_commands == 0 and mine.is_finished, where
        step += 1
    assert step > 5


def test_a_command_whose_thread_was_interrupted_twice_does_not_run_later(theirs: RedisServer) -> None:
    """The thread did not come to cancelling it; the next call finds it in the queue."""
    with Client.from_url(theirs.url) as client:
        client.delete("later")
        connection, batch = client._connection, call(("INCR", "later"), {}, is_shared=True)
        with connection._lock:
            connection.core.submit(batch, time.monotonic())
            connection._interrupted_in.add(-1)  # a thread that is gone
        assert client.exists("later") == 0
        assert type(batch.results[0]) is NotSent and client.counters.buffered_commands == 0


def test_an_interrupt_while_it_connects_leaves_no_socket_open(
    theirs: RedisServer, no_patrol: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[ClientSocket] = []

    def open_socket(*arguments: Any) -> ClientSocket:
        opened.append(ClientSocket(*arguments))
        return opened[-1]

    monkeypatch.setattr(sync_driver, "ClientSocket", open_socket)
    step, where = 0, "begin"
    while where:
        with Client.from_url(theirs.url) as client:
            where = interrupted(step, client.ping)
            left = [sock for sock in opened if sock.raw.fileno() >= 0 and sock is not client._connection._socket]
            assert not left, where
        step += 1
    assert opened and step > 60


def test_an_interrupt_while_redis_py_connects_leaves_no_socket_open(
    theirs: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[socket.socket] = []

    class Interrupted(socket.socket):
        def connect(self, address: Any) -> None:
            made.append(self)
            raise Interrupt

    with Client.from_url(theirs.url) as client:
        monkeypatch.setattr(socket, "socket", Interrupted)
        with pytest.raises(Interrupt):
            client.ping()
        monkeypatch.undo()
        assert [sock.fileno() for sock in made] == [-1]
        assert client.ping()


def test_what_one_was_interrupted_in_giving_out_is_followed_by_nothing_on_that_connection(
    theirs: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may come between the interrupt and the end of the connection; a reply to them would be taken
    for that of what was never written.
    """
    with Client.from_url(theirs.url) as client:
        client.ping()
        connection, me, replies, given = client._connection, threading.get_ident(), list[Any](), list[Any]()
        output, handle = connection.core.output, connection._interrupted

        def interrupted_output() -> bytes:
            data = output()
            if threading.get_ident() == me:
                raise Interrupt
            return data

        def handle_later(*arguments: Any) -> None:
            monkeypatch.undo()
            other.start()
            while not connection.core.pending.queue and len(connection.core._awaiting) == 1:
                pass
            given.extend(batch.commands[0][1] for batch in connection.core._awaiting)
            handle(*arguments)

        other = threading.Thread(target=lambda: replies.append(client.echo(b"other")))
        monkeypatch.setattr(connection.core, "output", interrupted_output)
        monkeypatch.setattr(connection, "_interrupted", handle_later)
        with pytest.raises(Interrupt):
            client.echo(b"mine")
        other.join(30)
        assert replies == [b"other"] and given == [b"mine"]


_PACKING = """
import signal
from penstock.client.drivers.connecting import connection_options
from redis import ConnectionPool

class Interrupt(BaseException):
    pass

def interrupt(*_):
    raise Interrupt

signal.signal(signal.SIGALRM, interrupt)
packer, interrupts = connection_options(ConnectionPool(), None)["command_packer"], 0
while interrupts < 2_000:
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.00005 + interrupts % 17 * 0.00001)
        for _ in range(100_000):  # not for ever: an exception in a finalizer is not raised here
            packer.pack("HELLO", 3)
    except Interrupt:
        pass
    interrupts += 1
"""


@pytest.mark.parametrize("pure", ["", "1"])
def test_an_interrupt_while_the_handshake_is_packed_does_not_end_the_process(pure: str) -> None:
    """hiredis 3.5 does not look whether a number could be shown: redis-py's packer ends the process at one of the first
    twenty interrupts.
    """
    subprocess.run([sys.executable, "-c", _PACKING], check=True, timeout=120, env={**os.environ, "PENSTOCK_PURE": pure})
