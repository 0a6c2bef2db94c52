"""The rows of replicas: what one costs, what waiting for one costs, and how one that was away comes back."""

from __future__ import annotations

from penstock.bench.load import drive
from penstock.bench.replica_load import alone, follow, leave, rate, wait_until_equal, with_replica
from penstock.bench.row import Row
from penstock.bench.servers import Running
from penstock.protocol.resp import pack

_SETS = 500_000
_CONFIRMED = 50_000
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
            with with_replica("penstock") as (leader, _):
                with leader.client() as client:
                    client.config_set("replica-acks", 1)
                return rate(leader, depth, count)
        with with_replica("redis") as (leader, _):
            return rate(leader, depth, count, waits=True)

    what = f"SET, 50 clients, depth {depth}, when one replica has it"
    return Row(f"replica.acks1.{depth}", f"{what} (Redis: SET + WAIT 1)", "req/s", 1.0, measure)


def _away(server: Running, scale: float) -> float:
    """Seconds until a replica that was away has what came meanwhile."""
    count = max(int(_AWAY * scale) // _VALUE, 100)
    with with_replica("penstock" if server.is_ours else "redis") as (leader, replica):
        leave(replica)
        values = [pack(b"SET", b"away:%d" % number, b"x" * _VALUE) for number in range(count)]
        drive(leader.port, values, 1, count, 1, b"\n")
        follow(replica, leader)
        return wait_until_equal(leader, replica)


REPLICA_ROWS = (
    Row("replica.acks0", "SET, depth 50, while a replica follows", "req/s", 0.85, _with_replica, baseline=_alone),
    _confirmed(1),
    _confirmed(16),
    Row("replica.away", "until a replica has 100 MB that came while it was away", "s", 0.2, _away, True),
)
