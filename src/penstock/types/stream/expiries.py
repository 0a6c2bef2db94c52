"""When leases of the groups of a stream may expire: a time for each group that has such leases, in order.

A group's time may be too early, never too late. Upkeep looks at the groups whose time has come, and sets their next
one. So a stream with a hundred thousand groups costs nothing while none of them has something to give up.

It is not dumped: a stream that is loaded has every group looked at once.

Rejected: one time for the whole stream, which had all groups visited when one lease expired (100,000 groups: 130 ms);
a heap, from which times that were replaced go only in sweeps.
"""

from __future__ import annotations

from bisect import bisect_left, insort


class Expiries:
    """See the top of this file. O(log (groups)) a call, and the moving of what is sooner.

    >>> expiries = Expiries()
    >>> expiries.note(b"slow", 500)
    >>> expiries.note(b"quick", 100)
    >>> expiries.note(b"quick", 300)
    >>> expiries.due(99), expiries.due(100)
    (None, b'quick')
    >>> expiries.set(b"quick", None)
    >>> expiries.due(400), expiries.due(500)
    (None, b'slow')
    """

    __slots__ = ("_by_name", "_order")

    def __init__(self) -> None:
        self._by_name: dict[bytes, int] = {}
        self._order: list[tuple[int, bytes]] = []  # -time and name: the soonest is last, where lists change cheaply

    def note(self, name: bytes, when: int) -> None:
        """A lease of a group may expire at a time."""
        known = self._by_name.get(name)
        if known is None or when < known:
            self.set(name, when)

    def set(self, name: bytes, when: int | None) -> None:
        """No lease of a group expires before a time; None: none expires."""
        known = self._by_name.pop(name, None)
        if known is not None:
            del self._order[bisect_left(self._order, (-known, name))]
        if when is not None:
            self._by_name[name] = when
            insort(self._order, (-when, name))

    def due(self, now: int) -> bytes | None:
        """The group whose time came first, if it has come."""
        return self._order[-1][1] if self._order and -self._order[-1][0] <= now else None

    def check(self) -> None:
        """Assert every invariant. O(groups)."""
        assert self._order == sorted((-when, name) for name, when in self._by_name.items())
