"""The slow part of a command in short steps on the loop, between which other clients are served.

A thread that computes in Python shares the interpreter's lock with the loop. It computes nothing faster, and the loop
has to get the lock back in every callback: that takes up to half a millisecond each time, and longer if both threads
have only one processor. Work that can stop after every chunk therefore needs no thread. It runs on the loop for a slice
of a quarter of a millisecond, then the loop serves its sockets, and so on.

A handler gives such work to `Session.aside` as `InSteps`. All else is as with a thread: the keys are locked, the client
is blocked, and the command happens at its commit (workers.py).

If the loop is busy with others, a slice is a quarter of the processor time that they had, and never longer than
LONGEST. That may be too little: fifty clients that send a thousand commands at a time keep the loop for tens of
milliseconds. So a work that has got less than its share for PATIENCE goes to a thread, which has a share of its own.

Owned by the loop thread.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from penstock.types.kernels import Steps, finish

Result = TypeVar("Result")

SLICE: Final = 250_000
"""Nanoseconds of work in a turn of the loop, and one step at least."""
LONGEST: Final = 4 * SLICE
SHARE: Final = 4
"""A slice is one part in so many of the time that others had since the last one, between those two limits."""
PATIENCE: Final = 500_000_000
"""Nanoseconds after which a work that got less than one part in SHARE of the time goes to a thread."""


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


@dataclass(slots=True)
class Begun(Generic[W]):
    """A work that has its turns."""

    work: W
    since: int
    used: int = 0  # processor time


class LoopSteps(Generic[W]):
    """Works that take turns on the loop, a slice of one of them in each turn.

    `to_thread` has a thread do what is left of a work, and answers whether there is one.
    """

    def __init__(
        self, is_wanted: Callable[[W], bool], done: Callable[[W], None], to_thread: Callable[[W], bool]
    ) -> None:
        self._is_wanted = is_wanted
        self._done = done
        self._to_thread = to_thread
        self._works: deque[Begun[W]] = deque()
        self._used = 0  # the processor time of the loop when the last slice ended

    def add(self, work: W, soon: Callable[[Callable[[], None]], object]) -> None:
        """Do the steps of `work` and call `done` with it; `soon` has the loop call something in its next turn."""
        self._works.append(Begun(work, time.perf_counter_ns()))
        if len(self._works) == 1:
            self._used = time.thread_time_ns()
            soon(lambda: self._turn(soon))

    def _turn(self, soon: Callable[[Callable[[], None]], object]) -> None:
        works = self._works
        while works and not self._is_wanted(works[0].work):
            works.popleft()
        if not works:
            return
        begun, now = works[0], time.thread_time_ns()
        others = now - self._used
        if begun.work.advance(time.perf_counter_ns() + min(max(others // SHARE, SLICE), LONGEST)):
            works.popleft()
            soon(lambda: self._done(begun.work))  # in a turn of its own, because its commit takes time too
        else:
            begun.used += time.thread_time_ns() - now
            if len(works) * SHARE * begun.used < time.perf_counter_ns() - begun.since - PATIENCE and self._to_thread(
                begun.work
            ):
                works.popleft()
            else:
                works.rotate(-1)
        self._used = time.thread_time_ns()
        if works:
            soon(lambda: self._turn(soon))
