"""What changes in the interpreter while threads work for any server of this process.

The interpreter's lock changes hands more often, and the search for cycles rests: what a thread makes is millions of objects
and no cycles, and one look at them all takes 50 ms. Both settings belong to the process, and several servers may run in one,
so the jobs of all of them are counted: the first one changes the settings, the last one restores them.
"""

from __future__ import annotations

import gc
import sys
import threading

SWITCH_INTERVAL = 0.0005
"""Seconds that a busy thread may keep the loop waiting; Python's own 5 ms would be felt by every client."""

_lock = threading.Lock()
_jobs = 0  # of all servers
_usual_interval = 0.005
_usual_gc = True


def begin() -> None:
    """A job begins. Any thread may call this."""
    global _jobs, _usual_interval, _usual_gc
    with _lock:
        _jobs += 1
        if _jobs == 1:
            _usual_interval, _usual_gc = sys.getswitchinterval(), gc.isenabled()
            sys.setswitchinterval(min(SWITCH_INTERVAL, _usual_interval))
            gc.disable()


def end() -> None:
    """A job that began is over."""
    global _jobs
    with _lock:
        _jobs -= 1
        if not _jobs:
            sys.setswitchinterval(_usual_interval)
            if _usual_gc:
                gc.enable()
