"""The origin of a log: the feeds that it continues, each from an offset on.

All bytes ever logged have an offset, counted from 0. A server that writes gives the bytes a name, the id of its feed;
replicas append the same bytes under the same id. A new id begins when a server starts writing by itself: at its start,
or when a replica is promoted. So two logs with the same id and offset are equal up to that offset, and the table of ids
says where two of them went apart.

Immutable, and kept in the manifest of the log.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

MOST = 64
"""Ids that are remembered. A replica that knows none of them copies everything."""


def new_id() -> str:
    """Forty hexadecimal digits, as Redis's are."""
    return secrets.token_hex(20)


@dataclass(frozen=True, slots=True)
class Lineage:
    """(id, offset from which it counts), the oldest first; never empty, except before the first log."""

    feeds: tuple[tuple[str, int], ...] = ()

    @property
    def id(self) -> str:
        """The feed that is written now."""
        return self.feeds[-1][0] if self.feeds else ""

    def continued(self, end: int) -> Lineage:
        """This log, when its server writes by itself from an offset on.

        A replica may know of feeds that its leader has begun further on, and of which it has nothing.
        """
        had = tuple((feed, start) for feed, start in self.feeds if start <= end)
        return Lineage((*had, (new_id(), end))[-MOST:])

    def written_by(self, end: int) -> str:
        """The feed that the last byte before `end` is from; empty if there is no feed.

        A server that has begun a feed and written nothing is no further than those that do not know this feed.

        >>> Lineage((("old", 0), ("new", 100))).written_by(100)
        'old'
        """
        had = [feed for feed, start in self.feeds if start < end] or [feed for feed, _ in self.feeds[:1]]
        return had[-1] if had else ""

    def fork(self, end: int, other: Lineage) -> int | None:
        """Up to which offset this log, which ends at `end`, equals one of another server that has not less.

        None if they have nothing in common that is known.

        >>> mine, other = Lineage((("old", 0), ("mine", 120))), Lineage((("old", 0), ("other", 100)))
        >>> mine.fork(150, other)
        100
        """
        theirs = dict(zip([feed for feed, _ in other.feeds], other.feeds[1:], strict=False))
        known = {feed for feed, _ in other.feeds}
        limit = end
        for feed, start in reversed(self.feeds):
            if feed in known:
                return min(limit, theirs[feed][1]) if feed in theirs else limit
            limit = min(limit, start)
        return None

    def common(self, feed: str, end: int, own_end: int) -> int | None:
        """Up to which offset a log that ends at `end` in `feed` equals this one, which ends at `own_end`.

        An id is given out once, so all logs that have it are equal up to where it begins; this says how far beyond.
        None if they have nothing in common that is known.

        >>> lineage = Lineage((("old", 0), ("new", 100)))
        >>> [lineage.common(*log, 150) for log in [("old", 90), ("old", 120), ("new", 80), ("new", 160)]]
        [90, 100, 80, 150]
        >>> lineage.common("other", 5, 150) is None
        True
        """
        ids = [each for each, _ in self.feeds]
        if feed not in ids:
            return None
        at = ids.index(feed)
        limit = self.feeds[at + 1][1] if at + 1 < len(ids) else own_end
        return min(end, limit)
