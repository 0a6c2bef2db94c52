"""The time commands see: read once per batch of input, so that one command sees one time, and replaceable in tests."""

from __future__ import annotations

import time


class Clock:
    """Milliseconds since 1970 in `now`. Owned by the loop thread; `refresh` before running commands.

    A wall clock that jumps back must not bring expired keys back to life in the middle of a command, so the
    time is only ever read by `refresh`.
    """

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 0
        self.refresh()

    def refresh(self) -> int:
        self.now = time.time_ns() // 1_000_000
        return self.now

    def microseconds(self) -> int:
        """The time of day at this very moment, for TIME and INFO."""
        return time.time_ns() // 1000
