"""The time of day of single processes, which can be set while they run.

A small library that is loaded before all others adds a number of nanoseconds to the time of day; the number is in a
file that the process maps. Other clocks stay as they are, as when the clock of a machine is set.

Rejected: setting the clock of the machine, which other programs use; a time namespace, which has no time of day;
libfaketime, which has to be installed and changes all clocks.
"""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

_SOURCE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long long *ahead;

__attribute__((constructor)) static void map(void) {
    int file = open(getenv("TEST_CLOCK"), O_RDONLY);
    void *page = file < 0 ? MAP_FAILED : mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
    if (page != MAP_FAILED) ahead = page;
    if (file >= 0) close(file);
}

int clock_gettime(clockid_t clock, struct timespec *when) {
    int result = syscall(SYS_clock_gettime, clock, when);
    if (!result && ahead && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        long long total = when->tv_sec * 1000000000LL + when->tv_nsec + *ahead;
        when->tv_sec = total / 1000000000LL;
        when->tv_nsec = total % 1000000000LL;
    }
    return result;
}

int gettimeofday(struct timeval *when, void *zone) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    when->tv_sec = precise.tv_sec;
    when->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *where) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (where) *where = precise.tv_sec;
    return precise.tv_sec;
}
"""


def compiled(folder: Path) -> Path:
    """The library. It needs a C compiler, as the package itself does where it is tested."""
    library = folder / "clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-x", "c", "-o", library, "-"], input=_SOURCE.encode(), check=True)
    return library


class SetClock:
    """A clock for processes that are started with its `environment`."""

    def __init__(self, library: Path, file: Path) -> None:
        self._file = file
        self._file.write_bytes(bytes(8))
        self.environment = {"LD_PRELOAD": str(library), "TEST_CLOCK": str(file)}

    def set(self, seconds: int) -> None:
        """So far from the time of the machine, forward or back."""
        with self._file.open("r+b", buffering=0) as file:
            file.write(struct.pack("q", seconds * 10**9))
