"""A row of the bench: a measurement on ours, another to divide it by, and the target ratio."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.bench.load import Work, requests_per_second
from penstock.bench.servers import Running

Measure = Callable[[Running, float], float]  # (server, scale) -> a figure


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    name: str
    what: str
    unit: str
    target: float | None  # least ratio, or the greatest if `smaller_is_better`; None prints without judging
    measure: Measure
    smaller_is_better: bool = False
    directives: dict[str, str] = field(default_factory=dict)
    rounds: int = 3
    baseline: Measure | None = None  # measured on the same server as `measure`, in the place of the peer's figure
    on_peer: bool = False  # that server is the peer: clients are compared
    report: Callable[[], str] | None = None  # more text than the ratio, when the row is done
    family: str = ""  # a second family, besides that of its name
    most: float | None = None  # what ours may be at most, whatever the peer's is

    @property
    def goal(self) -> str:
        """What must be reached, for people; empty if nothing."""
        sign = "<=" if self.smaller_is_better else ">="
        parts = [] if self.target is None else [f"{sign} {self.target}x"]
        return ", ".join(parts if self.most is None else [*parts, f"<= {self.most:g} {self.unit}"])

    def reached(self, ratio: float, ours: float) -> bool:
        if self.most is not None and ours > self.most:
            return False
        if self.target is None:
            return True
        return ratio <= self.target if self.smaller_is_better else ratio >= self.target


def throughput(depth: int, work: Work, peer: Work | None = None) -> Measure:
    """Requests a second of 50 clients; the peer gets `peer` if it has another command for the same work."""

    def measure(server: Running, scale: float) -> float:
        requests = int((60_000 if depth == 1 else 1_000_000) * scale)
        chosen = work if server.is_ours or peer is None else peer
        chosen.prepare(server.port)
        return requests_per_second(server.port, chosen, clients=50, depth=depth, requests=requests)

    return measure
