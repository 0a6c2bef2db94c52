"""The cost of a group read, an acknowledgement and a wake-up when much is pending: a small table.

Every pending message has a lease of its own with a hole before it, as after members that took two and acknowledged one,
and acknowledgements come in random order, so that nothing that is used together is stored together. The cost of a read
and of an acknowledgement is that of the median batch of a hundred; a wake-up, and every worst case, is one command
alone, as a round trip.
"""

from __future__ import annotations

import random
import statistics
import time
from typing import NamedTuple

from penstock.bench.load import connect, drive, exchange
from penstock.bench.messages import ARROW_ROWS, KEY
from penstock.bench.servers import Running, configured
from penstock.bench.stream_length import lengthen
from penstock.protocol.resp import pack

FEW, MANY = 1_000, 1_000_000
_GROUP = b"workers"
_DEPTH = 100
_BATCHES = 5
_ALONE = 500
_LINES = 1 + 10 * 6  # "*10\r\n", then "*3\r\n:offset\r\n$5\r\norder\r\n$n\r\nentry\r\n" each
_HOUR = b"3600000"


class Cost(NamedTuple):
    """Microseconds: of the median, and of the slowest single command."""

    median: float
    worst: float


class Costs(NamedTuple):
    """The figures at so many pending."""

    pending: int
    read: Cost
    acknowledge: Cost
    wake: Cost

    def mean(self) -> float:
        return statistics.geometric_mean([self.read.median, self.acknowledge.median, self.wake.median])


class Pending:
    """The measurement: `many` and `few` of the same."""

    def __init__(self) -> None:
        self._costs: dict[int, Costs] = {}

    def many(self, server: Running, scale: float) -> float:
        """Geometric mean of the three medians, so that the ratio is that of the three ratios."""
        return self._measure(server, max(int(MANY * min(scale, 1)), FEW))

    def few(self, server: Running, scale: float) -> float:
        return self._measure(server, FEW)

    def report(self) -> str:
        lines = [f"{'pending':>12} {'TREAD 10':>16} {'TACK 1':>16} {'wake-up':>16}   us: median, and the worst alone"]
        for costs in sorted(self._costs.values()):
            cells = " ".join(f"{cost.median:>7.1f} {cost.worst:>8.0f}" for cost in costs[1:])
            lines.append(f"{costs.pending:>12,} {cells}")
        return "\n".join(lines)

    def _measure(self, server: Running, pending: int) -> float:
        with server.client() as client, configured(client, {"stream-max-pending": str(1 << 40)}):
            costs = self._costs[pending] = _costs(server, pending)
        return costs.mean()


def _read(count: int, *options: bytes) -> bytes:
    return pack(b"TREAD", KEY, b"1", b"%d" % count, b"GROUP", _GROUP, b"RETRY", _HOUR, b"0", *options)


def _costs(server: Running, pending: int) -> Costs:
    commands = _DEPTH * _BATCHES + _ALONE
    leased = pending + commands  # the acknowledged ones are added, so that there are never fewer pending
    length = -(-(2 * leased + 10 * commands) // ARROW_ROWS) * ARROW_ROWS
    lengthen(server, length)
    with connect(server.port) as sock:
        for first in range(1, 2 * leased, 1000):
            odd = range(first, min(first + 1000, 2 * leased), 2)
            exchange(sock, _read(2) * len(odd), len(odd))
            exchange(sock, pack(b"TACK", KEY, _GROUP, *(b"%d" % offset for offset in odd)), 1)
    rng = random.Random(1)
    done = rng.sample(range(2, 2 * leased + 1, 2), commands)
    newest = range(2 * (leased - 2 * commands) + 2, 2 * leased + 1, 2)  # so that their nodes are loaded at every length
    again = rng.sample(sorted(set(newest).difference(done)), _ALONE)
    acknowledge = _cost(server, [pack(b"TACK", KEY, _GROUP, b"%d" % offset) for offset in done], 1)
    read = _cost(server, [_read(10)] * commands, _LINES)
    with connect(server.port) as sock:
        exchange(sock, _read(length), 1)  # nothing is new from here on
    return Costs(pending, read, acknowledge, _wake_up(server, again))


def _cost(server: Running, requests: list[bytes], lines: int) -> Cost:
    piped = range(0, _DEPTH * _BATCHES, _DEPTH)
    batches = [b"".join(requests[at : at + _DEPTH]) for at in piped]
    seconds = [drive(server.port, [batch], 1, 1, _DEPTH * lines, b"\n") / _DEPTH for batch in batches]
    alone = []
    with connect(server.port) as sock:
        for request in requests[-_ALONE:]:
            started = time.perf_counter()
            exchange(sock, request, 1)
            alone.append(time.perf_counter() - started)
    return Cost(statistics.median(seconds) * 1e6, max(alone) * 1e6)


def _wake_up(server: Running, offsets: list[int]) -> Cost:
    """From making a message due again to the reply of the waiting member, which then waits for the next."""
    seconds = []
    with connect(server.port) as sock, connect(server.port) as member:
        for offset in offsets:
            member.sendall(_read(1, b"BLOCK", b"0"))
            exchange(sock, pack(b"PING"), 1)
            started = time.perf_counter()
            sock.sendall(pack(b"TNACK", KEY, _GROUP, b"%d" % offset))
            exchange(member, b"", 1)
            seconds.append(time.perf_counter() - started)
            exchange(sock, b"", 1)
    return Cost(statistics.median(seconds) * 1e6, max(seconds) * 1e6)
