"""Wakes the threads whose replies have come, one by one: each thread wakes the next before it goes on.

Woken all at once, sixty-four threads would compete for the interpreter. Most of them call again at once, so while they
are being woken (`is_waking`) no thread writes, and the last one writes for all. A thread waits for a lock, which its
waker releases.

All methods are called with the lock of the connection held.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

from penstock.client.engine.batch import Batch


class WakeChain:
    """See the top of this file."""

    def __init__(self) -> None:
        self._asleep: deque[Batch] = deque()  # finished, and their threads not woken yet
        self.is_waking = False
        """A thread was woken, and has not woken the next one yet."""

    def add(self, finished: Iterable[Batch]) -> None:
        """Wake the threads of these batches, after those that are being woken."""
        self._asleep += finished
        if not self.is_waking:
            self.wake_one()

    def wake_one(self) -> None:
        """Wake the next thread; it will wake the one after it."""
        while self._asleep:
            batch = self._asleep.popleft()
            if batch.waiter is not None:
                self.is_waking = True
                wake(batch)
                return
        self.is_waking = False


def wake(batch: Batch) -> None:
    """Let the thread of a batch go on, if it waits; also if that was done already."""
    waiter: threading.Lock | None = batch.waiter
    if waiter is not None and waiter.locked():
        waiter.release()
