"""How many bytes the two allocators of this process have handed out, exactly.

malloc (glibc's mallinfo2, which adds up the arenas of all threads) has strings over 512 bytes, tables of dicts, blocks
of deques, Arrow's buffers. pymalloc has everything smaller. Python tells how many of its blocks are in use
(sys.getallocatedblocks), not how large they are; `_PyObject_DebugMallocStats`, which prints what sys._debugmallocstats
shows, tells both. It visits the header of each pool of 16 KiB, as getallocatedblocks does, and takes as long.

Neither number contains unused memory of an allocator, so holes in the heap change nothing.

`in_use` is None if the allocators cannot be asked: without glibc 2.33 or newer, or without CPython.
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any

_TOTAL = b"# bytes in allocated blocks"
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
LARGEST_MMAP_THRESHOLD = 32 << 20
"""The most that glibc allows, and what its own rule comes to after it has freed a block of this size."""


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


class Allocators:
    """Asks both allocators. AttributeError if one of them cannot be asked."""

    def __init__(self) -> None:
        # PyDLL keeps the interpreter's lock: a worker thread would hold on to it for milliseconds.
        library = ctypes.PyDLL(None)
        self._mallinfo: Any = library.mallinfo2
        self._mallinfo.restype = _Mallinfo
        self._mallinfo.argtypes = []
        self._open: Any = library.open_memstream
        self._open.restype = ctypes.c_void_p
        self._close: Any = library.fclose
        self._close.argtypes = [ctypes.c_void_p]
        self._free: Any = library.free
        self._free.argtypes = [ctypes.c_void_p]
        self._print: Any = ctypes.pythonapi._PyObject_DebugMallocStats
        self._print.argtypes = [ctypes.c_void_p]
        self._trim: Any = ctypes.CDLL(None).malloc_trim
        self._trim.argtypes = [ctypes.c_size_t]
        self._option: Any = library.mallopt
        self._option.argtypes = [ctypes.c_int, ctypes.c_int]

    def malloc(self) -> tuple[int, int]:
        """(bytes handed out, bytes taken from the system)."""
        found = self._mallinfo()
        return found.uordblks + found.hblkhd, found.arena + found.hblkhd

    def pymalloc(self) -> int:
        """Bytes handed out; 0 if Python runs without it (PYTHONMALLOC=malloc)."""
        text, size = ctypes.c_void_p(), ctypes.c_size_t()
        file = self._open(ctypes.byref(text), ctypes.byref(size))
        if not file:
            raise MemoryError
        printed = self._print(file)
        self._close(file)
        try:
            return _total(ctypes.string_at(text, size.value)) if printed else 0
        finally:
            self._free(text)

    def in_use(self) -> int:
        """Bytes that both have handed out."""
        small = self.pymalloc()
        return small + self.malloc()[0]

    def trim(self) -> None:
        """Have malloc return unused memory to the system."""
        self._trim(0)

    def keep(self, size: int) -> None:
        """Have malloc keep up to so many unused bytes at the end of its heap, and large blocks in the heap.

        By its own rule it returns the end of a heap to the system as soon as it is twice as long as the largest block
        that it has freed. What is written next then takes new pages.
        """
        self._option(_M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)
        self._option(_M_TRIM_THRESHOLD, size)


def _total(text: bytes) -> int:
    """The bytes in allocated blocks, of what pymalloc printed.

    >>> _total(b"# arenas reclaimed          =     0\\n# bytes in allocated blocks =  1,521,712\\n")
    1521712
    """
    for line in text.splitlines():
        if line.startswith(_TOTAL):
            return int(line.partition(b"=")[2].replace(b",", b""))
    raise AttributeError("pymalloc does not say how many bytes it has handed out")


def share_heap() -> None:
    """Have threads that start from now on share one heap of malloc, where that can be said (glibc).

    A hole in the heap of one thread is of no use to the others.
    """
    with contextlib.suppress(AttributeError):
        ctypes.PyDLL(None).mallopt(_M_ARENA_MAX, 1)


def find() -> Allocators | None:
    """The allocators of this process, None if they cannot be asked."""
    with contextlib.suppress(AttributeError):
        found = Allocators()
        found.in_use()
        return found
    return None
