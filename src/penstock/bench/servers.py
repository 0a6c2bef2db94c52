"""The two servers of a comparison, each a process of its own on one core, while the load has the other."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis

from penstock.testing.redis import RedisServer, free_port


@dataclass(frozen=True, slots=True)
class Running:
    """A server under test."""

    name: str
    port: int
    pid: int

    @property
    def is_ours(self) -> bool:
        return self.name == "penstock"

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port, protocol=2)

    def processor_time(self) -> float:
        """Seconds of all threads of the process, as Linux's clock of that process has them."""
        return time.clock_gettime(~self.pid << 3 | 2)  # clock_getcpuclockid(3), which Python does not have

    def resident_memory(self) -> int:
        """Bytes of memory the process has in use, as the kernel counts them."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise ProcessLookupError(self.pid)


@contextmanager
def penstock_server(**directives: str) -> Iterator[Running]:
    """Ours, started as a user would start it."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        settings = {
            "port": str(port),
            "bind": "127.0.0.1",
            "save": "",
            "dir": folder,
            "loglevel": "warning",
            **directives,
        }
        words = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", value)]
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "serve", *words, "--always-show-logo", "no"], stdout=subprocess.DEVNULL
        )
        try:
            _wait(port)
            pin(process.pid, 0)
            yield Running("penstock", port, process.pid)
        finally:
            process.terminate()
            process.wait(timeout=30)


@contextmanager
def redis_server(**directives: str) -> Iterator[Running]:
    """The peer."""
    with RedisServer(**directives) as server:
        _wait(server.port)
        pin(server.pid, 0)
        yield Running("redis", server.port, server.pid)


@contextmanager
def configured(client: redis.Redis, directives: dict[str, str]) -> Iterator[None]:
    """Settings that are restored afterwards."""
    before = {name: str(client.config_get(name)[name]) for name in directives}
    for name, value in directives.items():
        client.config_set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            client.config_set(name, value)


def _wait(port: int, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    client = redis.Redis(port=port, protocol=2)
    while True:
        try:
            client.ping()
            client.close()
            return
        except redis.ConnectionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


@functools.cache
def cores() -> list[int]:
    """The cores that the bench was given, asked before it restricts itself to some of them."""
    return sorted(os.sched_getaffinity(0))


def pin(pid: int, core: int) -> None:
    """Keep a server on one core, all its threads, so that two runs differ by less; the load stays off that core."""
    if len(cores()) > 1:
        _keep_to(pid, {cores()[core]})


@contextmanager
def unpinned(server: Running) -> Iterator[None]:
    """Let a server use every core, for rows about its threads."""
    _keep_to(server.pid, set(cores()))
    try:
        yield
    finally:
        pin(server.pid, 0)


def _keep_to(pid: int, chosen: set[int]) -> None:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), chosen)
