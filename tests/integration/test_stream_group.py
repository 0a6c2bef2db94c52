"""A consumer group of two hundred over real sockets, and what is left of one after kill -9."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from tests.support.commands.stream_world import Runs
from tests.support.server_process import Process

from penstock import Server
from penstock.testing.redis import free_port

CONSUMERS = 200
PRODUCERS = 3
ENTRIES = 2000  # each producer's


async def produce(port: int, number: int) -> list[int]:
    """Write, a few at a time; the offsets that were answered."""
    async with redis.asyncio.Redis(port=port, protocol=2) as client:
        written: list[int] = []
        while len(written) < ENTRIES:
            size = min(1 + len(written) % 7, ENTRIES - len(written))
            pairs = [word for n in range(size) for word in ("", f"{number}:{len(written) + n}")]
            first = await client.execute_command("TWRITE", "k", "ENTRIES", *pairs)
            written += range(first, first + size)
    return written


async def consume(port: int, got: list[tuple[int, bytes]], ready: asyncio.Semaphore) -> None:
    """Read one message at a time until a message says that it is over."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    request = b"TREAD k 0 1 BLOCK 0 GROUP g\r\n"
    ready.release()
    while True:
        writer.write(request)
        assert await reader.readline() == b"*1\r\n"
        assert await reader.readline() == b"*3\r\n"
        offset = int((await reader.readline())[1:])
        assert await reader.readline() == b"$0\r\n"
        await reader.readline()
        await reader.readline()
        entry = (await reader.readline())[:-2]
        if entry == b"over":
            break
        got.append((offset, entry))
    writer.close()
    await writer.wait_closed()


async def crowd(port: int, blocked: Any) -> tuple[list[list[int]], list[list[tuple[int, bytes]]]]:
    ready = asyncio.Semaphore(0)
    received: list[list[tuple[int, bytes]]] = [[] for _ in range(CONSUMERS)]
    async with asyncio.TaskGroup() as tasks:
        for got in received:
            tasks.create_task(consume(port, got, ready))
        for _ in range(CONSUMERS):
            await ready.acquire()
        while blocked() < CONSUMERS:
            await asyncio.sleep(0.01)
        producers = [tasks.create_task(produce(port, number)) for number in range(PRODUCERS)]
        written = [await task for task in producers]
        async with redis.asyncio.Redis(port=port) as client:
            for _ in range(CONSUMERS):
                await client.execute_command("TWRITE", "k", "", "over")
    return written, received


def test_a_group_of_two_hundred_gets_every_message_once_and_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs(monkeypatch)
    with Server() as server:
        written, received = asyncio.run(crowd(server.port, lambda: server.call(lambda app: app.engine.blocking.count)))
        with redis.Redis.from_url(server.url) as client:
            group = client.execute_command("TGROUP", "LIST", "k")[0]
    offsets = sorted(offset for got in received for offset, _ in got)
    assert offsets == sorted(offset for mine in written for offset in mine) == list(range(1, PRODUCERS * ENTRIES + 1))
    entries = Counter(entry for got in received for _, entry in got)
    assert entries == Counter(f"{p}:{n}".encode() for p in range(PRODUCERS) for n in range(ENTRIES))
    sizes = [len(got) for got in received]
    # In turn: no member is served twice while another waits, so they differ only by replies under way.
    assert max(sizes) - min(sizes) <= 3, Counter(sizes)
    for got in received:
        assert got == sorted(got)
    assert runs.in_vain == 0
    assert (group[b"lag"], group[b"pending"], group[b"lost"]) == (0, 0, 0)


# -- kill -9 --------------------------------------------------------------------------------------------------


