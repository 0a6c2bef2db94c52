"""A lock with a time-out that an interrupted thread cannot leave locked for ever.

`threading.Lock.acquire(timeout=...)` needs a `try` behind it, and a KeyboardInterrupt can come in between: then the
lock would stay locked. Here a thread that has the lock holds an object; the lock is free again when that is released or
collected.
"""

from __future__ import annotations

import threading
from queue import Empty, SimpleQueue


class Ownership:
    """Of the lock, until it is released or collected."""

    __slots__ = ("_free", "_is_released")

    def __init__(self, free: SimpleQueue[Ownership]) -> None:
        self._free = free
        self._is_released = False

    def release(self) -> None:
        if not self._is_released:
            self._is_released = True
            self._free.put(Ownership(self._free))

    __del__ = release


class InterruptSafeLock:
    """See the top of this file."""

    def __init__(self) -> None:
        self._free: SimpleQueue[Ownership] = SimpleQueue()
        self._free.put(Ownership(self._free))

    def acquire(self, seconds: float) -> Ownership | None:
        """The lock, to be released; None if it was not free in that time."""
        try:
            return self._free.get(timeout=min(max(seconds, 0.0), threading.TIMEOUT_MAX))
        except Empty:
            return None
