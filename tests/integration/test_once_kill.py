"""ONCE and kill -9 under `always`: a client that repeats every command in doubt has it done exactly once."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import redis
from tests.support.server_process import Process

from penstock.testing.redis import free_port

CLIENTS = 4
ROUNDS = 6


class Client:
    """Counts, and repeats every command until it has the reply."""

    def __init__(self, number: int) -> None:
        self.name = f"c{number}"
        self.number = 1

    def run(self, port: int) -> None:
        try:
            with redis.Redis(port=port, socket_timeout=60, retry=None) as client:
                while True:
                    with client.pipeline(transaction=True) as unit:
                        self._once(unit, self.number, "INCR", f"{self.name}:counter")
                        self._once(unit, self.number + 1, "TWRITE", f"{self.name}:stream", "", self.number)
                        count, offset = unit.execute()
                    assert count == offset == self.number // 2 + 1
                    self.number += 2
        except (redis.ConnectionError, redis.TimeoutError):
            return

    def _once(self, unit: redis.client.Pipeline, number: int, *words: str | int) -> None:
        unit.execute_command("ONCE", self.name, number, self.number, *words)

    def verify(self, client: redis.Redis) -> None:
        done = self.number // 2
        assert int(client.get(f"{self.name}:counter") or 0) in (done, done + 1)
        client.execute_command("ONCE", self.name, self.number, self.number, "INCR", f"{self.name}:counter")
        assert int(client.get(f"{self.name}:counter") or 0) == done + 1


def test_what_is_sent_again_after_kill_9_was_done_once(tmp_path: Path) -> None:
    chance = random.Random(7)
    clients = [Client(number) for number in range(CLIENTS)]
    port = free_port()
    for _ in range(ROUNDS):
        server = Process(tmp_path, port)
        threads = [threading.Thread(target=client.run, args=(port,)) for client in clients]
        enough = [client.number + 4 for client in clients]
        for thread in threads:
            thread.start()
        while any(client.number < each for client, each in zip(clients, enough, strict=True)):
            assert all(thread.is_alive() for thread in threads)
            time.sleep(0.01)  # on a busy machine nothing at all may happen in any given time
        time.sleep(chance.uniform(0.1, 0.6))
        server.kill()
        for thread in threads:
            thread.join()
    server = Process(tmp_path, port)
    with redis.Redis(port=port) as client:
        for each in clients:
            each.verify(client)
    server.kill()
