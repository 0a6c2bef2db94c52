"""After an outage of the server its groups wait a little before they deliver anything again or give it up.

A member that still processes a message extends its lease (TEXTEND), or acknowledges it. While the server is down, loads
its data or stands still (a stopped process, a suspended machine, a command that takes seconds), no member can. Without
a grace the first round of upkeep would give messages up whose TEXTEND waits in a socket, and the first read would
deliver them to another member.

During the grace only what was due before the outage is due, and what was given back (TNACK): no member holds it. The
grace lasts as long as the loop stood still, at most LONGEST: a client of ours that cannot connect tries again after 2
seconds at the latest. After a start it is LONGEST, if there are leases. Nothing of it is logged: it decides when the
server acts, and what it does then is logged as always.

Rejected: lease time that stands still during an outage. A server cannot know when it was killed, a lease with a
millisecond left would be lost all the same, and a member has had its message during the outage too.
"""

from __future__ import annotations

STOOD_STILL = 1000
"""Milliseconds that the loop may be late before it counts as an outage."""
LONGEST = 5000


class LeaseGrace:
    """Owned by the loop thread. All times are lease times (clock.py).

    >>> grace = LeaseGrace()
    >>> grace.started(1000, has_leases=False)
    >>> grace.look(4000, period=100)
    >>> grace.due_by(4000), grace.due_by(5000)
    (1000, 1000)
    >>> grace.look(5000, period=100), grace.look(6000, period=100)
    (None, None)
    >>> grace.look(6999, period=100), grace.due_by(7000)
    (None, 7000)
    """

    def __init__(self) -> None:
        self._seen = 0  # when the loop was last seen at work; 0 if there is none
        self._period = 1000  # milliseconds after which it is to be seen again
        self._before = 0  # the outage began then
        self.until = 0  # when the grace is over

    def started(self, now: int, has_leases: bool) -> None:
        """The server has loaded its data, and goes on with it."""
        self._seen = now
        if has_leases:
            self._before, self.until = 0, now + LONGEST

    def look(self, now: int, period: int) -> None:
        """The loop is at work, and is to be seen again after a period."""
        if self._seen:
            self.due_by(now)
            self._seen, self._period = now, period

    def due_by(self, now: int) -> int:
        """What fell due until then is due now."""
        if now - self._seen > self._period + STOOD_STILL and self._seen:
            if now >= self.until:
                self._before = self._seen
            self.until = max(self.until, now + min(now - self._seen, LONGEST))
            self._seen = now
        return self._before if now < self.until else now

    def retry_at(self, now: int, retry_at: int) -> int:
        """When a message that is held comes again: not before the grace is over, unless it was due."""
        return max(retry_at, self.until) if self.due_by(now) < retry_at and now < self.until else retry_at
