"""The client beside redis-py: the same work on the same server (a real Redis), alternating.

Figures are commands a second as the calling program sees them. redis-py has hiredis, as it recommends.
"""

from __future__ import annotations

import asyncio
import functools
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import redis
import redis.asyncio

from penstock.bench.row import Measure, Row
from penstock.bench.servers import Running
from penstock.client.api import aio, sync

Connect = Callable[[str], Any]


def _url(server: Running) -> str:
    return f"redis://127.0.0.1:{server.port}/0"


def _ours(url: str) -> Any:
    return sync.Client.from_url(url)


def _exactly_once(url: str) -> Any:
    return sync.Client.from_url(url, delivery="exactly-once")


def _theirs(url: str) -> Any:
    return redis.Redis.from_url(url)


def _ours_aio(url: str) -> Any:
    return aio.Client.from_url(url)


def _theirs_aio(url: str) -> Any:
    return redis.asyncio.Redis.from_url(url)


def _rate(connect: Connect, work: Callable[[Any, int], int]) -> Measure:
    """Commands a second of some work; its first round, which connects, is not counted."""

    def measure(server: Running, scale: float) -> float:
        with connect(_url(server)) as client:
            work(client, 100)
            started = time.perf_counter()
            done = work(client, max(int(100_000 * scale), 1000))
            return done / (time.perf_counter() - started)

    return measure


def _pipeline(client: Any, count: int) -> int:
    for start in range(0, count, 10_000):
        pipe = client.pipeline(transaction=False)
        for number in range(start, min(start + 10_000, count)):
            pipe.set(f"key:{number}", number)
        pipe.execute()
    return count


@functools.cache
def _ready() -> list[tuple[bytes, bytes, bytes]]:
    return [(b"SET", b"key:%d" % number, b"%d" % number) for number in range(10_000)]


def _bulk(client: Any, count: int) -> int:
    for start in range(0, count, 10_000):
        client.execute_many(_ready()[: count - start])
    return count


def _one_by_one(client: Any, count: int) -> int:
    for _ in range(count // 10):
        client.get("key")
    return count // 10


def _threads(client: Any, count: int) -> int:
    def work(each: int) -> None:
        for _ in range(each):
            client.get("key")

    return _together(work, max(count // 2 // 64, 2))


def _tasks(connect: Connect) -> Measure:
    async def run(url: str, each: int) -> float:
        client = connect(url)

        async def work(times: int) -> None:
            for _ in range(times):
                await client.get("key")

        async def all_of_them(times: int) -> None:
            await asyncio.gather(*(work(times) for _ in range(100)))

        try:
            await all_of_them(2)
            started = time.perf_counter()
            await all_of_them(each)
            return each * 100 / (time.perf_counter() - started)
        finally:
            await client.aclose()

    return lambda server, scale: asyncio.run(run(_url(server), max(int(200 * scale), 5)))


def _together(work: Callable[[int], None], each: int) -> int:
    """Do the work in 64 threads, `each` times."""
    threads = [threading.Thread(target=work, args=(each,)) for _ in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return each * 64


def _produced(server: Running, scale: float) -> float:
    """Messages a second of 64 threads: a producer, until all are acknowledged; on Redis, redis-py's XADD."""
    entry = b"x" * 100
    if not server.is_ours:
        with redis.Redis.from_url(_url(server)) as client:
            client.delete("produced")

            def add(each: int) -> None:
                for _ in range(each):
                    client.xadd("produced", {"tag": b"tag", "entry": entry})

            _together(add, 2)
            started = time.perf_counter()
            return _together(add, max(int(300 * scale), 5)) / (time.perf_counter() - started)
    with sync.Client.from_url(_url(server)) as ours, ours.producer("produced") as producer:
        ours.delete("produced")

        def write(each: int) -> None:
            for _ in range(each):
                producer.write(b"tag", entry)

        _together(write, 2)
        producer.flush()
        started = time.perf_counter()
        done = _together(write, max(int(3000 * scale), 50))
        producer.flush()
        return done / (time.perf_counter() - started)


def _beside_large(connect: Connect) -> Measure:
    """Milliseconds of a small GET, the median, while another thread of the same client reads 50 MB again and again."""

    def measure(server: Running, scale: float) -> float:
        with connect(_url(server)) as client:
            client.set("large", b"x" * 50_000_000)
            client.set("small", b"x")
            is_over = threading.Event()

            def read() -> None:
                while not is_over.is_set():
                    client.get("large")

            reader = threading.Thread(target=read)
            reader.start()
            times = []
            until = time.perf_counter() + max(5 * scale, 0.5)
            while time.perf_counter() < until:
                started = time.perf_counter()
                client.get("small")
                times.append((time.perf_counter() - started) * 1000)
                time.sleep(0.001)
            is_over.set()
            reader.join()
            client.delete("large")
            return statistics.median(times)

    return measure


def _row(name: str, what: str, target: float | None, measure: Measure, baseline: Measure, on_peer: bool = True) -> Row:
    return Row(name, what, "cmd/s", target, measure, baseline=baseline, on_peer=on_peer)


CLIENT_ROWS = (
    _row(
        "client.pipeline",
        "pipelines of 10k pipe.set(), over redis-py",
        2.0,
        _rate(_ours, _pipeline),
        _rate(_theirs, _pipeline),
    ),
    _row(
        "client.bulk",
        "execute_many of 10k ready SET, over redis-py's pipeline",
        6.0,
        _rate(_ours, _bulk),
        _rate(_theirs, _pipeline),
    ),
    _row(
        "client.threads",
        "64 threads, one client, GET, over redis-py's pool",
        2.5,
        _rate(_ours, _threads),
        _rate(_theirs, _threads),
    ),
    _row(
        "client.tasks", "100 asyncio tasks, one client, GET, over redis-py", 4.0, _tasks(_ours_aio), _tasks(_theirs_aio)
    ),
    _row(
        "client.single",
        "one thread, GET one by one, over redis-py",
        1.0,
        _rate(_ours, _one_by_one),
        _rate(_theirs, _one_by_one),
    ),
    Row(
        "client.large",
        "median of a small GET beside GETs of 50 MB, one client, over redis-py's pool",
        "ms",
        3.0,
        _beside_large(_ours),
        smaller_is_better=True,
        baseline=_beside_large(_theirs),
        on_peer=True,
    ),
    Row("client.producer", "64 threads, producer.write(), over redis-py's XADD", "msg/s", 5.0, _produced),
    _row(
        "client.once",
        "pipelines of 10k pipe.set(), exactly-once over at-least-once",
        0.5,
        _rate(_exactly_once, _pipeline),
        _rate(_ours, _pipeline),
        on_peer=False,
    ),
)
