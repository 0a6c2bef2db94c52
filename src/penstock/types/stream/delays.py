"""Messages that groups get later: runs of offsets, and when each becomes visible.

Plain reads see a delayed message at once. A group that reaches it passes it by and keeps it aside until its time (see
Group.waiting), so each group pays for it once, and messages behind it are not held up.

Runs whose time has come mean nothing any more. They are swept out when runs are added or found in the way, so a replay
may have other ones of them.

Invariant: runs rise and do not overlap; `latest` is not before any of their times. Times are lease times (clock.py).
Ranges exclude their end.

Rejected: a time of visibility in every message (8 bytes for each, and most streams delay none).
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise
from typing import Self

from penstock.types.packing import CorruptValue

_FEW = 64  # runs that are not worth a sweep


class Delays:
    """The delayed messages of a stream.

    >>> delays = Delays()
    >>> delays.add(5, 8, at=1000, now=0)
    >>> delays.hidden(1, now=999), delays.hidden(6, now=999), delays.hidden(1, now=1000)
    ((5, 8, 1000), (5, 8, 1000), None)
    >>> [*delays.parts(1, 10, now=0)]
    [(1, 5, 0), (5, 8, 1000), (8, 10, 0)]
    """

    __slots__ = ("_ends", "_starts", "_sweep_at", "_times", "latest")

    def __init__(self) -> None:
        self._starts, self._ends, self._times = array("q"), array("q"), array("q")
        self.latest = 0
        self._sweep_at = _FEW

    def add(self, start: int, end: int, at: int, now: int) -> None:
        """Delay new messages until a time."""
        if at <= now or start >= end:
            return
        if len(self._starts) > self._sweep_at:
            self._sweep(now)
        if self._ends and self._ends[-1] == start and self._times[-1] == at:
            self._ends[-1] = end
        else:
            self._starts.append(start)
            self._ends.append(end)
            self._times.append(at)
        self.latest = max(self.latest, at)

    def hidden(self, offset: int, now: int) -> tuple[int, int, int] | None:
        """The first run that ends after an offset and is not visible yet, and its time."""
        if now >= self.latest:
            return None
        first = row = bisect_right(self._ends, offset)
        while row < len(self._starts) and self._times[row] <= now:
            row += 1
        found = (self._starts[row], self._ends[row], self._times[row]) if row < len(self._starts) else None
        if row - first > _FEW:
            self._sweep(now)
        return found

    def parts(self, start: int, end: int, now: int) -> Iterator[tuple[int, int, int]]:
        """A range in parts, each with the time from which groups see it, 0 if they do already."""
        while start < end:
            run = self.hidden(start, now)
            if run is None or run[0] >= end:
                yield start, end, 0
                return
            if start < run[0]:
                yield start, run[0], 0
            stop = min(run[1], end)
            yield max(start, run[0]), stop, run[2]
            start = stop

    def count(self, now: int) -> int:
        """Messages that are not visible yet, those included that were evicted. O(runs)."""
        return sum(end - start for start, end, at in self._runs() if at > now)

    def _runs(self) -> Iterator[tuple[int, int, int]]:
        return zip(self._starts, self._ends, self._times, strict=True)

    def _sweep(self, now: int) -> None:
        kept = [run for run in self._runs() if run[2] > now]
        self._starts, self._ends, self._times = (array("q", [run[at] for run in kept]) for at in range(3))
        self._sweep_at = max(2 * len(kept), _FEW)

    def dump(self) -> bytes:
        """All runs as bytes."""
        return b"".join(struct.pack("<qqq", *run) for run in self._runs())

    @classmethod
    def load(cls, data: bytes, last: int) -> Self:
        """What `dump` wrote, of a stream with a last offset; CorruptValue for anything else."""
        delays = cls()
        try:
            runs = list(struct.iter_unpack("<qqq", data))
        except struct.error as error:
            raise CorruptValue(f"the delays of a stream are damaged: {error}") from error
        if any(not 1 <= start < end <= last + 1 or at < 1 for start, end, at in runs):
            raise CorruptValue("a stream delays messages that there are not")
        if any(one[1] > other[0] for one, other in pairwise(runs)):
            raise CorruptValue("the delays of a stream are out of order")
        delays._starts, delays._ends, delays._times = (array("q", [run[at] for run in runs]) for at in range(3))
        delays.latest = max(delays._times, default=0)
        return delays

    def copy(self) -> Delays:
        delays = Delays()
        delays._starts, delays._ends, delays._times = self._starts[:], self._ends[:], self._times[:]
        delays.latest = self.latest
        return delays

    def size(self) -> int:
        """About how many bytes of memory it takes."""
        return 300 + 24 * len(self._starts)

    def check(self) -> None:
        """Assert every invariant. O(runs)."""
        assert all(start < end for start, end, _ in self._runs())
        assert all(one[1] <= other[0] for one, other in pairwise(self._runs()))
        assert max(self._times, default=0) <= self.latest
