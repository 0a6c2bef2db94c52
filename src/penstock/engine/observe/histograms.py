"""How long things took, counted by powers of two. For /metrics.

A bucket counts what took less than its bound: 1.024 microseconds, then twice as much from one to the next, up to 8.6
seconds, and the last one has no bound. The bucket of a duration is the number of its bits, so that counting costs a
look-up. The counters of commands (statistics.py) have buckets of the same kind among them, which the compiled inner
loop adds to.

A histogram is owned by the loop thread, or by one thread at a time.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from time import perf_counter_ns

LEAST_BITS = 10
"""Durations of so many bits, in nanoseconds, or less are in the first bucket."""
BOUNDED = 24
"""Buckets that have a bound."""
BOUNDS = tuple((1 << bits) / 1e9 for bits in range(LEAST_BITS, LEAST_BITS + BOUNDED))
"""In seconds."""
BUCKET_OF = tuple(min(max(bits - LEAST_BITS, 0), BOUNDED) for bits in range(65))
"""The bucket of a duration by the number of its bits."""


class Histogram:
    """Durations of one kind."""

    def __init__(self) -> None:
        self.reset()

    def observe(self, nanoseconds: int) -> None:
        """Count a duration.

        >>> histogram = Histogram()
        >>> histogram.observe(1500)
        >>> histogram.buckets[:2].tolist(), histogram.nanoseconds
        ([0, 1], 1500)
        """
        self.buckets[BUCKET_OF[nanoseconds.bit_length()]] += 1
        self.nanoseconds += nanoseconds

    def timing(self, call: Callable[[int], None]) -> Callable[[int], None]:
        """The same function, each of whose calls is counted, those that fail too."""

        def timed(argument: int) -> None:
            began = perf_counter_ns()
            try:
                call(argument)
            finally:
                self.observe(perf_counter_ns() - began)

        return timed

    def reset(self) -> None:
        self.buckets = array("q", bytes(8 * (BOUNDED + 1)))
        self.nanoseconds = 0  # the sum
