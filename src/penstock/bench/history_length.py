"""Write rate, memory and restart as a stream grows far beyond memory: a small table, and a drawing of it.

One server, written to until a length is reached, then killed and started again, then written to further.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import NamedTuple

from penstock.bench.drawing import draw, stack
from penstock.bench.history_load import memory, messages, server_with, started_again, wait_until_idle, write
from penstock.bench.messages import ARROW_ROWS
from penstock.bench.servers import Running

PARTS = (0.1, 0.2, 0.4, 0.7, 1.0)
"""Of the greatest length."""
FILE = Path("bench-history.svg")


class Point(NamedTuple):
    """The figures at a length."""

    length: int
    rate: float  # million messages a second, since the length before
    memory: float  # MB of the process
    restart: float  # seconds

    def mean(self) -> float:
        """Less is better: the geometric mean of the time of a message, the memory and the restart."""
        return statistics.geometric_mean([1 / self.rate, self.memory, self.restart])


class HistoryLengths:
    """The measurement: `longest` grows a stream and records the figures on the way, `shortest` measures the first."""

    def __init__(self) -> None:
        self._points: list[Point] = []

    def longest(self, server: Running, scale: float) -> float:
        self._points = _grow(_lengths(scale), memory(scale / 4))
        return self._points[-1].mean()

    def shortest(self, server: Running, scale: float) -> float:
        return _grow(_lengths(scale)[:1], memory(scale / 4))[-1].mean()

    def report(self) -> str:
        """The table; writes the drawing too."""
        FILE.write_text(drawn(self._points), encoding="utf-8")
        lines = [f"{'messages':>12} {'written':>9} {'memory':>9} {'restart':>9}   million messages/s, MB, s"]
        lines += [
            f"{length:>12,} {rate:>9.2f} {size:>9.0f} {start:>9.2f}" for length, rate, size, start in self._points
        ]
        return "\n".join([*lines, f"drawn in {FILE}"])


def _lengths(scale: float) -> list[int]:
    return [int(messages(scale) * part) // ARROW_ROWS * ARROW_ROWS for part in PARTS]


def _grow(lengths: list[int], stream_memory: int) -> list[Point]:
    points: list[Point] = []
    held = 0
    with server_with(stream_memory) as stored:
        for length in lengths:
            rate = (length - held) / write(stored.running, length - held) / 1e6
            held = length
            wait_until_idle(stored.running, held)
            size = stored.running.resident_memory() / 1e6
            stored.kill()
            points.append(Point(length, rate, size, started_again(stored, held)))
    return points


def drawn(points: list[Point]) -> str:
    """A chart for each figure, below each other."""
    titles = {
        "rate": ("Writing", "M/s"), "memory": ("Memory of the process", "MB"), "restart": ("Start after kill -9", "s"),
    }  # fmt: skip
    lengths = [point.length for point in points]
    return stack(
        [
            draw(title, "messages in the stream", unit, lengths, {name: [getattr(point, name) for point in points]})
            for name, (title, unit) in titles.items()
        ]
    )
