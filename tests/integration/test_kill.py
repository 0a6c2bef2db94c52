"""kill -9 at any instant: what was acknowledged under `always` is there again, and no operation is half done.

Each writer uses keys of its own, so the state after a restart is known exactly: everything that was acknowledged, and
the one operation under way when the server died either whole or not at all.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from pathlib import Path

import pytest
import redis
from tests.support.server_process import Process

from penstock.testing.redis import free_port

WRITERS = 4
ROUNDS = 12


class Writer:
    """Writes one thing after the other, through every restart, and remembers what was acknowledged.

    It never waits for a server to be ready: the first moments of one are when acknowledged writes are easily lost.
    Every other one writes LAZY: what is queued when the server dies was acknowledged too.
    """

    def __init__(self, number: int) -> None:
        self.name = f"w{number}"
        self.lazy = ["LAZY"] if number % 2 else []
        self.done = 0  # rounds of `_write` that were acknowledged
        self.loss: AssertionError | None = None  # what `verify` missed after a restart
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run_through_restarts)

    def start(self, port: int) -> None:
        self.port = port
        self._thread.start()

    def stop(self) -> None:
        """Stop writing; AssertionError if anything was lost."""
        self._stop.set()
        self._thread.join()
        if self.loss is not None:
            raise self.loss

    def wait_for(self, rounds: int) -> None:
        """Wait until that many rounds more are done: on a busy machine nothing at all may happen in any given time."""
        enough = self.done + rounds
        while self.done < enough and self.loss is None:
            assert self._thread.is_alive()
            time.sleep(0.01)

    def _run_through_restarts(self) -> None:
        with redis.Redis(port=self.port, socket_timeout=60, retry=None) as client:
            while not self._stop.is_set() and self.loss is None:
                try:
                    self.verify(client)
                    while not self._stop.is_set():
                        self._write(client, self.done + 1)
                        self.done += 1
                except (redis.ConnectionError, redis.TimeoutError):  # LOADING is one too
                    time.sleep(0.002)
                except AssertionError as loss:
                    self.loss = loss

    def _write(self, client: redis.Redis, number: int) -> None:
        """One unit that touches a counter, a list, a sum and a key of its own."""
        with client.pipeline(transaction=True) as unit:
            unit.execute_command(*self.lazy, "INCR", f"{self.name}:counter")
            unit.execute_command(*self.lazy, "LPUSH", f"{self.name}:list", number)
            unit.execute_command(*self.lazy, "SET", f"{self.name}:key:{number}", number)
            unit.execute_command(*self.lazy, "INCRBY", f"{self.name}:sum", number)
            unit.execute()

    def verify(self, client: redis.Redis) -> None:
        """Everything acknowledged is there, and no unit is half done; what was under way may have happened."""
        counter = int(client.get(f"{self.name}:counter") or 0)
        assert counter in (self.done, self.done + 1), f"{self.name}: {self.done} acknowledged, {counter} there"
        assert client.llen(f"{self.name}:list") == counter
        assert int(client.get(f"{self.name}:sum") or 0) == counter * (counter + 1) // 2
        keys = [f"{self.name}:key:{number}" for number in range(1, counter + 1)]
        values = client.mget(keys) if keys else []
        assert values == [b"%d" % number for number in range(1, counter + 1)]
        assert not client.exists(f"{self.name}:key:{counter + 1}")
        self.done = counter


def disturb(port: int, chance: random.Random, stop: threading.Event) -> None:
    """Snapshots and rewrites under way while the writers write."""
    with redis.Redis(port=port, socket_timeout=60, retry=None) as client, contextlib.suppress(redis.ConnectionError):
        while not stop.wait(chance.uniform(0, 0.15)):
            with contextlib.suppress(redis.ResponseError):  # one is under way already
                client.execute_command(chance.choice(["BGSAVE", "BGREWRITEAOF"]))


def test_kill_9_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    chance = random.Random(20_000)
    writers = [Writer(number) for number in range(WRITERS)]
    port = free_port()
    for writer in writers:
        writer.start(port)
    try:
        for _ in range(ROUNDS):
            server = Process(tmp_path, port)
            stop = threading.Event()
            disturber = threading.Thread(target=disturb, args=(port, chance, stop))
            disturber.start()
            for writer in writers:
                writer.wait_for(2)
            time.sleep(chance.uniform(0.1, 0.9))
            server.kill()
            stop.set()
            disturber.join()
    finally:
        for writer in writers:
            writer.stop()
    server = Process(tmp_path, port)
    with redis.Redis(port=port) as client:
        for writer in writers:
            writer.verify(client)
    server.kill()


def test_what_is_written_after_the_log_was_turned_on_survives_kill_9(tmp_path: Path) -> None:
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        port = free_port()
        server = Process(folder, port, options="--appendonly no --save 3600 1")
        writers = [Writer(each) for each in range(2)]
        with redis.Redis(port=port) as client:
            client.mset({f"filling:{each}": "x" * 100 for each in range(20_000)})  # the first base takes a moment
            for writer in writers:
                writer.start(port)
            assert client.config_set("appendonly", "yes")
            since = [writer.done for writer in writers]
            assert client.set("after", number)
            time.sleep(0.02 * number)
        server.kill()
        server = Process(folder, port)
        for writer in writers:
            writer.stop()
        with redis.Redis(port=port) as client:
            assert client.get("after") == b"%d" % number
            assert client.dbsize() > 20_000
            for writer, before in zip(writers, since, strict=True):
                writer.verify(client)
                assert writer.done >= before
        server.kill()


@pytest.mark.parametrize("policy", ["everysec", "no"])
def test_kill_9_while_a_sync_is_under_way_loses_nothing_that_was_acknowledged(tmp_path: Path, policy: str) -> None:
    port = free_port()
    server = Process(tmp_path, port, "tests.support.storage.slow_sync", "--appendfsync everysec")
    with redis.Redis(port=port, socket_timeout=60, retry=None) as client:
        client.set("a", 1)
        while not (tmp_path / "syncing").exists():
            assert server.process.poll() is None
            time.sleep(0.01)
        client.config_set("appendfsync", policy)
        for number in range(1, 101):
            assert client.incr("counter") == number
    server.kill()
    server = Process(tmp_path, port)
    with redis.Redis(port=port) as client:
        assert client.get("counter") == b"100"
    server.kill()
