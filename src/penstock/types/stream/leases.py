"""Leases: runs of offsets that were delivered together and wait to be acknowledged.

Kept by offset, for acknowledgements and listings, and found by retry and expiry time. No call looks at all of them, and none
pays for how many there are. So they lie on shelves of a hundred neighbours, in arrays of numbers: what a call touches of a
million leases are a few lines of memory side by side (objects are all over it, and each takes 100 ns to come), a range is
taken out by the shelf, and the collector of cyclic garbage has shelves to walk, not leases.

Every shelf knows a time before which none of its leases is due, and one before which none expires; both are sorted over all
shelves. Which of its leases it is, is looked up on the shelf when the time has come.

Invariant: leases never overlap, `count` is how many there are and `messages` the sum of their lengths. Those of a shelf start
at its `bound` or after it, and before the next one's; no shelf is empty but the only one. A shelf's times are exact, or it is
one of the few in `_stale` and they may be too early. Ranges exclude their end.

Rejected: a tuple a lease in a dict a shelf, and a sorted set of the times of all leases (380 bytes a lease, here 60; a TACK of
some one offset takes 15 us of a million leases and 7 us of a thousand); one dict of lease objects (at a million it moves all its
entries when it grows, 24 ms, and the collector walks every object, over 100 ms).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from itertools import chain

from penstock.freeing import dispose
from penstock.types.stream.shelf import DELIVERED, END, EXPIRY, FULL, NEVER, RETRY, WIDTH, Lease, Shelf

_FEW = 32  # neighbours that together have no more are put together
_LAGGING = 8  # shelves whose times may be out of date
_GIANT = 1000  # shelves that are freed in one go, in about a millisecond
_OFFSET = 63  # bits of an offset
_OFFSETS = (1 << _OFFSET) - 1


class Leases:
    """The leases of a group.

    >>> leases = Leases()
    >>> leases.put(Lease(1, 10, 500, 0, 0, 1, None))
    >>> leases.drop(4, 6), leases.messages, [(lease.start, lease.end) for lease in leases]
    (2, 7, [(1, 4), (6, 10)])
    """

    __slots__ = ("_bounds", "_end", "_expiries", "_retries", "_shelves", "_stale", "count", "messages")

    def __init__(self) -> None:
        self.count = 0
        self.messages = 0
        self._end = 0  # no lease has offsets from there on
        self._shelves = [Shelf(0)]
        self._bounds = array("q", [0])  # of the shelves
        self._retries: list[
            int
        ] = []  # -(retry << _OFFSET | bound) of every shelf: the soonest is last, where lists change cheaply
        self._expiries: list[int] = []  # the same of those with leases that expire
        self._stale: dict[Shelf, None] = {}  # those whose first lease by time went

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Lease]:
        return chain.from_iterable(shelf.leases(0, len(shelf.starts)) for shelf in self._shelves)

    def dead_letter_keys(self) -> set[bytes]:
        """The keys that get the messages of these leases when they expire."""
        return {name for shelf in self._shelves for name in shelf.names() if name is not None}

    # What is first. O(log (shelves)).

    @property
    def first_offset(self) -> int | None:
        return self._shelves[0].starts[0] if self.count else None

    def next_retry(self) -> int | None:
        self._refresh()
        return -self._retries[-1] >> _OFFSET if self._retries else None

    def next_deadline(self) -> int | None:
        """When next something falls due or expires."""
        self._refresh()
        return min([-times[-1] >> _OFFSET for times in (self._retries, self._expiries) if times], default=None)

    def last_delivery(self) -> int:
        """When the newest of the leases was delivered for the first time, 0 if there are none. O(leases)."""
        return max([max(shelf.column(DELIVERED), default=0) for shelf in self._shelves])

    def due(self, now: int) -> Lease | None:
        """The lease that is due for a retry longest."""
        return self._first(self._retries, RETRY, now)

    def expired(self, now: int) -> Lease | None:
        """The lease that is expired longest."""
        return self._first(self._expiries, EXPIRY, now)

    def _first(self, times: list[int], which: int, now: int) -> Lease | None:
        while times and (time := -times[-1] >> _OFFSET) <= now:
            if not self._stale:
                shelf = self._shelves[bisect_left(self._bounds, -times[-1] & _OFFSETS)]
                return shelf.lease(shelf.column(which).index(time))
            self._refresh()
        return None

    def any_due(self, now: int) -> bool:
        """Whether something is due or expired."""
        return self.due(now) is not None or self.expired(now) is not None

    # Ranges. O(log (leases)), and O(1) a shelf touched.

    def overlapping(self, start: int, end: int) -> Iterator[Lease]:
        """The leases that have offsets in a range; nothing may change while they are asked for."""
        if start >= end:
            return
        shelf, row = self._before(start)
        if shelf is not None and shelf.cells[row * WIDTH + END] > start:
            yield shelf.lease(row)
        for at, first, stop in self._between(start, end):
            yield from self._shelves[at].leases(first, stop)

    def _between(self, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """The shelves with leases that start in a range, and those leases' rows."""
        first, last = self._place(start), bisect_left(self._bounds, end) - 1
        for at in range(first, last + 1):
            starts = self._shelves[at].starts
            row = bisect_left(starts, start) if at == first else 0
            stop = bisect_left(starts, end) if at == last else len(starts)
            if row < stop:
                yield at, row, stop

    def _place(self, offset: int) -> int:
        """The shelf on which a lease lies, or would, that starts at an offset."""
        return max(bisect_right(self._bounds, offset) - 1, 0)

    def _find(self, shelf: Shelf, start: int, end: int) -> int | None:
        """The row of the lease of exactly these offsets."""
        starts = shelf.starts
        row = bisect_left(starts, start)
        return row if row < len(starts) and starts[row] == start and shelf.cells[row * WIDTH + END] == end else None

    def _before(self, offset: int) -> tuple[Shelf | None, int]:
        """The last lease that starts before an offset."""
        at = bisect_left(self._bounds, offset) - 1
        while at >= 0:
            shelf = self._shelves[at]
            row = bisect_left(shelf.starts, offset)
            if row:
                return shelf, row - 1
            at -= 1  # once at the most: the shelf before has leases, and all of them are before
        return None, 0

    def drop(self, start: int, end: int) -> int:
        """Take a range out, cutting leases; answer how many messages were pending in it."""
        at = self._place(start)
        row = self._find(self._shelves[at], start, end)
        if row is not None:  # as delivered: the common case
            self._remove(at, row)
            return end - start
        if start >= end:
            return 0
        self._part(start)
        self._part(end)
        before = self.messages
        self._remove_range(start, end)
        return before - self.messages

    def drop_before(self, end: int, limit: int) -> tuple[int, int] | None:
        """Take out what is before an offset, of at most so many leases; answer the range that has none any more.

        None if there was nothing before it.
        """
        start = self.first_offset
        if start is None or start >= end:
            return None
        self.drop(start, min(end, self._start_after(limit)))
        rest = self.first_offset
        return start, end if rest is None else min(rest, end)

    def _start_after(self, count: int) -> int:
        """Where the lease starts that comes after so many."""
        for shelf in self._shelves:
            if count < len(shelf.starts):
                return shelf.starts[count]
            count -= len(shelf.starts)
        return self._end

    def postpone(self, start: int, end: int, retry_at: int) -> int:
        """Have a range delivered again at a time, cutting leases; answer how many messages were pending in it."""
        if start >= end:
            return 0
        self._part(start)
        self._part(end)
        messages = 0
        whole: list[Shelf] = []
        for at, first, stop in self._between(start, end):
            shelf = self._shelves[at]
            shelf.cells[first * WIDTH + RETRY : stop * WIDTH : WIDTH] = array("q", (retry_at,)) * (stop - first)
            if stop - first == len(shelf.starts):
                whole.append(shelf)
                messages += shelf.messages
            else:
                messages += shelf.length(first, stop)
                self._set_times(shelf, min(shelf.retry, retry_at), shelf.expiry)
                self._mark(shelf)
        if _are_many(whole, self._retries):
            _forget(self._retries, whole)
            self._retries += [-(retry_at << _OFFSET | shelf.bound) for shelf in whole]
            self._retries.sort()
            for shelf in whole:
                shelf.retry = retry_at
        else:
            for shelf in whole:
                self._set_times(shelf, retry_at, shelf.expiry)
        return messages

    def put(self, lease: Lease) -> None:
        """Make a lease the only one of its offsets."""
        start, end = lease.start, lease.end
        if start < self._end:
            shelf = self._shelves[self._place(start)]
            row = self._find(shelf, start, end)
            if row is not None:  # given out again as it was
                self._leave(shelf, row)
                shelf.cells[row * WIDTH : (row + 1) * WIDTH] = array("q", shelf.cells_of(lease))
                self._come(shelf, lease)
                return
            self.drop(start, end)
        self._insert(lease)

    # Rows. O(log (shelves)), and the moving of what comes after them on their shelf.

    def _part(self, offset: int) -> None:
        """Make two leases of one that has an offset in its middle, so that one of them begins there."""
        shelf, row = self._before(offset)
        if shelf is not None and shelf.cells[row * WIDTH + END] > offset:
            rest = shelf.lease(row)._replace(start=offset)
            shelf.cells[row * WIDTH + END] = offset
            shelf.messages -= rest.end - offset
            self.messages -= rest.end - offset
            self._insert(rest)

    def _insert(self, lease: Lease) -> None:
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
        if end > self._end:
            self._end = end
        self._come(shelf, lease)

    def _shelf_for(self, start: int) -> Shelf:
        """The shelf for a new lease, with room for it."""
        at = bisect_right(self._bounds, start) - 1
        if at < 0:
            shelf = self._add(0, Shelf(0))  # for whatever comes before all others
            if not self.count:
                self._clear(1, 2)
            return shelf
        shelf = self._shelves[at]
        if len(shelf.starts) < FULL:
            return shelf
        # Offsets mostly rise: the last shelf is left full, for no more will come to it.
        if at + 1 == len(self._shelves) and start > shelf.starts[-1]:
            return self._add(at + 1, Shelf(start))
        later = self._split(at)
        return later if start >= later.bound else shelf

    def _add(self, at: int, shelf: Shelf) -> Shelf:
        self._shelves.insert(at, shelf)
        self._bounds.insert(at, shelf.bound)
        return shelf

    def _split(self, at: int) -> Shelf:
        """Put the second half of a shelf on one of its own."""
        shelf, half = self._shelves[at], FULL // 2
        later = self._add(at + 1, Shelf(shelf.starts[half]))
        later.starts, later.cells, later.letters = shelf.starts[half:], shelf.cells[half * WIDTH :], shelf.letters[:]
        shelf.starts, shelf.cells = shelf.starts[:half], shelf.cells[: half * WIDTH]
        later.messages = later.length(0, len(later.starts))
        shelf.messages -= later.messages
        expiring = shelf.expiry != NEVER
        for one in (shelf, later):
            self._set_times(one, *one.times(expiring))
        return later

    def _remove(self, at: int, row: int) -> None:
        """Take out one lease."""
        shelf = self._shelves[at]
        starts, cells, first = shelf.starts, shelf.cells, row * WIDTH
        if len(starts) == 1 < len(self._shelves):
            self._clear(at, at + 1)
            return
        self._leave(shelf, row)
        length = cells[first + END] - starts[row]
        del starts[row], cells[first : first + WIDTH]
        shelf.messages -= length
        self.messages -= length
        self.count -= 1
        if len(starts) <= _FEW // 2:
            self._tidy(at)

    def _remove_range(self, start: int, end: int) -> None:
        """Take out the leases that start in a range: some of the first shelf and of the last, and all of those between."""
        shelves = self._shelves
        first, last = self._place(start), bisect_left(self._bounds, end) - 1
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
        self._mark(shelf)

    def _clear(self, first: int, stop: int) -> None:
        """Take whole shelves away."""
        gone = self._shelves[first:stop]
        del self._shelves[first:stop], self._bounds[first:stop]
        self.messages -= sum([shelf.messages for shelf in gone])
        self.count -= sum([len(shelf.starts) for shelf in gone])
        for shelf in set(self._stale).intersection(gone):
            del self._stale[shelf]
        if _are_many(gone, self._retries):
            _forget(self._retries, gone)
            _forget(self._expiries, gone)
        else:
            for shelf in gone:
                self._set_times(shelf, NEVER, NEVER)
        if not self._shelves:
            self._end = 0
            self._add(0, Shelf(0))
        if len(gone) > _GIANT:
            dispose(gone)

    def _tidy(self, at: int) -> None:
        """Put a shelf with few on it together with a neighbour that has few, so that there are no more shelves than it takes."""
        shelves = self._shelves
        for left in (at, at - 1):
            if 0 <= left < len(shelves) - 1:
                one, other = shelves[left], shelves[left + 1]
                if len(one.starts) + len(other.starts) <= _FEW:
                    self._join(left)
                    return

    def _join(self, at: int) -> None:
        """Put the next shelf's leases on a shelf."""
        shelf, other = self._shelves[at : at + 2]
        times = min(shelf.retry, other.retry), min(shelf.expiry, other.expiry)
        if other in self._stale:
            self._mark(shelf)
        self._clear(at + 1, at + 2)
        names = shelf.names() + other.names()
        shelf.starts, shelf.cells = shelf.starts + other.starts, shelf.cells + other.cells
        shelf.name(names)
        shelf.messages += other.messages
        self.messages += other.messages
        self.count += len(other.starts)
        self._set_times(shelf, *times)

    # Times of shelves.

    def _set_times(self, shelf: Shelf, retry: int, expiry: int) -> None:
        """A shelf has something to do at these times, and not before."""
        if retry != shelf.retry:
            _move(self._retries, shelf.bound, shelf.retry, retry)
            shelf.retry = retry
        if expiry != shelf.expiry:
            _move(self._expiries, shelf.bound, shelf.expiry, expiry)
            shelf.expiry = expiry

    def _come(self, shelf: Shelf, lease: Lease) -> None:
        """A lease is there now: something may happen earlier than before."""
        retry, expiry = lease.retry_at, lease.expire_at
        if retry < shelf.retry or 0 != expiry < shelf.expiry:
            self._set_times(shelf, min(retry, shelf.retry), min(expiry or NEVER, shelf.expiry))

    def _leave(self, shelf: Shelf, row: int) -> None:
        """A lease is about to go, and what was to happen first may go with it."""
        cells, first = shelf.cells, row * WIDTH
        if cells[first + RETRY] == shelf.retry or cells[first + EXPIRY] == shelf.expiry:
            # Most often a neighbour was read in the same millisecond, the next one if leases go in order.
            times = cells[first + RETRY : first + DELIVERED]
            if times != cells[first + WIDTH + RETRY : first + WIDTH + DELIVERED] and (
                not row or times != cells[first - WIDTH + RETRY : first - WIDTH + DELIVERED]
            ):
                self._mark(shelf)

    def _mark(self, shelf: Shelf) -> None:
        """The times of a shelf may be too early. To look for the right ones each time would be dear to who takes out one by one."""
        stale = self._stale
        stale[shelf] = None
        if len(stale) > _LAGGING:
            oldest = next(iter(stale))
            del stale[oldest]
            self._set_times(oldest, *oldest.times(oldest.expiry != NEVER))

    def _refresh(self) -> None:
        """Make the times of all shelves exact."""
        while self._stale:
            shelf, _ = self._stale.popitem()
            self._set_times(shelf, *shelf.times(shelf.expiry != NEVER))

    # The whole.

    def copy(self) -> Leases:
        """An equal one. A thread may make it while others ask what is first."""
        leases = Leases()
        leases.count, leases.messages, leases._end = self.count, self.messages, self._end
        leases._shelves, leases._bounds = [], self._bounds[:]
        for shelf in self._shelves:
            other = Shelf(shelf.bound)
            other.starts, other.cells, other.letters = shelf.starts[:], shelf.cells[:], shelf.letters[:]
            other.messages = shelf.messages
            leases._shelves.append(other)
            leases._set_times(other, *other.times(expiring=True))
        return leases

    def __del__(self) -> None:
        if len(self._shelves) > _GIANT:
            dispose(self._shelves)

    def size(self) -> int:
        """Bytes of memory, about."""
        return 600 + 60 * self.count + 900 * len(self._shelves)

    def check(self) -> None:
        """Assert every invariant. O(leases)."""
        shelves = self._shelves
        assert list(self._bounds) == [shelf.bound for shelf in shelves] == sorted(set(self._bounds))
        assert set(self._stale) <= set(shelves)
        assert len(self._stale) <= _LAGGING
        for at, shelf in enumerate(shelves):
            assert len(shelf.starts) <= FULL
            assert shelf.starts or len(shelves) == 1
            assert len(shelf.cells) == WIDTH * len(shelf.starts)
            assert shelf.messages == shelf.length(0, len(shelf.starts))
            assert all(bisect_right(self._bounds, start) - 1 == at for start in shelf.starts)
            assert len(shelf.letters) == len(set(shelf.letters)) <= 2 * FULL + 1
            retry, expiry = shelf.times(expiring=True)
            assert (shelf.retry, shelf.expiry) == (retry, expiry) or (
                shelf in self._stale and shelf.retry <= retry and shelf.expiry <= expiry
            )
        retries, expiries = [(shelf.retry, shelf) for shelf in shelves], [(shelf.expiry, shelf) for shelf in shelves]
        for times, of_shelves in ((self._retries, retries), (self._expiries, expiries)):
            assert times == sorted(-(time << _OFFSET | shelf.bound) for time, shelf in of_shelves if time != NEVER)
        leases = list(self)
        end = 0
        for lease in leases:
            assert end <= lease.start < lease.end
            assert lease.attempts >= 1
            end = lease.end
        assert end <= self._end
        assert self.count == len(leases)
        assert self.messages == sum(lease.end - lease.start for lease in leases)


def _move(times: list[int], bound: int, old: int, new: int) -> None:
    """A shelf has another time."""
    if old != NEVER:
        del times[bisect_left(times, -(old << _OFFSET | bound))]
    if new != NEVER:
        insort(times, -(new << _OFFSET | bound))


def _are_many(shelves: list[Shelf], times: list[int]) -> bool:
    """Whether to go through all times once is less work than to search for those of some shelves."""
    return 8 * len(shelves) > len(times)


def _forget(times: list[int], shelves: list[Shelf]) -> None:
    """Many shelves have no time any more."""
    bounds = {shelf.bound for shelf in shelves}
    times[:] = [time for time in times if -time & _OFFSETS not in bounds]
