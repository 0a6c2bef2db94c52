"""Reentrant calls: a signal handler, or a replay filter, runs in a thread that is working on the connection."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import redis
from tests.support.waiting import wait_until

from penstock import Client, Delivery
from penstock.client.delivery import Command
from penstock.client.errors import ClientClosed, DeliveryError
from penstock.testing.proxy import FaultProxy


@pytest.fixture
def handled() -> Iterator[list[Callable[[], object]]]:
    """What the handler of a signal does, which `in_between` raises."""
    wanted: list[Callable[[], object]] = []
    before = signal.signal(signal.SIGALRM, lambda *_: wanted[0]())
    yield wanted
    signal.signal(signal.SIGALRM, before)


def in_between(_: Command) -> bool:
    """A filter is asked with the lock of the connection held, and so is a handler that comes now."""
    signal.raise_signal(signal.SIGALRM)
    return False


def test_a_signal_handler_may_close_the_client_that_it_interrupts(
    proxy: FaultProxy, witness: redis.Redis, handled: list[Callable[[], object]]
) -> None:
    with Client(port=proxy.port, replay_filter=in_between) as client:
        handled.append(client.close)
        client.ping()
        proxy.cut_after_execution(b"INCRBY")
        with pytest.raises(DeliveryError, match="closed"):
            while True:  # it is closed as soon as that can be
                client.incr("n")
        assert client._connection.core.is_closed


def test_a_signal_handler_may_change_the_level_in_the_middle_of_anything(
    proxy: FaultProxy, witness: redis.Redis, handled: list[Callable[[], object]]
) -> None:
    with Client(port=proxy.port, replay_filter=in_between) as client:
        handled.append(lambda: setattr(client, "delivery", "exactly-once"))
        client.ping()
        proxy.cut_after_execution(b"INCRBY")
        with suppress(DeliveryError):  # it had no number, and the new level counts as soon as it can
            client.incr("n")
        wait_until(lambda: client.delivery is Delivery.EXACTLY_ONCE)
        client.replay_filter = None
        before = int(witness.get("n") or 0)
        assert client.incr("n") == before + 1


def test_a_filter_that_is_asked_when_it_is_set_may_use_the_client(proxy: FaultProxy, witness: redis.Redis) -> None:
    answers: list[Any] = []
    with Client(port=proxy.port, command_timeout=20) as client:
        client.set("a", "right")

        def use(_: Command) -> bool:
            if not answers:
                answers.append(None)
                proxy.accept_connections()
                answers[0] = client.get("a")
            return False

        proxy.refuse_connections()
        fault = proxy.cut_after_execution(b"INCRBY")
        counting = threading.Thread(target=lambda: answers.append(client.incr("n")))
        counting.start()
        fault.wait()
        wait_until(lambda: not client._connection.core.up)
        client.replay_filter = use
        counting.join()
        assert answers[0] == b"right" and answers[1] == 2


def test_a_client_that_is_closed_while_it_connects_leaves_nothing_open(proxy: FaultProxy, witness: redis.Redis) -> None:
    client = Client(port=proxy.port)
    fault = proxy.delay(0.2, b"HELLO")
    failures: list[Exception] = []

    def call() -> None:
        try:
            client.ping()
        except DeliveryError as error:
            failures.append(error)

    calling = threading.Thread(target=call)
    calling.start()
    fault.wait()
    client.close()
    calling.join()
    assert type(failures[0]) is ClientClosed and client._connection._socket is None
    client.close()
