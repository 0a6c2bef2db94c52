"""The promises of the levels, kept by many at once while everything breaks: threads and tasks that share clients, a
proxy that cuts at random, servers killed with -9, slots that move and masters that die.

Every operation appends a number of its own to a list or a stream, so that afterwards the server itself says how often
it ran:

    the caller was told     at most once    at least once    exactly once
    a reply                 1               1 or more        1
    OutcomeUnknown          0 or 1          any              0 or 1
    NotSent                 0               0                0

and at the two higher levels the first appearances of one caller's numbers are in the order of its calls.

What Redis itself may lose is kept out by killing a master of the cluster only when its writes are paused and its
replica has all of them: whatever is lost then is the client's fault. Our server runs with `appendfsync always` and is
killed at any moment.

PENSTOCK_SOAK_SECONDS makes it longer (of each test), PENSTOCK_SOAK_SEED makes other things break; what happened is
logged:

    PENSTOCK_SOAK_SECONDS=120 pytest tests/integration/test_soak.py -o log_cli=true --log-cli-level=INFO
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.support.client.cluster.clients import Proxied
from tests.support.server_process import Process

import penstock
from penstock import aio
from penstock.client.cluster.errors import REFUSALS
from penstock.client.errors import DeliveryError, NotSent
from penstock.testing.cluster import ClusterNode, RedisCluster
from penstock.testing.proxy import FaultProxy
from penstock.testing.redis import RedisServer, free_port

SECONDS = float(os.environ.get("PENSTOCK_SOAK_SECONDS", "4"))
SEED = int(os.environ.get("PENSTOCK_SOAK_SEED", "20"))
THREADS = 8
TASKS = 100
PAUSE = 0.05  # seconds that a caller waits before the next attempt when there was no connection
OPTIONS: dict[str, Any] = {"socket_timeout": 60, "retry": None}
ENOUGH = 500  # replies to the callers of a level: on a busy machine nothing at all may happen in any given time

logger = logging.getLogger("soak")
pytestmark = pytest.mark.timeout(400 + 3 * SECONDS)


class Worker:
    """One caller: what it did, which replies and errors it got, and at the end what the server has."""

    def __init__(self, level: str, name: str, append: str) -> None:
        self.level = level
        self.name = f"{{{level}:{name}}}"  # one slot a caller, so that it may have transactions on a cluster
        self.append = append
        self.surprises: list[str] = []
        self.told: list[str] = []  # of each number: "a reply", "unknown" or "not sent"
        self.counts: Counter[str] = Counter()  # the same of INCR
        self._chance = random.Random(f"{SEED}:{self.name}")

    def next(self) -> tuple[list[tuple[Any, ...]], bool]:
        """Some commands, and whether they are a transaction."""
        kind = self._chance.choice(["one", "one", "count", "pipeline", "transaction"])
        appended = {"one": 1, "count": 0, "pipeline": 5, "transaction": 2}[kind]
        numbers = range(len(self.told), len(self.told) + appended)
        tag = ("t",) if self.append == "TWRITE" else ()
        commands = [(self.append, self.name, *tag, number) for number in numbers]
        if kind in ("count", "transaction"):
            commands.append(("INCR", f"{self.name}:count"))
        return commands, kind == "transaction"

    def note(self, commands: Sequence[tuple[Any, ...]], results: Sequence[Any]) -> bool:
        """Count the caller's replies and errors; whether anything was answered."""
        for command, result in zip(commands, results, strict=True):
            told = "a reply"
            if isinstance(result, NotSent):
                told = "not sent"
            elif isinstance(result, DeliveryError):
                told = "unknown"
            elif type(result) in REFUSALS and "ran before it" in str(result):
                told = "not sent"  # its slot moved in the middle of a pipeline: a later command of its key overtook it
            elif isinstance(result, Exception):
                self.surprises.append(f"{type(result).__name__}: {result}")
            if command[0] == "INCR":
                self.counts[told] += 1
            else:
                self.told.append(told)
        return not isinstance(results[0], NotSent)

    def check(self, read: Callable[..., Any]) -> Counter[str]:
        """Compare with what the server has; answers the caller's replies and errors, and
        how often something ran twice.
        """
        assert not self.surprises, self.surprises[:3]
        if self.append == "TWRITE":
            there = [int(row[2]) for row in read("TREAD", self.name, 1, 1_000_000)]
        else:
            there = [int(item) for item in read("LRANGE", self.name, 0, -1)]
        times = Counter(there)
        for number, told in enumerate(self.told):
            self._check_one(f"number {number}", told, times[number])
        assert len(times) <= len(self.told)
        if self.level != "at-most-once":
            first = list(dict.fromkeys(there))
            assert first == sorted(first), f"{self.name}: out of order"
        counted = int(read("GET", f"{self.name}:count") or 0)
        assert counted >= self.counts["a reply"], f"{self.name}: INCR lost"
        if self.level != "at-least-once":
            assert counted <= self.counts["a reply"] + self.counts["unknown"], f"{self.name}: INCR ran twice"
        again = len(there) - len(times)
        return Counter(self.told) + self.counts + Counter({"ran again": again})

    def _check_one(self, what: str, told: str, times: int) -> None:
        least = 1 if told == "a reply" else 0
        most = 0 if told == "not sent" else 1 if self.level != "at-least-once" else times
        assert least <= times <= most, f"{self.name}: {what} ran {times} times, and its caller was told: {told}"


