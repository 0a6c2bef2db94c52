"""Frees giant values in small steps, in a thread, after their last reference is gone.

Freeing a set of two million members is one call that takes a fifth of a second, in the middle of the DEL, the SET, the
FLUSHALL or the expiry that released it. So `__del__` of the types gives a value with more than GIANT elements to
`dispose` instead, which queues it and returns.

The interpreter's own reference count decides, so it does not matter which code released the value, and no value is
freed while a thread still reads it. The price is that `__del__` is called for small values too, 60 nanoseconds.

Rejected: a hook at every place that removes a key. SET would have to look at the value it replaces, and the hook would
have to know every other reference: a reader in a thread, a reply that is being sent.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections import deque
from queue import SimpleQueue
from typing import Any, Final

GIANT: Final = 16_384
"""Values with no more elements are freed at once, in about a millisecond."""

SLICE: Final = 1000
"""Elements that are freed before other threads can run."""
REST: Final = 0.0002
"""Seconds for other threads after that. No client waits for this, and two million elements a second are fast enough for
any load.
"""

_garbage: deque[Any] = deque()  # values to be freed; the first is in progress
# one item for each value: unlike other queues it may be used from `__del__`
_arrivals: SimpleQueue[None] = SimpleQueue()
_lock = threading.Lock()
_thread: threading.Thread | None = None
_hurry = False  # a command waits for the memory


class LongList(list[Any]):
    """A list that may be long and is then freed in steps. A plain list of a million elements is freed at once, in 10
    ms.
    """

    __slots__ = ()

    def __del__(self) -> None:
        if len(self) > GIANT:
            dispose(self)


def dispose(value: Any) -> None:
    """Free a value soon. Nothing else may refer to it. Any thread may call this."""
    _garbage.append(value)
    _arrivals.put(None)
    if _thread is None and not sys.is_finalizing():  # in CPython 3.11 a thread that is started then never begins
        with contextlib.suppress(RuntimeError):  # the interpreter ends, and frees everything
            _start()


def pending() -> int:
    """How many values are not freed yet."""
    return len(_garbage)


def drain() -> None:
    """Wait until everything given to `dispose` so far is freed: for tests, and for code that needs the memory now."""
    global _hurry
    done = threading.Event()
    _hurry = True
    dispose(done)
    done.wait()
    _hurry = False


def take_apart(value: Any) -> None:
    """Empty a container a little at a time; anything else has nothing to be freed one by one.

    A list inside it counts as many elements as it has.
    """
    take = value.popitem if isinstance(value, dict) else value.pop if isinstance(value, set | deque | list) else None
    while take is not None and value:
        left = SLICE
        while left > 0 and value:
            element = take()
            left -= len(element) if type(element) is list else 1
        element = None
        if not _hurry:
            time.sleep(REST)


def _start() -> None:
    global _thread
    with _lock:
        if _thread is None:
            thread = threading.Thread(target=_work, name="penstock-disposal", daemon=True)
            thread.start()
            _thread = thread


def _work() -> None:
    while True:
        _arrivals.get()
        value = _garbage[0]
        take_apart(value)
        if isinstance(value, threading.Event):
            value.set()
        del value
        _garbage.popleft()


def _after_fork() -> None:
    """A child has the queue and not the thread."""
    global _thread, _garbage, _arrivals, _lock
    _thread, _garbage, _arrivals, _lock = None, deque(), SimpleQueue(), threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
