"""Locked keys and threads through real sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.support.engine.lock_world import Slow
from tests.support.raw_client import RawClient

from penstock import Server
from penstock.server import app


@pytest.fixture
def server(slow: Slow) -> Iterator[Server]:
    with Server() as server:
        yield server
        slow.go.set()


@pytest.fixture
def r(server: Server) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url, protocol=3) as client:
        yield client


@pytest.fixture
def connect(server: Server) -> Iterator[Callable[[], RawClient]]:
    clients: list[RawClient] = []

    def make() -> RawClient:
        clients.append(RawClient(server.port))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def until_waiting(r: redis.Redis, count: int) -> None:
    """Return when so many clients wait for locks."""
    while sum(len(row[b"waiting"]) for row in rows(r)) < count:
        pass


def rows(r: redis.Redis) -> list[dict[bytes, Any]]:
    return list(r.execute_command("LOCKS"))


def test_the_replies_of_a_pipeline_stay_in_order_around_a_thread(
    connect: Callable[[], RawClient], r: redis.Redis, slow: Slow
) -> None:
    client = connect()
    for words in ("SADD s a", "SLOW.READ s", "SADD s b", "SLOW.STORE d s", "SCARD d"):
        client.command(*words.split())
    assert slow.begun.get(timeout=60) == "read"
    assert r.scard("s") == 1, "another client is served at the same time"
    slow.go.set()
    assert [client.read() for _ in range(5)] == [1, [b"a"], 1, 2, 2]


def test_a_client_that_waits_for_a_lock_goes_on_by_itself(
    connect: Callable[[], RawClient], r: redis.Redis, slow: Slow
) -> None:
    reader, writer = connect(), connect()
    r.sadd("s", "a")
    reader.command("SLOW.READ", "s")
    assert slow.begun.get(timeout=60) == "read"
    writer.command("SADD", "s", "b")
    writer.command("GET", "k")
    until_waiting(r, 1)
    slow.go.set()
    assert reader.read() == [b"a"]
    assert (writer.read(), writer.read()) == (1, None)
    assert rows(r) == []


def test_a_killed_client_leaves_the_queue_and_its_thread_leaves_the_server_alone(
    connect: Callable[[], RawClient], r: redis.Redis, slow: Slow
) -> None:
    owner, waiter, other = connect(), connect(), connect()
    r.sadd("s", "a")
    numbers = {client: client.ask("CLIENT ID") for client in (owner, waiter)}
    owner.command("SLOW.STORE", "d", "s")
    assert slow.begun.get(timeout=60) == "store"
    waiter.command("GET", "d")
    other.command("GET", "d")
    until_waiting(r, 2)
    for number in numbers.values():
        assert r.client_kill_filter(_id=number) == 1
    assert owner.is_closed() and waiter.is_closed()
    until_waiting(r, 1)
    slow.go.set()
    assert str(other.read()).startswith("WRONGTYPE"), "the write was carried out"
    assert rows(r) == []


@pytest.mark.parametrize("behind", [b"", b"SET other 1\r\n" * 100_000], ids=["alone", "more than is read"])
def test_the_command_of_a_client_that_left_while_it_waited_does_not_run(
    connect: Callable[[], RawClient], r: redis.Redis, slow: Slow, behind: bytes
) -> None:
    r.sadd("s", "a")
    owner, waiter = connect(), connect()
    owner.command("SLOW.STORE", "d", "s")
    assert slow.begun.get(timeout=60) == "store"
    waiter.send(b"SET d gone\r\n" + behind)
    until_waiting(r, 1)
    waiter.close()
    while any(row[b"waiting"] for row in rows(r)):
        pass  # within a second
    slow.go.set()
    assert owner.read() == 1
    assert r.type("d") == b"set" and not r.exists("other")


def test_silence_was_asked_for_and_is_kept(connect: Callable[[], RawClient], r: redis.Redis, slow: Slow) -> None:
    r.sadd("s", "a")
    owner, client = connect(), connect()
    owner.command("SLOW.STORE", "d", "s")
    assert slow.begun.get(timeout=60) == "store"
    client.send(b"CLIENT REPLY SKIP\r\nSADD d x\r\nCLIENT REPLY SKIP\r\nSLOW.READ d\r\nPING\r\n")
    until_waiting(r, 1)
    slow.go.set()
    assert client.read() == b"PONG"


def test_what_a_thread_wrote_is_on_disk_before_its_reply(tmp_path: Path, slow: Slow) -> None:
    slow.go.set()
    directives = {"dir": str(tmp_path), "appendonly": "yes", "appendfsync": "always"}
    with Server(**directives) as server, RawClient(server.port) as client:
        for words in ("SADD s a b", "SLOW.STORE d s", "SADD d c"):
            client.command(*words.split())
        assert [client.read() for _ in range(3)] == [2, 2, 1]
    with Server(**directives) as server, redis.Redis.from_url(server.url) as r:
        assert r.smembers("d") == {b"a", b"b", b"c"}


def test_a_server_stops_although_a_thread_does_not(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "STOP_PATIENCE", 0.05)
    with Server() as server, RawClient(server.port) as client:
        client.command("SADD", "s", "a")
        client.command("SLOW.STORE", "d", "s")
        assert slow.begun.get(timeout=60) == "store"
        server.stop()
        assert client.read() == 1
        assert "given up on" in str(client.read())
        assert client.is_closed()
