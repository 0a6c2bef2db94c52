"""maxmemory-clients: when all clients together take too much memory, the one that takes the most is closed."""

from __future__ import annotations

import socket
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from tests.support.waiting import wait_until

from penstock import Server, commands
from penstock.engine.config import Config
from penstock.engine.dispatch import Engine
from penstock.engine.session import Session
from penstock.protocol.resp import pack
from penstock.testing.redis import RedisServer, find_redis

MEGABYTE = 1 << 20
BIG = 40 * MEGABYTE  # more than the kernel keeps for a client that does not read
SERVERS = ["penstock", "redis"] if find_redis().version >= (7, 0) else ["penstock"]


@pytest.fixture(params=SERVERS)
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    """A server, ours or a real Redis, whose clients may take 20 MB."""
    server: Any = (
        RedisServer(maxmemory_clients="20mb") if request.param == "redis" else Server(maxmemory_clients="20mb")
    )
    with server:
        yield server.port


def _push(client: socket.socket, data: bytes) -> bool:
    """Send as much as the server takes; whether the connection was closed."""
    view = memoryview(data)
    client.settimeout(30)
    try:
        while view:
            view = view[client.send(view) :]
    except ConnectionError:
        return True
    return False


def _is_closed(client: socket.socket) -> bool:
    """Whether the server has closed a connection of which nothing was read."""
    try:
        client.settimeout(30)
        while client.recv(MEGABYTE):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


def _evicted(client: redis.Redis) -> int:
    return int(client.info("stats")["evicted_clients"])


def _connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port))


def test_a_client_that_does_not_read_is_closed_and_others_are_not(port: int) -> None:
    with redis.Redis(port=port) as other, _connected(port) as silent:
        other.setrange("big", BIG - 1, b"x")
        silent.sendall(pack(b"GET", b"big"))
        wait_until(lambda: _evicted(other) == 1)
        assert _is_closed(silent)
        assert len(other.client_list()) == 1


def test_a_client_that_sends_half_a_command_is_closed(port: int) -> None:
    with redis.Redis(port=port) as other, _connected(port) as unfinished:
        other.ping()
        whole = pack(b"SET", b"key", b"x" * BIG)
        _push(unfinished, whole[: 30 * MEGABYTE])
        wait_until(lambda: _evicted(other) == 1)
        assert _is_closed(unfinished)
        assert other.exists("key") == 0


def test_a_long_transaction_is_closed(port: int) -> None:
    with redis.Redis(port=port) as other, _connected(port) as queueing:
        other.ping()
        _push(queueing, pack(b"MULTI") + pack(b"SET", b"key", b"x" * MEGABYTE) * 30)
        wait_until(lambda: _evicted(other) == 1)
        assert _is_closed(queueing)


def test_a_client_that_is_not_to_be_evicted_stays(port: int) -> None:
    with redis.Redis(port=port) as other, _connected(port) as kept, _connected(port) as silent:
        other.execute_command("CLIENT", "NO-EVICT", "ON")
        other.setrange("big", BIG - 1, b"x")
        kept.sendall(pack(b"CLIENT", b"NO-EVICT", b"ON"))
        assert kept.recv(100) == b"+OK\r\n"
        kept.sendall(pack(b"GET", b"big"))
        wait_until(lambda: any(int(each["omem"]) > 20 * MEGABYTE for each in other.client_list()))
        silent.sendall(pack(b"PING"))
        assert _is_closed(silent), "it takes little, but no other may be closed"
        received = 0
        while received < BIG:
            received += len(kept.recv(MEGABYTE))
        kept.close()
        wait_until(lambda: len(other.client_list()) == 1)


def test_replicas_count_for_limits_of_their_own(port: int) -> None:
    with redis.Redis(port=port) as other, _connected(port) as replica:
        other.setrange("big", BIG - 1, b"x")
        replica.sendall(pack(b"REPLCONF", b"capa", b"penstock"))
        assert replica.recv(100) == b"+OK\r\n"
        replica.sendall(pack(b"PING", bytes(BIG)))
        wait_until(lambda: any(int(each["omem"]) > 20 * MEGABYTE for each in other.client_list()))
        other.config_set("maxmemory-clients", MEGABYTE)
        with _connected(port) as client:
            client.sendall(pack(b"GET", b"big"))
            assert _is_closed(client)
        assert _evicted(other) == 1


def test_a_lower_limit_is_applied_at_once(port: int) -> None:
    with redis.Redis(port=port) as other, _connected(port) as silent:
        other.config_set("maxmemory-clients", 0)
        other.setrange("big", BIG - 1, b"x")
        silent.sendall(pack(b"GET", b"big"))
        wait_until(lambda: any(int(each["omem"]) > 20 * MEGABYTE for each in other.client_list()))
        assert _evicted(other) == 0
        other.config_set("maxmemory", "400mb")
        other.config_set("maxmemory-clients", "5%")
        assert other.config_get("maxmemory-clients") == {"maxmemory-clients": "5%"}
        wait_until(lambda: _evicted(other) == 1)
        assert _is_closed(silent)
        other.config_resetstat()
        assert _evicted(other) == 0


@pytest.mark.parametrize(
    ("value", "shown"), [("5%", "5%"), ("100%", "100%"), ("0%", "0"), ("100mb", "104857600"), ("0", "0")]
)
def test_the_limit_is_bytes_or_a_percentage(port: int, value: str, shown: str) -> None:
    with redis.Redis(port=port) as client:
        client.config_set("maxmemory-clients", value)
        assert client.config_get("maxmemory-clients") == {"maxmemory-clients": shown}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("101%", "percentage argument must be less or equal to 100"),
        ("-5%", "argument must be a memory or percent value"),
        ("5.5%", "argument must be a memory or percent value"),
        ("1k%", "argument must be a memory or percent value"),
        ("%", "argument must be a memory or percent value"),
        ("-10", "argument must be a memory or percent value"),
        ("much", "argument must be a memory or percent value"),
    ],
)
def test_no_other_limit_is_taken(port: int, value: str, problem: str) -> None:
    with redis.Redis(port=port) as client, pytest.raises(redis.ResponseError, match=problem):
        client.config_set("maxmemory-clients", value)


@pytest.mark.parametrize("command", [b"WATCH", b"SUBSCRIBE", b"PSUBSCRIBE", b"SSUBSCRIBE"])
def test_a_client_that_observes_long_names_is_closed(command: bytes) -> None:
    """Redis does not count them."""
    with (
        Server(maxmemory_clients="20mb") as server,
        redis.Redis(port=server.port) as other,
        _connected(server.port) as observer,
    ):
        other.ping()
        for number in range(30):
            if _push(observer, pack(command, b"%d" % number + b"x" * MEGABYTE)):
                break
        wait_until(lambda: _evicted(other) == 1)
        assert _is_closed(observer)


@pytest.mark.parametrize("command", [b"WATCH", b"SUBSCRIBE", b"PSUBSCRIBE", b"SSUBSCRIBE"])
def test_short_names_count_with_what_is_held_for_them(command: bytes) -> None:
    commands.load()
    engine = Engine(Config())
    session = Session(engine)
    counted = session.memory()
    tracemalloc.start()
    try:
        for start in range(0, 50_000, 1000):
            engine.execute(session, [command, *(b"%08d" % number for number in range(start, start + 1000))])
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.7 * held < session.memory() - counted < 1.5 * held
