"""Others write while a replica copies everything, and while it is far behind: no memory of its leader is needed."""

from __future__ import annotations

import contextlib
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from tests.support.replication.plain_shards import Node, PlainShard
from tests.support.waiting import wait_until

from penstock.replication.copying import AHEAD, PART

VALUE = random.Random(1).randbytes(1 << 17)
KEYS = 64
ROUNDS = 4
MOST = AHEAD * (PART + 100)
"""Bytes that may wait in the connection of a replica: the parts of a file that it asked for, with their frames. A round
writes several times as much.
"""


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    with PlainShard(tmp_path, 2, "--auto-aof-rewrite-percentage 0") as shard:
        leader, replica = shard.nodes
        replica.call("REPLICAOF", "NO", "ONE")
        replica.call("SET", "own", 1)  # so it cannot go on where it was
        write(leader)
        leader.call("BGREWRITEAOF")  # a replica copies the base, so it is to have something in it
        with redis.Redis(port=leader.port) as client:
            wait_until(lambda: client.info("persistence")["aof_base_size"] > len(VALUE))
        yield leader, replica


def write(leader: Node) -> int:
    """A round of writes; the most that waited for replicas meanwhile."""
    most = 0
    with redis.Redis(port=leader.port) as client:
        for key in range(KEYS):
            client.set(f"key:{key}", VALUE)
            most = max([most, *(int(row["omem"]) for row in client.client_list(_type="replica"))])
    return most


def is_equal(leader: Node, replica: Node) -> bool:
    with contextlib.suppress(redis.RedisError):
        return bool(leader.call("DEBUG", "DIGEST") == replica.call("DEBUG", "DIGEST"))
    return False


def test_what_is_written_while_a_replica_copies_does_not_wait_in_memory(pair: tuple[Node, Node]) -> None:
    leader, replica = pair
    with redis.Redis(port=leader.port) as client:
        copies = client.info("stats")["sync_full"]
        replica.follow(leader)
        wait_until(lambda: client.info("stats")["sync_full"] > copies)
    replica.signal(signal.SIGSTOP)
    assert max(write(leader) for _ in range(ROUNDS)) <= MOST
    replica.signal(signal.SIGCONT)
    assert write(leader) <= MOST
    wait_until(lambda: is_equal(leader, replica))
    replica.signal(signal.SIGSTOP)
    assert max(write(leader) for _ in range(ROUNDS)) <= MOST
    replica.signal(signal.SIGCONT)
    wait_until(lambda: is_equal(leader, replica))


def test_a_replica_that_is_killed_while_it_copies_copies_again(pair: tuple[Node, Node]) -> None:
    leader, replica = pair
    replica.follow(leader)
    for _ in range(2):
        replica.kill()
        write(leader)
        replica.start(leader)
    wait_until(lambda: is_equal(leader, replica))
    replica.call("REPLICAOF", "NO", "ONE")
    assert replica.call("DBSIZE") == KEYS