class Worker:
    """Does one thing of everything a stream can, in turns, and remembers what the server said."""

    def __init__(self, number: int) -> None:
        self.key = f"stream{number}"
        self.chance = random.Random(number)
        self.last = 0
        self.sequence = 0
        self.answers: dict[int, int] = {}
        self.epoch = 0
        self.commits: dict[int, list[int]] = {}
        self.stages: dict[str, int] = {}
        self.position = 1
        self.pending: dict[int, int] = {}  # offset -> attempts
        self.doubtful: tuple[Any, ...] | None = None  # what was sent and not answered
        self.steps = 0  # done since the server came up

    def run(self, port: int) -> None:
        try:
            with redis.Redis(port=port, socket_timeout=60, retry=None, protocol=3) as client:
                while True:
                    self._step(client)
        except (redis.ConnectionError, redis.TimeoutError):
            return

    def _say(self, client: redis.Redis, *words: Any) -> Any:
        self.doubtful = words
        reply = client.execute_command(*words)
        self.doubtful = None
        return reply

    def _step(self, client: redis.Redis) -> None:
        steps = [self._write, self._write, self._read, self._read, self._acknowledge, self._stage, self._commit]
        self.chance.choice(steps)(client)
        self.steps += 1

    def _write(self, client: redis.Redis) -> None:
        words = ("TWRITE", self.key, "PRODUCER", "p", self.sequence, "ENTRIES", "t", "a", "t", "b")
        self.answers[self.sequence] = self._say(client, *words)
        self.sequence += 1
        self.last += 2
        assert self.answers[self.sequence - 1] == self.last - 1

    def _read(self, client: redis.Redis) -> None:
        for offset, _, _ in self._say(client, "TREAD", self.key, 0, 3, "GROUP", "g", "RETRY", 1, 0):
            self.pending[offset] = self.pending.get(offset, 0) + 1
            self.position = max(self.position, offset + 1)

    def _acknowledge(self, client: redis.Redis) -> None:
        for offset in list(self.pending)[:2]:
            assert self._say(client, "TACK", self.key, "g", offset) == 1
            del self.pending[offset]

    def _stage(self, client: redis.Redis) -> None:
        token = f"token{self.epoch + 1}"
        self.stages[token] = self._say(client, "TSTAGE", self.key, token, "ENTRIES", "t", "s")

    def _commit(self, client: redis.Redis) -> None:
        token = f"token{self.epoch + 1}"
        if token in self.stages:
            self.commits[self.epoch + 1] = self._say(client, "TCOMMIT", self.key, "spark", self.epoch + 1, token)
            self.epoch += 1
            self.last += self.stages.pop(token)

    # After a restart.

    def verify(self, client: redis.Redis) -> None:
        """What clients were told holds; the one command without a reply happened whole or not at all."""
        if not client.exists(self.key):
            assert self.last == 0
            assert not self.stages
            self.doubtful = None
            return
        info = client.execute_command("TINFO", self.key)
        listed = {
            offset: attempts
            for first, last, attempts, *_ in (
                client.execute_command("TGROUP", "PENDING", self.key, "g") if info[b"groups"] else []
            )
            for offset in range(first, last + 1)
        }
        position = info[b"groups"][0][b"position"] if info[b"groups"] else 1
        verb = self.doubtful[0] if self.doubtful else None
        if verb == "TREAD":
            assert position >= self.position
            assert listed.keys() >= self.pending.keys()
            delivered = [offset for offset in listed if listed[offset] != self.pending.get(offset, 0)]
            assert len(delivered) <= 3
            assert all(listed[offset] == self.pending.get(offset, 0) + 1 for offset in delivered)
        elif verb == "TACK" and self.doubtful is not None:
            acknowledged = self.pending.keys() - listed.keys()
            assert acknowledged <= {self.doubtful[3]}
            assert listed == {offset: self.pending[offset] for offset in self.pending.keys() - acknowledged}
        else:
            assert (position, listed) == (self.position, self.pending)
        self.position, self.pending = position, listed
        self._verify_writes(client, info, verb)
        self.doubtful = None

    def _verify_writes(self, client: redis.Redis, info: dict[bytes, Any], verb: str | None) -> None:
        """A repeat of the command without a reply tells whether it happened: afterwards it has happened once."""
        staged = sum(self.stages.values())
        if verb == "TWRITE":
            assert info[b"last"] in (self.last, self.last + 2)
            self._write(client)
        elif verb == "TCOMMIT":
            assert info[b"last"] in (self.last, self.last + staged)
            self._commit(client)
        else:
            assert info[b"last"] == self.last
            if verb == "TSTAGE":
                # One more or not: staging is not numbered, so look.
                self._commit_unknown(client)
        again = client.execute_command("TINFO", self.key)
        assert (again[b"first"], again[b"last"], again[b"length"]) == (1, self.last, self.last)
        assert again[b"stages"] == len(self.stages)
        for sequence in list(self.answers)[-8:]:
            words = ("TWRITE", self.key, "PRODUCER", "p", sequence, "ENTRIES", "t", "a", "t", "b")
            assert client.execute_command(*words) == self.answers[sequence]
        if self.epoch:
            repeated = client.execute_command("TCOMMIT", self.key, "spark", self.epoch, "whatever")
            assert repeated == self.commits[self.epoch]
        assert client.execute_command("TREAD", self.key, self.last + 1, 5) == []

    def _commit_unknown(self, client: redis.Redis) -> None:
        token = f"token{self.epoch + 1}"
        told = self.stages.pop(token, 0)
        try:
            first, entries = client.execute_command("TCOMMIT", self.key, "spark", self.epoch + 1, token)
        except redis.ResponseError:
            assert told == 0
            return
        assert entries in (told, told + 1)
        self.epoch += 1
        self.commits[self.epoch] = [first, entries]
        self.last += entries


