"""Threads that find no room in a client wait in the order of their calls; one that leaves the queue blocks no other.

For tasks: test_giving_up.py; for a cluster: cluster/test_call_bounds.py.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from tests.support.client.echo import Echo
from tests.support.client.interrupts import Interrupt, interrupt_at
from tests.support.waiting import wait_until

from penstock import Client
from penstock.client.errors import BufferFull, ClientClosed
from penstock.testing.redis import RedisServer


def queue_of(client: Client) -> list[Any]:
    """The last word of each batch that waits for room."""
    return [batch.commands[-1][-1] for batch in list(client._connection._room.batches)]


@pytest.fixture
def paused(theirs: RedisServer) -> Iterator[redis.Redis]:
    """A server that runs no writes until CLIENT UNPAUSE."""
    with redis.Redis(port=theirs.port) as admin:
        admin.delete("list")
        admin.client_pause(600_000, all=False)
        try:
            yield admin
        finally:
            admin.client_unpause()


class Calls:
    """Threads that push to a list, each begun when the one before it is held or waits for room."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.threads: list[threading.Thread] = []
        self.outcomes: dict[int, Any] = {}

    def push(self, number: int, count: int = 1, seconds: float | None = None) -> None:
        self.client._connection.core.settings.command_timeout = seconds

        def work() -> None:
            try:
                self.outcomes[number] = self.client.execute_many([("RPUSH", "list", number)] * count)
            except redis.RedisError as error:
                self.outcomes[number] = error

        thread = threading.Thread(target=work, daemon=True)
        self.threads.append(thread)
        before = self.client.counters.buffered_commands
        thread.start()
        wait_until(
            lambda: (
                number in queue_of(self.client)
                or self.client.counters.buffered_commands > before
                or not thread.is_alive()
            )
        )

    def join(self) -> None:
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive()


@pytest.fixture
def calls(theirs: RedisServer) -> Iterator[Calls]:
    with Client.from_url(theirs.url, max_buffered_commands=4, socket_timeout=None) as client:
        client.ping()
        yield Calls(client)


def test_a_large_batch_is_not_overtaken_by_small_ones(calls: Calls, paused: redis.Redis) -> None:
    calls.push(0)
    calls.push(1, count=4)
    for number in (2, 3, 4):
        calls.push(number)
    assert queue_of(calls.client) == [1, 2, 3, 4] and calls.client.counters.buffered_commands == 1
    paused.client_unpause()
    calls.join()
    assert paused.lrange("list", 0, -1) == [b"0", *[b"1"] * 4, b"2", b"3", b"4"]
    assert not queue_of(calls.client) and calls.client.counters.buffered_commands == 0


def test_a_batch_that_never_fits_is_admitted_when_nothing_else_is_held(calls: Calls, paused: redis.Redis) -> None:
    calls.push(0)
    calls.push(1, count=9)
    calls.push(2)
    paused.client_unpause()
    calls.join()
    assert paused.lrange("list", 0, -1) == [b"0", *[b"1"] * 9, b"2"]


def test_when_the_first_gives_up_the_next_is_looked_at(calls: Calls, paused: redis.Redis) -> None:
    calls.push(0)
    calls.push(1, count=4, seconds=0.3)
    calls.push(2)
    calls.push(3)
    calls.threads[1].join(60)
    assert isinstance(calls.outcomes[1], BufferFull)
    wait_until(lambda: calls.client.counters.buffered_commands == 3)  # they fit beside the one that is paused
    paused.client_unpause()
    calls.join()
    assert paused.lrange("list", 0, -1) == [b"0", b"2", b"3"]


def test_closing_the_client_ends_all_waiting_calls(calls: Calls, paused: redis.Redis) -> None:
    calls.push(0)
    for number in (1, 2, 3):
        calls.push(number, count=4)
    calls.client.close()
    calls.join()
    assert [type(calls.outcomes[number]) for number in (1, 2, 3)] == [ClientClosed] * 3
    assert not queue_of(calls.client)


# -- interrupts -----------------------------------------------------------------------------------------------


def three_in_a_row(client: Client, server: Echo, interrupted: bytes, step: int) -> tuple[str, dict[bytes, Any]]:
    """Three threads with room for one; one of them is interrupted. Answers where that was, and what they got."""
    where: list[str] = []
    outcomes: dict[bytes, Any] = {}

    def ask(word: bytes) -> None:
        if word == interrupted:
            sys.settrace(interrupt_at(step, where.append))
        try:
            outcomes[word] = client.echo(word)
        except (Interrupt, redis.RedisError) as error:
            outcomes[word] = error
        finally:
            sys.settrace(None)

    words = [b"first", b"second", b"third"]
    threads = [threading.Thread(target=ask, args=[word], daemon=True) for word in words]
    for word, thread in zip(words, threads, strict=True):
        thread.start()
        while thread.is_alive() and word not in queue_of(client) and not server.heard[word].wait(0.001):
            pass
    for word in words:
        server.may_answer[word].set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), f"interrupted at {where}, and another waits for ever"
    return (where or [""])[0], outcomes


@pytest.mark.parametrize("interrupted", [b"first", b"second"])
def test_an_interrupt_at_any_line_leaves_no_call_waiting_for_room(no_patrol: None, interrupted: bytes) -> None:
    step, where, queued = 0, "begin", 0
    while where:
        server = Echo(cuts=False)
        server.may_answer = {word: threading.Event() for word in server.heard}
        try:
            with Client(
                port=server.port, protocol=2, socket_timeout=60, backoff_base=0.001, max_buffered_commands=1
            ) as client:
                where, outcomes = three_in_a_row(client, server, interrupted, step)
                queued += "room" in where or "queue" in where
                for word, outcome in outcomes.items():
                    ended = isinstance(outcome, Interrupt) if word == interrupted and where else False
                    assert ended or outcome == word or isinstance(outcome, redis.ConnectionError), (where, word)
                assert client.echo(b"third") == b"third", where
                assert client.counters.buffered_commands == 0 and not queue_of(client), where
        finally:
            server.close()
        step += 1
    assert step > 60 and queued > 3


def test_an_abandoned_place_in_the_queue_is_removed(calls: Calls, paused: redis.Redis) -> None:
    """Its thread was interrupted a second time, in the middle of leaving."""
    calls.push(0)
    calls.push(1, count=4)
    connection = calls.client._connection
    with connection._lock:
        (waiting,) = connection._room.batches
        (thread,) = [ident for ident, batch in connection._inside.items() if batch is waiting]
        lost = connection._inside.pop(thread)
    calls.push(2)
    wait_until(lambda: calls.client.counters.buffered_commands == 2)
    connection._inside[thread] = lost
    paused.client_unpause()
    calls.join()
