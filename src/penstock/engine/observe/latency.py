"""The latency monitor: the longest times for which the server did not serve clients, by kind. For LATENCY.

Nothing is kept unless `latency-monitor-threshold` asks for it. Of each kind of event the worst of a second is a sample,
and the latest samples are kept, as Redis does. Of commands the inner loop notices those that it times (statistics.py).

Owned by the loop thread.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from penstock.engine.dispatch import Engine

SAMPLES = 160
NEVER = 1 << 63


class Sample(NamedTuple):
    """The worst of one second."""

    time: int  # seconds since 1970
    milliseconds: int


class Event:
    """One kind of event: its latest samples, and the worst there ever was."""

    def __init__(self) -> None:
        self.samples: deque[Sample] = deque(maxlen=SAMPLES)
        self.worst = 0

    def add(self, second: int, milliseconds: int) -> None:
        self.worst = max(self.worst, milliseconds)
        if self.samples and self.samples[-1].time == second:
            milliseconds = max(milliseconds, self.samples.pop().milliseconds)
        self.samples.append(Sample(second, milliseconds))


class Latency:
    """See the top of this file."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.threshold = NEVER  # nanoseconds
        self.events: dict[str, Event] = {}
        engine.config.on_change("latency-monitor-threshold", self._set_threshold)
        self._set_threshold(engine.config.latency_monitor_threshold)

    def _set_threshold(self, milliseconds: int) -> None:
        self.threshold = milliseconds * 1_000_000 or NEVER

    def note(self, event: str, nanoseconds: int) -> None:
        """Something of this kind took so long."""
        if nanoseconds >= self.threshold:
            self.events.setdefault(event, Event()).add(self._engine.clock.now // 1000, nanoseconds // 1_000_000)
