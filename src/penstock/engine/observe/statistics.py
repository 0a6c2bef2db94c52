"""Counters for INFO. Owned by the loop thread.

What is counted elsewhere already stays there: expired keys with the keyspace. What is counted for every chunk of input
or every command is in arrays, where the compiled inner loop adds without making Python integers.

To read the clock twice takes a tenth of a GET in the inner loop, which therefore times one call in SAMPLE of a command,
and the first ones. A call that is timed stands for itself and for those before it that were not (`UNTIMED`), so the sum
only ever grows. A call that may well be slow, for the number of its
arguments or because it is not one that Redis calls fast, is always timed, and stands for itself. Rejected: to share the
time of a chunk among its commands, which tells nothing about any of them.
"""

from __future__ import annotations

import secrets
import time
from array import array
from collections import Counter, deque

from penstock.engine.observe.histograms import BOUNDED, BUCKET_OF, Histogram
from penstock.protocol.errors import ReplyError

COMMANDS, INPUT_BYTES, OUTPUT_BYTES, HITS, MISSES = range(5)
"""Places in the tally of everything."""
CALLS, NANOSECONDS, UNTIMED, REJECTED, FAILED, BUCKETS = range(6)
"""Places in the counters of a command; from BUCKETS on, a histogram of its calls that were timed."""
PLACE_OF_TIME = tuple(BUCKETS + bucket for bucket in BUCKET_OF)
"""The place of a duration's bucket, by the number of its bits."""
SAMPLE = 16
"""Calls of which the inner loop times one; the first so many it times all."""
MANY_ARGUMENTS = 32
"""Arguments from which on a call is timed in any case."""
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


MAX_ERROR_NAMES = 128


class Calls(dict[str, "array[int]"]):
    """The counters of each command, by its name. They are made when first asked for, and never replaced."""

    def __missing__(self, name: str) -> array[int]:
        self[name] = counters = array("q", bytes(8 * (BUCKETS + BOUNDED + 1)))
        return counters


class Stats:
    """See the top of this file."""

    commands = _tallied(COMMANDS)
    input_bytes = _tallied(INPUT_BYTES)
    output_bytes = _tallied(OUTPUT_BYTES)
    hits = _tallied(HITS)  # keys that were looked up to be read, and were there
    misses = _tallied(MISSES)

    def __init__(self) -> None:
        self.tally = array("q", bytes(8 * 5))  # never replaced
        self.calls = Calls()
        self.started = time.monotonic()
        self.run_id = secrets.token_hex(20)  # tells one run of a server from the next
        self.loop_delays = Histogram()  # how late the periodic work began
        self.syncs = Histogram()  # of the log; by the thread that syncs
        self.fork_times = Histogram()
        self._readings: deque[tuple[float, int, int, int]] = deque(maxlen=RATE_SAMPLES)  # (monotonic time, *tally[:3])
        self.reset()

    def reset(self) -> None:
        """CONFIG RESETSTAT."""
        for counters in (self.tally, *self.calls.values()):
            counters[:] = array("q", bytes(8 * len(counters)))
        self.connections = 0
        self.rejected_connections = 0
        self.evicted_clients = 0
        self.errors: Counter[str] = Counter()  # error replies by their code word
        self.forks = 0
        self.last_fork = 0  # nanoseconds that it took
        for histogram in (self.loop_delays, self.syncs, self.fork_times):
            histogram.reset()
        self._readings.clear()

    def count_forked(self, nanoseconds: int) -> None:
        self.forks += 1
        self.last_fork = nanoseconds
        self.fork_times.observe(nanoseconds)

    def count_error(self, error: ReplyError) -> None:
        name = error.counted_as
        if name:  # scripts choose names, so there is an end to them
            self.errors[name if name in self.errors or len(self.errors) < MAX_ERROR_NAMES else "ERR"] += 1

    @staticmethod
    def count_time(counters: array[int], took: int, alone: bool) -> None:
        """A call of a command was timed; it stands for itself `alone`, or also for those before it that were not."""
        calls = 1
        if not alone:
            calls += counters[UNTIMED]
            counters[UNTIMED] = 0
        counters[NANOSECONDS] += took * calls
        counters[PLACE_OF_TIME[took.bit_length()]] += calls

    def count_lookup(self, found: bool) -> None:
        """A key was looked up by a command that is no mere reader of it, such as GETDEL."""
        self.tally[HITS if found else MISSES] += 1

    def tick(self) -> None:
        """For the server's periodic work: note how far the counter is."""
        now = time.monotonic()
        if not self._readings or now - self._readings[-1][0] >= RATE_INTERVAL:
            self._readings.append((now, self.commands, self.input_bytes, self.output_bytes))

    def rate(self, place: int) -> float:
        """How many a second of what is counted at a place of the tally, lately: in a few seconds at most."""
        if len(self._readings) < 2:
            return 0.0
        before, after = self._readings[0], self._readings[-1]
        return (after[place + 1] - before[place + 1]) / (after[0] - before[0])
