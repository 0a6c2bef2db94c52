"""The cluster client against redis-py's, over three masters: pipelines of ten thousand SETs, and many callers of GET.

Both clients use the same cluster in the same run; the peer of these rows is redis-py with hiredis, not another server.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import gc
import threading
import time
from collections.abc import Callable
from typing import Any

from redis.asyncio.cluster import RedisCluster as RedisPyAioCluster
from redis.cluster import RedisCluster as RedisPyCluster

from penstock.bench.row import Row
from penstock.bench.servers import Running, pin
from penstock.client.cluster import aio
from penstock.client.cluster.slot_map import SlotMap
from penstock.client.cluster.sync import Cluster
from penstock.testing.cluster import RedisCluster

COMMANDS = 10_000
_KEYS = [f"key:{number:06d}" for number in range(COMMANDS)]
_READY = [("SET", key, "xxx") for key in _KEYS]


@functools.cache
def shared_cluster() -> RedisCluster:
    """Started for the first row that needs it; stopped at the end of the process."""
    cluster = RedisCluster(replicas=0).start()
    atexit.register(cluster.stop)
    for node in cluster.nodes:
        if node.process is not None:
            pin(node.process.pid, 0)
    return cluster


@functools.cache
def _ours() -> Cluster:
    client = Cluster(startup_nodes=shared_cluster().addresses)
    atexit.register(client.close)
    return client


@functools.cache
def _redis_py() -> RedisPyCluster:
    host, port = shared_cluster().addresses[0]
    client = RedisPyCluster(host=host, port=port)
    atexit.register(client.close)
    return client


def _rate(once: Callable[[], object], scale: float) -> float:
    """Commands a second, after a run that is not counted."""
    once()
    rounds = max(1, int(10 * scale))
    gc.collect()
    started = time.perf_counter()
    for _ in range(rounds):
        once()
    return rounds * COMMANDS / (time.perf_counter() - started)


def _fill(pipe: object) -> None:
    call = pipe.set  # type: ignore[attr-defined]
    for key in _KEYS:
        call(key, "xxx")
    pipe.execute()  # type: ignore[attr-defined]


def _our_pipeline(server: Running, scale: float) -> float:
    return _rate(lambda: _fill(_ours().pipeline()), scale)


def _their_pipeline(server: Running, scale: float) -> float:
    return _rate(lambda: _fill(_redis_py().pipeline()), scale)  # type: ignore[no-untyped-call]


def _our_bulk(server: Running, scale: float) -> float:
    return _rate(lambda: _ours().execute_many(_READY), scale)


def _stale_bulk(server: Running, scale: float) -> float:
    """Every slot is assigned to a wrong master: each run is refused and redirected whole."""
    client = _ours()
    known = client.slot_map
    following = dict(zip(known.masters, known.masters[1:] + known.masters[:1], strict=True))
    wrong = SlotMap(
        tuple(following[owner] for owner in known.owners if owner), known.replicas, known.epoch, is_covered=True
    )

    def once() -> None:
        client.core.topology.map = wrong
        client.execute_many(_READY)

    return _rate(once, scale)


def _threads(client: Any, scale: float) -> float:
    """GETs a second of 64 threads that share a client."""
    each = max(2, int(400 * scale))

    def work(key: str, times: int) -> None:
        for _ in range(times):
            client.get(key)

    def all_of_them(times: int) -> None:
        threads = [threading.Thread(target=work, args=(key, times)) for key in _KEYS[:64]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    all_of_them(2)
    started = time.perf_counter()
    all_of_them(each)
    return 64 * each / (time.perf_counter() - started)


def _tasks(connect: Callable[[], Any], scale: float) -> float:
    """GETs a second of 100 asyncio tasks that share a client."""
    each = max(2, int(200 * scale))

    async def run() -> float:
        client = connect()

        async def work(key: str, times: int) -> None:
            for _ in range(times):
                await client.get(key)

        try:
            for key in _KEYS[:100]:  # one after the other: redis-py's first calls fail if they run at the same time
                await client.get(key)
            await asyncio.gather(*(work(key, 2) for key in _KEYS[:100]))
            started = time.perf_counter()
            await asyncio.gather(*(work(key, each) for key in _KEYS[:100]))
            return 100 * each / (time.perf_counter() - started)
        finally:
            await client.aclose()

    return asyncio.run(run())


def _our_aio() -> Any:
    return aio.Cluster(startup_nodes=shared_cluster().addresses)


def _redis_py_aio() -> Any:
    host, port = shared_cluster().addresses[0]
    return RedisPyAioCluster(host=host, port=port)


CLUSTER_ROWS = (
    Row(
        "cluster.pipeline", "10k pipe.set() over 3 masters, against redis-py", "cmd/s", 4.0,
        _our_pipeline, baseline=_their_pipeline,
    ),
    Row("cluster.bulk", "the same as one call of ready commands", "cmd/s", 10.0, _our_bulk, baseline=_their_pipeline),
    Row(
        "cluster.stale", "the same, every slot stale, against a clean run", "cmd/s", 0.5,
        _stale_bulk, baseline=_our_bulk,
    ),
    Row(
        "cluster.threads", "64 threads, one client, GET, over redis-py's RedisCluster", "cmd/s", 2.5,
        lambda server, scale: _threads(_ours(), scale), baseline=lambda server, scale: _threads(_redis_py(), scale),
    ),
    Row(
        "cluster.tasks", "100 asyncio tasks, one client, GET, over redis-py's RedisCluster", "cmd/s", 4.0,
        lambda server, scale: _tasks(_our_aio, scale), baseline=lambda server, scale: _tasks(_redis_py_aio, scale),
    ),
)  # fmt: skip
