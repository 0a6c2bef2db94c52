"""Large values do not hold up small ones: they, or the commands beside them, take a connection of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import redis
from tests.support.client.clients import AioFace, Connect
from tests.support.waiting import wait_until

from penstock import Client, Server
from penstock.client.api import shared
from penstock.testing.proxy import FaultProxy
from penstock.testing.relay import Relay

BIG = b"x" * 4_000_000


@pytest.fixture
def relay(ours: Server) -> Iterator[Relay]:
    """It stops in the middle of a large reply."""
    with Relay(ours.port) as made:
        made.pause(after=2_000_000)
        yield made


@pytest.fixture
def client(connect: Connect, proxy: FaultProxy, witness: redis.Redis) -> Any:
    client = connect(f"redis://127.0.0.1:{proxy.port}/0", socket_timeout=60)
    witness.set("big", BIG)
    witness.set("small", "v")
    client.ping()
    return client


@pytest.fixture
def slow(proxy: FaultProxy) -> Iterator[None]:
    proxy.slow_down(200_000)  # requests: a large value takes twenty seconds
    yield
    proxy.clear()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


def core_of(client: Any) -> Any:
    real = client.real if isinstance(client, AioFace) else client
    return real._connection.core


def aside(client: Any) -> int:
    real = client.real if isinstance(client, AioFace) else client
    return len(real._own_connections)


def test_a_large_reply_does_not_hold_up_others(
    connect: Connect, relay: Relay, pool: ThreadPoolExecutor, witness: redis.Redis
) -> None:
    client = connect(f"redis://127.0.0.1:{relay.port}/0", socket_timeout=60)
    witness.set("big", BIG)
    witness.set("small", "v")
    large: Future[Any] = pool.submit(client.get, "big")
    wait_until(lambda: core_of(client).reader.is_clogged)
    assert [client.get("small") for _ in range(5)] == [b"v"] * 5 and not large.done()
    relay.resume()
    assert large.result(60) == BIG and not core_of(client).reader.is_clogged


def test_a_large_array_does_not_either(
    connect: Connect, relay: Relay, pool: ThreadPoolExecutor, witness: redis.Redis
) -> None:
    client = connect(f"redis://127.0.0.1:{relay.port}/0", socket_timeout=60)
    witness.set("small", "v")
    witness.rpush("list", *[b"x" * 1000] * 4000)
    large = pool.submit(client.lrange, "list", 0, -1)
    wait_until(lambda: core_of(client).reader.is_clogged)
    assert client.get("small") == b"v" and not large.done()
    relay.resume()
    assert len(large.result(60)) == 4000 and not core_of(client).reader.is_clogged


def test_a_large_command_does_not_either(
    client: Any, slow: None, proxy: FaultProxy, pool: ThreadPoolExecutor, witness: redis.Redis
) -> None:
    large = pool.submit(client.set, "new", BIG)
    wait_until(lambda: aside(client) == 1)
    assert client.get("small") == b"v" and not large.done() and not witness.exists("new")
    proxy.clear()
    assert large.result(60) and witness.strlen("new") == len(BIG)


def test_a_command_whose_reply_was_large_leaves_the_shared_connection_alone(client: Any) -> None:
    assert client.get("big") == BIG
    before = core_of(client).counters.sent
    assert client.get("big") == BIG and core_of(client).counters.sent == before
    client.get("small")
    assert core_of(client).counters.sent == before + 1


def test_a_caller_sees_its_own_writes(client: Any) -> None:
    for number in range(5):
        client.set("big", BIG + b"%d" % number)
        assert client.strlen("big") == len(BIG) + 1 and client.get("big")[-1:] == b"%d" % number
        client.set("big", number)
        assert client.get("big") == b"%d" % number


def test_the_database_of_the_client_is_that_of_large_commands_too(client: Any, witness: redis.Redis) -> None:
    client.select(3)
    client.set("big", BIG[:2_000_000])
    assert client.strlen("big") == 2_000_000 and witness.strlen("big") == len(BIG)


def test_so_many_step_aside_and_no_more(
    client: Any, slow: None, proxy: FaultProxy, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "MOST_ASIDE", 1)
    before = core_of(client).counters.sent
    large = [pool.submit(client.set, "new", BIG)]
    wait_until(lambda: aside(client) == 1)
    large += [pool.submit(client.set, f"new-{number}", BIG) for number in range(2)]
    wait_until(lambda: core_of(client).counters.sent == before + 2)
    assert aside(client) == 1
    proxy.clear()
    assert all(future.result(60) for future in large)


def test_what_concerns_the_shared_connection_stays_there(ours: Server, witness: redis.Redis) -> None:
    with Client.from_url(ours.url) as client:
        client.get("small")
        core_of(client).reader.is_clogged = True
        calls: list[Callable[[], Any]] = [lambda: client.wait(0, 1), lambda: client.select(0)]
        for call in calls:
            before = core_of(client).counters.sent
            call()
            assert core_of(client).counters.sent == before + 1
            core_of(client).reader.is_clogged = True
        assert not client._own_connections


def test_a_client_of_one_connection_keeps_to_it(ours: Server, witness: redis.Redis) -> None:
    with Client.from_url(ours.url, single_connection_client=True) as client:
        client.set("big", BIG)
        assert client.get("big") == BIG == client.get("big") and not client._own_connections


def test_only_the_last_commands_with_large_replies_are_remembered(ours: Server, witness: redis.Redis) -> None:
    with Client.from_url(ours.url) as client:
        for number in range(400):
            client._contact.note_large(("GET", number))
        client._contact.note_large(("GET", bytearray(b"x")))
        assert len(client._contact.large) == 256 and client._contact.was_large([("GET", 399)])
        assert not client._contact.was_large([("GET", 0)]) and not client._contact.was_large([("GET", bytearray(b"x"))])
