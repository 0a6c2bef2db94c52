"""The memory of the machine, or of the container that the server runs in."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


@cache
def memory_of_machine() -> int:
    """Bytes; a container's limit if it has one."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _LIMITS:
        try:
            limits.append(int(path.read_text()))
        except (OSError, ValueError):  # no such group, or "max"
            continue
    return min(limits)
