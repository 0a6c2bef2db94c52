"""Interpreter settings that change while threads work for any server of this process.

The interpreter switches threads more often, and the garbage collector is off: a thread makes millions of objects and no
cycles, and one collection over them takes 50 ms. Both settings belong to the process, and several servers may run in
one, so the jobs of all of them are counted: the first one changes the settings, the last one restores them.

The objects that the jobs made are young then, and the next collection of young objects would visit all of them: 130 ms
of the loop for the rows of a sorted set of a million members. So very many young objects are declared old, which costs
nothing. The price: cycles among the few objects that were young before the jobs are found only by a full collection,
and objects that the program had frozen (`gc.freeze`) become old ones too.
"""

from __future__ import annotations

import gc
import sys
import threading

SWITCH_INTERVAL = 0.0005
"""Seconds that a busy thread may keep the loop waiting; Python's own 5 ms would be felt by every client."""

MANY = 2
"""Young objects, as a multiple of the number that starts a collection, from which they are declared old."""

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
                if gc.get_count()[0] > MANY * gc.get_threshold()[0]:
                    gc.freeze()
                    gc.unfreeze()  # to the oldest objects, wherever they were
                gc.enable()
