"""What is measured: one row a work, with its target. A row runs a round on ours or on the peer and answers a number.

To add a row: an entry in ROWS. Targets are ratios of ours to the peer in the same run, from DESIGN's table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.bench.load import WORKS, requests_per_second
from penstock.bench.servers import Running


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    name: str
    what: str
    unit: str
    target: float | None  # least ratio, or the greatest if `smaller_is_better`; None prints without judging
    measure: Callable[[Running, float], float]  # (server, scale) -> a figure
    smaller_is_better: bool = False
    directives: dict[str, str] = field(default_factory=dict)
    rounds: int = 3

    def reached(self, ratio: float) -> bool:
        if self.target is None:
            return True
        return ratio <= self.target if self.smaller_is_better else ratio >= self.target


def _throughput(work: str, depth: int) -> Callable[[Running, float], float]:
    def measure(server: Running, scale: float) -> float:
        requests = int((60_000 if depth == 1 else 1_000_000) * scale)
        return requests_per_second(server.port, WORKS[work], clients=50, depth=depth, requests=requests)

    return measure


def _memory_of_strings(server: Running, scale: float) -> float:
    """Bytes a key for a million small strings, by the kernel's count of the process's memory."""
    count = int(1_000_000 * scale)
    with server.client() as client:
        client.flushall()
        before = server.resident_memory()
        for start in range(0, count, 10_000):
            pipe = client.pipeline(transaction=False)
            for number in range(start, min(start + 10_000, count)):
                pipe.execute_command("SET", f"key:{number:012d}", f"value:{number}")
            pipe.execute()
        used = server.resident_memory() - before
        client.flushall()
    return used / count


def _rows() -> dict[str, Row]:
    rows: list[Row] = []
    for depth, target in ((1, 0.85), (50, 0.6)):
        for work in WORKS:
            rows.append(
                Row(
                    f"{work}.{depth}",
                    f"{work.upper()}, 50 clients, depth {depth}",
                    "req/s",
                    target,
                    _throughput(work, depth),
                )
            )
    for depth in (1, 50):
        for work in WORKS:
            rows.append(
                Row(
                    f"{work}.{depth}.aof", f"{work.upper()}, depth {depth}, AOF everysec", "req/s", None,
                    _throughput(work, depth), directives={"appendonly": "yes", "appendfsync": "everysec"},
                )
            )  # fmt: skip
    rows.append(
        Row("memory.strings", "memory of 1M small string keys", "bytes/key", 3.0, _memory_of_strings, True, rounds=1)
    )
    return {row.name: row for row in rows}


ROWS = _rows()
