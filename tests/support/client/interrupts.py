"""Signals whose handler raises, as Ctrl-C does: one at a moment that a test chooses, or hundreds at random moments."""

from __future__ import annotations

import itertools
import linecache
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Interrupt(BaseException):
    """What KeyboardInterrupt is to a program."""


def _interrupt(*_: object) -> None:
    raise Interrupt


@contextmanager
def interrupting() -> Iterator[None]:
    """SIGALRM raises Interrupt in here; `signal.setitimer` says when."""
    before = signal.signal(signal.SIGALRM, _interrupt)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def ask_interrupted(ask: Callable[[int], object], times: int) -> None:
    """Three threads ask with one number after another, and this one, too, while it is interrupted so many
    times; all of them come to an end.
    """
    finished, interrupted = threading.Event(), 0

    def work(numbers: Iterator[int]) -> None:
        while not finished.is_set():
            ask(next(numbers))

    threads = [
        threading.Thread(target=work, args=[itertools.count(number * 1_000_000_000)], daemon=True)
        for number in (1, 2, 3)
    ]
    for thread in threads:
        thread.start()
    try:
        # A socket that redis-py was just making is collected with a warning; an interrupt must not hit the code that
        # reports it.
        with warnings.catch_warnings(), interrupting():
            warnings.simplefilter("ignore", ResourceWarning)
            while interrupted < times:
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.0002 + interrupted % 17 * 0.0001)
                    for number in range(200):
                        ask(interrupted * 1000 + number)
                except Interrupt:
                    interrupted += 1
    finally:
        finished.set()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)


def interrupt_at(step: int, tell: Callable[[str], None]) -> Callable[..., Any]:
    """A trace function that raises before a line of the client's own, and says which.

    Not where no signal comes: before a `try`, which is no step, and before a `with`, which is traced again when its
    block ends.
    """
    left = step

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        if "/penstock/client/" not in frame.f_code.co_filename:
            return None
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if event == "line" and line != "try:" and not line.startswith("with "):
            left -= 1
            if left < 0:
                tell(f"{frame.f_code.co_name}:{frame.f_lineno}")
                raise Interrupt
        return trace

    return trace
