"""The one child process at a time: it writes a snapshot or a new base of the log.

Two children would double the memory that is copied while they write. Saves (saves.py) and rewrites (rewrites.py) share
this one; `tick` gives its outcome to the one that started it.

When the child has written its file, a thread gives the file its place (`Installation`): that syncs folders and lists,
which may take long on a busy disk. Until that is over the child counts as running, so that nothing else begins.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from penstock.engine.dispatch import Engine
from penstock.storage.child import Child
from penstock.storage.files import StorageError

logger = logging.getLogger("penstock.storage")


def tell_left_out(path: Path, left_out: str) -> None:
    """Log what is missing in a file that was written."""
    logger.error("%s is written without what a module put there and cannot be written: %s", path, left_out)


class Work(Protocol):
    """The kinds of work of a child."""

    def is_ready(self) -> bool:
        """Whether the file of the child may be installed, if it is written."""

    def installing(self, child: Child) -> Callable[[], None]:
        """The child has written its file: what a thread has to do with it. That may raise an OSError."""

    def ended(self, child: Child, problem: str) -> None:
        """The file of the child is in its place, or there is a problem, which is not empty then."""

    def failed(self, problem: str) -> None:
        """The child could not be started."""


class Installation:
    """Brings a file to its place, in a thread."""

    def __init__(self, install: Callable[[], None]) -> None:
        self._install = install
        self.problem = ""  # what went wrong, when it is over
        self._thread = threading.Thread(target=self._work, name="penstock-install", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            self._install()
        except Exception as error:
            self.problem = str(error) or repr(error)

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Blocks."""
        self._thread.join()


class OneChild:
    """See the top of this file. Owned by the loop thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.running: Child | None = None
        self._work: Work | None = None  # what it does
        self._installation: Installation | None = None  # it has ended, and this is under way
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
        logger.info("process %d writes %s", child.pid, child.path)
        return True

    def tick(self) -> None:
        """If the child has ended, have a thread install its file; if that is done, report to the work behind it."""
        if self.running is None:
            return
        assert self._work is not None
        if self._installation is None and self._work.is_ready():
            problem = self.running.poll()
            if problem:
                self._end(problem)
            elif problem is not None:
                if self.running.left_out:
                    tell_left_out(self.running.path, self.running.left_out)
                self._installation = Installation(self._work.installing(self.running))
        elif self._installation is not None and self._installation.is_over:
            self.finish()

    def finish(self, work: Work | None = None) -> None:
        """If a file is being installed, for whatever work or for this one, wait for that; blocks."""
        if self._installation is not None and (work is None or self._work is work):
            self._installation.wait()
            self._end(self._installation.problem)

    def _end(self, problem: str) -> None:
        assert self._work is not None and self.running is not None
        child, self.running, self._installation = self.running, None, None
        self._work.ended(child, problem)

    def kill(self, work: Work | None = None) -> None:
        """Kill the child, whatever it does or if it does this work. What is being installed is finished instead."""
        self.finish(work)
        if self.running is not None and (work is None or self._work is work):
            self.running.kill()
            self.running = None

    def seconds(self, work: Work) -> int:
        """How long the child has done this work; -1 if it does not."""
        return self.running.seconds if self.running is not None and self._work is work else -1