class Crowd:
    """The callers of one level: threads that share a client, tasks that share another."""

    def __init__(self, level: str, append: str, sync: Any, tasks: Any) -> None:
        self.level = level
        self.sync, self.aio = sync, tasks
        self.threads = [Worker(level, f"thread{number}", append) for number in range(THREADS)]
        self.tasks = [Worker(level, f"task{number}", append) for number in range(TASKS)]

    @property
    def workers(self) -> list[Worker]:
        return [*self.threads, *self.tasks]

    @property
    def replies(self) -> int:
        return sum(worker.told.count("a reply") + worker.counts["a reply"] for worker in self.workers)

    def work(self, worker: Worker, stop: threading.Event) -> None:
        while not stop.is_set():
            commands, is_transaction = worker.next()
            try:
                if is_transaction:
                    pipe = self.sync.pipeline(transaction=True)
                    for command in commands:
                        pipe.execute_command(*command)
                    results = pipe.execute()
                else:
                    results = self.sync.execute_many(commands, raise_on_error=False)
            except Exception as error:
                results = [error] * len(commands)
            if not worker.note(commands, results):
                stop.wait(PAUSE)

    async def work_async(self, worker: Worker, stop: threading.Event) -> None:
        while not stop.is_set():
            commands, is_transaction = worker.next()
            try:
                if is_transaction:
                    pipe = self.aio.pipeline(transaction=True)
                    for command in commands:
                        pipe.execute_command(*command)
                    results = await pipe.execute()
                else:
                    results = await self.aio.execute_many(commands, raise_on_error=False)
            except Exception as error:
                results = [error] * len(commands)
            await asyncio.sleep(0 if worker.note(commands, results) else PAUSE)


@contextmanager
def at_work(crowds: Sequence[Crowd]) -> Iterator[None]:
    """All callers work while the block runs, and then finish what they have begun."""
    stop = threading.Event()

    async def tasks() -> None:
        await asyncio.gather(*(crowd.work_async(worker, stop) for crowd in crowds for worker in crowd.tasks))
        for crowd in crowds:
            await crowd.aio.aclose()

    threads = [threading.Thread(target=crowd.work, args=(worker, stop)) for crowd in crowds for worker in crowd.threads]
    threads.append(threading.Thread(target=asyncio.run, args=(tasks(),)))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        for crowd in crowds:
            crowd.sync.close()


def harm(proxy: FaultProxy, chance: random.Random) -> None:
    """Something breaks, now or soon."""
    nth = chance.randint(1, 300)
    kind = chance.randrange(15)
    if kind == 0:
        proxy.swallow(nth=nth, executed=chance.random() < 0.5)
    elif kind == 1:
        proxy.refuse_connections()
        proxy.cut_connections()
        time.sleep(chance.uniform(0, 0.05))
        proxy.accept_connections()
    elif kind < 4:
        proxy.cut_connections()
    elif kind < 6:
        proxy.cut_before_forwarding(nth=nth)
    elif kind < 8:
        proxy.cut_mid_request(chance.randint(1, 40), nth=nth)
    elif kind < 11:
        proxy.cut_after_execution(nth=nth)
    elif kind < 13:
        proxy.cut_mid_reply(chance.randint(1, 6), nth=nth)
    else:
        proxy.replace_reply(b"\x00nonsense\r\n", nth=nth)


def disturb(
    proxies: Sequence[FaultProxy], chance: random.Random, crowds: Sequence[Crowd], rare: Sequence[Callable[[], object]]
) -> Counter[str]:
    """Break things for as long as the soak lasts, and until every group has done something; rare faults at even
    intervals.
    """
    done: Counter[str] = Counter()
    started = time.monotonic()
    wait = SECONDS / (len(rare) + 1)
    queue = list(rare)
    while (passed := time.monotonic() - started) < SECONDS or queue or min(crowd.replies for crowd in crowds) < ENOUGH:
        if queue and passed >= wait * (len(rare) - len(queue) + 1):
            action = queue.pop(0)
            action()
            done[action.__name__] += 1
        harm(chance.choice(proxies), chance)
        done["harm"] += 1
        time.sleep(chance.uniform(0.02, 0.2))
    for proxy in proxies:
        proxy.clear()
    return done


