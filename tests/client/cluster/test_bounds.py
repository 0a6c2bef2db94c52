"""What a cluster client holds stays within its bounds, as the memory itself is measured."""

from __future__ import annotations

import asyncio
import threading
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.support.client.cluster.clients import Connect
from tests.support.client.cluster.model import TABLE, Model
from tests.support.client.memory import awaited_until_full

import penstock
from penstock import aio
from penstock.client.cluster.core import ClusterCore
from penstock.client.cluster.driver_requests import Exchange, Logic
from penstock.client.cluster.shared_connection import as_batch
from penstock.client.errors import BufferFull
from penstock.testing.cluster import RedisCluster


def single(core: ClusterCore, number: int, value: int) -> Logic:
    return core.call(("SET", f"key:{number}", "x" * value), {})


def pipeline(core: ClusterCore, number: int, value: int) -> Logic:
    return core.bulk([("SET", f"key:{number}:{index}", "x" * value) for index in range(100)])


def wide(core: ClusterCore, number: int, value: int) -> Logic:
    words = [f"field:{number}:{n}" if n % 2 else "x" * value for n in range(14)]
    return core.bulk([("SET", f"key:{number}", *words) for _ in range(10)])


@pytest.mark.parametrize("make", [single, pipeline, wide])
@pytest.mark.parametrize("value", [10, 1000, 100_000])
def test_the_bound_on_bytes_is_a_bound_on_memory(make: Callable[[ClusterCore, int, int], Logic], value: int) -> None:
    bound = 8 * 1024 * 1024
    core = ClusterCore("127.0.0.1", 1, max_buffered_bytes=bound, when_full="raise")
    core.topology.map, core.topology.table = Model().map, TABLE

    def begin(number: int) -> tuple[Any, ...]:
        logic = make(core, number, value)
        request = logic.send(None)
        assert isinstance(request, Exchange)
        return logic, request, [as_batch(batch, 1.0) for batch in request.batches]

    begin(0)[0].close()
    held: list[Any] = []
    tracemalloc.start()
    try:
        with pytest.raises(BufferFull, match=f"max_buffered_bytes={bound}"):
            while True:
                held.append(begin(len(held)))
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.5 * bound < used <= bound * 1.02 + 100 * value * 3  # the one that did not fit is still held by the test
    for logic, *_ in held:
        logic.close()
    assert core.bounds.counters.buffered_commands == core.bounds.counters.buffered_bytes == 0


@pytest.mark.parametrize("value", [10, 1000, 100_000])
def test_the_bound_on_bytes_is_a_bound_on_the_memory_of_tasks_that_wait(value: int) -> None:
    bound = 8 * 1024 * 1024

    async def main() -> int:
        async with aio.Cluster("127.0.0.1", 1, max_buffered_bytes=bound, when_full="raise") as client:
            client.core.topology.map, client.core.topology.table = Model().map, TABLE
            for master in client.core.topology.map.masters:
                client._pool.sharing((master, False))  # opened in the loop's next turn, to which it never comes
            used = awaited_until_full(lambda number: client.set(f"key:{number}", "x" * value), bound)
            assert client.counters.buffered_commands == client.counters.buffered_bytes == 0
            return used

    assert 0.5 * bound < asyncio.run(main()) <= bound * 1.02 + value * 3


def test_a_call_that_finds_no_room_waits_or_fails_as_was_asked_for(cluster: RedisCluster, connect: Connect) -> None:
    node, other = cluster.masters[:2]
    slow, quick = next(cluster.keys_on(node)), next(cluster.keys_on(other))
    waiting, refusing = (connect(max_buffered_commands=1, when_full=choice) for choice in ("block", "raise"))
    for client in (waiting, refusing):
        client.get(slow)
        client.get(quick)
    for client in (waiting, refusing):
        node.ask("CLIENT", "PAUSE", 60_000, "WRITE")
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(client.set, slow, 1)
            while not client.counters.buffered_commands:
                pass
            if client is waiting:
                second = pool.submit(client.set, quick, 1)
            else:
                for call in (lambda: refusing.set(quick, 2), lambda: refusing.execute_many([("SET", quick, 2)] * 3)):
                    with pytest.raises(BufferFull, match="max_buffered_commands=1"):
                        call()
            node.ask("CLIENT", "UNPAUSE")
            assert first.result() is True and second.result() is True
    assert other.ask("GET", quick) == b"1", "what found no room was not sent"


def test_a_pipeline_that_never_fits_is_let_in_alone(connect: Connect) -> None:
    client = connect(max_buffered_commands=10, max_buffered_bytes=100)
    assert client.execute_many([("SET", f"k{number}", number) for number in range(1000)]) == [b"OK"] * 1000


def test_many_threads_pass_through_a_narrow_door(cluster: RedisCluster) -> None:
    with penstock.Cluster(startup_nodes=cluster.addresses, max_buffered_commands=3) as client:
        highest, done = 0, threading.Event()

        def watch() -> None:
            nonlocal highest
            while not done.is_set():
                highest = max(highest, client.counters.buffered_commands)

        watcher = threading.Thread(target=watch)
        watcher.start()
        with ThreadPoolExecutor(16) as pool:
            replies = list(pool.map(lambda number: client.incr(f"k{number % 10}"), range(500)))
        done.set()
        watcher.join()
        assert sorted(replies) == sorted(list(range(1, 51)) * 10) and highest <= 3
        assert client.counters.buffered_commands == 0


def test_bounds_are_checked() -> None:
    for wrong in ({"max_buffered_commands": 0}, {"when_full": "wait"}, {"max_connections": -1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            penstock.Cluster("h", **wrong)  # type: ignore[arg-type]


def test_options_may_stand_in_the_url() -> None:
    url = "redis://h:1?delivery=at-most-once&command_timeout=5&max_connections=7&max_buffered_commands=9&when_full=raise&split=yes&patience=2"
    with penstock.Cluster.from_url(url) as client:
        rules = client.core.rules
        assert (rules.command_timeout, rules.max_connections, rules.max_buffered_commands) == (5.0, 7, 9)
        assert (rules.when_full, rules.split, rules.patience, client.delivery.value) == (
            "raise",
            True,
            2.0,
            "at-most-once",
        )
