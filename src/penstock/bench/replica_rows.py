"""The rows of replicas: what one costs, what waiting for one costs, and how one that was away comes back."""

from __future__ import annotations

import random
import time

import pyarrow as pa

from penstock import Client
from penstock.bench import nats_peer
from penstock.bench.load import drive
from penstock.bench.messages import ARROW_ROWS, KEY, TAG, entry
from penstock.bench.replica_load import (
    alone,
    confirmed_by_one,
    follow,
    leave,
    rate,
    redis_with_two_replicas,
    shard_of_three,
    wait_until_equal,
    with_replica,
)  # fmt: skip
from penstock.bench.row import Row
from penstock.bench.servers import Running
from penstock.protocol.resp import pack

FAMILY = "replicas"
"""The other name of the family: `penstock bench replicas`."""
_SETS = 500_000
_CONFIRMED = 50_000
_ARROW = 2_000_000
_AWAY = 100 << 20
_VALUE = 10_000


def _with_replica(server: Running, scale: float) -> float:
    with with_replica("penstock") as (leader, replica):
        figure = rate(leader, 50, int(_SETS * scale))
        wait_until_equal(leader, replica)
        return figure


def _alone(server: Running, scale: float) -> float:
    with alone("penstock") as leader:
        return rate(leader, 50, int(_SETS * scale))


def _confirmed(depth: int) -> Row:
    def measure(server: Running, scale: float) -> float:
        count = int(_CONFIRMED * scale * depth)
        if server.is_ours:
            with confirmed_by_one() as leader:
                return rate(leader, depth, count)
        with with_replica("redis") as (leader, _):
            return rate(leader, depth, count, waits=1)

    what = f"SET, 50 clients, depth {depth}, when one replica has it"
    return Row(f"replica.acks1.{depth}", f"{what} (Redis: SET + WAIT 1)", "req/s", 1.0, measure, family=FAMILY)


def _in_a_shard(server: Running, scale: float) -> float:
    """Each node of the in-sync set must have what is acknowledged, so Redis waits for both of its replicas."""
    count = int(_CONFIRMED * scale * 16)
    if server.is_ours:
        with shard_of_three() as leader:
            return rate(leader, 16, count)
    with redis_with_two_replicas() as peer:
        return rate(peer, 16, count, waits=2)


def _arrow(server: Running, scale: float) -> float:
    """Messages a second, 10,000 a call, one call after the other, each acknowledged by one replica."""
    table = pa.table({"tag": [TAG] * ARROW_ROWS, "entry": [entry(number) for number in range(ARROW_ROWS)]})
    calls = max(int(_ARROW * scale) // ARROW_ROWS, 10)
    with confirmed_by_one() as leader, Client(port=leader.port) as client:
        started = time.perf_counter()
        for _ in range(calls):
            client.write_arrow(KEY, table)
        return calls * ARROW_ROWS / (time.perf_counter() - started)


def _away(name: str, held: int, what: str) -> Row:
    """A row of a replica that was away while 100 MB came, at a server that holds so many bytes already."""

    def measure(server: Running, scale: float) -> float:
        """Seconds until the replica has what came."""
        with with_replica("penstock" if server.is_ours else "redis") as (leader, replica):
            _fill(leader, b"held", int(held * scale))
            wait_until_equal(leader, replica)
            leave(replica)
            _fill(leader, b"away", int(_AWAY * scale))
            follow(replica, leader)
            return wait_until_equal(leader, replica)

    return Row(
        name, f"until a replica has 100 MB that came while it was away{what}", "s", 0.2, measure, True, family=FAMILY
    )


def _fill(server: Running, prefix: bytes, size: int) -> None:
    """Write keys of so many bytes in all."""
    count = size // _VALUE
    if count:
        keys = [b"%b:%d" % (prefix, number) for number in range(count)]
        values = random.Random(1).randbytes(2 * _VALUE)  # Redis compresses what it copies, if it can
        sets = [pack(b"SET", key, values[number % _VALUE :][:_VALUE]) for number, key in enumerate(keys)]
        drive(server.port, sets, 1, count, 1, b"\n")


REPLICA_ROWS = (
    Row("replica.acks0", "SET, depth 50, while a replica follows", "req/s", 0.85, _with_replica, baseline=_alone,
        family=FAMILY),
    _confirmed(1),
    _confirmed(16),
    Row("replica.shard", "SET, depth 16, in a shard of three (Redis: SET + WAIT 2)", "req/s", 1.0, _in_a_shard,
        family=FAMILY),
    Row("replica.arrow", "TWRITE ARROW, acks 1 / NATS JetStream, 3 copies, nats-py", "messages/s", 10, _arrow,
        baseline=nats_peer.write_replicated, family=FAMILY),
    _away("replica.away", 0, ""),
    _away("replica.away.held", 1 << 30, ", of a server with 1 GB"),
)  # fmt: skip
