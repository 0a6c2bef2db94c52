"""The messages that a consumer holds: the row of each, by offset, and the lease that it was delivered under.

A row that is in here and that no caller has settled is open. `settle` may be called from any thread; everything else is
used under the lock of the consumer. What `settle` was told waits until the next command takes it along.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat

from penstock.client.consumer.delivered import Row

Verdict = int | None | BaseException
"""A message is acknowledged (None), given back after milliseconds, or given up with an error."""


class Lease:
    """The lease that the messages of one read share."""

    __slots__ = ("due", "fetched", "token")

    def __init__(self, token: int, due: float, fetched: float) -> None:
        self.token = token
        self.due = due
        """When the server gives them to another member, unless the lease is extended."""
        self.fetched = fetched
        """When they were read."""

    def extended(self, due: float) -> Lease:
        """The lease of those messages that are held for longer."""
        return Lease(self.token, due, self.fetched)


class Holdings:
    """See the top of this file."""

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self.leases: dict[int, Lease] = {}
        self._settled: dict[int, tuple[Row, Verdict]] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def is_open(self, row: Row) -> bool:
        """Whether the message is held and neither acknowledged nor given back."""
        return self.rows.get(row[0]) is row and not self._is_settled(row)

    def has_all(self, first: int, last: int) -> bool:
        """Whether the messages of a range are open, its end included."""
        return all(
            (row := self.rows.get(offset)) is not None and self.is_open(row) for offset in range(first, last + 1)
        )

    def _is_settled(self, row: Row) -> bool:
        settled = self._settled.get(row[0])
        return settled is not None and settled[0] is row

    def add(self, lease: Lease, rows: list[Row]) -> list[Row]:
        """Hold what was delivered; the rows that are new. If a lease had run out and now the message is ours again, it
        is still processed once, under its new lease.
        """
        offsets = [row[0] for row in rows]
        self.leases.update(zip(offsets, repeat(lease)))
        if not self.rows.keys().isdisjoint(offsets):
            rows = [row for row in rows if row[0] not in self.rows]
            offsets = [row[0] for row in rows]
        self.rows.update(zip(offsets, rows, strict=True))
        return rows

    def forget(self, rows: Iterable[Row]) -> None:
        """Hold messages no more."""
        held, leases = self.rows, self.leases
        for row in rows:
            offset = row[0]
            if held.get(offset) is row:
                del held[offset], leases[offset]

    def renew(self, rows: Iterable[Row], lease: Lease) -> None:
        """Hold messages under a lease with the same token, those of them that are still held under it."""
        for row in rows:
            held = self.leases.get(row[0])
            if held is not None and held.token == lease.token:
                self.leases[row[0]] = lease

    def settle(self, row: Row, verdict: Verdict) -> None:
        """Let the next command settle a message, unless it is settled already."""
        if self.is_open(row):
            self._settled[row[0]] = row, verdict

    def open_ones(self, rows: list[Row]) -> list[Row]:
        """The rows that are open."""
        held = self.rows.get
        found = [row for row in rows if held(row[0]) is row]
        return [row for row in found if not self._is_settled(row)] if self._settled else found

    def take_settled(self, done: list[Row]) -> list[tuple[Row, Verdict]]:
        """What was settled, without messages that are `done`. The caller makes the commands, and then forgets them."""
        taken: list[tuple[Row, Verdict]] = []
        others = {row[0] for row in done} if self._settled else set()
        while self._settled:
            offset, (row, verdict) = self._settled.popitem()
            if self.rows.get(offset) is row and offset not in others:  # else it was lost since, or is done
                taken.append((row, verdict))
        taken.reverse()
        return taken
