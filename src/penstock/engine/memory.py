"""How much memory is in use, and whether that is more than maxmemory allows.

The measure must go down when data is deleted, or a full server could never be emptied. The resident size does not:
both allocators keep what they got from the system. So used memory is the sum of

- what malloc has handed out (glibc's mallinfo2: strings over 512 bytes, tables of dicts, blocks of deques), and
- what pymalloc held before there was data, and the number of its blocks since, which Python counts, times their
  average size. The average is taken whenever pymalloc asks the system for more, since then nothing in it lies idle.

Where there is no mallinfo2 (not Linux, or musl) it is the resident size, or its peak where even that is unknown.

Counting walks the allocators' own lists: microseconds for a small heap, a millisecond for a gigabyte. So `tick` spends at
most one part in SHARE of the time on it; between ticks `account` counts what clients send and measures again when half
of the room that was left may be gone.

Rejected: adding up the sizes of values as they change. It touches every command, and is wrong by what it forgets.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.types import disposal

if TYPE_CHECKING:
    from penstock.engine.dispatch import Engine
    from penstock.engine.spec import Argv

SHARE = 200
"""One part in this many of the time may go into periodic measuring."""
SMALLEST_STEP = 1 << 19
"""Bytes that may be written between two measurements, however little room is left."""
TYPICAL_BLOCK = 96.0
SMALLEST_BLOCK, LARGEST_BLOCK = 16.0, 512.0
"""Bytes a block of pymalloc: the first guess, and what is possible."""
ENOUGH_BLOCKS = 10_000
"""An average over fewer blocks would be noise."""
ARENA = 1 << 20
"""What pymalloc takes from the system at a time."""
OVERHEAD = 64
"""What an argument costs beyond its bytes once it is stored: object header, table entry."""

_PAGE = resource.getpagesize()
_STATUS = Path("/proc/self/statm")


class _Mallinfo(ctypes.Structure):
    """glibc's struct mallinfo2."""

    arena: int  # taken from the system, large separate blocks not included
    hblkhd: int  # in large separate blocks
    uordblks: int  # handed out of the arena
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def _find_mallinfo() -> Callable[[], _Mallinfo] | None:
    """glibc's own account of its heap, if this is glibc (2.33 or newer) on a system with /proc."""
    if not _STATUS.exists():
        return None
    function: Any = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if function is not None:
        function.restype = _Mallinfo
        function.argtypes = []
    found: Callable[[], _Mallinfo] | None = function
    return found


_mallinfo = _find_mallinfo()


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
        self._base_blocks = 0  # pymalloc's blocks before there was any data
        self._base_bytes = 0
        self._block_size = TYPICAL_BLOCK  # average of the blocks that came since
        self._full_at = 0  # what pymalloc held when the average was taken, or less since
        self._next = 0.0  # when `tick` may measure again
        self._room = 0  # bytes that clients may write before `account` measures again
        self._dirty = 0  # keyspace.dirty at the last measurement
        engine.config.on_change("maxmemory", self._limit_changed)
        self._limit_changed(engine.config.maxmemory)
        self.used_memory_startup = self.used_memory

    def _limit_changed(self, limit: int) -> None:
        self.limit = limit
        self._engine.require_gates("maxmemory", limit > 0)
        self.measure()

    def tick(self) -> None:
        """For the server's periodic work."""
        if time.monotonic() >= self._next:
            self.measure()

    def account(self, argv: Argv) -> None:
        """A command that may grow memory is about to run; measure if the last measurement is no longer good enough.

        While memory is over the limit that is whenever anything changed since, so that room made by a DEL is found
        by the very next write; a value that is still being taken apart is waited for before anything is refused.
        """
        self._room -= sum(map(len, argv)) + OVERHEAD * len(argv)
        if self._room < 0 or (self._engine.over_memory and self._engine.keyspace.dirty != self._dirty):
            self.measure()
            if self._engine.over_memory and disposal.pending():
                disposal.drain()
                self.measure()

    def measure(self) -> None:
        """Find out how much is in use now."""
        started = time.monotonic()
        self._look()
        if 0 < self.limit < self.used_memory and self._engine.compression.now():
            self._look()
        self.used_memory_peak = max(self.used_memory_peak, self.used_memory)
        self._dirty = self._engine.keyspace.dirty
        self._engine.over_memory = 0 < self.limit < self.used_memory
        self._room = max((self.limit - self.used_memory) // 2, SMALLEST_STEP)
        ended = time.monotonic()
        self._next = ended + SHARE * (ended - started)

    def _look(self) -> None:
        self.used_memory_rss, private = resident()
        self.used_memory = private if _mallinfo is None else self._in_use(_mallinfo(), private)

    def allocators(self) -> dict[str, int]:
        """What the two allocators themselves say, for people."""
        malloc = _mallinfo() if _mallinfo is not None else _Mallinfo()
        return {
            "malloc_in_use": malloc.uordblks + malloc.hblkhd,
            "malloc_held": malloc.arena + malloc.hblkhd,
            "python_blocks": sys.getallocatedblocks(),
            "python_block_average": round(self._block_size),
        }

    def purge(self) -> None:
        """Give what malloc holds idle back to the system."""
        if _mallinfo is not None:
            ctypes.CDLL(None).malloc_trim(0)
        self.measure()

    def _in_use(self, malloc: _Mallinfo, private: int) -> int:
        held = max(
            private - malloc.arena - malloc.hblkhd, 0
        )  # by pymalloc, idle or not, if all that malloc holds is in memory
        blocks = sys.getallocatedblocks()
        if not self._base_blocks:
            self._base_blocks, self._base_bytes = blocks, held
        more = blocks - self._base_blocks
        small = self._base_bytes + more * self._block_size
        # While a giant is taken apart there are holes in what pymalloc holds, and they say nothing about a block's size.
        if more > ENOUGH_BLOCKS and not disposal.pending() and (small > held or held > self._full_at + ARENA):
            self._block_size = min(max((held - self._base_bytes) / more, SMALLEST_BLOCK), LARGEST_BLOCK)
            self._full_at = held
            small = self._base_bytes + more * self._block_size
        self._full_at = min(self._full_at, held)
        at_most = max(private - malloc.uordblks - malloc.hblkhd, 0)  # if nothing that malloc holds idle is in memory
        return malloc.uordblks + malloc.hblkhd + int(min(max(small, 0), at_most))