def compare_with_server(what: str, crowds: Sequence[Crowd], done: Counter[str], read: Callable[..., Any]) -> None:
    """Everything is over: compare."""
    logger.info("%s: %s", what, dict(done))
    for crowd in crowds:
        told: Counter[str] = sum((worker.check(read) for worker in crowd.workers), Counter())
        logger.info("%s, %s: %s", what, crowd.level, dict(told))
        assert told["a reply"] > 10 * told["unknown"] or crowd.level == "at-most-once", told


def crowd_of(level: str, append: str, url: str) -> Crowd:
    options = {"delivery": level, "backoff_base": 0.01, "backoff_cap": 0.1, "socket_timeout": 1.5}
    return Crowd(level, append, penstock.Client.from_url(url, **options), aio.Client.from_url(url, **options))


def test_our_server_cut_and_killed(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    port = free_port()
    servers = [Process(tmp_path, port)]

    def kill() -> None:
        servers[-1].kill()
        servers.append(Process(tmp_path, port))

    with ExitStack() as stack:
        stack.callback(lambda: servers[-1].kill())
        proxy = stack.enter_context(FaultProxy(("127.0.0.1", port)))
        url = f"redis://127.0.0.1:{proxy.port}/0"
        crowds = [crowd_of(level, "TWRITE", url) for level in ("at-most-once", "at-least-once", "exactly-once")]
        with at_work(crowds):
            done = disturb([proxy], chance, crowds, [kill] * max(2, int(SECONDS / 4)))
        plain = stack.enter_context(redis.Redis(port=port, protocol=2, **OPTIONS))
        plain.response_callbacks.clear()
        compare_with_server("our server", crowds, done, plain.execute_command)


def test_a_real_redis_cut() -> None:
    chance = random.Random(SEED)
    with RedisServer() as server, FaultProxy(("127.0.0.1", server.port)) as proxy:
        url = f"redis://127.0.0.1:{proxy.port}/0"
        crowds = [crowd_of(level, "RPUSH", url) for level in ("at-most-once", "at-least-once")]
        with at_work(crowds):
            done = disturb([proxy], chance, crowds, [])
        with redis.Redis(port=server.port, protocol=2, **OPTIONS) as plain:
            plain.response_callbacks.clear()
            compare_with_server("a real Redis", crowds, done, plain.execute_command)


def kill_in_step(cluster: RedisCluster, master: ClusterNode) -> None:
    """Kill a master whose replica has everything that it has acknowledged."""
    replica = cluster.replica_of(master)
    master.ask("CLIENT", "PAUSE", 20_000, "WRITE")
    while offset(replica, b"slave_repl_offset") < offset(master, b"master_repl_offset"):
        time.sleep(0.005)
    cluster.kill(master)


def offset(node: ClusterNode, name: bytes) -> int:
    info: bytes = node.ask("INFO", "replication")
    return int(info.split(name + b":", 1)[1].split(b"\r\n", 1)[0])


def test_a_real_cluster_cut_moved_and_killed(cluster: RedisCluster) -> None:
    chance = random.Random(SEED)

    with ExitStack() as stack:
        proxied = stack.enter_context(closing(Proxied(cluster)))
        crowds = [cluster_crowd(level, proxied) for level in ("at-most-once", "at-least-once")]
        slots = [penstock.protocol.slots.key_slot(w.name.encode()) for crowd in crowds for w in crowd.workers]

        def move() -> None:
            for slot in chance.sample(slots, 5):
                others = [node for node in cluster.masters if node is not cluster.owner(slot)]
                cluster.move_slot(slot, chance.choice(others))

        def kill() -> None:
            master = chance.choice(cluster.masters)
            kill_in_step(cluster, master)
            cluster.fail_over(master)
            cluster.restart(master)

        with at_work(crowds):
            rare = [move, kill] * max(1, int(SECONDS / 6))
            done = disturb([proxied.before(node) for node in cluster.nodes], chance, crowds, rare)
        plain = stack.enter_context(closing(penstock.Cluster(startup_nodes=cluster.addresses)))
        compare_with_server("a cluster", crowds, done, lambda *command: plain.execute_many([command])[0])


def cluster_crowd(level: str, proxied: Proxied) -> Crowd:
    options = {
        "startup_nodes": proxied.addresses,
        "address_remap": proxied.remap,
        "delivery": level,
        "socket_timeout": 5,
    }
    return Crowd(level, "RPUSH", penstock.Cluster(**options), aio.Cluster(**options))
