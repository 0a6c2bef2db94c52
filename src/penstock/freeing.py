"""Giant values are taken apart by a thread, a little at a time, once nothing refers to them any more.

Freeing a set of two million members is one call that takes a fifth of a second, and it comes at the worst of times: in
the middle of the DEL, the SET, the FLUSHALL or the expiry that let go of it. So a value with more than GIANT elements
that is about to be freed (`__del__` of the types) goes to `dispose` instead, which puts it in a queue and returns.

Because the interpreter's own count of references decides, it makes no difference who let go or how, and nothing that
a thread still reads is ever taken apart. The price is that `__del__` is called for small values too, 60 nanoseconds.

Rejected: a hook at every place that removes a key. SET would have to look at what it replaces, and whatever else still
had the value, a reader in a thread, a reply that is being sent, would have to be known to the hook.
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
"""Elements that are freed in one go, in about a millisecond."""

SLICE: Final = 1000
"""Elements that are freed before the others have a chance."""
REST: Final = 0.0002
"""Seconds of that chance. No client waits for what is freed here, and two million elements a second keep up with any load."""

_garbage: deque[Any] = deque()  # what is to be taken apart; the first is being
_arrivals: SimpleQueue[None] = SimpleQueue()  # one for each: unlike other queues it can be put into from `__del__`
_lock = threading.Lock()
_thread: threading.Thread | None = None
_hurry = False  # a command waits for the memory


class LongList(list[Any]):
    """A list that may be long, and is taken apart then. A plain list of a million elements is freed in one go, 10 ms."""

    __slots__ = ()

    def __del__(self) -> None:
        if len(self) > GIANT:
            dispose(self)


def dispose(value: Any) -> None:
    """Take a value apart soon. Nothing else may refer to it. Any thread may call this."""
    _garbage.append(value)
    _arrivals.put(None)
    if _thread is None and not sys.is_finalizing():  # in CPython 3.11 a thread that is started then never begins
        with contextlib.suppress(RuntimeError):  # the interpreter is on its way out, and frees everything
            _start()


def pending() -> int:
    """How many values are not taken apart yet."""
    return len(_garbage)


def drain() -> None:
    """Wait until everything handed over so far is gone: for tests, and for those who need the memory now."""
    global _hurry
    done = threading.Event()
    _hurry = True
    dispose(done)
    done.wait()
    _hurry = False


def take_apart(value: Any) -> None:
    """Empty a container a little at a time; anything else has nothing to be freed one by one."""
    take = value.popitem if isinstance(value, dict) else value.pop if isinstance(value, set | deque | list) else None
    while take is not None and value:
        for _ in range(min(len(value), SLICE)):
            take()
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
