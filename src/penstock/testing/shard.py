"""A node of a shard as real processes: `penstock serve --etcd ...`, an agent and a server that is its child."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from penstock.testing.etcd import EtcdServer
from penstock.testing.redis import free_port
from penstock.testing.relay import Relay

SHARD = "orders"


class ShardNode:
    """One node; its processes are ended by their ids."""

    def __init__(self, folder: Path, name: str, etcd: str, options: str = "") -> None:
        folder.mkdir()
        self.folder = folder
        self.name = name
        self.port = free_port()
        self._words = (
            f"serve --port {self.port} --dir {folder} --appendonly yes --etcd {etcd} --shard {SHARD} --node {name} "
            f"--enable-debug-command yes --always-show-logo no {options}"
        )
        self.environment: dict[str, str] = {}  # of both processes, beside ours
        self.to_etcd: Relay | None = None  # the way to etcd, if it can be cut
        self.agent: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        """What both processes wrote."""
        return (self.folder / "server.log").read_text()

    def announce(self, port: int) -> None:
        """Other nodes reach it at this port; to be said before it starts."""
        self._words += f" --replica-announce-ip 127.0.0.1 --replica-announce-port {port}"

    def start(self) -> None:
        with (self.folder / "server.log").open("ab") as output:
            self.agent = subprocess.Popen(
                [sys.executable, "-m", "penstock", *self._words.split(), "--save", ""],
                stdout=output, stderr=output, env={**os.environ, **self.environment},
            )  # fmt: skip

    def stop(self) -> None:
        """End both processes, whatever state they are in."""
        if self.agent is not None:
            for pid in (self.agent.pid, *self._children()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.agent.wait()
            self.agent = None

    def kill_agent(self) -> None:
        """End the agent only; its server ends by itself."""
        server = self.server_pid
        assert self.agent is not None
        self.agent.kill()
        self.agent.wait()
        self.agent = None
        _wait_until(lambda: not Path(f"/proc/{server}").exists(), 60)

    def lose_data(self) -> None:
        """Empty its folder, but for what it said; it does not run."""
        for path in self.folder.iterdir():
            if path.name != "server.log":
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def limit_files(self, more: int | None) -> None:
        """Let no file grow by more than so many bytes beyond that which its log is written to, as on a full disk; None
        for any number.
        """
        limit = resource.RLIM_INFINITY if more is None else max(size_of_log(self.folder) + more, 0)
        resource.prlimit(self.server_pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    def _children(self) -> list[int]:
        assert self.agent is not None
        try:
            return [
                int(pid) for pid in Path(f"/proc/{self.agent.pid}/task/{self.agent.pid}/children").read_text().split()
            ]
        except FileNotFoundError:
            return []

    @property
    def server_pid(self) -> int:
        """Of the server's process; it changes when the agent starts it again."""
        _wait_until(lambda: bool(self._children()), 60)
        return self._children()[0]

    def signal_server(self, number: signal.Signals) -> None:
        os.kill(self.server_pid, number)

    def signal_agent(self, number: signal.Signals) -> None:
        assert self.agent is not None
        self.agent.send_signal(number)

    # -- as a client sees it ----------------------------------------------------------------------------------

    def client(self, seconds: float = 60) -> redis.Redis:
        return redis.Redis(port=self.port, retry=Retry(NoBackoff(), 0), socket_timeout=seconds)

    def call(self, *words: Any) -> Any:
        with self.client() as client:
            return client.execute_command(*words)

    def info(self) -> dict[str, Any]:
        """INFO replication; empty if it does not answer."""
        try:
            with self.client(seconds=1) as client:
                return dict(client.info("replication"))
        except RedisError:
            return {}

    @property
    def leads(self) -> bool:
        return bool(self.info().get("role") == "master")

    def writes(self, seconds: float = 60) -> bool:
        """Whether it acknowledges a write."""
        try:
            with self.client(seconds) as client:
                return bool(client.set("probe", time.time()))
        except RedisError:
            return False

    @property
    def in_sync(self) -> list[str]:
        """Names of nodes, as it says."""
        names = self.info().get("in_sync", "")  # redis-py makes a list of several
        return sorted(names if isinstance(names, list) else names.split())


def size_of_log(folder: Path) -> int:
    """Bytes of the file that a server appends to; older ones may be larger."""
    found = [path.stat() for path in folder.rglob("*.incr.aof")]
    return max(found, key=lambda each: each.st_mtime_ns).st_size if found else 0


@contextlib.contextmanager
def running_shard(folder: Path, count: int = 3, options: str = "--replica-acks 1") -> Iterator[list[ShardNode]]:
    """The nodes of a shard that are all in sync, and an etcd of one member, from which each can be cut off."""
    with contextlib.ExitStack() as stack:
        etcd = stack.enter_context(EtcdServer(folder))
        nodes = []
        for name in [f"n{number}" for number in range(1, count + 1)]:
            relay = stack.enter_context(Relay(etcd.members[0].port))
            nodes.append(ShardNode(folder / name, name, f"http://127.0.0.1:{relay.port}", options))
            nodes[-1].to_etcd = relay
        for node in nodes:
            stack.callback(node.stop)
            node.start()
        wait_until_in_sync(nodes)
        yield nodes


def wait_until_in_sync(nodes: list[ShardNode], seconds: float = 120) -> None:
    """Return when one of the nodes leads, takes writes, and all are in sync."""
    names = sorted(node.name for node in nodes)
    _wait_until(lambda: any(node.in_sync == names and node.writes() for node in nodes), seconds)


def _wait_until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"it did not happen within {seconds:g} seconds")
        time.sleep(0.02)
