"""What an operator sees of locks and threads: LOCKS, INFO locks, CLIENT LIST."""

from __future__ import annotations

from collections.abc import Iterator

import hiredis
import pytest
from tests.support.engine.lock_world import Slow, World, slow_commands


@pytest.fixture
def slow() -> Iterator[Slow]:
    with slow_commands() as slow:
        yield slow


@pytest.fixture
def world(slow: Slow) -> Iterator[World]:
    world = World()
    yield world
    slow.go.set()
    world.close()


def ask(world: World, line: str) -> object:
    reader = hiredis.Reader()
    client = world.client()
    client.session.protocol = 3
    (data,) = client.run(line)
    reader.feed(data)
    return reader.gets()


def test_locks_tells_who_has_what_and_who_waits_for_it(world: World) -> None:
    assert ask(world, "LOCKS") == []
    readers = [world.client("DEBUG LOCK 1000 READ a b") for _ in range(2)]
    other = world.client("SELECT 2", "DEBUG LOCK 1000 WRITE k")
    world.pass_time(10)
    waiting = [world.client("SET a 1"), world.client("DEL a b")]
    numbers = [client.session.id for client in readers]
    assert ask(world, "LOCKS") == [
        {b"db": 0, b"key": b"a", b"type": b"read", b"milliseconds": 10, b"clients": numbers,
         b"waiting": [client.session.id for client in waiting]},
        {b"db": 0, b"key": b"b", b"type": b"read", b"milliseconds": 10, b"clients": numbers,
         b"waiting": [waiting[1].session.id]},
        {b"db": 2, b"key": b"k", b"type": b"write", b"milliseconds": 10, b"clients": [other.session.id],
         b"waiting": []},
    ]  # fmt: skip


def test_a_key_that_is_only_waited_for_is_pending(world: World) -> None:
    world.client("DEBUG LOCK 1000 WRITE a")
    world.engine.lock_gate.may_fork()
    client = world.client("DEBUG LOCK 1000 WRITE b")
    rows = ask(world, "LOCKS")
    assert isinstance(rows, list)
    assert rows[1] == {b"db": 0, b"key": b"b", b"type": b"pending", b"milliseconds": 0, b"clients": [],
                       b"waiting": [client.session.id]}  # fmt: skip
    assert info(world)["write_locks_denied"] == 1


def info(world: World) -> dict[str, int]:
    (text,) = world.client().run("INFO locks")
    lines = [line.split(":") for line in text.decode().splitlines() if ":" in line]
    return {name: int(value) for name, value in lines}


def test_info_counts_locks_waiters_and_jobs(world: World, slow: Slow) -> None:
    world.client("SADD s a")
    clients = [world.client("SLOW.READ s") for _ in range(3)]
    world.client("DEBUG LOCK 10 WRITE f")
    world.client("SADD s b")
    assert info(world) == {
        "locked_keys_read": 3, "locked_keys_write": 1, "lock_waiting_clients": 1, "write_locks_denied": 0,
        "worker_threads": 2, "worker_jobs_running": 2, "worker_jobs_queued": 1, "worker_jobs_done": 0,
    }  # fmt: skip
    slow.go.set()
    world.step(3)
    world.pass_time(10)
    assert info(world)["worker_jobs_done"] == 3
    assert {name: number for name, number in info(world).items() if name.startswith("lock")} == {
        "locked_keys_read": 0, "locked_keys_write": 0, "lock_waiting_clients": 0,
    }  # fmt: skip
    assert all(len(client.sent) == 1 for client in clients)


def test_client_list_shows_who_waits_for_what_and_who_has_it(world: World) -> None:
    holder = world.client("DEBUG LOCK 1000 WRITE a=b b\N{LATIN SMALL LETTER E WITH ACUTE}")
    waiter = world.client("MSET a=b 1 c 1")
    long = world.client(f"DEBUG LOCK 1000 READ {'k' * 100} " + " ".join(f"k{number}" for number in range(20)))
    assert " flags=bW " in holder.session.describe()
    assert holder.session.describe().endswith(" lock-held=a%3Db,b%C3%A9")
    assert " flags=bL " in waiter.session.describe()
    assert waiter.session.describe().endswith(" lock-wait=a%3Db")
    assert long.session.describe().endswith(f" lock-held={'k' * 64}...,k0,k1,k2,k3,k4,k5,k6,...")
    world.pass_time(1000)
    assert all("lock-" not in client.session.describe() for client in (holder, waiter, long))