def test_groups_producers_and_stages_are_what_clients_were_told_after_kill_9(tmp_path: Path) -> None:
    chance = random.Random(9)
    workers = [Worker(number) for number in range(3)]
    port = free_port()
    for _ in range(6):
        server = Process(tmp_path, port)
        with redis.Redis(port=port, protocol=3) as client:
            for worker in workers:
                worker.verify(client)
        threads = [threading.Thread(target=worker.run, args=(port,)) for worker in workers]
        for worker, thread in zip(workers, threads, strict=True):
            worker.steps = 0
            thread.start()
        while any(worker.steps < 20 and thread.is_alive() for worker, thread in zip(workers, threads, strict=True)):
            time.sleep(0.01)  # on a busy machine nothing at all may happen in any given time
        time.sleep(chance.uniform(0, 0.3))
        server.kill()
        for thread in threads:
            thread.join()
    server = Process(tmp_path, port)
    with redis.Redis(port=port, protocol=3) as client:
        for worker in workers:
            worker.verify(client)
            assert worker.last > 10, "hardly anything was written"
            assert worker.epoch > 3
    server.kill()


def test_what_a_reader_was_told_is_gone_stays_gone_after_kill_9(tmp_path: Path) -> None:
    """Compaction runs between commands; its result must not be visible before it is on disk."""
    port = free_port()
    read = ("TREAD", "k", 1, 20_000)
    server = Process(tmp_path, port)
    with redis.Redis(port=port, protocol=2) as client:
        for _ in range(20):
            pairs = [word for n in range(1000) for word in (f"tag{n % 100}", "entry")]
            client.execute_command("TWRITE", "k", "ENTRIES", *pairs)
        client.execute_command("TRETAIN", "k", "COMPACT", "yes")
        told = client.execute_command(*read)
        while None not in told:
            told = client.execute_command(*read)
    server.kill()
    server = Process(tmp_path, port)
    with redis.Redis(port=port, protocol=2) as client:
        found = client.execute_command(*read)
    server.kill()
    assert [again for before, again in zip(told, found, strict=True) if before is None and again] == []
    assert found[-100:] == told[-100:]
