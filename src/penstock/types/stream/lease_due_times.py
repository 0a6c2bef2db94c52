"""When something is due in the chunks of leases: the first retry and the first expiry of each chunk, sorted over all.

Every chunk knows a time before which none of its leases is due, and one before which none expires. Which of its leases
it is, is looked up in the chunk when the time has come. A lease in its last attempt expires when its retry is due.
Retries of leases that were given back (`free`) are found also by themselves: no member holds them, so an outage of the
server puts none of them off.

Invariant: a chunk's times are exact, or it is one of the few in `stale` and they may be too early.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from penstock.types.stream.lease_chunk import DELIVERED, EXPIRY, NEVER, RETRY, TOKEN, WIDTH, Lease, LeaseChunk

_LAGGING = 8  # chunks whose times may be out of date
_OFFSET = 63  # bits of an offset
_OFFSETS = (1 << _OFFSET) - 1


class LeaseDueTimes:
    """See the top of this file. O(log (chunks)) a call, if not said otherwise."""

    __slots__ = ("_expiries", "_free", "_retries", "stale")

    def __init__(self) -> None:
        # -(retry << _OFFSET | bound) of every chunk: the soonest is last, where lists change cheaply
        self._retries: list[int] = []
        self._expiries: list[int] = []  # the same of those with leases that expire
        self._free: list[int] = []  # the same of those with leases that were given back: their retries
        self.stale: dict[LeaseChunk, None] = {}  # those whose first lease by time went

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
        """The time of the lease that is due longest, and the bound of its chunk."""
        return self._first(self._retries, now)

    def first_expired(self, now: int) -> tuple[int, int] | None:
        """The time of the lease that expired longest ago, and the bound of its chunk."""
        return self._first(self._expiries, now)

    def first_free(self, now: int) -> tuple[int, int] | None:
        """The time of the lease that was given back and is due longest, and the bound of its chunk."""
        return self._first(self._free, now)

    def _first(self, times: list[int], now: int) -> tuple[int, int] | None:
        while times and (time := -times[-1] >> _OFFSET) <= now:
            if not self.stale:
                return time, -times[-1] & _OFFSETS
            self._refresh()
        return None

    def _refresh(self) -> None:
        """Make the times of all chunks exact."""
        while self.stale:
            chunk, _ = self.stale.popitem()
            self.set(chunk, *chunk.times(chunk.expiry != NEVER))

    # What changed.

    def set(self, chunk: LeaseChunk, retry: int, expiry: int, free: int) -> None:
        """A chunk has something to do at these times, and not before."""
        if retry != chunk.retry:
            _move(self._retries, chunk.bound, chunk.retry, retry)
            chunk.retry = retry
        if expiry != chunk.expiry:
            _move(self._expiries, chunk.bound, chunk.expiry, expiry)
            chunk.expiry = expiry
        if free != chunk.free:
            _move(self._free, chunk.bound, chunk.free, free)
            chunk.free = free

    def come(self, chunk: LeaseChunk, lease: Lease) -> None:
        """A lease is there now: something may happen earlier than before."""
        retry, expiry = lease.retry_at, lease.expire_at
        if expiry < 0 or lease.limit:
            expiry = lease.end_at
        free = NEVER if lease.token or lease.delayed else retry  # `given_back`, in less time
        if retry < chunk.retry or 0 != expiry < chunk.expiry or free < chunk.free:
            self.set(chunk, min(retry, chunk.retry), min(expiry or NEVER, chunk.expiry), min(free, chunk.free))

    def leave(self, chunk: LeaseChunk, row: int) -> None:
        """A lease is about to go, and what was to happen first may go with it."""
        cells, first = chunk.cells, row * WIDTH
        free = cells[first + RETRY] == chunk.free and not cells[first + TOKEN]
        if (
            free
            or cells[first + RETRY] == chunk.retry
            or cells[first + EXPIRY] == chunk.expiry
            or (chunk.limited and chunk.end_at(row) == chunk.expiry)
        ):
            # Most often a neighbour was read in the same millisecond, the next one if leases go in order.
            times = cells[first + RETRY : first + DELIVERED]
            for at in (first + WIDTH, first - WIDTH) if row else (first + WIDTH,):
                if cells[at + RETRY : at + DELIVERED] == times and not (free and cells[at + TOKEN]):
                    return
            self.mark(chunk)

    def mark(self, chunk: LeaseChunk) -> None:
        """The times of a chunk may be too early.

        Looking for the right ones at once would make it slow to take out one by one.
        """
        stale = self.stale
        stale[chunk] = None
        if len(stale) > _LAGGING:
            oldest = next(iter(stale))
            del stale[oldest]
            self.set(oldest, *oldest.times(oldest.expiry != NEVER))

    def postpone(self, chunks: list[LeaseChunk], retry_at: int, give_back: bool) -> None:
        """All leases of some chunks are due at one time. O(chunks) at the most."""
        free = [chunk for chunk in chunks if give_back or chunk.free != NEVER]
        if self._are_many(chunks):
            _replace(self._retries, chunks, retry_at)
            _replace(self._free, free, retry_at)
            for chunk in chunks:
                chunk.retry = retry_at
            for chunk in free:
                chunk.free = retry_at
        else:
            for chunk in chunks:
                self.set(chunk, retry_at, chunk.expiry, chunk.free)
            for chunk in free:
                self.set(chunk, retry_at, chunk.expiry, retry_at)

    def forget(self, chunks: list[LeaseChunk]) -> None:
        """Some chunks are gone. O(chunks) at the most."""
        for chunk in set(self.stale).intersection(chunks):
            del self.stale[chunk]
        if self._are_many(chunks):
            _forget(self._retries, chunks)
            _forget(self._expiries, chunks)
            _forget(self._free, chunks)
        else:
            for chunk in chunks:
                self.set(chunk, NEVER, NEVER, NEVER)

    def _are_many(self, chunks: list[LeaseChunk]) -> bool:
        """Whether to go through all times once is less work than to search for those of some chunks."""
        return 8 * len(chunks) > len(self._retries)

    def check(self, chunks: list[LeaseChunk]) -> None:
        """Assert every invariant. O(leases)."""
        assert set(self.stale) <= set(chunks)
        assert len(self.stale) <= _LAGGING
        for chunk in chunks:
            kept, exact = (chunk.retry, chunk.expiry, chunk.free), chunk.times(expiring=True)
            early = all(time <= right for time, right in zip(kept, exact, strict=True))
            assert kept == exact or (chunk in self.stale and early)
        for times, which in ((self._retries, "retry"), (self._expiries, "expiry"), (self._free, "free")):
            of_chunks = [(getattr(chunk, which), chunk) for chunk in chunks]
            assert times == sorted(-(time << _OFFSET | chunk.bound) for time, chunk in of_chunks if time != NEVER)


def _move(times: list[int], bound: int, old: int, new: int) -> None:
    """A chunk has another time."""
    if old != NEVER:
        del times[bisect_left(times, -(old << _OFFSET | bound))]
    if new != NEVER:
        insort(times, -(new << _OFFSET | bound))


def _replace(times: list[int], chunks: list[LeaseChunk], time: int) -> None:
    """Many chunks have one time."""
    _forget(times, chunks)
    times += [-(time << _OFFSET | chunk.bound) for chunk in chunks]
    times.sort()


def _forget(times: list[int], chunks: list[LeaseChunk]) -> None:
    """Many chunks have no time any more."""
    bounds = {chunk.bound for chunk in chunks}
    times[:] = [time for time in times if -time & _OFFSETS not in bounds]
