"""A server and its replica, ours or Redis's, each a process with a folder of its own; and what is written to them."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import redis

from penstock.bench.load import KEYSPACE, drive
from penstock.bench.servers import Running, StoredServer
from penstock.protocol.resp import pack
from penstock.testing.redis import free_port
from penstock.testing.shard import ShardNode, running_shard

Name = Literal["penstock", "redis"]
CLIENTS = 50
PATIENCE = 120.0
"""Seconds that a replica may take to have everything."""


@contextmanager
def alone(name: Name, **directives: str) -> Iterator[Running]:
    """A server that is killed at the end: a Redis that is asked to stop may wait for its replica."""
    with StoredServer(name, appendonly="yes", **directives) as server:
        try:
            yield server.running
        finally:
            server.kill()


@contextmanager
def with_replica(name: Name, **directives: str) -> Iterator[tuple[Running, Running]]:
    """A leader, with these directives, and a replica that has everything. Redis does not wait for more replicas."""
    if name == "redis":
        directives = {"repl_diskless_sync_delay": "0", **directives}
    with alone(name, **directives) as leader, alone(name) as replica:
        follow(replica, leader)
        wait_until_equal(leader, replica)
        yield leader, replica


@contextmanager
def redis_with_two_replicas() -> Iterator[Running]:
    """A Redis with as many replicas as a leader of `shard_of_three` has."""
    with with_replica("redis") as (leader, _), alone("redis") as second:
        follow(second, leader)
        wait_until_equal(leader, second)
        yield leader


@contextmanager
def shard_of_three() -> Iterator[ShardNode]:
    """The leader of a shard under etcd, with `replica-acks 1`: both replicas must have what it acknowledges."""
    with TemporaryDirectory(prefix="penstock-bench-") as folder, running_shard(Path(folder)) as nodes:
        yield next(node for node in nodes if node.leads)


@contextmanager
def confirmed_by_one() -> Iterator[Running]:
    """A leader of ours that acknowledges what its replica has."""
    with with_replica("penstock") as (leader, _):
        with leader.client() as client:
            client.config_set("replica-acks", 1)
            client.execute_command("WAIT", 1, 0)  # the leader knows of it, too
        yield leader


def follow(replica: Running, leader: Running) -> None:
    with replica.client() as client:
        client.execute_command("REPLICAOF", "127.0.0.1", leader.port)


def leave(replica: Running) -> None:
    """The replica follows a server that does not exist: it stays what it is, and gets nothing."""
    with replica.client() as client:
        client.execute_command("REPLICAOF", "127.0.0.1", free_port())


def wait_until_equal(leader: Running, replica: Running) -> float:
    """Answer after how many seconds the replica has everything."""
    started = time.perf_counter()
    with leader.client() as one, replica.client() as other:
        while True:
            ours, theirs = one.info("replication"), _replication_of(other)
            if theirs.get("master_link_status") == "up" and theirs["slave_repl_offset"] >= ours["master_repl_offset"]:
                return time.perf_counter() - started
            if time.perf_counter() - started > PATIENCE:
                raise TimeoutError(f"the replica did not catch up within {PATIENCE:g} s")
            time.sleep(0.005)


def _replication_of(client: redis.Redis) -> dict[str, Any]:
    try:
        return dict(client.info("replication"))
    except redis.exceptions.BusyLoadingError:  # it has just copied everything
        return {}


def sets(depth: int, waits: int) -> list[bytes]:
    """Batches of SET, each followed by WAIT for so many replicas, if any."""
    rng = random.Random(1)

    def batch() -> bytes:
        commands = [pack(b"SET", b"key:%012d" % rng.randrange(KEYSPACE), b"xxx") for _ in range(depth)]
        return b"".join([*commands, *([pack(b"WAIT", b"%d" % waits, b"0")] if waits else [])])

    return [batch() for _ in range(64)]


def rate(server: Running | ShardNode, depth: int, count: int, waits: int = 0) -> float:
    """SETs a second of 50 clients, `depth` at a time; each batch ends with WAIT for so many replicas, if any."""
    rounds = max(count // depth, CLIENTS)
    replies = depth + bool(waits)
    return rounds * depth / drive(server.port, sets(depth, waits), CLIENTS, rounds, replies, b"\n")
