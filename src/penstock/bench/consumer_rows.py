"""The rows of consumers: tiny bodies beside a loop of redis-py, and eight processes beside what is ideal here.

Bodies of the rows with processes sleep. The ideal of 1 ms bodies is measured: eight processes that only sleep, on the
same cores. That of 100 ms bodies is computed: a sleep of that length takes no longer than it says.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.bench.messages import ARROW_ROWS, KEY, entry, fill
from penstock.bench.row import Measure, Row
from penstock.bench.servers import Running
from penstock.client.api.sync import Client

PROCESSES = 8


def _tiny(acks_each: bool) -> Measure:
    """Messages a second of one consumer whose body does nothing."""

    def measure(server: Running, scale: float) -> float:
        count = max(int(200_000 * scale) // ARROW_ROWS, 1) * ARROW_ROWS
        if not server.is_ours and acks_each:
            count = ARROW_ROWS  # it is slow, and as slow with few
        fill(server, count)
        return _ours(server, count) if server.is_ours else _redis_py(server, count, acks_each)

    return measure


def _ours(server: Running, count: int) -> float:
    with Client(port=server.port) as client:
        consumer = client.consumer(KEY, "bench")
        done = 0

        def body(message: Any) -> None:
            nonlocal done
            done += 1
            if done == count:
                consumer.stop()

        started = time.perf_counter()
        consumer.run(body)
        return count / (time.perf_counter() - started)


def _redis_py(server: Running, count: int, acks_each: bool) -> float:
    """The loop that redis-py's users write: a hundred messages, and XACK for each, or for all of them."""
    with server.client() as client:
        client.xgroup_create(KEY, "bench", "0")
        done = 0
        started = time.perf_counter()
        while done < count:
            ((_, messages),) = client.xreadgroup("bench", "one", {KEY: ">"}, count=100)
            done += len(messages)
            if acks_each:
                for identity, _ in messages:
                    client.xack(KEY, "bench", identity)
            else:
                client.xack(KEY, "bench", *(identity for identity, _ in messages))
        return count / (time.perf_counter() - started)


@contextmanager
def _processes(server: Running, group: str, seconds: float) -> Iterator[list[subprocess.Popen[str]]]:
    words = [sys.executable, "-m", "penstock.bench.consumer_load", str(server.port), group, str(seconds)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    started = [subprocess.Popen(words, text=True, **pipes) for _ in range(PROCESSES)]  # type: ignore[call-overload]
    try:
        for process in started:
            process.stdout.readline()
        yield started
    finally:
        for process in started:
            process.terminate()
            process.communicate()


def _tell(processes: list[subprocess.Popen[str]], line: str) -> None:
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(f"{line}\n")
        process.stdin.flush()


def _fleet(seconds: float, each: int, measure_rate: bool) -> Measure:
    """Messages a second of the processes, or the seconds that they take for all."""

    def measure(server: Running, scale: float) -> float:
        count = PROCESSES * max(int(each * scale), 10)
        with Client(port=server.port) as client, _processes(server, "bench", seconds) as processes:
            _tell(processes, "")
            client.twrite_many(KEY, [("warm", "up")] * PROCESSES * 4)
            _wait(client, PROCESSES * 4)
            started = time.perf_counter()
            client.twrite_many(KEY, [("order", entry(number)) for number in range(count)])
            _wait(client, count + PROCESSES * 4)
            taken = time.perf_counter() - started
        return count / taken if measure_rate else taken

    return measure


def _wait(client: Client, count: int) -> None:
    """Until the group has done all of so many messages."""
    while not (groups := client.tgroup_list(KEY)) or groups[0].lag or groups[0].pending:
        time.sleep(0.005)
    assert client.tinfo(KEY).last == count


def _sleepers(seconds: float, each: int) -> Measure:
    """Messages a second of processes that only sleep."""

    def measure(server: Running, scale: float) -> float:
        count = max(int(each * scale), 10)
        with _processes(server, "-", seconds) as processes:
            started = time.perf_counter()
            _tell(processes, str(count))
            for process in processes:
                assert process.stdout is not None
                process.stdout.readline()
            return PROCESSES * count / (time.perf_counter() - started)

    return measure


def _computed(seconds: float, each: int) -> Measure:
    return lambda server, scale: max(int(each * scale), 10) * seconds


CONSUMER_ROWS = [
    Row("consumer.tiny", "consumer / redis-py XREADGROUP, XACK each", "messages/s", 5, _tiny(acks_each=True)),
    Row("consumer.tiny.100", "consumer / the same, XACK of 100", "messages/s", None, _tiny(acks_each=False)),
    Row(
        "consumer.1ms", "8 processes, 1 ms bodies / only sleeping", "messages/s", 0.9, _fleet(0.001, 2000, True),
        baseline=_sleepers(0.001, 2000),
    ),
    Row(
        "consumer.100ms", "8 processes, 100 ms bodies / ideal", "s", 1.2, _fleet(0.1, 30, False), True,
        baseline=_computed(0.1, 30),
    ),
]  # fmt: skip
