"""Leases: runs of offsets that were delivered together and wait to be acknowledged.

Kept by offset, for acknowledgements and listings, and by retry and by expiry time, to find what is due. No call looks at all
of them, and none pays for how many there are. That rules out what would be simplest, one dict of lease objects: at a million
it moves all its entries when it grows (24 ms), and the collector of cyclic garbage walks every object of a class of ours (over
100 ms). So leases lie on shelves of neighbours, as plain tuples of plain values, which the collector forgets about when it
first sees them, and a time and an offset are one number.

Invariant: leases never overlap, and `messages` is the sum of their lengths. Ranges exclude their end.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from sortedcontainers import SortedList

_SHELF = 12  # offsets that differ only in so many bits are on one shelf
_OFFSET = 63  # bits of an offset
_OFFSETS = (1 << _OFFSET) - 1

Row = tuple[Any, ...]  # a Lease as it is kept


class Lease(NamedTuple):
    """Messages that were delivered together and wait to be acknowledged."""

    start: int
    end: int
    retry_at: int  # deliver again from then on
    expire_at: int  # give up from then on; 0 is never
    first_delivered: int
    attempts: int
    dead_letter: bytes | None  # the key that gets them when they expire


class Leases:
    """The leases of a group.

    >>> leases = Leases()
    >>> leases.put(Lease(1, 10, 500, 0, 0, 1, None))
    >>> leases.drop(4, 6), leases.messages, [(lease.start, lease.end) for lease in leases]
    (2, 7, [(1, 4), (6, 10)])
    """

    __slots__ = ("_expiries", "_retries", "_shelves", "_starts", "messages")

    def __init__(self) -> None:
        self.messages = 0
        self._shelves: dict[int, dict[int, Row]] = {}  # start >> _SHELF -> start -> lease
        self._starts: SortedList[int] = SortedList()
        self._retries: SortedList[int] = SortedList()  # retry_at << _OFFSET | start of every lease
        self._expiries: SortedList[int] = SortedList()  # the same of those that expire

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[Lease]:
        return map(self._at, self._starts)

    def _at(self, start: int) -> Lease:
        return Lease._make(self._shelves[start >> _SHELF][start])

    # What is first. All O(1).

    @property
    def first_offset(self) -> int | None:
        return self._starts[0] if self._starts else None

    def next_retry(self) -> int | None:
        return self._retries[0] >> _OFFSET if self._retries else None

    def next_deadline(self) -> int | None:
        """When next something falls due or expires."""
        return min((times[0] >> _OFFSET for times in (self._retries, self._expiries) if times), default=None)

    def due(self, now: int) -> Lease | None:
        """The lease that is due for a retry longest."""
        retries = self._retries
        return self._at(retries[0] & _OFFSETS) if retries and retries[0] >> _OFFSET <= now else None

    def expired(self, now: int) -> Lease | None:
        """The lease that is expired longest."""
        expiries = self._expiries
        return self._at(expiries[0] & _OFFSETS) if expiries and expiries[0] >> _OFFSET <= now else None

    # Ranges. O(log (leases)) a lease touched.

    def overlapping(self, start: int, end: int) -> Iterator[Lease]:
        """The leases that have offsets in a range; nothing may change while they are asked for."""
        if start >= end:
            return
        earlier = next(self._starts.irange(None, start, reverse=True), None)
        if earlier is not None and (lease := self._at(earlier)).end > start:
            yield lease
        yield from map(self._at, self._starts.irange(start, end, inclusive=(False, False)))

    def drop(self, start: int, end: int) -> int:
        """Take a range out, cutting leases; answer how many messages were pending in it."""
        row = self._row(start)
        if row is not None and row[1] == end:  # as delivered: the common case
            self._remove(row)
            self.messages -= end - start
            return end - start
        return self._drop_some(start, end, None)

    def drop_before(self, end: int, limit: int) -> tuple[int, int] | None:
        """Take out what is before an offset, of at most so many leases; answer the range that has none any more.

        None if there was nothing before it.
        """
        start = self.first_offset
        if start is None or start >= end:
            return None
        self._drop_some(start, end, limit)
        rest = self.first_offset
        return start, end if rest is None else min(rest, end)

    def _drop_some(self, start: int, end: int, limit: int | None) -> int:
        dropped = 0
        for lease in list(islice(self.overlapping(start, end), limit)):
            dropped += min(end, lease.end) - max(start, lease.start)
            if lease.start < start:
                self._shelves[lease.start >> _SHELF][lease.start] = tuple(
                    lease._replace(end=start)
                )  # with the same times
            else:
                self._remove(lease)
            if lease.end > end:
                self._insert(lease._replace(start=end))
        self.messages -= dropped
        return dropped

    def put(self, lease: Lease) -> None:
        """Make a lease the only one of its offsets."""
        starts = self._starts
        if starts and lease.start < self._shelves[starts[-1] >> _SHELF][starts[-1]][1]:
            self.drop(lease.start, lease.end)
        self._insert(lease)
        self.messages += lease.end - lease.start

    # One lease. O(log (leases)).

    def _row(self, start: int) -> Row | None:
        shelf = self._shelves.get(start >> _SHELF)
        return shelf.get(start) if shelf is not None else None

    def _insert(self, lease: Lease) -> None:
        start = lease.start
        shelf = self._shelves.get(start >> _SHELF)
        if shelf is None:
            shelf = self._shelves[start >> _SHELF] = {}
        shelf[start] = tuple(lease)
        self._starts.add(start)
        self._retries.add(lease.retry_at << _OFFSET | start)
        if lease.expire_at:
            self._expiries.add(lease.expire_at << _OFFSET | start)

    def _remove(self, row: Row) -> None:
        start, _, retry_at, expire_at, *_ = row
        number = start >> _SHELF
        shelf = self._shelves[number]
        del shelf[start]
        if not shelf:
            del self._shelves[number]
        self._starts.remove(start)
        self._retries.remove(retry_at << _OFFSET | start)
        if expire_at:
            self._expiries.remove(expire_at << _OFFSET | start)

    # The whole.

    def size(self) -> int:
        """Bytes of memory, about."""
        return 400 + 360 * len(self._starts) + 50 * len(self._expiries)

    def check(self) -> None:
        """Assert every invariant. O(leases)."""
        leases = list(self)
        assert sorted(start for shelf in self._shelves.values() for start in shelf) == [lease.start for lease in leases]
        assert all(start >> _SHELF == number for number, shelf in self._shelves.items() for start in shelf)
        assert all(self._shelves.values())
        end = 0
        for lease in leases:
            assert end <= lease.start < lease.end
            assert lease.attempts >= 1
            end = lease.end
        assert self.messages == sum(lease.end - lease.start for lease in leases)
        for times, of_leases in (
            (self._retries, [(lease.retry_at, lease.start) for lease in leases]),
            (self._expiries, [(lease.expire_at, lease.start) for lease in leases if lease.expire_at]),
        ):
            assert [(time >> _OFFSET, time & _OFFSETS) for time in times] == sorted(of_leases)
