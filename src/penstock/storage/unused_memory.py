"""Memory that malloc holds and nothing uses is returned to the system, so that `stream-memory` bounds the process too.

Uploads and nodes are large blocks that come and go. By itself malloc has a heap for each thread, so that a hole that
compressing leaves in one is of no use to the others, and returns the end of a heap whenever some megabytes of it are
free: that leaves the holes, and while clients write, the same pages are returned and taken again many times a second.
So a server in a process of its own has one heap for all threads (cli/serve.py), malloc keeps the end of it (up to MOST
bytes), and the thread of history returns everything that is unused when it is too much, once a second at most.

Rejected: a heap for each thread, by which nothing was gained (0.45 us of the server for a message with one heap and
with several). Rejected: returning memory four times a second, which took 5 to 10 % more processor time. Rejected: large
blocks outside of the heap (a small M_MMAP_THRESHOLD). No hole is left, but each upload takes new pages, and writing
took a quarter more processor time.

Owned by the loop thread, except `_trim`.
"""

from __future__ import annotations

import time
from typing import Protocol

from penstock.storage.history_thread import HistoryThread

PAUSE = 1.0
"""Seconds between two times."""
SHARE = 8
"""One part in this many of `stream-memory` may be unused."""
LEAST, MOST = 4 << 20, 64 << 20
"""Bounds of that, in bytes."""
SLOW = 0.002
"""Seconds. If counting takes longer, there are so many holes that clients would wait while they are returned."""


class Heap(Protocol):
    """The part of engine.memory that this uses; `unused` and `trim` may be called by any thread."""

    def unused(self) -> int: ...

    def trim(self) -> None: ...

    def keep(self, size: int) -> None: ...


class UnusedMemory:
    """See the top of this file."""

    def __init__(self, memory: Heap, thread: HistoryThread) -> None:
        self._memory = memory
        self._thread = thread
        self._allowed = MOST
        self._left = 0  # bytes that could not be returned the last time
        self._next = 0.0

    def bound(self, stream_memory: int) -> None:
        """`stream-memory` is this from now on."""
        self._allowed = min(max(stream_memory // SHARE, LEAST), MOST)
        self._memory.keep(MOST)

    def tick(self) -> None:
        """Many times a second."""
        started = time.monotonic()
        if started < self._next:
            return
        self._next = started + PAUSE
        unused = self._memory.unused()
        if unused > self._left + self._allowed and time.monotonic() - started < SLOW:
            self._thread.start(self._trim)

    def _trim(self) -> None:
        """In the thread."""
        self._memory.trim()
        self._left = max(self._memory.unused(), 0)
