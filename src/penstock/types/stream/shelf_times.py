"""When something is due on the shelves of leases: the first retry and the first expiry of each shelf, sorted over all.

Every shelf knows a time before which none of its leases is due, and one before which none expires. Which of its leases
it is, is looked up on the shelf when the time has come. A lease in its last attempt expires when its retry is due.
Retries of leases that were given back (`free`) are found also by themselves: no member holds them, so an outage of the
server puts none of them off.

Invariant: a shelf's times are exact, or it is one of the few in `stale` and they may be too early.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from penstock.types.stream.shelf import DELIVERED, EXPIRY, NEVER, RETRY, TOKEN, WIDTH, Lease, Shelf

_LAGGING = 8  # shelves whose times may be out of date
_OFFSET = 63  # bits of an offset
_OFFSETS = (1 << _OFFSET) - 1


class ShelfTimes:
    """See the top of this file. O(log (shelves)) a call, if not said otherwise."""

    __slots__ = ("_expiries", "_free", "_retries", "stale")

    def __init__(self) -> None:
        # -(retry << _OFFSET | bound) of every shelf: the soonest is last, where lists change cheaply
        self._retries: list[int] = []
        self._expiries: list[int] = []  # the same of those with leases that expire
        self._free: list[int] = []  # the same of those with leases that were given back: their retries
        self.stale: dict[Shelf, None] = {}  # those whose first lease by time went

    # What is first.

    def next_retry(self) -> int | None:
        self._refresh()
        return -self._retries[-1] >> _OFFSET if self._retries else None

    def next_deadline(self) -> int | None:
        """When next something falls due or expires."""
        self._refresh()
        return min([-times[-1] >> _OFFSET for times in (self._retries, self._expiries) if times], default=None)

    def next_free(self) -> int | None:
        """When the next lease falls due that was given back."""
        self._refresh()
        return -self._free[-1] >> _OFFSET if self._free else None

    def first_due(self, now: int) -> tuple[int, int] | None:
        """The time of the lease that is due longest, and the bound of its shelf."""
        return self._first(self._retries, now)

    def first_expired(self, now: int) -> tuple[int, int] | None:
        """The time of the lease that expired longest ago, and the bound of its shelf."""
        return self._first(self._expiries, now)

    def first_free(self, now: int) -> tuple[int, int] | None:
        """The time of the lease that was given back and is due longest, and the bound of its shelf."""
        return self._first(self._free, now)

    def _first(self, times: list[int], now: int) -> tuple[int, int] | None:
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

    def set(self, shelf: Shelf, retry: int, expiry: int, free: int) -> None:
        """A shelf has something to do at these times, and not before."""
        if retry != shelf.retry:
            _move(self._retries, shelf.bound, shelf.retry, retry)
            shelf.retry = retry
        if expiry != shelf.expiry:
            _move(self._expiries, shelf.bound, shelf.expiry, expiry)
            shelf.expiry = expiry
        if free != shelf.free:
            _move(self._free, shelf.bound, shelf.free, free)
            shelf.free = free

    def come(self, shelf: Shelf, lease: Lease) -> None:
        """A lease is there now: something may happen earlier than before."""
        retry, expiry = lease.retry_at, lease.expire_at
        if expiry < 0 or lease.limit:
            expiry = lease.end_at
        free = NEVER if lease.token or lease.delayed else retry  # `given_back`, in less time
        if retry < shelf.retry or 0 != expiry < shelf.expiry or free < shelf.free:
            self.set(shelf, min(retry, shelf.retry), min(expiry or NEVER, shelf.expiry), min(free, shelf.free))

    def leave(self, shelf: Shelf, row: int) -> None:
        """A lease is about to go, and what was to happen first may go with it."""
        cells, first = shelf.cells, row * WIDTH
        free = cells[first + RETRY] == shelf.free and not cells[first + TOKEN]
        if (
            free
            or cells[first + RETRY] == shelf.retry
            or cells[first + EXPIRY] == shelf.expiry
            or (shelf.limited and shelf.end_at(row) == shelf.expiry)
        ):
            # Most often a neighbour was read in the same millisecond, the next one if leases go in order.
            times = cells[first + RETRY : first + DELIVERED]
            for at in (first + WIDTH, first - WIDTH) if row else (first + WIDTH,):
                if cells[at + RETRY : at + DELIVERED] == times and not (free and cells[at + TOKEN]):
                    return
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

    def postpone(self, shelves: list[Shelf], retry_at: int, give_back: bool) -> None:
        """All leases of some shelves are due at one time. O(shelves) at the most."""
        free = [shelf for shelf in shelves if give_back or shelf.free != NEVER]
        if self._are_many(shelves):
            _replace(self._retries, shelves, retry_at)
            _replace(self._free, free, retry_at)
            for shelf in shelves:
                shelf.retry = retry_at
            for shelf in free:
                shelf.free = retry_at
        else:
            for shelf in shelves:
                self.set(shelf, retry_at, shelf.expiry, shelf.free)
            for shelf in free:
                self.set(shelf, retry_at, shelf.expiry, retry_at)

    def forget(self, shelves: list[Shelf]) -> None:
        """Some shelves are gone. O(shelves) at the most."""
        for shelf in set(self.stale).intersection(shelves):
            del self.stale[shelf]
        if self._are_many(shelves):
            _forget(self._retries, shelves)
            _forget(self._expiries, shelves)
            _forget(self._free, shelves)
        else:
            for shelf in shelves:
                self.set(shelf, NEVER, NEVER, NEVER)

    def _are_many(self, shelves: list[Shelf]) -> bool:
        """Whether to go through all times once is less work than to search for those of some shelves."""
        return 8 * len(shelves) > len(self._retries)

    def check(self, shelves: list[Shelf]) -> None:
        """Assert every invariant. O(leases)."""
        assert set(self.stale) <= set(shelves)
        assert len(self.stale) <= _LAGGING
        for shelf in shelves:
            kept, exact = (shelf.retry, shelf.expiry, shelf.free), shelf.times(expiring=True)
            early = all(time <= right for time, right in zip(kept, exact, strict=True))
            assert kept == exact or (shelf in self.stale and early)
        for times, which in ((self._retries, "retry"), (self._expiries, "expiry"), (self._free, "free")):
            of_shelves = [(getattr(shelf, which), shelf) for shelf in shelves]
            assert times == sorted(-(time << _OFFSET | shelf.bound) for time, shelf in of_shelves if time != NEVER)


def _move(times: list[int], bound: int, old: int, new: int) -> None:
    """A shelf has another time."""
    if old != NEVER:
        del times[bisect_left(times, -(old << _OFFSET | bound))]
    if new != NEVER:
        insort(times, -(new << _OFFSET | bound))


def _replace(times: list[int], shelves: list[Shelf], time: int) -> None:
    """Many shelves have one time."""
    _forget(times, shelves)
    times += [-(time << _OFFSET | shelf.bound) for shelf in shelves]
    times.sort()


def _forget(times: list[int], shelves: list[Shelf]) -> None:
    """Many shelves have no time any more."""
    bounds = {shelf.bound for shelf in shelves}
    times[:] = [time for time in times if -time & _OFFSETS not in bounds]
