"""Random members of a set or a hash, each equally likely, in O(1), while members are added and removed.

Neither a Python set nor a dict has an n-th member, so a collection that is sampled gets a Sampler: a list of its
members in any order. A removed member stays in the list, marked as gone, until a draw finds it, which costs one more
try, once; a member that is added again in between is only unmarked. So the invariant is: the list holds every live and
every gone member once. When more than half of them are gone, the list is rebuilt.

Rejected: the position of every member in a dict beside the list. Removal is immediate, but it takes ten times the
memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from random import random


class Sampler:
    """See the top of this file. Building one is O(N), everything else O(1), amortised, for each member."""

    __slots__ = ("_gone", "_order")

    def __init__(self, members: Iterable[bytes]) -> None:
        self._order = list(members)
        self._gone: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._order) - len(self._gone)

    def add(self, member: bytes) -> None:
        """The collection got a new member."""
        if member in self._gone:
            self._gone.remove(member)
        else:
            self._order.append(member)

    def remove(self, member: bytes) -> None:
        """The collection lost a member."""
        self._gone.add(member)
        if 2 * len(self._gone) > len(self._order):
            self._order = [member for member in self._order if member not in self._gone]
            self._gone.clear()

    def one(self) -> bytes:
        """A random member; there must be one."""
        return self._order[self._draw(0)]

    def take(self) -> bytes:
        """A random member, removed."""
        place = self._draw(0)
        order = self._order
        member = order[place]
        last = order.pop()
        if place < len(order):
            order[place] = last
        return member

    def several(self, count: int) -> list[bytes]:
        """So many different members in random order; there must be as many."""
        for done in range(count):
            place = self._draw(done)
            order = self._order
            order[done], order[place] = order[place], order[done]
        return self._order[:count]

    def check(self, members: Collection[bytes]) -> None:
        """Assert every invariant, and that `members` are the sampled ones; for tests."""
        assert len(set(self._order)) == len(self._order), self._order
        assert set(self._order) - self._gone == set(members), (self._order, self._gone, members)
        assert self._gone <= set(self._order), (self._order, self._gone)

    def _draw(self, start: int) -> int:
        """The position of a random live member, from `start` on; removes the gone ones that it finds."""
        order, gone = self._order, self._gone
        while True:
            place = start + int(random() * (len(order) - start))
            if not gone or order[place] not in gone:
                return place
            gone.remove(order[place])
            last = order.pop()
            if place < len(order):
                order[place] = last
