"""The slow part of a command in short steps on the loop, between which other clients are served.

A thread that computes in Python shares the interpreter's lock with the loop. It computes nothing faster, and the loop
has to get the lock back in every callback: that takes up to half a millisecond each time, and longer if both threads
have only one processor. Work that can stop after every chunk therefore needs no thread. It runs on the loop for a slice
of a quarter of a millisecond, then the loop serves its sockets, and so on.

A handler gives such work to `Session.aside` as `InSteps`. All else is as with a thread: the keys are locked, the client
is blocked, and the command happens at its commit (workers.py).

If the loop is busy with others, a slice is a quarter of the processor time that they had, so that a long command ends
in time. It is never longer than LONGEST.

Owned by the loop thread.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from penstock.types.kernels import Steps, finish

Result = TypeVar("Result")

SLICE: Final = 250_000
"""Nanoseconds of work in a turn of the loop, and one step at least."""
LONGEST: Final = 4 * SLICE
SHARE: Final = 4
"""A slice is one part in so many of the time that others had since the last one, between those two limits."""


class InSteps(Generic[Result]):
    """The slow part of a command for `Session.aside`, in steps. To call it does all of them at once."""

    __slots__ = ("begin",)

    def __init__(self, begin: Callable[[], Steps[Result]]) -> None:
        self.begin = begin

    def __call__(self) -> Result:
        return finish(self.begin())


class Work(Protocol):
    """What is done in steps."""

    def advance(self, until: int) -> bool:
        """Work until `time.perf_counter_ns()` is as late, and a little in any case; whether it is done."""


W = TypeVar("W", bound=Work)


class LoopSteps(Generic[W]):
    """Works that take turns on the loop, a slice of one of them in each turn."""

    def __init__(self, is_wanted: Callable[[W], bool], done: Callable[[W], None]) -> None:
        self._is_wanted = is_wanted
        self._done = done
        self._works: deque[W] = deque()
        self._used = 0  # the processor time of the loop when the last slice ended

    def add(self, work: W, soon: Callable[[Callable[[], None]], object]) -> None:
        """Do the steps of `work` and call `done` with it; `soon` has the loop call something in its next turn."""
        self._works.append(work)
        if len(self._works) == 1:
            self._used = time.thread_time_ns()
            soon(lambda: self._turn(soon))

    def _turn(self, soon: Callable[[Callable[[], None]], object]) -> None:
        works = self._works
        while works and not self._is_wanted(works[0]):
            works.popleft()
        if not works:
            return
        others = time.thread_time_ns() - self._used
        if works[0].advance(time.perf_counter_ns() + min(max(others // SHARE, SLICE), LONGEST)):
            work = works.popleft()
            soon(lambda: self._done(work))  # in a turn of its own, because its commit takes time too
        else:
            works.rotate(-1)
        self._used = time.thread_time_ns()
        if works:
            soon(lambda: self._turn(soon))
