"""Whether a logical connection is up, and when the driver should open the next one.

An attempt that fails, or a connection that gives no reply, delays the next attempt (backoff.py). `connect_at` is set
only while some command needs a connection: an idle client does not reconnect.

An attempt that would come after the deadline of a command is made before it: the server may be back by then. For
commands that wait one behind the other this adds at most one attempt in `backoff_cap`, so that it undoes no delay.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.client.delivery import Delivery, ServerContact, Settings
from penstock.client.engine.backoff import Backoff
from penstock.client.errors import NotSent
from penstock.client.events import Reconnected

LAST_CHANCE = 0.5
"""Seconds before a deadline: enough to connect, and to be answered."""


class Reconnecting:
    """Part of a ConnectionCore; see the top of this file."""

    def __init__(self, settings: Settings, jitter: Callable[[], float], contact: ServerContact) -> None:
        self._settings = settings
        self._contact = contact
        self.backoff = Backoff(settings, jitter)
        self._search = Backoff(settings, jitter)  # for servers that answer, and do not lead
        self._left_at = 0.0
        self._hurried_until = 0.0  # no other attempt is brought forward before
        self.up = False
        """There is a connection."""
        self.is_opening = False
        """The driver is opening one."""
        self.connect_at: float | None = None
        """When to open one; None if there is one, if one is being opened, or if no command needs one."""
        self.lost_at: float | None = None
        """When the last one was lost, until there is another; None if it was ended on purpose."""
        self.reason = ""
        """Why there is no connection."""

    @property
    def was_reached(self) -> bool:
        """Whether some connection of this client was ever open."""
        return self._contact.was_reached

    @property
    def is_outage(self) -> bool:
        """Whether there was a connection, or an attempt to open one, that failed."""
        return not self.up and (self.lost_at is not None or self.backoff.failures > 0)

    def request(self, now: float) -> None:
        """A command needs a connection, and there is none. Raises NotSent if its level does not let it wait for the
        next attempt.
        """
        retry_at = self.backoff.retry_at
        if self._settings.delivery is Delivery.AT_MOST_ONCE and now < retry_at:
            raise NotSent(
                f"there is no connection, and at-most-once holds nothing; the next attempt is in {retry_at - now:.2f} s"
            )
        self.connect_at = max(now, retry_at)

    def opening(self) -> None:
        """The driver has begun to open a connection."""
        self.connect_at = None
        self.is_opening = True

    def opened(self, now: float) -> Reconnected | None:
        """There is a connection; the event to report if it replaces a lost one."""
        self.up, self.is_opening, self.connect_at = True, False, None
        event = None if self.lost_at is None else Reconnected(now - self.lost_at, self.backoff.failures)
        self._contact.was_reached, self.lost_at = True, None
        return event

    def retry(self, now: float, is_needed: bool) -> None:
        """An attempt, or a connection, failed: open the next one after a delay if commands need it."""
        at = self.backoff.failed(now)
        self.connect_at = at if is_needed else None

    def left(self, now: float, is_needed: bool) -> None:
        """The connection was left because the server does not lead: look for the leader at once. If that leads to such
        a server again, wait longer each time: replies to reads, which it gives, do not count.
        """
        if now - self._left_at > 2 * self._settings.backoff_cap:
            self._search.failures = 0
        self._left_at = now
        self.backoff.retry_at = at = self._search.failed(now)
        self.connect_at = at if is_needed else None

    def hurry(self, now: float, deadline: float) -> None:
        """A command is given up at a time: see the top of this file."""
        if self.connect_at is None or deadline > self.connect_at or now < self._hurried_until:
            return
        self._hurried_until = now + self._settings.backoff_cap
        self.connect_at = self.backoff.retry_at = max(now, deadline - min(LAST_CHANCE, (deadline - now) / 2))

    def retry_interrupted(self, now: float, is_needed: bool) -> None:
        """As `retry`, after an interrupt: it counts as no failure of the server."""
        self.connect_at = max(now, self.backoff.retry_at) if is_needed else None

    def why_late(self) -> str:
        """Why a command is given up at its deadline."""
        down = "" if self.up or not self.reason else f", and there is no connection: {self.reason}"
        return f"its time is up, command_timeout={self._settings.command_timeout}{down}"
