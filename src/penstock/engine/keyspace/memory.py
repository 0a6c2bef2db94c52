"""How much memory is in use, and whether that is more than maxmemory allows.

The measure must go down when data is deleted, or a full server could never be emptied. The resident size does not: both
allocators keep what they got from the system. So used memory is what the allocators have handed out, as they count it
themselves (allocators.py). Where they cannot be asked it is the resident size, or its peak where even that is unknown.

Counting walks the allocators' own lists: 20 microseconds for a small heap, two milliseconds for a gigabyte. So `tick`
spends at most one part in SHARE of the time on it, and does it once a second while no command runs; between ticks
`account` counts what clients send and measures again when half of the room that was left may be gone.

Most commands keep their arguments and no more. A command that may take more declares how much (`grows`), and is refused
before it runs if that would pass the limit. What threads and the LAZY queue have yet to take is `reserved`.

Rejected: adding up the sizes of values as they change. It touches every command, and is wrong by what it forgets; see
docs/design/0012-memory.md.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from penstock import freeing
from penstock.engine.keyspace import allocators

if TYPE_CHECKING:
    from penstock.engine.declarations import Argv
    from penstock.engine.dispatch import Engine

SHARE = 200
"""One part in this many of the time may go into periodic measuring."""
IDLE_PAUSE = 1.0
"""Seconds between two periodic measurements if no command ran meanwhile: threads may still free what was deleted."""
SMALLEST_STEP = 1 << 19
"""Bytes that may be written between two measurements, however little room is left."""
OVERHEAD = 64
"""What an argument costs beyond its bytes once it is stored: object header, table entry."""

_PAGE = resource.getpagesize()
_STATUS = Path("/proc/self/statm")
_allocators = allocators.find()


def resident() -> tuple[int, int]:
    """(bytes in memory, those of them that are not pages of files)."""
    try:
        handle = os.open(_STATUS, os.O_RDONLY)
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        peak = peak if sys.platform == "darwin" else peak * 1024
        return peak, peak
    try:
        _, pages, shared, *_ = os.read(handle, 256).split()
    finally:
        os.close(handle)
    return int(pages) * _PAGE, (int(pages) - int(shared)) * _PAGE


class Memory:
    """See the top of this file. Owned by the loop thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.limit = 0  # maxmemory
        self.used_memory = 0
        self.used_memory_rss = 0
        self.used_memory_peak = 0
        self.used_memory_startup = 0
        self._next = 0.0  # when `tick` may measure again
        self._next_if_idle = 0.0
        self._commands = 0  # that had run at the last measurement
        self._room = 0  # bytes that clients may write before `account` measures again
        self._dirty = 0  # keyspace.dirty at the last measurement
        self.reserved = 0  # bytes that commands which have begun, or are queued, may still take
        engine.config.on_change("maxmemory", self._limit_changed)
        self._limit_changed(engine.config.maxmemory)

    def start(self) -> None:
        """What is in use now is the server's own."""
        self.measure()
        self.used_memory_startup = self.used_memory

    def _limit_changed(self, limit: int) -> None:
        self.limit = limit
        self._engine.require_gates("maxmemory", limit > 0)
        if limit or self._engine.over_memory:
            self.measure()

    def tick(self) -> None:
        """For the server's periodic work."""
        engine, now = self._engine, time.monotonic()
        is_idle = engine.stats.commands == self._commands and engine.keyspace.dirty == self._dirty
        if now >= (self._next_if_idle if is_idle else self._next):
            self.measure()

    def lacks(self, growth: int) -> bool:
        """Whether so many bytes more pass the limit, or it is passed already."""
        return self._engine.over_memory or 0 < self.limit < self.used_memory + self.reserved + growth

    def account(self, argv: Argv, growth: int = 0) -> None:
        """A command that may grow memory is about to run; measure if the last measurement is too old.

        It may take `growth` bytes beyond its arguments, which are in memory already. While memory is over the limit, it
        measures whenever anything changed, so that the next write finds the space that a DEL made; before anything is
        refused, it waits for values that are still being freed.
        """
        self._room -= sum(map(len, argv)) + OVERHEAD * len(argv) + growth
        if self._room < 0 or (self.lacks(growth) and self._engine.keyspace.dirty != self._dirty):
            self.measure()
            if self.lacks(growth) and freeing.pending():
                freeing.drain()
                self.measure()
            self._room -= growth

    def measure(self) -> None:
        """Measure how much is in use now."""
        started = time.monotonic()
        self._look()
        if 0 < self.limit < self.used_memory and self._engine.compression.now():
            self._look()
        self.used_memory_peak = max(self.used_memory_peak, self.used_memory)
        self._dirty, self._commands = self._engine.keyspace.dirty, self._engine.stats.commands
        self._engine.over_memory = 0 < self.limit < self.used_memory
        self._room = max((self.limit - self.used_memory - self.reserved) // 2, SMALLEST_STEP)
        ended = time.monotonic()
        self._next = ended + SHARE * (ended - started)
        self._next_if_idle = max(self._next, ended + IDLE_PAUSE)

    def _look(self) -> None:
        self.used_memory_rss, private = resident()
        self.used_memory = private if _allocators is None else _allocators.in_use()

    def allocators(self) -> dict[str, int]:
        """What the two allocators themselves say, for people."""
        in_use, held = _allocators.malloc() if _allocators is not None else (0, 0)
        return {
            "malloc_in_use": in_use,
            "malloc_held": held,
            "python_in_use": _allocators.pymalloc() if _allocators is not None else 0,
            "python_blocks": sys.getallocatedblocks(),
        }

    @property
    def idle(self) -> int:
        """Bytes that malloc holds and has not handed out."""
        in_use, held = _allocators.malloc() if _allocators is not None else (0, 0)
        return held - in_use

    @staticmethod
    def unused() -> int:
        """Bytes in memory that neither allocator has handed out, and pages of neither. For any thread."""
        return resident()[1] - _allocators.in_use() if _allocators is not None else 0

    @staticmethod
    def trim() -> None:
        """Return unused memory of malloc to the system. For any thread; the loop waits if it needs malloc meanwhile."""
        if _allocators is not None:
            _allocators.trim()

    @staticmethod
    def keep(size: int) -> None:
        """Have malloc keep up to so many unused bytes at the end of its heap."""
        if _allocators is not None:
            _allocators.keep(size)

    def purge(self) -> None:
        """Return unused memory of malloc to the system, and measure again."""
        self.trim()
        self.measure()
