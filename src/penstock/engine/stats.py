"""Counters for INFO. Owned by the loop thread.

What somebody else counts already stays there: a command's calls with its declaration, expired keys with the keyspace.
What is counted for every chunk of input is in an array, where the compiled inner loop adds without making Python integers.
"""

from __future__ import annotations

import secrets
import time
from array import array
from collections import Counter, deque

from penstock.protocol.errors import ReplyError

RATE_SAMPLES = 16
RATE_INTERVAL = 0.1
"""Seconds between two readings, at the least."""


def _tallied(place: int) -> property:
    """An attribute that is kept in `tally`."""

    def get(stats: Stats) -> int:
        return stats.tally[place]

    def set(stats: Stats, value: int) -> None:
        stats.tally[place] = value

    return property(get, set)


class Stats:
    """See the top of this file."""

    commands = _tallied(0)
    input_bytes = _tallied(1)
    output_bytes = _tallied(2)

    def __init__(self) -> None:
        self.tally = array("q", (0, 0, 0))  # never replaced
        self.started = time.monotonic()
        self.run_id = secrets.token_hex(20)  # tells one run of a server from the next
        self._readings: deque[tuple[float, int]] = deque(maxlen=RATE_SAMPLES)  # (monotonic time, commands)
        self.reset()

    def reset(self) -> None:
        """CONFIG RESETSTAT."""
        self.commands = 0
        self.connections = 0
        self.rejected_connections = 0
        self.input_bytes = 0
        self.output_bytes = 0
        self.errors: Counter[str] = Counter()  # error replies by their code word
        self._readings.clear()

    def count_error(self, error: ReplyError) -> None:
        self.errors[error.code] += 1

    def tick(self) -> None:
        """For the server's periodic work: note how far the counter is."""
        now = time.monotonic()
        if not self._readings or now - self._readings[-1][0] >= RATE_INTERVAL:
            self._readings.append((now, self.commands))

    @property
    def commands_per_second(self) -> int:
        """The rate over the last readings, at most a few seconds."""
        if len(self._readings) < 2:
            return 0
        (since, before), (now, after) = self._readings[0], self._readings[-1]
        return round((after - before) / (now - since))
