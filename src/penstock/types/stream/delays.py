"""Messages that groups get later: runs of offsets, and when each becomes visible.

Plain reads see a delayed message at once. A group that reaches it passes it by and keeps it aside until its time (see
Group.waiting), so each group pays for it once, and messages behind it are not held up.

Runs whose time has come, and those of evicted messages, mean nothing any more. They are swept out when a group finds
them in its way, and some at a time when runs are added; so a replay may have other ones of them. Runs are kept on
chunks of a few hundred neighbours: no call looks at all of them, and a group that reads among a million delayed
messages passes by a chunk that is over in one step.

Only `add` and `hidden` change anything. A thread may copy the delays while others ask for `parts`.

Invariant: runs rise and do not overlap, no chunk is empty, and `latest`, of all and of each chunk, is not before any of
their times. Times are lease times (clock.py). Ranges exclude their end.

Rejected: a time of visibility in every message (8 bytes for each, and most streams delay none). One list of all runs:
to sweep a million takes half a second, and a slow group among them did so every 64 messages.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise
from typing import Self

from penstock.types.packing import CorruptValue

_FULL = 512  # runs that a chunk has room for
_FEW = 64  # runs in a chunk that are over and not worth a sweep
_LOOK = 3  # chunks that are tidied when one is full, so that all have their turn while half as many come


class _Chunk:
    """Neighbouring runs."""

    __slots__ = ("ends", "latest", "starts", "times")

    def __init__(self, starts: array[int], ends: array[int], times: array[int]) -> None:
        self.starts, self.ends, self.times = starts, ends, times
        self.latest = max(times, default=0)

    def add(self, start: int, end: int, at: int) -> None:
        self.starts.append(start)
        self.ends.append(end)
        self.times.append(at)
        self.latest = max(self.latest, at)

    def sweep(self, now: int, first: int) -> None:
        """Take out what is visible, and what ends before a first offset."""
        if self.latest <= now or self.ends[-1] <= first:
            kept = []
        elif min(self.times) > now and self.ends[0] > first:
            return
        else:
            kept = [row for row, at in enumerate(self.times) if at > now and self.ends[row] > first]
        self.starts, self.ends, self.times = (
            array("q", [column[row] for row in kept]) for column in (self.starts, self.ends, self.times)
        )
        self.latest = max(self.times, default=0)

    def join(self, other: _Chunk) -> None:
        """Take over the runs of the next chunk."""
        self.starts += other.starts
        self.ends += other.ends
        self.times += other.times
        self.latest = max(self.latest, other.latest)

    def count(self, now: int, first: int) -> int:
        """Messages that are not visible yet, from a first offset on."""
        if self.latest <= now:
            return 0
        if min(self.times) > now and self.starts[0] >= first:
            return sum(self.ends) - sum(self.starts)
        rows = zip(self.starts, self.ends, self.times, strict=True)
        return sum([max(end - max(start, first), 0) for start, end, at in rows if at > now])

    def copy(self) -> _Chunk:
        return _Chunk(self.starts[:], self.ends[:], self.times[:])


class Delays:
    """The delayed messages of a stream.

    >>> delays = Delays()
    >>> delays.add(5, 8, at=1000, now=0)
    >>> [*delays.parts(1, 10, now=0)]
    [(1, 5, 0), (5, 8, 1000), (8, 10, 0)]
    >>> delays.hidden(1, now=999), delays.hidden(6, now=999), delays.hidden(1, now=1000)
    ((5, 8, 1000), (5, 8, 1000), None)
    """

    __slots__ = ("_chunks", "_turn", "latest")

    def __init__(self) -> None:
        self._chunks: list[_Chunk] = []
        self._turn = 0  # the chunk that is tidied next
        self.latest = 0

    def add(self, start: int, end: int, at: int, now: int, first: int = 1) -> None:
        """Delay new messages until a time; those before a first offset are not there any more."""
        if at <= now or start >= end:
            return
        chunk = self._chunks[-1] if self._chunks else None
        if chunk is not None and chunk.ends[-1] == start and chunk.times[-1] == at:
            chunk.ends[-1] = end
            return
        if chunk is None or len(chunk.starts) >= _FULL:
            self._tidy(now, first)
            chunk = _Chunk(array("q"), array("q"), array("q"))
            self._chunks.append(chunk)
        chunk.add(start, end, at)
        self.latest = max(self.latest, at)

    def hidden(self, offset: int, now: int) -> tuple[int, int, int] | None:
        """The first run that ends after an offset and is not visible yet, and its time."""
        chunks = self._chunks
        at = self._place(offset)
        while at < len(chunks):
            chunk = chunks[at]
            if chunk.latest <= now:
                del chunks[at]
                continue
            first = row = bisect_right(chunk.ends, offset)
            while row < len(chunk.times) and chunk.times[row] <= now:
                row += 1
            if row < len(chunk.times):
                found = (chunk.starts[row], chunk.ends[row], chunk.times[row])
                if row - first > _FEW:
                    chunk.sweep(now, 1)
                return found
            at += 1  # those that are hidden are before the offset; the next chunk has one, if it is not over
        return None

    def parts(self, start: int, end: int, now: int) -> Iterator[tuple[int, int, int]]:
        """A range in parts, each with the time from which groups see it, 0 if they do already."""
        for first, stop, at in self._hidden_between(start, end, now):
            if start < first:
                yield start, first, 0
            yield first, stop, at
            start = stop
        if start < end:
            yield start, end, 0

    def _hidden_between(self, start: int, end: int, now: int) -> Iterator[tuple[int, int, int]]:
        """What is hidden of a range."""
        for number in range(self._place(start), len(self._chunks)):
            chunk = self._chunks[number]
            if chunk.starts[0] >= end:
                return
            if chunk.latest > now:
                for first, stop, at in zip(chunk.starts, chunk.ends, chunk.times, strict=True):
                    if first >= end:
                        return
                    if at > now and stop > start:
                        yield max(first, start), min(stop, end), at

    def _place(self, offset: int) -> int:
        """The first chunk with a run that ends after an offset."""
        return bisect_right(self._chunks, offset, key=lambda chunk: chunk.ends[-1])

    def count(self, now: int, first: int) -> int:
        """Messages that are not visible yet, from a first offset on. O(runs)."""
        return sum([chunk.count(now, first) for chunk in self._chunks])

    def _runs(self) -> Iterator[tuple[int, int, int]]:
        for chunk in self._chunks:
            yield from zip(chunk.starts, chunk.ends, chunk.times, strict=True)

    def _tidy(self, now: int, first: int) -> None:
        """Sweep the next few chunks, and put those together that have little left."""
        chunks = self._chunks
        for _ in range(min(_LOOK, len(chunks))):
            if not chunks:
                break
            at = self._turn = self._turn % len(chunks)
            chunk = chunks[at]
            chunk.sweep(now, first)
            if not chunk.starts:
                del chunks[at]
            elif at and len(chunks[at - 1].starts) + len(chunk.starts) <= _FULL // 2:
                chunks[at - 1].join(chunk)
                del chunks[at]
            else:
                self._turn += 1
        self.latest = max([chunk.latest for chunk in chunks], default=0)

    def dump(self) -> bytes:
        """All runs as bytes."""
        return b"".join([_packed(chunk) for chunk in self._chunks])

    @classmethod
    def load(cls, data: bytes, last: int) -> Self:
        """What `dump` wrote, of a stream with a last offset; CorruptValue for anything else."""
        if len(data) % 24:
            raise CorruptValue("the delays of a stream are damaged: a run is not whole")
        cells = _little(array("q", data))
        starts, ends, times = cells[0::3], cells[1::3], cells[2::3]
        if any(start >= end for start, end in zip(starts, ends, strict=True)) or (
            cells and (min(starts) < 1 or max(ends) > last + 1 or min(times) < 1)
        ):
            raise CorruptValue("a stream delays messages that there are not")
        if any(end > start for end, start in zip(ends, starts[1:], strict=False)):
            raise CorruptValue("the delays of a stream are out of order")
        delays = cls()
        for at in range(0, len(starts), _FULL):
            rows = slice(at, at + _FULL)
            delays._chunks.append(_Chunk(starts[rows], ends[rows], times[rows]))
        delays.latest = max(times, default=0)
        return delays

    def copy(self) -> Delays:
        delays = Delays()
        delays._chunks = [chunk.copy() for chunk in self._chunks]
        delays.latest = self.latest
        return delays

    def size(self) -> int:
        """About how many bytes of memory it takes."""
        return 300 + sum([450 + 24 * len(chunk.starts) for chunk in self._chunks])

    def check(self) -> None:
        """Assert every invariant. O(runs)."""
        assert all(start < end for start, end, _ in self._runs())
        assert all(one[1] <= other[0] for one, other in pairwise(self._runs()))
        for chunk in self._chunks:
            assert 1 <= len(chunk.starts) == len(chunk.ends) == len(chunk.times) <= _FULL
            assert max(chunk.times) <= chunk.latest <= self.latest


def _packed(chunk: _Chunk) -> bytes:
    cells = array("q", bytes(24 * len(chunk.starts)))
    cells[0::3], cells[1::3], cells[2::3] = chunk.starts, chunk.ends, chunk.times
    return _little(cells).tobytes()


def _little(cells: array[int]) -> array[int]:
    """Numbers in the byte order of dumps, from that of this machine; and back."""
    if sys.byteorder == "big":
        cells.byteswap()
    return cells
