"""The one child process at a time: it writes a snapshot or a new base of the log.

Two children would double the memory that is copied while they write. Saves (saves.py) and rewrites (rewrites.py) share
this one; `tick` gives its outcome to the one that started it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from penstock.engine.dispatch import Engine
from penstock.storage.child import Child
from penstock.storage.files import StorageError

log = logging.getLogger("penstock.storage")


class Work(Protocol):
    """What a child can be started for."""

    def ended(self, child: Child, problem: str) -> None:
        """The child has written its file, or could not; `problem` is empty if it has."""

    def failed(self, problem: str) -> None:
        """The child could not be started."""


class OneChild:
    """See the top of this file. Owned by the loop thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.running: Child | None = None
        self._work: Work | None = None  # what it does
        self.dirty = 0  # keyspace.dirty when it was forked

    def does(self, work: Work) -> bool:
        return self.running is not None and self._work is work

    def start(self, work: Work, fork: Callable[[], Child]) -> bool:
        """Fork the child; False if that failed, and `work` was told why."""
        engine = self._engine
        engine.lazy.drain()
        try:
            child = fork()
        except (OSError, StorageError) as error:
            work.failed(str(error))
            return False
        finally:
            engine.lock_gate.reopen()
        self.running, self._work, self.dirty = child, work, engine.keyspace.dirty
        engine.stats.count_forked(child.fork_nanoseconds)
        engine.latency.note("fork", child.fork_nanoseconds)
        log.info("process %d writes %s", child.pid, child.path)
        return True

    def tick(self) -> None:
        """If the child has ended, report that to the work that started it."""
        if self.running is None:
            return
        problem = self.running.poll()
        if problem is not None:
            assert self._work is not None
            child, self.running = self.running, None
            self._work.ended(child, problem)

    def kill(self, work: Work | None = None) -> None:
        """Kill the child, whatever it does or if it does this work."""
        if self.running is not None and (work is None or self._work is work):
            self.running.kill()
            self.running = None

    def seconds(self, work: Work) -> int:
        """How long the child has done this work; -1 if it does not."""
        return self.running.seconds if self.running is not None and self._work is work else -1
