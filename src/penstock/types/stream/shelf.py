"""A shelf: neighbouring leases, as numbers in arrays.

Invariant: `starts` rise, and `cells` has WIDTH numbers for each of them. `letters` has every dead letter key of the
leases once, and perhaps some of removed leases, at most twice as many as a shelf has room for.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

FULL = 128  # leases that a shelf has room for
NEVER = 1 << 63  # later than any time

WIDTH = 6  # numbers that are kept for a lease, besides its start
END, RETRY, EXPIRY, DELIVERED, ATTEMPTS, LETTER = range(WIDTH)


class Lease(NamedTuple):
    """Messages that were delivered together and wait to be acknowledged."""

    start: int
    end: int
    retry_at: int  # deliver again from then on
    expire_at: int  # drop from then on; 0 is never
    first_delivered: int
    attempts: int
    dead_letter: bytes | None  # the key that gets them when they expire


class Shelf:
    """Neighbouring leases."""

    __slots__ = ("bound", "cells", "expiry", "letters", "messages", "retry", "starts")

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self.starts = array("q")  # sorted
        self.cells = array("q")  # WIDTH numbers a lease, in the same order
        self.letters: list[bytes | None] = [None]  # the keys that the last of the WIDTH numbers refers to
        self.messages = 0
        self.retry = NEVER  # the time of the first retry, or an earlier one; as it is in ShelfTimes
        self.expiry = NEVER  # the same of the first expiry

    def column(self, which: int, first: int = 0, stop: int | None = None) -> array[int]:
        """One number of each lease from a row on."""
        return self.cells[first * WIDTH + which : None if stop is None else stop * WIDTH : WIDTH]

    def find(self, start: int, end: int) -> int | None:
        """The row of the lease of exactly these offsets."""
        starts = self.starts
        row = bisect_left(starts, start)
        return row if row < len(starts) and starts[row] == start and self.cells[row * WIDTH + END] == end else None

    def lease(self, row: int) -> Lease:
        end, retry_at, expire_at, delivered, attempts, letter = self.cells[row * WIDTH : (row + 1) * WIDTH]
        return Lease(self.starts[row], end, retry_at, expire_at, delivered, attempts, self.letters[letter])

    def leases(self, first: int, stop: int) -> Iterator[Lease]:
        letters = map(self.letters.__getitem__, self.column(LETTER, first, stop))
        columns = [self.column(which, first, stop) for which in range(LETTER)]
        return map(Lease._make, zip(self.starts[first:stop], *columns, letters, strict=True))

    def length(self, first: int, stop: int) -> int:
        """Messages of some leases."""
        return sum(self.column(END, first, stop)) - sum(self.starts[first:stop])

    def cells_of(self, lease: Lease) -> tuple[int, ...]:
        _, end, retry_at, expire_at, delivered, attempts, dead_letter = lease
        return end, retry_at, expire_at, delivered, attempts, self.letter(dead_letter)

    def letter(self, name: bytes | None) -> int:
        """The number that stands for a dead letter key."""
        if name is None:
            return 0
        if name in self.letters:
            return self.letters.index(name)
        if len(self.letters) > 2 * FULL:
            self.name(self.names())  # most belonged to removed leases
        self.letters.append(name)
        return len(self.letters) - 1

    def names(self) -> list[bytes | None]:
        """The dead letter key of each lease."""
        return [self.letters[number] for number in self.column(LETTER)]

    def name(self, names: list[bytes | None]) -> None:
        """Give each lease its dead letter key, and forget all others."""
        self.letters = list(dict.fromkeys([None, *names]))
        self.cells[LETTER::WIDTH] = array("q", map(self.letters.index, names))

    def times(self, expiring: bool) -> tuple[int, int]:
        """When the first retry and the first expiry are, if there are leases that expire. O(leases)."""
        expiry = min(filter(None, self.column(EXPIRY)), default=NEVER) if expiring else NEVER
        return min(self.column(RETRY), default=NEVER), expiry
