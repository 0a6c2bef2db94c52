"""The rows of LAZY: its answer time, over a PING on the same server, whatever the size of the deferred work.

Each round fills two sets, times PINGs and then LAZY SINTERSTOREs one after the other on one connection, and drops the
queue before it can run. The figure is the median of single round trips: the answer time of a client that waits for it.
"""

from __future__ import annotations

import statistics
import time

from penstock.bench.load import connect, exchange
from penstock.bench.row import Measure, Row
from penstock.bench.servers import Running
from penstock.protocol.resp import pack

PING = pack(b"PING")
ONE, OTHER = b"bench:one", b"bench:other"


def _fill(server: Running, members: int) -> None:
    """Two sets that share half of their members; nothing is queued, and the queue does not run by itself."""
    with server.client() as client:
        client.execute_command("CONFIG", "SET", "lazy-queue-enabled", "0", "lazy-max-age", "0")
        client.execute_command("FLUSHALL")
        for name, first in ((ONE, 0), (OTHER, members // 2)):
            for start in range(first, first + members, 10_000):
                client.sadd(name, *range(start, min(start + 10_000, first + members)))


def _median_answer(server: Running, requests: list[bytes]) -> float:
    """Microseconds from sending a request to having its reply."""
    sock = connect(server.port)
    try:
        for _ in range(200):
            exchange(sock, PING, 1)
        times = []
        for request in requests:
            started = time.perf_counter()
            exchange(sock, request, 1)
            times.append(time.perf_counter() - started)
        return statistics.median(times) * 1e6
    finally:
        sock.close()


def _count(scale: float) -> int:
    return max(int(3000 * scale), 50)


def _lazy(members: int) -> Measure:
    def measure(server: Running, scale: float) -> float:
        _fill(server, int(members * min(scale, 1.0)) or 1)
        requests = [pack(b"LAZY", b"SINTERSTORE", b"bench:to:%d" % at, ONE, OTHER) for at in range(_count(scale))]
        figure = _median_answer(server, requests)
        with server.client() as client:
            client.flushall()  # drops the queue: thousands of these would run for minutes
        return figure

    return measure


def _ping(server: Running, scale: float) -> float:
    return _median_answer(server, [PING] * _count(scale))


LAZY_ROWS = tuple(
    Row(
        f"lazy.{members}", f"LAZY SINTERSTORE of two sets of {members:,} over PING, answer time", "us", 2.0,
        _lazy(members), smaller_is_better=True, baseline=_ping,
    )
    for members in (10, 1_000_000)
)  # fmt: skip
