"""Signals as a request to stop, while consumers run in a program that does not handle them itself.

SIGTERM asks all consumers of the process to stop, also those of other threads: a handler for one of them would keep the
program alive with the others. There is one handler, from when the first consumer of the main thread runs until the
last one has ended. Ctrl-C raises KeyboardInterrupt in a program of threads, and its consumer finishes what is at hand
before it passes the exception on. Under asyncio.run it would cancel the bodies, so there the first one asks to stop.

Owned by the main thread, but for `_stops`, which any thread appends to.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Stop = Callable[[], object]

_stops: list[Stop] = []  # of all consumers that run
_in_main_thread = 0  # how many of them have the handler of SIGTERM


def _stop_all() -> None:
    for stop in _stops[:]:
        stop()


def _on_sigterm(number: int, frame: object) -> None:
    _stop_all()


@contextmanager
def stopped_by_sigterm(stop: Stop) -> Iterator[None]:
    """Call `stop` when SIGTERM comes. A program that has a handler of its own keeps it, and calls `stop` itself."""
    global _in_main_thread
    is_main = threading.current_thread() is threading.main_thread()
    handles = is_main and signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, _on_sigterm)
    _stops.append(stop)
    if handles:
        _in_main_thread += 1
        signal.signal(signal.SIGTERM, _on_sigterm)
    try:
        yield
    finally:
        _stops.remove(stop)
        if handles:
            _in_main_thread -= 1
            if not _in_main_thread and signal.getsignal(signal.SIGTERM) is _on_sigterm:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def stopped_by_first_interrupt() -> Iterator[None]:
    """Have the first Ctrl-C under asyncio.run ask all consumers to stop; the second cancels, as the first one would.

    When all is done after the first one, the program goes on as if it came then: asyncio.run raises KeyboardInterrupt.
    """
    is_main = threading.current_thread() is threading.main_thread()
    cancels = signal.getsignal(signal.SIGINT) if is_main else None
    if not isinstance(getattr(getattr(cancels, "func", None), "__self__", None), asyncio.Runner):
        yield  # another loop than that of asyncio.run, or a handler of the program's own
        return
    came = False

    def ask(number: int, frame: object) -> None:
        nonlocal came
        came = True
        signal.signal(signal.SIGINT, cancels)
        _stop_all()

    signal.signal(signal.SIGINT, ask)
    try:
        yield
        if came:
            signal.raise_signal(signal.SIGINT)
    finally:
        if signal.getsignal(signal.SIGINT) is ask:
            signal.signal(signal.SIGINT, cancels)
