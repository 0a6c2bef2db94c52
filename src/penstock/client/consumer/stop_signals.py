"""SIGTERM as a request to stop, while a consumer runs in the main thread of a program that does not handle it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def may_handle_sigterm() -> bool:
    """Whether this is the main thread, and SIGTERM would end the program at once."""
    return threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@contextmanager
def stopped_by_sigterm(stop: Callable[[], object]) -> Iterator[None]:
    """Call `stop` when SIGTERM comes. A program that has a handler of its own keeps it, and calls `stop` itself."""
    if not may_handle_sigterm():
        yield
        return
    signal.signal(signal.SIGTERM, lambda *_: stop())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
