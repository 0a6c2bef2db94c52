"""How many messages to fetch, and how many to begin at once: as many as the bodies take a short time for.

What is fetched and not begun is kept from idle members, and what is begun together shares its fate if the process is
killed. So both are bounded by time, and not by a number that is right for one body only: WINDOW for what is fetched,
SHARE for what is begun. A round trip takes 0.2 to 1 ms, a twentieth of SHARE at most. Where it takes longer (another
machine, busy cores), shares become longer in proportion, up to LONGEST_SHARE: workers wait during a round trip. They do
not become longer than that, because all members of a group together may hold `stream-max-pending` messages. The first
fetch is one message; the numbers grow fourfold while the measured time allows it.
"""

from __future__ import annotations

WINDOW = 0.08
"""Seconds of work that a worker has fetched and not begun."""
SHARE = 0.02
"""Seconds of work that is begun in one command, if round trips are short."""
LONGEST_SHARE = 0.04
"""The same, however long they are."""
_TRIPS = 20  # a share takes at least as long as so many round trips
_WEIGHT = 0.2
_GROWTH = 4
_MOST_CHANGE = 8.0  # one body that took unusually long does not change everything


class Pace:
    """The average time of a body, and the numbers that follow from it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._reach = 1
        self.average: float | None = None
        """Seconds that a body takes; None until one has come to its end."""
        self._trip = 0.0  # seconds that a round trip takes, on average

    def note(self, seconds: float, messages: int) -> None:
        """So many bodies took so long."""
        sample = max(seconds / messages, 1e-7)
        if self.average is None:
            self.average = sample
        else:
            sample = min(sample, self.average * _MOST_CHANGE)
            self.average += _WEIGHT * (sample - self.average)
        if messages >= self._reach:
            self._reach = min(self._reach * _GROWTH, self._most)

    def note_trip(self, seconds: float) -> None:
        """The commands between two shares took so long."""
        sample = min(seconds, LONGEST_SHARE)
        self._trip += _WEIGHT * (sample - self._trip) if self._trip else sample

    def share(self) -> int:
        """How many messages to begin at once."""
        if self.average is None:
            return 1
        seconds = min(max(SHARE, _TRIPS * self._trip), LONGEST_SHARE)
        return max(min(int(seconds / self.average), self._reach), 1)

    def window(self, workers: int) -> int:
        """How many messages so many workers should have fetched and not begun; 0 for slow bodies."""
        if self.average is None or self.average >= WINDOW:
            return 0
        return min(int(workers * WINDOW / self.average), self._reach * _GROWTH * workers, self._most)
