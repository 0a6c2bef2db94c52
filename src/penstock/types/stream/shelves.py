"""Leases in the order of their offsets, on shelves of a hundred neighbours.

What a call touches of a million leases are a few lines of memory side by side, a range is taken out by the shelf, and
the collector of cyclic garbage has shelves to walk, not leases. The times at which something is due on a shelf are kept
beside (shelf_times.py), and every change here tells them.

Invariant: leases never overlap, `count` is how many there are and `messages` the sum of their lengths. Those of a shelf
start at its `bound` or after it, and before the next one's; no shelf is empty but the only one. Ranges exclude their
end.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from penstock.freeing import dispose
from penstock.types.stream.shelf import END, FULL, NEVER, WIDTH, Lease, Shelf
from penstock.types.stream.shelf_times import ShelfTimes

_FEW = 32  # neighbours that together have no more are put together
_GIANT = 1000  # shelves that are freed in one go, in about a millisecond


class Shelves:
    """See the top of this file."""

    __slots__ = ("_bounds", "all", "count", "end", "messages", "times")

    def __init__(self) -> None:
        self.count = 0
        self.messages = 0
        self.end = 0  # no lease has offsets from there on
        self.all = [Shelf(0)]
        self._bounds = array("q", [0])  # of the shelves
        self.times = ShelfTimes()

    # Looking. O(log (shelves)), and O(1) a shelf touched.

    def place(self, offset: int) -> int:
        """The shelf on which a lease lies, or would, that starts at an offset."""
        return max(bisect_right(self._bounds, offset) - 1, 0)

    def bound_at(self, bound: int) -> Shelf:
        """The shelf with a bound."""
        return self.all[bisect_left(self._bounds, bound)]

    def find(self, start: int, end: int) -> tuple[int, int] | None:
        """The shelf and the row of the lease of exactly these offsets."""
        at = self.place(start)
        row = self.all[at].find(start, end)
        return None if row is None else (at, row)

    def last_before(self, offset: int) -> tuple[Shelf | None, int]:
        """The last lease that starts before an offset."""
        at = bisect_left(self._bounds, offset) - 1
        while at >= 0:
            shelf = self.all[at]
            row = bisect_left(shelf.starts, offset)
            if row:
                return shelf, row - 1
            at -= 1  # once at the most: the shelf before has leases, and all of them are before
        return None, 0

    def between(self, start: int, end: int) -> Iterator[tuple[Shelf, int, int]]:
        """The shelves with leases that start in a range, and those leases' rows."""
        first, last = self.place(start), bisect_left(self._bounds, end) - 1
        for at in range(first, last + 1):
            shelf = self.all[at]
            starts = shelf.starts
            row = bisect_left(starts, start) if at == first else 0
            stop = bisect_left(starts, end) if at == last else len(starts)
            if row < stop:
                yield shelf, row, stop

    def start_after(self, count: int) -> int:
        """Where the lease starts that comes after so many. O(shelves before it)."""
        for shelf in self.all:
            if count < len(shelf.starts):
                return shelf.starts[count]
            count -= len(shelf.starts)
        return self.end

    # Changing. O(log (shelves)), and the moving of what comes after a row on its shelf.

    def part(self, offset: int) -> None:
        """Make two leases of one that has an offset in its middle, so that one of them begins there."""
        shelf, row = self.last_before(offset)
        if shelf is not None and shelf.cells[row * WIDTH + END] > offset:
            rest = shelf.lease(row)._replace(start=offset)
            shelf.cells[row * WIDTH + END] = offset
            shelf.messages -= rest.end - offset
            self.messages -= rest.end - offset
            self.insert(rest)

    def replace(self, at: int, row: int, lease: Lease) -> None:
        """Put a lease in the place of another of the same offsets."""
        shelf = self.all[at]
        self.times.leave(shelf, row)
        shelf.cells[row * WIDTH : (row + 1) * WIDTH] = array("q", shelf.cells_of(lease))
        self.times.come(shelf, lease)

    def insert(self, lease: Lease) -> None:
        """Add a lease whose offsets no other has."""
        start, end = lease.start, lease.end
        shelf = self._shelf_for(start)
        starts = shelf.starts
        cells = shelf.cells_of(lease)
        if not starts or start > starts[-1]:
            starts.append(start)
            shelf.cells.extend(cells)
        else:
            row = bisect_left(starts, start)
            starts.insert(row, start)
            shelf.cells[row * WIDTH : row * WIDTH] = array("q", cells)
        shelf.messages += end - start
        self.messages += end - start
        self.count += 1
        if end > self.end:
            self.end = end
        self.times.come(shelf, lease)

    def _shelf_for(self, start: int) -> Shelf:
        """The shelf for a new lease, with room for it."""
        at = bisect_right(self._bounds, start) - 1
        if at < 0:
            shelf = self._add(0, Shelf(0))  # for whatever comes before all others
            if not self.count:
                self._clear(1, 2)
            return shelf
        shelf = self.all[at]
        if len(shelf.starts) < FULL:
            return shelf
        # Offsets mostly rise: the last shelf is left full, for no more will come to it.
        if at + 1 == len(self.all) and start > shelf.starts[-1]:
            return self._add(at + 1, Shelf(start))
        later = self._split(at)
        return later if start >= later.bound else shelf

    def _add(self, at: int, shelf: Shelf) -> Shelf:
        self.all.insert(at, shelf)
        self._bounds.insert(at, shelf.bound)
        return shelf

    def _split(self, at: int) -> Shelf:
        """Put the second half of a shelf on one of its own."""
        shelf, half = self.all[at], FULL // 2
        later = self._add(at + 1, Shelf(shelf.starts[half]))
        later.starts, later.cells, later.letters = shelf.starts[half:], shelf.cells[half * WIDTH :], shelf.letters[:]
        shelf.starts, shelf.cells = shelf.starts[:half], shelf.cells[: half * WIDTH]
        later.limited = shelf.limited
        later.messages = later.length(0, len(later.starts))
        shelf.messages -= later.messages
        expiring = shelf.expiry != NEVER
        for one in (shelf, later):
            self.times.set(one, *one.times(expiring))
        return later

    def remove(self, at: int, row: int) -> None:
        """Take out one lease."""
        shelf = self.all[at]
        starts, cells, first = shelf.starts, shelf.cells, row * WIDTH
        if len(starts) == 1 < len(self.all):
            self._clear(at, at + 1)
            return
        self.times.leave(shelf, row)
        length = cells[first + END] - starts[row]
        del starts[row], cells[first : first + WIDTH]
        shelf.messages -= length
        self.messages -= length
        self.count -= 1
        if len(starts) <= _FEW // 2 and len(self.all) > 1:
            self._tidy(at)

    def remove_range(self, start: int, end: int) -> None:
        """Take out the leases that start in a range: some of the first shelf and of the
        last, and all of those between.
        """
        shelves = self.all
        first, last = self.place(start), bisect_left(self._bounds, end) - 1
        if last < first or not self.count:
            return
        for at in {first, last}:
            starts = shelves[at].starts
            row, stop = bisect_left(starts, start), bisect_left(starts, end)
            if 0 < stop - row < len(starts):
                self._cut(shelves[at], row, stop)
        first += not start <= shelves[first].starts[0] < end  # there it has none in the range any more
        last -= last >= first and not start <= shelves[last].starts[0] < end
        if first <= last:
            self._clear(first, last + 1)
        self._tidy(min(first, len(shelves) - 1))

    def _cut(self, shelf: Shelf, row: int, stop: int) -> None:
        """Take out some leases of a shelf, not all."""
        length = shelf.length(row, stop)
        del shelf.starts[row:stop], shelf.cells[row * WIDTH : stop * WIDTH]
        shelf.messages -= length
        self.messages -= length
        self.count -= stop - row
        self.times.mark(shelf)

    def _clear(self, first: int, stop: int) -> None:
        """Take whole shelves away."""
        gone = self.all[first:stop]
        del self.all[first:stop], self._bounds[first:stop]
        self.messages -= sum([shelf.messages for shelf in gone])
        self.count -= sum([len(shelf.starts) for shelf in gone])
        self.times.forget(gone)
        if not self.all:
            self.end = 0
            self._add(0, Shelf(0))
        if len(gone) > _GIANT:
            dispose(gone)

    def _tidy(self, at: int) -> None:
        """Put a shelf with few on it together with a neighbour that has few, so that there are no more shelves than it
        takes.
        """
        shelves = self.all
        for left in (at, at - 1):
            if 0 <= left < len(shelves) - 1:
                one, other = shelves[left], shelves[left + 1]
                if len(one.starts) + len(other.starts) <= _FEW:
                    self._join(left)
                    return

    def _join(self, at: int) -> None:
        """Put the next shelf's leases on a shelf."""
        shelf, other = self.all[at : at + 2]
        times = min(shelf.retry, other.retry), min(shelf.expiry, other.expiry), min(shelf.free, other.free)
        if other in self.times.stale:
            self.times.mark(shelf)
        self._clear(at + 1, at + 2)
        names = shelf.names() + other.names()
        shelf.starts, shelf.cells = shelf.starts + other.starts, shelf.cells + other.cells
        shelf.name(names)
        shelf.limited |= other.limited
        shelf.messages += other.messages
        self.messages += other.messages
        self.count += len(other.starts)
        self.times.set(shelf, *times)

    # The whole.

    def copy(self) -> Shelves:
        """An equal one. A thread may make it while others ask what is first."""
        shelves = Shelves()
        shelves.count, shelves.messages, shelves.end = self.count, self.messages, self.end
        shelves.all, shelves._bounds = [], self._bounds[:]
        for shelf in self.all:
            other = Shelf(shelf.bound)
            other.starts, other.cells, other.letters = shelf.starts[:], shelf.cells[:], shelf.letters[:]
            other.messages, other.limited = shelf.messages, shelf.limited
            shelves.all.append(other)
            shelves.times.set(other, *other.times(expiring=True))
        return shelves

    def __del__(self) -> None:
        if len(self.all) > _GIANT:
            dispose(self.all)

    def check(self) -> None:
        """Assert every invariant. O(leases)."""
        assert list(self._bounds) == [shelf.bound for shelf in self.all] == sorted(set(self._bounds))
        end, count, messages = 0, 0, 0
        for at, shelf in enumerate(self.all):
            assert len(shelf.starts) <= FULL
            assert shelf.starts or len(self.all) == 1
            assert len(shelf.cells) == WIDTH * len(shelf.starts)
            assert shelf.messages == shelf.length(0, len(shelf.starts))
            assert all(bisect_right(self._bounds, start) - 1 == at for start in shelf.starts)
            assert len(shelf.letters) == len(set(shelf.letters)) <= 2 * FULL + 1
            for lease in shelf.leases(0, len(shelf.starts)):
                assert end <= lease.start < lease.end
                assert lease.attempts >= 1 or lease.reserved
                assert lease.expire_at >= 0 or not lease.attempts
                assert shelf.limited or not lease.limit
                end = lease.end
                count += 1
                messages += lease.end - lease.start
        assert end <= self.end
        assert (self.count, self.messages) == (count, messages)
        self.times.check(self.all)
