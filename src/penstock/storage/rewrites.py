"""Rewrites of the log: when one is due, and how the last one ended. aof.py does the rewrite.

A log that was turned on at run time has no base until its first rewrite is done: the client that turned it on gets its
reply then (`when_log_began`), and the log is turned off again if the rewrite fails.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.engine.directives import DIRECTIVES
from penstock.engine.dispatch import Engine
from penstock.protocol.errors import ReplyError
from penstock.storage.aof import AppendOnlyFile
from penstock.storage.child import Child
from penstock.storage.notice_logging import notice
from penstock.storage.one_child import OneChild

if TYPE_CHECKING:
    from penstock.storage.known_files import KnownFiles

logger = logging.getLogger("penstock.storage")

FEWER = 4
"""With history, the log grows by at least so many times `auto-aof-rewrite-min-size` before it is rewritten: its base
stays as small as `stream-memory`, so that it would double, and be rewritten, at each so many bytes for ever.
"""
PATIENCE = 1.0
"""Seconds after which a rewrite waits for the log's thread on the loop: under `always` it may be busy at each look."""


class Rewrites:
    """See the top of this file. Owned by the loop thread."""

    def __init__(self, engine: Engine, aof: AppendOnlyFile, child: OneChild) -> None:
        self._engine = engine
        self._aof = aof
        self._child = child
        aof.finish_installing = lambda: child.finish(self)
        aof.on_switch_failed = self._give_up
        self.files: KnownFiles | None = None  # told when the log has a new base
        self.is_catching_up: Callable[[], bool] = lambda: False  # a replica that was away gets what it has missed
        self.scheduled = False
        self._waiting_since: float | None = None  # the log's thread was busy when it was to begin
        self.last_try = 0.0
        self._count = 0
        self._failures = 0  # in a row
        self._seconds = -1
        self._when_begun: list[Callable[[str | None], None]] = []  # they wait for the first base of the log

    def request(self, now: bool) -> bool:
        """BGREWRITEAOF: have a child do it; False if it is only scheduled. ReplyError if neither is possible."""
        if self._in_progress:
            raise ReplyError("Background append only file rewriting already in progress")
        if self._child.running is not None or not now or not self._engine.lock_gate.may_fork():
            self.scheduled = True
            return False
        if self.must_wait():
            self.scheduled = True
            return True
        if not self.start():
            raise ReplyError(
                "Can't execute an AOF background rewriting. Please check the server logs for more information."
            )
        return True

    @property
    def _in_progress(self) -> bool:
        return self._child.does(self) or (self.scheduled and self._waiting_since is not None)

    def must_wait(self) -> bool:
        """Whether the thread of the log is at work, which would have to be waited for; for PATIENCE at most."""
        writer, now = self._aof.writer, time.monotonic()
        if writer is None or not writer.syncing:
            return False
        self._waiting_since = self._waiting_since or now
        return now - self._waiting_since < PATIENCE

    def soon(self) -> None:
        """A new base would make room on the disk: have one written, unless that was just tried."""
        passed = time.monotonic() - self.last_try
        if self._aof.is_listed and not self._child.does(self) and passed > max(60 * self._failures, 1):
            self.scheduled = True

    def is_due(self) -> bool:
        """Whether the log has grown enough, or needs one after a failed sync."""
        writer, config = self._aof.writer, self._engine.config
        if writer is None:
            return False
        passed = time.monotonic() - self.last_try
        if writer.needs_rewrite:  # writes are refused until it is done
            return writer.sync_works and passed >= min(self._failures, 60)
        if passed < 60 * self._failures:
            return False
        if not self._aof.manifest.base:
            return True
        if self.is_catching_up():  # a base would be old at once, and all that comes waits for the sync at its beginning
            return False
        grown_by = config.auto_aof_rewrite_percentage
        if not grown_by or writer.file.size < config.auto_aof_rewrite_min_size // 2:
            return False  # asks the disk about sizes only when there is a chance
        size = self._aof.size
        before = max(self._aof.size_at_rewrite, 1)
        if self.files and size - before < FEWER * config.auto_aof_rewrite_min_size:
            return False
        return bool(size >= config.auto_aof_rewrite_min_size and (size - before) * 100 // before >= grown_by)

    def start(self) -> bool:
        """Have the child write a new base; False if it could not be started."""
        self._waiting_since = None
        self.last_try = time.monotonic()
        if self.files is not None:
            self.files.base_begins()
        return self._child.start(self, self._aof.start_rewrite)

    def is_ready(self) -> bool:
        """The new increment is listed before the base that it follows."""
        return self._aof.writer is None or not self._aof.writer.switching

    def _give_up(self, problem: str) -> None:
        if self._child.does(self):
            self._child.kill(self)
            self.failed(problem)

    def installing(self, child: Child) -> Callable[[], None]:
        return self._aof.installing(child)

    def ended(self, child: Child, problem: str) -> None:
        if not problem:
            try:
                self._aof.finish_rewrite()
            except OSError as error:
                problem = str(error)
        if problem:
            self.failed(problem)
            return
        if self.files is not None:
            self.files.base_ended(done=True)
        self.tell_begun(None)
        self._count += 1
        self._failures = 0
        self._seconds = child.seconds
        notice("the log was rewritten: %d bytes", self._aof.size)

    def failed(self, problem: str) -> None:
        if self.files is not None:
            self.files.base_ended(done=False)
        self._failures += 1
        logger.error("the log could not be rewritten: %s", problem)
        if self._aof.writer is not None and not self._aof.manifest.base:  # it was just turned on, and is worth nothing
            self.tell_begun(problem)
            self._engine.config.change([(DIRECTIVES["appendonly"], "no")])

    def when_log_began(self, then: Callable[[str | None], None]) -> bool:
        if self._aof.writer is None or self._aof.manifest.base:
            return False
        self._when_begun.append(then)
        return True

    def tell_begun(self, problem: str | None) -> None:
        """The log has its first base, or was given up."""
        waiting, self._when_begun = self._when_begun, []
        for then in waiting:
            then(problem)

    def info(self) -> dict[str, int | str]:
        """The fields of INFO persistence about rewrites."""
        writer = self._aof.writer
        return {
            "aof_enabled": int(writer is not None),
            "aof_rewrite_in_progress": int(self._in_progress),
            "aof_rewrite_scheduled": int(self.scheduled),
            "aof_last_rewrite_time_sec": self._seconds,
            "aof_current_rewrite_time_sec": self._child.seconds(self),
            "aof_last_bgrewrite_status": "err" if self._failures else "ok",
            "aof_rewrites": self._count,
            "aof_rewrites_consecutive_failures": self._failures,
            "aof_last_write_status": "err" if writer is not None and writer.trouble else "ok",
            "aof_last_cow_size": 0,
        }
