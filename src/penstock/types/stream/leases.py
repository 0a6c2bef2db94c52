"""Leases: runs of offsets that were delivered together and wait to be acknowledged.

Kept by offset, for acknowledgements and listings, and by retry and by expiry time, to find what is due. No call looks at all
of them, and none pays for how many there are. That rules out what would be simplest, one dict of lease objects: at a million
it moves all its entries when it grows (24 ms), and the collector of cyclic garbage walks every object of a class of ours (over
100 ms). So leases lie on shelves of neighbours, as plain tuples of plain values, which the collector forgets about when it
first sees them, and a time and an offset are one number.

Invariant: leases never overlap, `count` is how many there are and `messages` the sum of their lengths. Ranges exclude their
end.

Rejected: sorted lists of all offsets and times. A search in one compares with numbers all over the memory, and the collector
walks them (17 ms at 300,000 leases, 1 ms now). The order of a shelf is an array of 16 bits a lease.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, NamedTuple

from sortedcontainers import SortedList

from penstock.types.stream.times import Times

_SHELF = 12  # offsets that differ only in so many bits are on one shelf
_PLACES = (1 << _SHELF) - 1
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


class _Shelf:
    """Leases that start within a few thousand offsets, which differ only in their last bits."""

    __slots__ = ("order", "rows")

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}  # by start
        self.order = array("H")  # the last bits of the starts, sorted


class Leases:
    """The leases of a group.

    >>> leases = Leases()
    >>> leases.put(Lease(1, 10, 500, 0, 0, 1, None))
    >>> leases.drop(4, 6), leases.messages, [(lease.start, lease.end) for lease in leases]
    (2, 7, [(1, 4), (6, 10)])
    """

    __slots__ = ("_end", "_expiries", "_numbers", "_retries", "_shelves", "count", "messages")

    def __init__(self) -> None:
        self.count = 0
        self.messages = 0
        self._end = 0  # no lease has offsets from there on
        self._shelves: dict[int, _Shelf] = {}  # by start >> _SHELF; none is empty
        self._numbers: SortedList[int] = SortedList()  # of the shelves
        self._retries = Times()  # retry_at << _OFFSET | start of every lease
        self._expiries = Times()  # the same of those that expire

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Lease]:
        return map(Lease._make, self._rows(0, 1 << _OFFSET))

    # What is first. All O(1).

    @property
    def first_offset(self) -> int | None:
        if not self.count:
            return None
        number: int = self._numbers[0]
        return number << _SHELF | self._shelves[number].order[0]

    def next_retry(self) -> int | None:
        least = self._retries.least
        return least >> _OFFSET if least is not None else None

    def next_deadline(self) -> int | None:
        """When next something falls due or expires."""
        retry, expiry = self._retries.least, self._expiries.least
        if retry is None:
            return None
        return (retry if expiry is None or retry < expiry else expiry) >> _OFFSET

    def due(self, now: int) -> Lease | None:
        """The lease that is due for a retry longest."""
        return self._least(self._retries, now)

    def expired(self, now: int) -> Lease | None:
        """The lease that is expired longest."""
        return self._least(self._expiries, now)

    def _least(self, times: Times, now: int) -> Lease | None:
        least = times.least
        if least is None or least >> _OFFSET > now:
            return None
        start = least & _OFFSETS
        return Lease._make(self._shelves[start >> _SHELF].rows[start])

    # Ranges. O(log (leases)), and O(1) a lease touched.

    def overlapping(self, start: int, end: int) -> Iterator[Lease]:
        """The leases that have offsets in a range; nothing may change while they are asked for."""
        return map(Lease._make, self._rows(start, end))

    def _rows(self, start: int, end: int) -> Iterator[Row]:
        if start >= end:
            return iter(())
        earlier = self._earlier(start)
        numbers = self._numbers.irange(start >> _SHELF, end - 1 >> _SHELF)
        later = chain.from_iterable(self._on_shelf(number, start, end) for number in numbers)
        return chain([earlier], later) if earlier is not None and earlier[1] > start else later

    def _on_shelf(self, number: int, start: int, end: int) -> Iterator[Row]:
        """The leases on a shelf that start in a range."""
        shelf, base = self._shelves[number], number << _SHELF
        order = shelf.order
        if base < start or end <= base + _PLACES:
            order = order[bisect_left(order, start - base) : bisect_left(order, end - base)]
        return map(shelf.rows.__getitem__, map(base.__or__, order))

    def _earlier(self, start: int) -> Row | None:
        """The last lease that starts before an offset."""
        for number in self._numbers.irange(None, start >> _SHELF, reverse=True):
            shelf, base = self._shelves[number], number << _SHELF
            at = bisect_left(shelf.order, start - base)
            if at:
                return shelf.rows[base | shelf.order[at - 1]]
        return None

    def drop(self, start: int, end: int) -> int:
        """Take a range out, cutting leases; answer how many messages were pending in it."""
        shelf = self._shelves.get(start >> _SHELF)
        row = shelf.rows.get(start) if shelf is not None else None
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
        rows = list(islice(self._rows(start, end), limit))
        if not rows:
            return 0
        first, last = rows[0], rows[-1]
        dropped: int = sum([row[1] - row[0] for row in rows]) - max(start - first[0], 0) - max(last[1] - end, 0)
        if first[0] < start:
            self._shelves[first[0] >> _SHELF].rows[first[0]] = (first[0], start, *first[2:])  # with the same times
            del rows[0]
        if len(rows) == 1:
            self._remove(rows[0])
        elif rows:
            self._remove_all(rows)
        if last[1] > end:
            self._insert((end, *last[1:]))
        self.messages -= dropped
        return dropped

    def put(self, lease: Lease) -> None:
        """Make a lease the only one of its offsets."""
        if lease.start < self._end:
            self.drop(lease.start, lease.end)
        self._insert(tuple(lease))
        self.messages += lease.end - lease.start

    # One lease. O(log (leases)).

    def _insert(self, row: Row) -> None:
        start, end, retry_at, expire_at, _, _, _ = row
        number, place = start >> _SHELF, start & _PLACES
        shelf = self._shelves.get(number)
        if shelf is None:
            shelf = self._shelves[number] = _Shelf()
            self._numbers.add(number)
        shelf.rows[start] = row
        order = shelf.order
        if not order or place > order[-1]:
            order.append(place)
        else:
            order.insert(bisect_right(order, place), place)
        self.count += 1
        if end > self._end:
            self._end = end
        self._retries.add(retry_at << _OFFSET | start)
        if expire_at:
            self._expiries.add(expire_at << _OFFSET | start)

    def _remove(self, row: Row) -> None:
        start, _, retry_at, expire_at, _, _, _ = row
        number = start >> _SHELF
        shelf = self._shelves[number]
        del shelf.rows[start]
        if shelf.rows:
            del shelf.order[bisect_left(shelf.order, start & _PLACES)]
        else:
            self._clear(number)
        self.count -= 1
        self._retries.remove(retry_at << _OFFSET | start)
        if expire_at:
            self._expiries.remove(expire_at << _OFFSET | start)

    def _remove_all(self, rows: list[Row]) -> None:
        """Take out leases that follow each other, a shelf at a time."""
        done = 0
        while done < len(rows):
            start = rows[done][0]
            number = start >> _SHELF
            rest = bisect_left(rows, (number + 1 << _SHELF,), done)
            shelf = self._shelves[number]
            if rest - done == len(shelf.order):
                self._clear(number)
            else:
                first = bisect_left(shelf.order, start & _PLACES)
                del shelf.order[first : first + rest - done]
                for row in rows[done:rest]:
                    del shelf.rows[row[0]]
            done = rest
        self.count -= len(rows)
        self._retries.remove_all([row[2] << _OFFSET | row[0] for row in rows])
        self._expiries.remove_all([row[3] << _OFFSET | row[0] for row in rows if row[3]])

    def _clear(self, number: int) -> None:
        del self._shelves[number]
        self._numbers.remove(number)
        if not self._shelves:
            self._end = 0

    # The whole.

    def size(self) -> int:
        """Bytes of memory, about."""
        return 600 + 380 * self.count + 140 * len(self._expiries)

    def check(self) -> None:
        """Assert every invariant. O(leases)."""
        assert sorted(self._shelves) == list(self._numbers)
        for number, shelf in self._shelves.items():
            assert shelf.order
            assert [number << _SHELF | place for place in shelf.order] == sorted(shelf.rows)
            assert all(row[0] == start for start, row in shelf.rows.items())
        leases = list(self)
        assert self.count == len(leases) == sum(len(shelf.rows) for shelf in self._shelves.values())
        end = 0
        for lease in leases:
            assert end <= lease.start < lease.end
            assert lease.attempts >= 1
            end = lease.end
        assert end <= self._end
        assert self.messages == sum(lease.end - lease.start for lease in leases)
        for times, of_leases in (
            (self._retries, [(lease.retry_at, lease.start) for lease in leases]),
            (self._expiries, [(lease.expire_at, lease.start) for lease in leases if lease.expire_at]),
        ):
            times.check()
            assert [(time >> _OFFSET, time & _OFFSETS) for time in times] == sorted(of_leases)
