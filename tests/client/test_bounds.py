"""What is held while there is no connection stays within its bounds, as the memory itself is measured; and
is not lost.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from tests.support.client.memory import awaited_until_full

from penstock import aio
from penstock.client.api.calls import call
from penstock.client.api.pipeline import bulk_batch
from penstock.client.delivery import Settings
from penstock.client.engine.batch import Batch
from penstock.client.engine.connection import ConnectionCore
from penstock.client.errors import BufferFull
from penstock.testing.redis import RedisServer

BOUND = 16 * 1024 * 1024
SMALL_BOUND = BOUND // 4  # for what takes longer to fill


def singles(value: int) -> Iterator[Batch]:
    number = 0
    while True:
        number += 1
        batch = call(("SET", f"key:{number}", "x" * value), {}, True)
        batch.waiter = threading.Lock()
        yield batch


def pipelines(value: int) -> Iterator[Batch]:
    number = 0
    while True:
        number += 1
        yield bulk_batch([(b"SET", b"key:%d:%d" % (number, index), b"x" * value) for index in range(100)])


def wide(value: int) -> Iterator[Batch]:
    """Commands of many words, each with what an object costs."""
    number = 0
    while True:
        number += 1
        yield bulk_batch(
            [
                ("HSET", f"key:{number}", *(word for n in range(7) for word in (f"field:{number}:{n}", "x" * value)))
                for _ in range(10)
            ]
        )


@pytest.mark.parametrize("make", [singles, pipelines, wide])
@pytest.mark.parametrize("value", [10, 1000, 100_000])
def test_the_bound_on_bytes_is_a_bound_on_memory(make: Callable[[int], Iterator[Batch]], value: int) -> None:
    core = ConnectionCore(Settings(max_buffered_bytes=BOUND))
    core.connecting()
    core.connected(0.0)
    core.lost(redis.ConnectionError("cut"), 0.0)
    batches = make(value)
    next(batches)  # whatever is made once
    tracemalloc.start()
    try:
        with pytest.raises(BufferFull):
            while True:
                core.submit(next(batches), 0.0)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.5 * BOUND < held <= BOUND * 1.02 + 100 * value * 3  # the one that did not fit is still held by the test


def stacked(transaction: bool) -> Callable[[Any, int, int], Any]:
    """What `execute` waits for, of a pipeline that is filled call by call."""

    def begin(client: Any, number: int, value: int) -> Any:
        pipe = client.pipeline(transaction=transaction)
        for index in range(10):
            pipe.set(f"key:{number}:{index}", f"{number}:{index}" + "x" * value)
        return pipe

    return begin


def bulk(client: aio.Client, number: int, value: int) -> Any:
    return client.execute_many([("SET", f"key:{number}:{index}", "x" * value) for index in range(10)])


AWAITED: dict[str, Callable[[aio.Client, int, int], Any]] = {
    "set": lambda client, number, value: client.set(f"key:{number}", f"{number}" + "x" * value),
    "get": lambda client, number, value: client.get(f"key:{number}" + "x" * value),
    "hgetall": lambda client, number, value: client.hgetall(f"key:{number}" + "x" * value),
    "hset": lambda client, number, value: client.hset(f"key:{number}", f"field:{number}", f"{number}" + "x" * value),
    "lrange": lambda client, number, value: client.lrange(f"key:{number}" + "x" * value, number, -number),
    "execute_many": bulk,
    "pipeline": lambda client, number, value: stacked(False)(client, number, value).execute(),
    "transaction": lambda client, number, value: stacked(True)(client, number, value).execute(),
}


@pytest.mark.parametrize("name", AWAITED)
@pytest.mark.parametrize("value", [10, 1000, 100_000])
def test_the_bound_on_bytes_is_a_bound_on_the_memory_of_tasks_that_wait(name: str, value: int) -> None:
    """What tasks await is measured; the tasks themselves are the caller's."""

    async def main() -> int:
        async with aio.Client(port=1, max_buffered_bytes=SMALL_BOUND, when_full="raise") as client:
            client._connection._move_to(asyncio.get_running_loop())
            client._connection.core.connecting()  # it never comes to that
            make = AWAITED[name]
            first = make(client, 0, value)  # whatever is made once
            first.send(None)
            first.close()
            used = awaited_until_full(lambda number: make(client, number, value), SMALL_BOUND)
            assert client.counters.buffered_commands == client.counters.buffered_bytes == 0
            return used

    # the one that did not fit is still held by the test
    used = asyncio.run(main())
    assert 0.5 * SMALL_BOUND < used <= SMALL_BOUND * 1.02 + 10 * value * 3


PROGRAM = """
import sys, threading, time
from pathlib import Path
from penstock import Client
from penstock.client.errors import BufferFull

def resident():
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024

def work(part):
    numbers = range(part * 250_000, (part + 1) * 250_000)
    client.execute_many([("SET", f"key:{number}", f"{number}") for number in numbers])

def wait_for(word):
    print(word, flush=True)
    sys.stdin.readline()

client = Client.from_url(sys.argv[1], command_timeout=None, max_buffered_bytes=int(sys.argv[2]), when_full="raise")
client.ping()
wait_for("connected")
before = resident()
threads = [threading.Thread(target=work, args=[part]) for part in range(4)]
for thread in threads:
    thread.start()
while client.counters.buffered_commands < 1_000_000:
    time.sleep(0.01)
print(client.counters.buffered_bytes, resident() - before, flush=True)
try:
    client.set("one", "more")
except BufferFull:
    wait_for("full")
for thread in threads:
    thread.join()
print(client.dbsize(), client.counters.buffered_bytes, flush=True)
client.close()
"""


def test_a_million_commands_are_held_within_their_bytes_and_all_run_in_the_end() -> None:
    """The memory of the process is measured, with what the caller itself keeps of the commands."""
    bound = Settings().max_buffered_bytes
    with RedisServer() as server:
        program = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, server.url, str(bound)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert program.stdin is not None and program.stdout is not None
            assert program.stdout.readline() == "connected\n"
            server.stop()
            print(file=program.stdin, flush=True)
            counted, resident = map(int, program.stdout.readline().split())
            assert (
                counted <= bound and 0.5 * bound < resident <= 1.05 * bound
            )  # memory that could be used again is a part of it
            assert program.stdout.readline() == "full\n"
            with RedisServer(port=str(server.port)):
                print(file=program.stdin, flush=True)
                assert program.stdout.readline() == "1000000 0\n"
        finally:
            program.kill()
            program.communicate()
