"""A chunk: neighbouring leases, as numbers in arrays.

The count of attempts, the most that there may be, and whether a message is only reserved share one number: they change
together, and a lease takes 64 bytes.

Invariant: `starts` rise, and `cells` has WIDTH numbers for each of them. `letters` has every dead letter key of the
leases once, and perhaps some of removed leases, at most twice as many as a chunk has room for.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import NamedTuple

FULL = 128  # leases that a chunk has room for
NEVER = 1 << 63  # later than any time
LAST_TIME = NEVER - 1  # that can be kept

WIDTH = 7  # numbers that are kept for a lease, besides its start
END, RETRY, EXPIRY, ATTEMPTS, DELIVERED, TOKEN, LETTER = range(WIDTH)  # those that decide when it ends side by side

MOST_ATTEMPTS = 0xFFFFFFFF
MOST_LIMIT = (1 << 29) - 1
_LIMIT = 32  # the bit where the limit begins in the number of attempts
_RESERVED = 1 << 62


class Lease(NamedTuple):
    """Messages that were delivered together and wait to be acknowledged."""

    start: int
    end: int
    retry_at: int  # deliver again from then on
    expire_at: int  # give up from then on; 0 is never, -n is n milliseconds after they are begun
    first_delivered: int  # -1: not yet, a group waits until the messages are visible
    attempts: int  # how often they were begun
    dead_letter: bytes | None  # the key that gets them when they are given up
    token: int = 0  # the delivery under which they are held; 0 if they were given back
    limit: int = 0  # give up instead of delivering again after so many attempts; 0 is never
    reserved: bool = False  # delivered, but not begun

    @property
    def delayed(self) -> bool:
        return self.first_delivered < 0

    @property
    def given_back(self) -> bool:
        """Whether they were delivered, and no delivery holds them any more."""
        return not self.token and not self.delayed

    @property
    def end_at(self) -> int:
        """When they are given up, if nothing happens before; 0 is never. The last attempt lasts until the retry."""
        expire_at = self.expire_at
        if 0 < self.limit <= self.attempts:
            return min(self.retry_at, expire_at) if expire_at > 0 else self.retry_at
        return max(expire_at, 0)

    def begun(self, now: int) -> Lease:
        """The same in its next attempt; the time to its expiry counts from the first."""
        expire_at = self.expire_at if self.expire_at >= 0 else min(now - self.expire_at, LAST_TIME)
        attempts = min(self.attempts + 1, MOST_ATTEMPTS)
        return self._replace(attempts=attempts, expire_at=expire_at, reserved=False)


class LeaseChunk:
    """Neighbouring leases."""

    __slots__ = ("bound", "cells", "expiry", "free", "letters", "limited", "messages", "retry", "starts")

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self.starts = array("q")  # sorted
        self.cells = array("q")  # WIDTH numbers a lease, in the same order
        self.letters: list[bytes | None] = [None]  # the keys that the last of the WIDTH numbers refers to
        self.messages = 0
        self.limited = False  # whether a lease may have a limit of attempts
        self.retry = NEVER  # the time of the first retry, or an earlier one; as it is in LeaseDueTimes
        self.expiry = NEVER  # the same of the first expiry
        self.free = NEVER  # the same of the first retry of a lease that was given back

    def column(self, which: int, first: int = 0, stop: int | None = None) -> array[int]:
        """One number of each lease from a row on."""
        return self.cells[first * WIDTH + which : None if stop is None else stop * WIDTH : WIDTH]

    def find(self, start: int, end: int) -> int | None:
        """The row of the lease of exactly these offsets."""
        starts = self.starts
        row = bisect_left(starts, start)
        return row if row < len(starts) and starts[row] == start and self.cells[row * WIDTH + END] == end else None

    def lease(self, row: int) -> Lease:
        end, retry_at, expire_at, attempts, delivered, token, letter = self.cells[row * WIDTH : (row + 1) * WIDTH]
        start, dead_letter = self.starts[row], self.letters[letter]
        if attempts <= MOST_ATTEMPTS:
            return Lease(start, end, retry_at, expire_at, delivered, attempts, dead_letter, token)
        attempts, limit, reserved = _attempts(attempts)
        return Lease(start, end, retry_at, expire_at, delivered, attempts, dead_letter, token, limit, reserved)

    def leases(self, first: int, stop: int) -> Iterator[Lease]:
        return map(self.lease, range(first, stop))

    def length(self, first: int, stop: int) -> int:
        """Messages of some leases."""
        return sum(self.column(END, first, stop)) - sum(self.starts[first:stop])

    def cells_of(self, lease: Lease) -> tuple[int, ...]:
        _, end, retry_at, expire_at, delivered, attempts, dead_letter, token, limit, reserved = lease
        if limit:
            attempts |= limit << _LIMIT
            self.limited = True
        if reserved:
            attempts |= _RESERVED
        return end, retry_at, expire_at, attempts, delivered, token, self.letter(dead_letter)

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

    def distinct_names(self) -> Iterable[bytes]:
        """The dead letter keys of the leases, each once."""
        if len(self.letters) == 1:
            return ()
        return [name for number in set(self.column(LETTER)) if (name := self.letters[number]) is not None]

    def name(self, names: list[bytes | None]) -> None:
        """Give each lease its dead letter key, and forget all others."""
        self.letters = list(dict.fromkeys([None, *names]))
        self.cells[LETTER::WIDTH] = array("q", map(self.letters.index, names))

    def times(self, expiring: bool) -> tuple[int, int, int]:
        """When the first retry is, when first a lease is given up, if there are leases that expire, and when the first
        retry of a lease is that was given back. O(leases).
        """
        retries, ends = self.column(RETRY), self.column(EXPIRY) if expiring or self.limited else array("q")
        over = map(_end, retries, ends, self.column(ATTEMPTS)) if self.limited else ends
        free = [retries[row] for row in self._given_back()]
        return (
            min(retries, default=NEVER),
            min([end for end in over if end > 0], default=NEVER),
            min(free, default=NEVER),
        )

    def _given_back(self) -> list[int]:
        """The rows of leases that no delivery holds; those that wait until they are visible are none."""
        tokens = self.column(TOKEN)
        if 0 not in tokens:
            return []
        delivered = self.column(DELIVERED)
        return [row for row, token in enumerate(tokens) if not token and delivered[row] >= 0]

    def end_at(self, row: int) -> int:
        """When a lease is given up; 0 is never."""
        _, retry_at, expire_at, attempts = self.cells[row * WIDTH : row * WIDTH + ATTEMPTS + 1]
        return _end(retry_at, expire_at, attempts)

    def free_at(self, time: int) -> int:
        """The row of the first lease that was given back and is due at a time."""
        return next(row for row in self._given_back() if self.cells[row * WIDTH + RETRY] == time)

    def ending_at(self, time: int) -> int:
        """The row of the first lease that is given up at a time."""
        if not self.limited:
            return self.column(EXPIRY).index(time)
        return [*map(_end, self.column(RETRY), self.column(EXPIRY), self.column(ATTEMPTS))].index(time)


def _end(retry_at: int, expire_at: int, attempts: int) -> int:
    """When a lease with these cells is given up; 0 is never. The last attempt lasts until the retry."""
    if attempts > MOST_ATTEMPTS:
        done, limit, _ = _attempts(attempts)
        if 0 < limit <= done:
            return min(retry_at, expire_at) if expire_at > 0 else retry_at
    return max(expire_at, 0)


def _attempts(number: int) -> tuple[int, int, bool]:
    """Attempts, limit, and whether it is reserved, from the one number."""
    return number & MOST_ATTEMPTS, number >> _LIMIT & MOST_LIMIT, number >= _RESERVED
