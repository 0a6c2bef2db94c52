"""A clock that moves only when told to, and timers that follow it."""

from __future__ import annotations

from collections.abc import Callable

from penstock.engine.clock import Clock


class ManualClock(Clock):
    """Time passes only by `clock.advance(ms)`; `clock.jump(ms)` sets the time of day."""

    __slots__ = ("_jumped",)

    def __init__(self, now: int = 1_700_000_000_000) -> None:
        self.now = now
        self._jumped = 0

    def refresh(self) -> int:
        return self.now

    def microseconds(self) -> int:
        return self.now * 1000

    def advance(self, milliseconds: int) -> int:
        self.now += milliseconds
        return self.now

    def jump(self, milliseconds: int) -> None:
        """The time of day is set; no time passes."""
        self.now += milliseconds
        self._jumped += milliseconds

    def lease_time(self) -> int:
        return self.now - self._jumped

    def _move_lease_time(self, milliseconds: int) -> None:
        self._jumped -= milliseconds

    def lease_lead(self) -> int:
        return -self._jumped


class ManualTimers:
    """engine.interfaces.Timers on a ManualClock: `timers.advance(ms)` moves the clock and calls what falls due."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._pending: dict[object, tuple[float, Callable[[], None]]] = {}

    @property
    def pending(self) -> int:
        """How many timers run."""
        return len(self._pending)

    def call_later(self, delay: float, callback: Callable[[], None]) -> object:
        timer = object()
        self._pending[timer] = (self._clock.lease_time() + delay * 1000, callback)
        return timer

    def cancel(self, timer: object | None) -> None:
        self._pending.pop(timer, None)

    def advance(self, milliseconds: int) -> None:
        """Let time pass; timers are called in the order in which they fall due, each at its time."""
        until = self._clock.lease_time() + milliseconds
        while due := [(when, timer) for timer, (when, _) in self._pending.items() if when <= until]:
            when, timer = min(due, key=lambda row: row[0])
            _, callback = self._pending.pop(timer)
            self._clock.advance(max(int(when) - self._clock.lease_time(), 0))
            callback()
        self._clock.advance(max(until - self._clock.lease_time(), 0))
