"""When something is due on the shelves of leases: the first retry and the first expiry of each shelf, sorted over all.

Every shelf knows a time before which none of its leases is due, and one before which none expires. Which of its leases
it is, is looked up on the shelf when the time has come. A lease in its last attempt expires when its retry is due.

Invariant: a shelf's times are exact, or it is one of the few in `stale` and they may be too early.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from penstock.types.stream.shelf import DELIVERED, EXPIRY, NEVER, RETRY, WIDTH, Lease, Shelf

_LAGGING = 8  # shelves whose times may be out of date
_OFFSET = 63  # bits of an offset
_OFFSETS = (1 << _OFFSET) - 1


class ShelfTimes:
    """See the top of this file. O(log (shelves)) a call, if not said otherwise."""

    __slots__ = ("_expiries", "_retries", "stale")

    def __init__(self) -> None:
        # -(retry << _OFFSET | bound) of every shelf: the soonest is last, where lists change cheaply
        self._retries: list[int] = []
        self._expiries: list[int] = []  # the same of those with leases that expire
        self.stale: dict[Shelf, None] = {}  # those whose first lease by time went

    # What is first.

    def next_retry(self) -> int | None:
        self._refresh()
        return -self._retries[-1] >> _OFFSET if self._retries else None

    def next_deadline(self) -> int | None:
        """When next something falls due or expires."""
        self._refresh()
        return min([-times[-1] >> _OFFSET for times in (self._retries, self._expiries) if times], default=None)

    def first(self, which: int, now: int) -> tuple[int, int] | None:
        """The time of the lease that is due (RETRY) or expired (EXPIRY) longest, and the bound of its shelf."""
        times = self._retries if which == RETRY else self._expiries
        while times and (time := -times[-1] >> _OFFSET) <= now:
            if not self.stale:
                return time, -times[-1] & _OFFSETS
            self._refresh()
        return None

    def _refresh(self) -> None:
        """Make the times of all shelves exact."""
        while self.stale:
            shelf, _ = self.stale.popitem()
            self.set(shelf, *shelf.times(shelf.expiry != NEVER))

    # What changed.

    def set(self, shelf: Shelf, retry: int, expiry: int) -> None:
        """A shelf has something to do at these times, and not before."""
        if retry != shelf.retry:
            _move(self._retries, shelf.bound, shelf.retry, retry)
            shelf.retry = retry
        if expiry != shelf.expiry:
            _move(self._expiries, shelf.bound, shelf.expiry, expiry)
            shelf.expiry = expiry

    def come(self, shelf: Shelf, lease: Lease) -> None:
        """A lease is there now: something may happen earlier than before."""
        retry, expiry = lease.retry_at, lease.expire_at
        if expiry < 0 or lease.limit:
            expiry = lease.end_at
        if retry < shelf.retry or 0 != expiry < shelf.expiry:
            self.set(shelf, min(retry, shelf.retry), min(expiry or NEVER, shelf.expiry))

    def leave(self, shelf: Shelf, row: int) -> None:
        """A lease is about to go, and what was to happen first may go with it."""
        cells, first = shelf.cells, row * WIDTH
        if (
            cells[first + RETRY] == shelf.retry
            or cells[first + EXPIRY] == shelf.expiry
            or (shelf.limited and shelf.end_at(row) == shelf.expiry)
        ):
            # Most often a neighbour was read in the same millisecond, the next one if leases go in order.
            times = cells[first + RETRY : first + DELIVERED]
            if times != cells[first + WIDTH + RETRY : first + WIDTH + DELIVERED] and (
                not row or times != cells[first - WIDTH + RETRY : first - WIDTH + DELIVERED]
            ):
                self.mark(shelf)

    def mark(self, shelf: Shelf) -> None:
        """The times of a shelf may be too early.

        Looking for the right ones at once would make it slow to take out one by one.
        """
        stale = self.stale
        stale[shelf] = None
        if len(stale) > _LAGGING:
            oldest = next(iter(stale))
            del stale[oldest]
            self.set(oldest, *oldest.times(oldest.expiry != NEVER))

    def postpone(self, shelves: list[Shelf], retry_at: int) -> None:
        """All leases of some shelves are due at one time. O(shelves) at the most."""
        if self._are_many(shelves):
            _forget(self._retries, shelves)
            self._retries += [-(retry_at << _OFFSET | shelf.bound) for shelf in shelves]
            self._retries.sort()
            for shelf in shelves:
                shelf.retry = retry_at
        else:
            for shelf in shelves:
                self.set(shelf, retry_at, shelf.expiry)

    def forget(self, shelves: list[Shelf]) -> None:
        """Some shelves are gone. O(shelves) at the most."""
        for shelf in set(self.stale).intersection(shelves):
            del self.stale[shelf]
        if self._are_many(shelves):
            _forget(self._retries, shelves)
            _forget(self._expiries, shelves)
        else:
            for shelf in shelves:
                self.set(shelf, NEVER, NEVER)

    def _are_many(self, shelves: list[Shelf]) -> bool:
        """Whether to go through all times once is less work than to search for those of some shelves."""
        return 8 * len(shelves) > len(self._retries)

    def check(self, shelves: list[Shelf]) -> None:
        """Assert every invariant. O(leases)."""
        assert set(self.stale) <= set(shelves)
        assert len(self.stale) <= _LAGGING
        for shelf in shelves:
            retry, expiry = shelf.times(expiring=True)
            assert (shelf.retry, shelf.expiry) == (retry, expiry) or (
                shelf in self.stale and shelf.retry <= retry and shelf.expiry <= expiry
            )
        retries, expiries = [(shelf.retry, shelf) for shelf in shelves], [(shelf.expiry, shelf) for shelf in shelves]
        for times, of_shelves in ((self._retries, retries), (self._expiries, expiries)):
            assert times == sorted(-(time << _OFFSET | shelf.bound) for time, shelf in of_shelves if time != NEVER)


def _move(times: list[int], bound: int, old: int, new: int) -> None:
    """A shelf has another time."""
    if old != NEVER:
        del times[bisect_left(times, -(old << _OFFSET | bound))]
    if new != NEVER:
        insort(times, -(new << _OFFSET | bound))


def _forget(times: list[int], shelves: list[Shelf]) -> None:
    """Many shelves have no time any more."""
    bounds = {shelf.bound for shelf in shelves}
    times[:] = [time for time in times if -time & _OFFSETS not in bounds]
