"""A leader and its replicas, each a process of its own, that can be killed, stopped, cut off and promoted.

Replicas reach their leader through a Relay. A server that is killed is started again on its folder and port.
"""

from __future__ import annotations

import contextlib
import resource
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry
from tests.support.server_process import Process
from tests.support.waiting import wait_until

from penstock.testing.redis import find_redis, free_port
from penstock.testing.relay import Relay
from penstock.testing.shard import size_of_log

OPTIONS = "--appendfsync everysec --min-replicas-max-lag 3 --enable-debug-command yes"


class RedisProcess:
    """A real redis-server with a log of its own."""

    def __init__(self, folder: Path, port: int, options: str = "") -> None:
        own = f"--port {port} --dir {folder} --appendonly yes --repl-diskless-sync-delay 0"
        words = [*own.split(), "--save", "", *options.split()]
        self.output = (folder / "server.log").open("ab")
        self.process = subprocess.Popen([find_redis().path, *words], stdout=self.output, stderr=self.output)
        wait_until(lambda: _answers(port))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.output.close()


def _answers(port: int) -> bool:
    with contextlib.suppress(redis.RedisError), redis.Redis(port=port, retry=None, socket_timeout=5) as client:
        client.ping()
        return True
    return False


class Node:
    """One server, running or not."""

    def __init__(self, folder: Path, options: str, is_redis: bool) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.port = free_port()
        self._options = options
        self._is_redis = is_redis
        self.relay = Relay(self.port).__enter__()
        self.process: Process | RedisProcess | None = None

    def start(self, leader: Node | None = None) -> None:
        options = self._options
        if leader is not None:
            options += f" --replicaof 127.0.0.1 {leader.relay.port}"
        kind: Callable[..., Any] = RedisProcess if self._is_redis else Process
        self.process = kind(self.folder, self.port, options=options)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process = None

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.process.send_signal(number)

    def call(self, *words: object, timeout: float = 30) -> Any:
        """A leader that stops waiting for its replicas closes connections that wait for a reply: it is asked again."""
        retry = Retry(ConstantBackoff(0.05), 5, supported_errors=(redis.ConnectionError,))
        with redis.Redis(port=self.port, retry=retry, socket_timeout=timeout) as client:
            return client.execute_command(*words)

    def rewrite_log(self) -> None:
        """BGREWRITEAOF. If it is asked again, it is at work already."""
        try:
            self.call("BGREWRITEAOF")
        except redis.ResponseError as error:
            if "already in progress" not in str(error):
                raise

    def info(self) -> dict[str, Any]:
        return dict(self.call("INFO", "replication"))

    def role(self) -> str:
        """What it says it is; "" if it does not answer."""
        with contextlib.suppress(redis.RedisError):
            return str(self.call("ROLE", timeout=5)[0].decode())
        return ""

    def follow(self, leader: Node) -> None:
        self.call("REPLICAOF", "127.0.0.1", leader.relay.port)

    def limit_files(self, more: int | None) -> None:
        """Let no file grow by more than so many bytes beyond that which its log is written to, as on a full disk."""
        limit = resource.RLIM_INFINITY if more is None else size_of_log(self.folder) + more
        assert self.process is not None
        resource.prlimit(self.process.process.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))


class PlainShard:
    """`with PlainShard(folder, 3) as shard:`; the first one leads."""

    def __init__(self, folder: Path, count: int, options: str = "--replica-acks 1", is_redis: bool = False) -> None:
        own = options if is_redis else f"{OPTIONS} {options}"
        self.nodes = [Node(folder / f"n{number}", own, is_redis) for number in range(1, count + 1)]
        self.leader = self.nodes[0]

    @property
    def url(self) -> str:
        return f"penstock://{','.join(f'127.0.0.1:{node.port}' for node in self.nodes)}/shard"

    @property
    def replicas(self) -> list[Node]:
        return [node for node in self.nodes if node is not self.leader]

    def __enter__(self) -> PlainShard:
        try:
            self.leader.start()
            for node in self.replicas:
                node.start(self.leader)
            self.wait_for_replicas()
            wait_until(self.takes_writes)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for node in self.nodes:
            if node.process is not None:
                with contextlib.suppress(ProcessLookupError):
                    node.signal(signal.SIGCONT)
            node.kill()
            node.relay.__exit__(None, None, None)

    def wait_for_replicas(self) -> None:
        """Return when all replicas follow the leader."""
        wait_until(lambda: all(self._follows(node) for node in self.replicas))

    def _follows(self, node: Node) -> bool:
        with contextlib.suppress(redis.RedisError, KeyError):
            info = node.info()
            return info["master_link_status"] == "up" and info["master_port"] == self.leader.relay.port
        return False

    def takes_writes(self) -> bool:
        """Whether the leader has heard of its replicas, which know of the link before it does."""
        with contextlib.suppress(redis.ResponseError):
            return self.leader.call("DEL", "nothing") == 0
        return False

    def promote_furthest(self) -> Node:
        """The leader is gone: the replica that has most leads, and the others follow it."""
        running = [node for node in self.replicas if node.process is not None]
        best = max(running, key=lambda node: int(node.info()["slave_repl_offset"]))
        best.call("REPLICAOF", "NO", "ONE")
        self.leader = best
        for node in running:
            if node is not best:
                node.follow(best)
        return best

    def hand_over(self, force: bool = False) -> None:
        """FAILOVER to a replica."""
        target, old = self.replicas[0], self.leader
        words = ["TO", "127.0.0.1", target.port, *(["FORCE"] if force else []), "TIMEOUT", 5000]

        def asked() -> bool:
            with contextlib.suppress(redis.ResponseError):
                return bool(old.call("FAILOVER", *words))
            return target.role() == "master"

        wait_until(asked)
        deadline = time.monotonic() + 60
        while target.role() != "master":
            state = old.info()["master_failover_state"]
            if state == "no-failover" and target.role() != "master":
                wait_until(asked)  # it was given up, for want of time
            assert time.monotonic() < deadline, "it does not hand over"
            time.sleep(0.02)
        self.leader = target
        for node in self.replicas:
            node.follow(target)
