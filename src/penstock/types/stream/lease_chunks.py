"""Leases in the order of their offsets, in chunks of a hundred neighbours.

What a call touches of a million leases are a few lines of memory side by side, a range is taken out by the chunk, and
the collector of cyclic garbage has chunks to walk, not leases. The times at which something is due in a chunk are kept
beside (lease_due_times.py), and every change here tells them.

Invariant: leases never overlap, `count` is how many there are and `messages` the sum of their lengths. Those of a chunk
start at its `bound` or after it, and before the next one's; no chunk is empty but the only one. Ranges exclude their
end.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from penstock.freeing import dispose
from penstock.types.stream.lease_chunk import END, FULL, NEVER, WIDTH, Lease, LeaseChunk
from penstock.types.stream.lease_due_times import LeaseDueTimes

_FEW = 32  # neighbours that together have no more are put together
_GIANT = 1000  # chunks that are freed in one go, in about a millisecond


class LeaseChunks:
    """See the top of this file."""

    __slots__ = ("_bounds", "all", "count", "end", "messages", "times")

    def __init__(self) -> None:
        self.count = 0
        self.messages = 0
        self.end = 0  # no lease has offsets from there on
        self.all = [LeaseChunk(0)]
        self._bounds = array("q", [0])  # of the chunks
        self.times = LeaseDueTimes()

    # Looking. O(log (chunks)), and O(1) a chunk touched.

    def place(self, offset: int) -> int:
        """The chunk in which a lease lies, or would, that starts at an offset."""
        return max(bisect_right(self._bounds, offset) - 1, 0)

    def bound_at(self, bound: int) -> LeaseChunk:
        """The chunk with a bound."""
        return self.all[bisect_left(self._bounds, bound)]

    def find(self, start: int, end: int) -> tuple[int, int] | None:
        """The chunk and the row of the lease of exactly these offsets."""
        at = self.place(start)
        row = self.all[at].find(start, end)
        return None if row is None else (at, row)

    def last_before(self, offset: int) -> tuple[LeaseChunk | None, int]:
        """The last lease that starts before an offset."""
        at = bisect_left(self._bounds, offset) - 1
        while at >= 0:
            chunk = self.all[at]
            row = bisect_left(chunk.starts, offset)
            if row:
                return chunk, row - 1
            at -= 1  # once at the most: the chunk before has leases, and all of them are before
        return None, 0

    def between(self, start: int, end: int) -> Iterator[tuple[LeaseChunk, int, int]]:
        """The chunks with leases that start in a range, and those leases' rows."""
        first, last = self.place(start), bisect_left(self._bounds, end) - 1
        for at in range(first, last + 1):
            chunk = self.all[at]
            starts = chunk.starts
            row = bisect_left(starts, start) if at == first else 0
            stop = bisect_left(starts, end) if at == last else len(starts)
            if row < stop:
                yield chunk, row, stop

    def start_after(self, count: int) -> int:
        """Where the lease starts that comes after so many. O(chunks before it)."""
        for chunk in self.all:
            if count < len(chunk.starts):
                return chunk.starts[count]
            count -= len(chunk.starts)
        return self.end

    # Changing. O(log (chunks)), and the moving of what comes after a row in its chunk.

    def part(self, offset: int) -> None:
        """Make two leases of one that has an offset in its middle, so that one of them begins there."""
        chunk, row = self.last_before(offset)
        if chunk is not None and chunk.cells[row * WIDTH + END] > offset:
            rest = chunk.lease(row)._replace(start=offset)
            chunk.cells[row * WIDTH + END] = offset
            chunk.messages -= rest.end - offset
            self.messages -= rest.end - offset
            self.insert(rest)

    def replace(self, at: int, row: int, lease: Lease) -> None:
        """Put a lease in the place of another of the same offsets."""
        chunk = self.all[at]
        self.times.leave(chunk, row)
        chunk.cells[row * WIDTH : (row + 1) * WIDTH] = array("q", chunk.cells_of(lease))
        self.times.come(chunk, lease)

    def insert(self, lease: Lease) -> None:
        """Add a lease whose offsets no other has."""
        start, end = lease.start, lease.end
        chunk = self._chunk_for(start)
        starts = chunk.starts
        cells = chunk.cells_of(lease)
        if not starts or start > starts[-1]:
            starts.append(start)
            chunk.cells.extend(cells)
        else:
            row = bisect_left(starts, start)
            starts.insert(row, start)
            chunk.cells[row * WIDTH : row * WIDTH] = array("q", cells)
        chunk.messages += end - start
        self.messages += end - start
        self.count += 1
        if end > self.end:
            self.end = end
        self.times.come(chunk, lease)

    def _chunk_for(self, start: int) -> LeaseChunk:
        """The chunk for a new lease, with room for it."""
        at = bisect_right(self._bounds, start) - 1
        if at < 0:
            chunk = self._add(0, LeaseChunk(0))  # for whatever comes before all others
            if not self.count:
                self._clear(1, 2)
            return chunk
        chunk = self.all[at]
        if len(chunk.starts) < FULL:
            return chunk
        # Offsets mostly rise: the last chunk is left full, for no more will come to it.
        if at + 1 == len(self.all) and start > chunk.starts[-1]:
            return self._add(at + 1, LeaseChunk(start))
        later = self._split(at)
        return later if start >= later.bound else chunk

    def _add(self, at: int, chunk: LeaseChunk) -> LeaseChunk:
        self.all.insert(at, chunk)
        self._bounds.insert(at, chunk.bound)
        return chunk

    def _split(self, at: int) -> LeaseChunk:
        """Put the second half of a chunk into one of its own."""
        chunk, half = self.all[at], FULL // 2
        later = self._add(at + 1, LeaseChunk(chunk.starts[half]))
        later.starts, later.cells, later.letters = chunk.starts[half:], chunk.cells[half * WIDTH :], chunk.letters[:]
        chunk.starts, chunk.cells = chunk.starts[:half], chunk.cells[: half * WIDTH]
        later.limited = chunk.limited
        later.messages = later.length(0, len(later.starts))
        chunk.messages -= later.messages
        expiring = chunk.expiry != NEVER
        for one in (chunk, later):
            self.times.set(one, *one.times(expiring))
        return later

    def remove(self, at: int, row: int) -> None:
        """Take out one lease."""
        chunk = self.all[at]
        starts, cells, first = chunk.starts, chunk.cells, row * WIDTH
        if len(starts) == 1 < len(self.all):
            self._clear(at, at + 1)
            return
        self.times.leave(chunk, row)
        length = cells[first + END] - starts[row]
        del starts[row], cells[first : first + WIDTH]
        chunk.messages -= length
        self.messages -= length
        self.count -= 1
        if len(starts) <= _FEW // 2 and len(self.all) > 1:
            self._tidy(at)

    def remove_range(self, start: int, end: int) -> None:
        """Take out the leases that start in a range: some of the first chunk and of the
        last, and all of those between.
        """
        chunks = self.all
        first, last = self.place(start), bisect_left(self._bounds, end) - 1
        if last < first or not self.count:
            return
        for at in {first, last}:
            starts = chunks[at].starts
            row, stop = bisect_left(starts, start), bisect_left(starts, end)
            if 0 < stop - row < len(starts):
                self._cut(chunks[at], row, stop)
        first += not start <= chunks[first].starts[0] < end  # there it has none in the range any more
        last -= last >= first and not start <= chunks[last].starts[0] < end
        if first <= last:
            self._clear(first, last + 1)
        self._tidy(min(first, len(chunks) - 1))

    def _cut(self, chunk: LeaseChunk, row: int, stop: int) -> None:
        """Take out some leases of a chunk, not all."""
        length = chunk.length(row, stop)
        del chunk.starts[row:stop], chunk.cells[row * WIDTH : stop * WIDTH]
        chunk.messages -= length
        self.messages -= length
        self.count -= stop - row
        self.times.mark(chunk)

    def _clear(self, first: int, stop: int) -> None:
        """Take whole chunks away."""
        gone = self.all[first:stop]
        del self.all[first:stop], self._bounds[first:stop]
        self.messages -= sum([chunk.messages for chunk in gone])
        self.count -= sum([len(chunk.starts) for chunk in gone])
        self.times.forget(gone)
        if not self.all:
            self.end = 0
            self._add(0, LeaseChunk(0))
        if len(gone) > _GIANT:
            dispose(gone)

    def _tidy(self, at: int) -> None:
        """Put a chunk with few in it together with a neighbour that has few, so that there are no more chunks than it
        takes.
        """
        chunks = self.all
        for left in (at, at - 1):
            if 0 <= left < len(chunks) - 1:
                one, other = chunks[left], chunks[left + 1]
                if len(one.starts) + len(other.starts) <= _FEW:
                    self._join(left)
                    return

    def _join(self, at: int) -> None:
        """Put the next chunk's leases in a chunk."""
        chunk, other = self.all[at : at + 2]
        times = min(chunk.retry, other.retry), min(chunk.expiry, other.expiry), min(chunk.free, other.free)
        if other in self.times.stale:
            self.times.mark(chunk)
        self._clear(at + 1, at + 2)
        names = chunk.names() + other.names()
        chunk.starts, chunk.cells = chunk.starts + other.starts, chunk.cells + other.cells
        chunk.name(names)
        chunk.limited |= other.limited
        chunk.messages += other.messages
        self.messages += other.messages
        self.count += len(other.starts)
        self.times.set(chunk, *times)

    # The whole.

    def copy(self) -> LeaseChunks:
        """An equal one. A thread may make it while others ask what is first."""
        chunks = LeaseChunks()
        chunks.count, chunks.messages, chunks.end = self.count, self.messages, self.end
        chunks.all, chunks._bounds = [], self._bounds[:]
        for chunk in self.all:
            other = LeaseChunk(chunk.bound)
            other.starts, other.cells, other.letters = chunk.starts[:], chunk.cells[:], chunk.letters[:]
            other.messages, other.limited = chunk.messages, chunk.limited
            chunks.all.append(other)
            chunks.times.set(other, *other.times(expiring=True))
        return chunks

    def __del__(self) -> None:
        if len(self.all) > _GIANT:
            dispose(self.all)

    def check(self) -> None:
        """Assert every invariant. O(leases)."""
        assert list(self._bounds) == [chunk.bound for chunk in self.all] == sorted(set(self._bounds))
        end, count, messages = 0, 0, 0
        for at, chunk in enumerate(self.all):
            assert len(chunk.starts) <= FULL
            assert chunk.starts or len(self.all) == 1
            assert len(chunk.cells) == WIDTH * len(chunk.starts)
            assert chunk.messages == chunk.length(0, len(chunk.starts))
            assert all(bisect_right(self._bounds, start) - 1 == at for start in chunk.starts)
            assert len(chunk.letters) == len(set(chunk.letters)) <= 2 * FULL + 1
            for lease in chunk.leases(0, len(chunk.starts)):
                assert end <= lease.start < lease.end
                assert lease.attempts >= 1 or lease.reserved
                assert lease.expire_at >= 0 or not lease.attempts
                assert chunk.limited or not lease.limit
                end = lease.end
                count += 1
                messages += lease.end - lease.start
        assert end <= self.end
        assert (self.count, self.messages) == (count, messages)
        self.times.check(self.all)
