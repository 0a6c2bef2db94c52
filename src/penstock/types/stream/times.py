"""A set of numbers of which the least is asked for: when leases fall due.

Numbers lie on shelves, each of a range of them, and a shelf is not sorted: to take one out is a search among the thousand
bounds, which the processor has at hand, and a dictionary look-up. A sorted list is searched by value to the end, and with a
million numbers most of those values have to come from memory (2.2 us a removal in no order, against 1.2 us this way; in order,
where what comes next is at hand, 0.7 and 0.4). Only the first shelf is put in order, when the least is asked for, and only once
for as long as it lasts.

Shelves are dictionaries, not sets or lists: the collector of cyclic garbage does not walk a dictionary of plain numbers.

Invariant: bounds rise, the first is below all numbers; the numbers of shelf n are from bound n on and below the next. No
shelf is empty but the only one. What is in `_front` is sorted, and has each number of the first shelf that is not above `_reach`.

Rejected: a heap from which what is taken out is not taken (with a million some call sweeps a million stale ones).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

_NONE = -(1 << 127)  # less than a time and an offset, be the time that of a damaged file
_FULL = 1024  # numbers; a shelf with more is split
_FEW = 256  # neighbours that together have no more are put together


class Times:
    """A set of numbers above -(1 << 127).

    >>> times = Times()
    >>> times.add(7), times.add(3), times.least
    (None, None, 3)
    >>> times.remove(3), times.least, len(times)
    (None, 7, 1)
    """

    __slots__ = ("_bounds", "_count", "_front", "_reach", "_shelves")

    def __init__(self) -> None:
        self._count = 0
        self._bounds = [_NONE]
        self._shelves: list[dict[int, None]] = [{}]
        self._front: list[int] = []  # negated, so that the least is at the end; some may be gone from the shelf
        self._reach = _NONE

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        """In order."""
        for shelf in self._shelves:
            yield from sorted(shelf)

    @property
    def least(self) -> int | None:
        """O(1), and O(log(_FULL)) once for every number there is."""
        if not self._count:
            return None
        front, shelf = self._front, self._shelves[0]
        while front:
            if -front[-1] in shelf:
                return -front[-1]
            front.pop()
        front += sorted([-number for number in shelf])
        self._reach = -front[0]
        return -front[-1]

    def add(self, number: int) -> None:
        """O(log (numbers))."""
        at = bisect_right(self._bounds, number) - 1
        shelf = self._shelves[at]
        shelf[number] = None
        self._count += 1
        if not at and number <= self._reach:
            place = bisect_left(self._front, -number)
            if place == len(self._front) or self._front[place] != -number:
                self._front.insert(place, -number)
        if len(shelf) > _FULL:
            self._split(at)

    def remove(self, number: int) -> None:
        """Take out one that is there. O(log (numbers))."""
        at = bisect_right(self._bounds, number) - 1
        shelf = self._shelves[at]
        del shelf[number]
        self._count -= 1
        if len(shelf) <= _FEW // 2 and len(self._shelves) > 1:
            self._tidy(at)

    def remove_all(self, numbers: list[int]) -> None:
        """Take out many that are there, sorting them for it. A fraction of a microsecond each."""
        numbers.sort()
        done = len(numbers)
        self._count -= done
        while done:  # from the last on, so that shelves that go do not move those still to come
            at = bisect_right(self._bounds, numbers[done - 1]) - 1
            first = bisect_left(numbers, self._bounds[at], 0, done)
            shelf = self._shelves[at]
            if done - first == len(shelf):
                shelf.clear()
            else:
                for number in numbers[first:done]:
                    del shelf[number]
            if len(shelf) <= _FEW // 2:
                self._tidy(at)
            done = first

    def _split(self, at: int) -> None:
        numbers = sorted(self._shelves[at])
        # Times mostly rise. The last shelf is left nearly full, for no more will come to it.
        half = len(numbers) // 2 if at + 1 < len(self._shelves) else len(numbers) - _FEW
        self._shelves[at : at + 1] = [dict.fromkeys(numbers[:half]), dict.fromkeys(numbers[half:])]
        self._bounds.insert(at + 1, numbers[half])
        if not at:
            self._forget_front()

    def _tidy(self, at: int) -> None:
        """Put a shelf with few on it together with a neighbour that has few, or take it away if it is empty."""
        shelves = self._shelves
        for left in (at, at - 1):
            if 0 <= left < len(shelves) - 1:
                one, other = shelves[left], shelves[left + 1]
                if not one or not other or len(one) + len(other) <= _FEW:
                    shelves[left : left + 2] = [{**one, **other}]
                    del self._bounds[left + 1]
                    if not left:
                        self._forget_front()
                    return

    def _forget_front(self) -> None:
        self._front.clear()
        self._reach = _NONE

    def check(self) -> None:
        """Assert every invariant. O(numbers)."""
        assert self._bounds == sorted(set(self._bounds))
        assert self._bounds[0] == _NONE
        assert len(self._bounds) == len(self._shelves)
        assert all(self._shelves) or len(self._shelves) == 1
        for at, shelf in enumerate(self._shelves):
            assert len(shelf) <= _FULL
            assert all(bisect_right(self._bounds, number) - 1 == at for number in shelf)
        assert self._count == sum(map(len, self._shelves))
        assert self._front == sorted(set(self._front))
        reached = {-number for number in self._shelves[0] if number <= self._reach}
        assert reached <= set(self._front)
        assert self.least == min(self._shelves[0], default=None)
