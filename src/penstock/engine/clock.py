"""The times that commands see: the time of day, and a time for leases that setting the clock does not change.

Both are replaceable in tests. Keys expire by the time of day, as in Redis: EXPIREAT names one. A lease is about how
long a consumer has had a message, so it goes by elapsed time: a clock that is set back must not delay a retry, and one
that is set forward must not make all of them due. Lease times are written to disk, so they must mean something after a
restart: they start as the time of day at the start of the server and grow with elapsed time. The age of a stage and of
a LAZY command, and the time that clients wait for threads, go by the same time. A server that starts with leases that
were delivered after its time of day, because the clock was set back since, begins with the latest of these times
(`catch_up`), however far it is. So no client may write a lease (TAPPLY, RESTORE) that was delivered far in the future
(`is_far_ahead`): after a restart it would make all others due. Only first deliveries are kept, so a message that was
delivered again may wait longer than its retry time, by as much as had passed between the two. A clock that was set
forward while the server was down looks like a server that was down for long. Lease time goes on while the server is
down or stands still; what its members could not extend meanwhile has a grace (lease_grace.py).

Rejected: shifting all leases when the clock jumps. A million of them take seconds, each shift must be logged, and
deliveries before the jump is noticed are wrong. Rejected: storing how long each has left, which changes all the time.
"""

from __future__ import annotations

import time

from penstock.engine.arguments import INT64_MAX

_APART = 100
"""Milliseconds by which the two times may differ before lease times are shown with another correction."""
_FARTHEST = 60_000
"""Milliseconds by which the clock of another server, whose dump is restored, may be ahead of ours. After a restart all
leases of this server are older by as much, so it is small beside the times after which messages expire."""


class Clock:
    """Milliseconds since 1970 in `now`. Owned by the loop thread; `refresh` before running commands.

    The time of day is read once per batch of input, so that one command sees one time: a clock that jumps back must not
    bring expired keys back to life in the middle of a command.
    """

    __slots__ = ("_apart", "_origin", "now")

    def __init__(self) -> None:
        self.now = 0
        self._origin = self.refresh() - _since_boot()
        self._apart = 0

    def refresh(self) -> int:
        self.now = time.time_ns() // 1_000_000
        return self.now

    def microseconds(self) -> int:
        """The time of day at this very moment, for TIME and INFO."""
        return time.time_ns() // 1000

    def lease_time(self) -> int:
        """The time that leases go by, in milliseconds, at this moment; see the top of this file."""
        return self._origin + _since_boot()

    def catch_up(self, moment: int) -> None:
        """A lease was delivered at this lease time, so it cannot be earlier now."""
        ahead = moment - self.lease_time()
        if ahead > 0:
            self._move_lease_time(ahead)

    def is_far_ahead(self, moment: int) -> bool:
        """Whether a lease time that a client gives is later than any server can have delivered something."""
        return moment - self.lease_time() > _FARTHEST

    def _move_lease_time(self, milliseconds: int) -> None:
        self._origin += milliseconds

    def shown(self, *moments: int) -> list[int]:
        """Lease times as times of day, for people; one that is later than a reply can hold is the last there is."""
        lead = self.lease_lead()
        return [min(moment - lead, INT64_MAX) for moment in moments]

    def lease_lead(self) -> int:
        """How far lease time is ahead of the time of day: `shown` subtracts it."""
        apart = self.lease_time() - self.microseconds() // 1000
        if abs(apart - self._apart) > _APART:  # else the same lease would be shown with another time each time
            self._apart = apart
        return self._apart


def _since_boot() -> int:
    """Milliseconds, those of a suspended machine included where the system counts them."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)) // 1_000_000
