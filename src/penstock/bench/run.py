"""Runs rows: both servers run at once, rounds alternate between them; the result is the median ratio and its spread."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import groupby

from penstock.bench.row import Measure, Row
from penstock.bench.rows import ROWS
from penstock.bench.servers import Running, cores, penstock_server, redis_server


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a row."""

    row: Row
    ours: list[float]
    peer: list[float]

    @property
    def ratios(self) -> list[float]:
        return [mine / theirs for mine, theirs in zip(self.ours, self.peer, strict=True)]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def reached(self) -> bool:
        return self.row.reached(self.ratio, statistics.median(self.ours))

    def as_dict(self) -> dict[str, object]:
        return {
            "row": self.row.name, "work": self.row.what, "unit": self.row.unit, "ours": self.ours, "peer": self.peer,
            "ratio": self.ratio, "ratio_min": min(self.ratios), "ratio_max": max(self.ratios),
            "target": self.row.target, "most": self.row.most, "reached": self.reached,
        }  # fmt: skip


def choose(names: Iterable[str]) -> list[Row]:
    """Rows by name, family (`spark`) or pattern (`set.*`); all without any; LookupError names what matches nothing."""
    families = {family for name, row in ROWS.items() for family in (name.partition(".")[0], row.family)}

    def is_meant(row: Row, word: str) -> bool:
        if word in families and word not in ROWS:
            return word in (row.name.partition(".")[0], row.family)
        return fnmatch(row.name, word)

    words = list(names)
    for word in words:
        if not any(is_meant(row, word) for row in ROWS.values()):
            raise LookupError(word)
    return [row for row in ROWS.values() if not words or any(is_meant(row, word) for word in words)]


def run(rows: Iterable[Row], rounds: int | None, scale: float, say: Callable[[str], None]) -> Iterator[Result]:
    """Measure the rows in order; rows that need the same directives share a pair of servers."""
    _leave_a_core_to_the_servers()
    for _, group in groupby(rows, key=lambda row: sorted(row.directives.items())):
        chosen = list(group)
        with penstock_server(**chosen[0].directives) as ours, redis_server(**chosen[0].directives) as peer:
            for row in chosen:
                stage = peer if row.on_peer else ours
                sides: list[tuple[Running, Measure, list[float]]] = [(stage, row.measure, [])]
                sides.append((stage, row.baseline, []) if row.baseline else (peer, row.measure, []))
                for number in range(rounds or row.rounds):
                    say(f"{row.what} (round {number + 1} of {rounds or row.rounds})")
                    # The order changes each round, so that neither always gets the warmer machine.
                    for server, measure, figures in sides if number % 2 == 0 else reversed(sides):
                        with server.client() as client:
                            client.flushall()
                            figures.append(measure(server, scale))
                            client.flushall()  # deferred work must not run in the other's time
                yield Result(row, sides[0][2], sides[1][2])


def _leave_a_core_to_the_servers() -> None:
    if len(cores()) > 1:
        os.sched_setaffinity(0, set(cores()[1:]))
