"""The servers of a comparison, each a process of its own, by default on one core, while the load has the other."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import redis

from penstock.testing.redis import RedisServer, find_redis, free_port


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


class StoredServer:
    """A server with a folder of its own, which can be killed and started again; it may use every core.

    `name` is "penstock" or "redis".
    """

    def __init__(self, name: Literal["penstock", "redis"], **directives: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-bench-")
        self.folder = Path(self._folder.name)
        self._name = name
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        settings = {"port": str(self._port), "bind": "127.0.0.1", "save": "", "dir": self._folder.name, **directives}
        self._words = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", value)]

    @property
    def running(self) -> Running:
        assert self._process is not None, "the server does not run"
        return Running(self._name, self._port, self._process.pid)

    def start(self, seconds: float = 20) -> float:
        """Answers after how many seconds the server answers commands; TimeoutError if it takes longer than allowed."""
        if self._name == "penstock":
            command = [sys.executable, "-m", "penstock", "serve", "--loglevel", "warning", "--always-show-logo", "no"]
        else:
            command = [find_redis().path]
        with _on_every_core():
            started = time.perf_counter()
            self._process = subprocess.Popen([*command, *self._words], stdout=subprocess.DEVNULL)
        wait_until_ready(self._port, self._process, seconds)
        return time.perf_counter() - started

    def kill(self) -> None:
        """kill -9. What the server had written to its files stays."""
        self._end(signal.SIGKILL)

    def close(self) -> None:
        if self._process is not None:
            self._end(signal.SIGTERM)
        self._folder.cleanup()

    def _end(self, how: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(how)
        self._process.wait(timeout=60)
        self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def penstock_server(**directives: str) -> Iterator[Running]:
    """Ours, started as a user would start it."""
    with StoredServer("penstock", **directives) as server:
        pin(server.running.pid, 0)
        yield server.running


@contextmanager
def redis_server(**directives: str) -> Iterator[Running]:
    """The peer."""
    with RedisServer(**directives) as server:
        wait_until_ready(server.port)
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


def wait_until_ready(port: int, process: subprocess.Popen[bytes] | None = None, seconds: float = 20) -> None:
    """Wait until a server answers PING, with what it stores loaded; an error if `process` ends or the time is over."""
    deadline = time.monotonic() + seconds
    while not _answers(port):
        if process is not None and process.poll() is not None:
            raise ChildProcessError(f"the server for port {port} ended with status {process.returncode}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"the server on port {port} did not answer within {seconds:g} s")
        time.sleep(0.01)


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as sock:
        sock.sendall(b"PING\r\n")
        return sock.recv(64).startswith(b"+PONG")  # -LOADING before that
    return False


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


@contextmanager
def _on_every_core() -> Iterator[None]:
    """What is started in here may use every core; the bench itself keeps off that of the servers."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(cores()))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _keep_to(pid: int, chosen: set[int]) -> None:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), chosen)
