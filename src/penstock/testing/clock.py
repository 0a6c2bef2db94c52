"""A clock that moves only when told to."""

from __future__ import annotations

from penstock.engine.clock import Clock


class ManualClock(Clock):
    """`clock.advance(ms)` is the only thing that makes time pass."""

    __slots__ = ()

    def __init__(self, now: int = 1_700_000_000_000) -> None:
        self.now = now

    def refresh(self) -> int:
        return self.now

    def advance(self, milliseconds: int) -> int:
        self.now += milliseconds
        return self.now
