"""A shard of real servers under real agents, and an etcd that decides which one leads."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType

from redis.exceptions import RedisError
from tests.support.set_clock import SetClock, compiled
from tests.support.waiting import wait_until
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.testing.etcd import EtcdServer
from penstock.testing.relay import Relay
from penstock.testing.shard import ShardNode

LEASE = 4
"""Seconds: a server that gets no processor for a while on a busy machine is not to be replaced."""


class Shard:
    """Some nodes of one shard. A node reaches etcd, and others reach the node, over networks that can be cut.

    Each has a time of day of its own.
    """

    def __init__(
        self, folder: Path, etcd: EtcdServer, count: int, options: str, stack: contextlib.ExitStack,
        environment: Mapping[str, str],
    ) -> None:  # fmt: skip
        self.nodes: list[ShardNode] = []
        self.to_etcd: dict[ShardNode, list[Relay]] = {}
        self.to_node: dict[ShardNode, Relay] = {}
        self.clocks: dict[ShardNode, SetClock] = {}
        library = compiled(folder)
        for number in range(1, count + 1):
            relays = [stack.enter_context(Relay(member.port)) for member in etcd.members]
            urls = ",".join(f"http://127.0.0.1:{relay.port}" for relay in relays)
            node = ShardNode(folder / f"n{number}", f"n{number}", urls, f"--shard-lease {LEASE} {options}")
            relay = stack.enter_context(Relay(node.port))
            node.announce(relay.port)
            clock = self.clocks[node] = SetClock(library, folder / f"n{number}.clock")
            node.environment = {**clock.environment, **environment}
            self.nodes.append(node)
            self.to_etcd[node], self.to_node[node] = relays, relay
            stack.callback(node.stop)

    @property
    def leader(self) -> ShardNode:
        """The node that leads, when one does and takes writes."""
        found: list[ShardNode] = []

        def one_leads() -> bool:
            found[:] = [node for node in self.nodes if node.agent is not None and node.leads]
            return len(found) == 1 and found[0].writes()

        wait_until(one_leads)
        return found[0]

    def others(self, *nodes: ShardNode) -> list[ShardNode]:
        return [node for node in self.nodes if node not in nodes]

    def cut_pair(self, leader: ShardNode, replica: ShardNode, to_leader: bool = True, to_replica: bool = True) -> None:
        """Nothing passes between these two, or nothing in one direction. Others reach both."""
        self.to_node[leader].cut(to_leader, to_replica, only=f"\r\n{replica.name}\r\n".encode())

    def are_in_sync(self, *nodes: ShardNode) -> bool:
        """Whether exactly these nodes are in sync, as the leader says; all, if none is named."""
        return self.leader.in_sync == sorted(node.name for node in nodes or self.nodes)

    def logs(self) -> str:
        return "\n".join(f"--- {node.name}\n{node.log}" for node in self.nodes)


@contextlib.contextmanager
def shard(
    folder: Path, etcd: EtcdServer, count: int = 3, options: str = "--replica-acks 1",
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Shard]:  # fmt: skip
    """A shard whose nodes run and are in sync."""
    with contextlib.ExitStack() as stack:
        world = Shard(folder, etcd, count, options, stack, environment)
        try:
            for node in world.nodes:
                node.start()
            wait_until(world.are_in_sync)
            yield world
        except BaseException:
            sys.stderr.write(world.logs())
            raise


def said(etcd: EtcdServer, *words: str) -> tuple[int, str]:
    """The exit code and the output of `penstock shard`."""
    done = CliRunner().invoke(app, ["shard", *words, "--etcd", etcd.urls])
    return done.exit_code, done.output


class Writers:
    """Clients that write to all nodes all the time, also to one that leads no more, and note what was acknowledged."""

    def __init__(self, world: Shard) -> None:
        self._world = world
        self.acknowledged: list[str] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(node,)) for node in world.nodes]
        for thread in self._threads:
            thread.start()

    def _write(self, node: ShardNode) -> None:
        number = 0
        while not self._stop.is_set():
            with contextlib.suppress(RedisError), node.client(seconds=1) as client:
                while not self._stop.is_set():
                    number += 1
                    key = f"{node.name}:{number}"
                    client.set(key, number)
                    self.acknowledged.append(key)
                    time.sleep(0.002)
            time.sleep(0.02)  # it does not lead, or is gone

    def wait_for_some(self) -> None:
        count = len(self.acknowledged)
        wait_until(lambda: len(self.acknowledged) > count + 10)

    def check(self) -> None:
        """All that was acknowledged is there."""
        acknowledged = list(self.acknowledged)
        values = self._world.leader.call("MGET", *acknowledged)
        lost = [key for key, value in zip(acknowledged, values, strict=True) if value is None]
        assert not lost, f"{len(lost)} of {len(acknowledged)} acknowledged writes are lost: {lost[:5]}"

    def __enter__(self) -> Writers:
        self.wait_for_some()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if error is None:
            self.check()
