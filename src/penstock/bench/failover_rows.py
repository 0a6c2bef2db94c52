"""The rows of failovers: how long no write is acknowledged, as a client sees it, beside a Redis Cluster.

A client tries the other servers in turn, with a short timeout, until one acknowledges a write. It knows already that
the leader is gone, so that is the least that any client needs. The figure of a row is the median of some failovers; its
report has the worst.
"""

from __future__ import annotations

import itertools
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from penstock.bench.replica_rows import FAMILY
from penstock.bench.row import Row
from penstock.bench.servers import Running
from penstock.testing.cluster import RedisCluster
from penstock.testing.shard import ShardNode, running_shard, wait_until_in_sync

_FAILOVERS = 7
_TIMEOUT = 0.1
_NODE_TIMEOUT = "2000"
_KEY = "probe"


class Failovers:
    """How long they took, of both, for the report."""

    def __init__(self, harm: signal.Signals, cuts: bool) -> None:
        self._harm = harm
        self._cuts = cuts  # ours is cut off from etcd instead
        self._taken: dict[str, list[float]] = {"Penstock": [], "Redis Cluster": []}

    def measure(self, server: Running, scale: float) -> float:
        count = max(int(_FAILOVERS * scale), 1)
        name = "Penstock" if server.is_ours else "Redis Cluster"
        taken = self._of_a_shard(count) if server.is_ours else self._of_a_cluster(count)
        self._taken[name] += taken
        return statistics.median(taken)

    def report(self) -> str:
        return "; ".join(
            f"{name}: {len(taken)} failovers, median {statistics.median(taken):.2f} s, worst {max(taken):.2f} s"
            for name, taken in self._taken.items()
            if taken
        )

    def _of_a_shard(self, count: int) -> list[float]:
        taken = []
        with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder, running_shard(Path(folder)) as nodes:
            for _ in range(count):
                wait_until_in_sync(nodes)
                leader = next(node for node in nodes if node.leads)
                taken.append(self._harm_node(leader, nodes))
        return taken

    def _harm_node(self, leader: ShardNode, nodes: list[ShardNode]) -> float:
        """Cut it off; or kill the server; or stop it and its agent, as a machine stops that hangs."""
        others = [node.port for node in nodes if node is not leader]
        if self._cuts:
            assert leader.to_etcd is not None
            leader.to_etcd.cut()
            taken = _until_one_writes(others, _writes)
            leader.to_etcd.mend()
            return taken
        server = leader.server_pid
        stops = self._harm is signal.SIGSTOP
        if stops:
            leader.signal_agent(self._harm)
        os.kill(server, self._harm)
        taken = _until_one_writes(others, _writes)
        if stops:
            os.kill(server, signal.SIGCONT)
            leader.signal_agent(signal.SIGCONT)
        return taken

    def _of_a_cluster(self, count: int) -> list[float]:
        taken = []
        with RedisCluster(masters=3, replicas=1, cluster_node_timeout=_NODE_TIMEOUT) as cluster:
            for _ in range(count):
                master = cluster.masters[0]
                replica = cluster.replica_of(master)
                key = next(cluster.keys_on(master))
                assert master.process is not None
                master.process.send_signal(self._harm)
                taken.append(_until_one_writes([replica.port], lambda port, key=key: _writes(port, key)))  # type: ignore[misc]
                if self._harm is signal.SIGSTOP:
                    master.process.send_signal(signal.SIGCONT)
                else:
                    cluster.kill(master)
                    cluster.restart(master)
                cluster.mend()
        return taken


def _until_one_writes(ports: list[int], writes: Callable[[int], bool]) -> float:
    started = time.perf_counter()
    for port in itertools.cycle(ports):
        if writes(port):
            return time.perf_counter() - started
        time.sleep(0.002)
    raise AssertionError("unreachable")


def _writes(port: int, key: str | bytes = _KEY) -> bool:
    try:
        with redis.Redis(port=port, retry=Retry(NoBackoff(), 0), socket_timeout=_TIMEOUT) as client:
            return bool(client.set(key, 1))
    except RedisError:
        return False


def _row(name: str, what: str, harm: signal.Signals, target: float, most: float, cuts: bool = False) -> Row:
    failovers = Failovers(harm, cuts)
    return Row(
        f"replica.failover.{name}", what, "s", target, failovers.measure, True, rounds=1,
        report=failovers.report, most=most, family=FAMILY,
    )  # fmt: skip


FAILOVER_ROWS = (
    _row("killed", "until a write is acknowledged after kill -9 of the leader", signal.SIGKILL, 0.25, 0.5),
    _row("stopped", "the same after SIGSTOP of the leader and its agent", signal.SIGSTOP, 1.0, 4.0),
    _row("cut", "the same when the leader is cut off from etcd (Redis: SIGSTOP)", signal.SIGSTOP, 1.0, 4.0, cuts=True),
)
