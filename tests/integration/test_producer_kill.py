"""Producers and a server that is killed with -9, or stopped for a while, in the middle: every message is there once."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.client.clients import MAKERS
from tests.support.client.producers import producer_of
from tests.support.server_process import Process

from penstock import Client
from penstock.testing.redis import free_port

THREADS = 4


class Writers:
    """Threads that write numbers, each under a tag of its own, and keep the futures."""

    def __init__(self, producer: Any) -> None:
        self._producer = producer
        self._is_over = False
        self.futures: list[list[Any]] = [[] for _ in range(THREADS)]
        self._threads = [threading.Thread(target=self._work, args=(number,)) for number in range(THREADS)]
        for thread in self._threads:
            thread.start()

    def _work(self, number: int) -> None:
        mine = self.futures[number]
        while not self._is_over:
            mine.append(self._producer.write(f"t{number}", len(mine)))

    def stop(self) -> None:
        self._is_over = True
        for thread in self._threads:
            thread.join()


def wait_for_more(writers: Writers) -> None:
    """Until messages are acknowledged that came after this."""
    before = [mine[-1] for mine in writers.futures if mine]
    for future in before:
        future.result(120)


@pytest.mark.parametrize("kind", list(MAKERS))
def test_every_message_is_there_once_and_in_order(tmp_path: Path, kind: str) -> None:
    chance, port = random.Random(11), free_port()
    server = Process(tmp_path, port)
    client = MAKERS[kind](f"redis://127.0.0.1:{port}/0", socket_timeout=0.5)
    try:
        with producer_of(client, "s", max_bytes=300_000, batch_bytes=20_000, timeout=300.0) as producer:
            writers = Writers(producer)
            for round in range(6):
                while not all(writers.futures):
                    time.sleep(0.01)
                wait_for_more(writers)
                time.sleep(chance.uniform(0.0, 0.3))
                if round % 3 == 2:  # longer than the client waits for a silent server
                    os.kill(server.process.pid, signal.SIGSTOP)
                    time.sleep(1.5)
                    os.kill(server.process.pid, signal.SIGCONT)
                else:
                    server.kill()
                    time.sleep(chance.uniform(0.0, 0.3))
                    server = Process(tmp_path, port)
            wait_for_more(writers)
            writers.stop()
            producer.flush(300)
            offsets = [[future.result(0 if kind == "sync" else 60) for future in mine] for mine in writers.futures]
            assert producer.counters["failed"] == 0
        with Client(port=port) as reader:
            found = [message for table in reader.read_tables("s") for message in table.to_pylist()]
    finally:
        server.kill()
        client.close()
    for number in range(THREADS):
        mine = [(row["offset"], int(row["entry"])) for row in found if row["tag"] == b"t%d" % number]
        assert mine == list(zip(offsets[number], range(len(offsets[number])), strict=True))
    assert len(found) == sum(map(len, offsets))
