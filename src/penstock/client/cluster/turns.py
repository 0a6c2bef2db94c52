"""A lock with a time-out that an interrupted thread cannot leave locked for ever.

`threading.Lock.acquire(timeout=...)` needs a `try` behind it, and a KeyboardInterrupt can come in between: then the
lock would stay locked. Here the right to go on is an object; it is free again when it is given back or collected.
"""

from __future__ import annotations

import threading
from queue import Empty, SimpleQueue


class Turn:
    """The right to go on."""

    __slots__ = ("_free", "_is_over")

    def __init__(self, free: SimpleQueue[Turn]) -> None:
        self._free = free
        self._is_over = False

    def end(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._free.put(Turn(self._free))

    __del__ = end


class Turns:
    """See the top of this file."""

    def __init__(self) -> None:
        self._free: SimpleQueue[Turn] = SimpleQueue()
        self._free.put(Turn(self._free))

    def wait(self, seconds: float) -> Turn | None:
        """A turn, to be ended; None if there was none in that time."""
        try:
            return self._free.get(timeout=min(max(seconds, 0.0), threading.TIMEOUT_MAX))
        except Empty:
            return None
