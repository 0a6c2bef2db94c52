"""Snapshots: when one is due, which process writes it, and how the last one ended.

This serves the save rules, BGSAVE and DEBUG RELOAD. SAVE and the last snapshot before the end are written on the loop
thread, all others by a child.

Writes may be refused until a snapshot succeeds (`ok`, persistence.py), so on a server with save rules one that failed
is tried again, whatever the rules say: with `save 3600 1` the disk may be back for an hour before a rule asks for one.
The pause is short, so that writes are accepted soon, but long beside the attempt: a full disk fails one only when most
of the data is written.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.engine.dispatch import Engine
from penstock.protocol.errors import ReplyError
from penstock.storage import snapshot
from penstock.storage.child import Child
from penstock.storage.files import TEMPORARY, install
from penstock.storage.folder_lock import FolderInUse, FolderLock
from penstock.storage.log_or_snapshot import Standing
from penstock.storage.notice_logging import notice
from penstock.storage.one_child import OneChild, tell_left_out

if TYPE_CHECKING:
    from penstock.storage.known_files import KnownFiles

logger = logging.getLogger("penstock.storage")

RETRY_SECONDS = 5
"""The shortest pause after a snapshot that failed."""
LONGEST_RETRY_SECONDS = 60
RETRY_SHARE = 10
"""The pause is this many times as long as the attempt, between these two bounds."""


def pause_after(seconds: float) -> float:
    """How long to wait after an attempt that took so long and failed.

    >>> pause_after(0.01), pause_after(3), pause_after(1000)
    (5, 30, 60)
    """
    return min(max(RETRY_SECONDS, RETRY_SHARE * seconds), LONGEST_RETRY_SECONDS)


class Saves:
    """See the top of this file. Owned by the loop thread; calls `on_outcome` after each snapshot, good or bad."""

    def __init__(
        self,
        engine: Engine,
        child: OneChild,
        lock: FolderLock,
        standing: Callable[[], Standing | None],
        on_outcome: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._config = engine.config
        self._child = child
        self._lock = lock
        self._standing = standing  # of memory as it is now, beside the log
        self._on_outcome = on_outcome
        self.files: KnownFiles | None = None  # told what snapshots refer to
        self._failures = 0  # in a row
        self.scheduled = False
        self.replaces_log = False  # the log was turned off: until one is written, only the log has everything
        self._will_replace = False  # the same of the one that is being written
        self.last = int(time.time())
        self._saved_at = time.monotonic()  # the save rules go by this: a clock that is set back must not stop them
        self._saved_dirty = 0  # keyspace.dirty at the last snapshot
        self._count = 0
        self._begun = 0.0  # the last attempt
        self._retry_at = 0.0  # the next one after a failure
        self._seconds = -1

    @property
    def path(self) -> Path:
        return Path(self._config.dir) / str(self._config.dbfilename)

    @property
    def ok(self) -> bool:
        """Whether the last one was written."""
        return not self._failures

    @property
    def _changes(self) -> int:
        return self._engine.keyspace.dirty - self._saved_dirty

    def memory_is_saved(self) -> None:
        """The loaded data is on disk: the save rules count changes from here."""
        self._saved_dirty = self._engine.keyspace.dirty

    def claim_folder(self, what: str = "snapshot") -> None:
        """A server without save rules has not locked it; ReplyError if another server has."""
        try:
            self._lock.take()
        except FolderInUse as error:
            raise ReplyError(f"the {what} would replace that of another server: {error}") from None
        except OSError:
            pass  # then the snapshot cannot be written either, and that is told

    def _dump_standing(self) -> bytes:
        standing = self._standing()
        return standing.dump() if standing is not None else b""

    def save(self) -> None:
        """Write a snapshot now; blocks. ReplyError if that is not possible."""
        if self._child.does(self):
            raise ReplyError("Background save already in progress")
        self.claim_folder()
        self._engine.lazy.drain()
        self._begins()
        try:
            left_out = snapshot.save(self.path, self._engine.keyspace, self._dump_standing())
        except OSError as error:
            self._failed(str(error))  # a server that ends does not try again
            raise ReplyError(f"the snapshot could not be written: {error.strerror}") from error
        if left_out:
            tell_left_out(self.path, left_out)
        self._saved(self._engine.keyspace.dirty, time.monotonic() - self._begun)

    def request(self, now: bool, may_schedule: bool) -> bool:
        """BGSAVE: have a child write one; False if it is only scheduled. ReplyError if neither is possible."""
        self.claim_folder()
        busy = self._child.running is not None
        if busy:
            if self._child.does(self):
                raise ReplyError("Background save already in progress")
            if now and not may_schedule:
                raise ReplyError(
                    "Another child process is active (AOF?): can't BGSAVE right now. Use BGSAVE SCHEDULE in order to "
                    "schedule a BGSAVE whenever possible."
                )
        if busy or not now or not self._engine.lock_gate.may_fork():
            self.scheduled = True
            return False
        if not self.start():
            raise ReplyError("the snapshot's child could not be started; see the server's log")
        return True

    def is_due(self) -> bool:
        """Whether a save rule asks for one, or the end of the log, or the last one failed."""
        if not self.ok and time.monotonic() < self._retry_at:
            return False
        if self.replaces_log or self._will_retry:
            return True
        changes = self._changes
        passed = time.monotonic() - self._saved_at
        return changes > 0 and any(changes >= wanted and passed > seconds for seconds, wanted in self._config.save)

    @property
    def _will_retry(self) -> bool:
        return not self.ok and bool(self._config.save)

    def start(self) -> bool:
        """Have the child write one; False if it could not be started."""
        path, keyspace = self.path, self._engine.keyspace
        temporary = path.with_name(f"{TEMPORARY}{os.getpid()}-{path.name}")
        self._begins()

        def fork() -> Child:
            standing = self._dump_standing()
            return Child(temporary, lambda file, go_on: snapshot.write(file, keyspace, go_on, standing))

        return self._child.start(self, fork)

    def is_ready(self) -> bool:
        return True

    def installing(self, child: Child) -> Callable[[], None]:
        return partial(install, child.path, self.path)

    def ended(self, child: Child, problem: str) -> None:
        if problem:
            self.failed(problem)
        else:
            self._saved(self._child.dirty, child.seconds)

    def _begins(self) -> None:
        self._begun = time.monotonic()
        self._will_replace = self.replaces_log
        if self.files is not None:
            self.files.snapshot_begins()

    def _saved(self, dirty: int, seconds: float) -> None:
        if self.files is not None:
            self.files.snapshot_ended(done=True)
        if self._will_replace:
            self.replaces_log = False
        self._saved_dirty = dirty
        self.last = int(time.time())
        self._saved_at = time.monotonic()
        self._count += 1
        failures, self._failures = self._failures, 0
        self._seconds = int(seconds)
        self._on_outcome()
        notice("snapshot written to %s", self.path)
        if failures:
            logger.warning("snapshots can be written again: %d attempts failed before", failures)

    def failed(self, problem: str) -> None:
        self._failed(problem)
        if self._will_retry:
            logger.warning("the snapshot is tried again in %d seconds", round(self._retry_at - time.monotonic()))

    def _failed(self, problem: str) -> None:
        if self.files is not None:
            self.files.snapshot_ended(done=False)
        now = time.monotonic()
        self._failures += 1
        self._retry_at = now + pause_after(now - self._begun)
        self._on_outcome()
        logger.error("the snapshot %s could not be written: %s", self.path, problem)

    def info(self) -> dict[str, int | str]:
        """The fields of INFO persistence about snapshots, which Redis calls rdb."""
        return {
            "rdb_changes_since_last_save": self._changes,
            "rdb_bgsave_in_progress": int(self._child.does(self)),
            "rdb_last_save_time": self.last,
            "rdb_last_bgsave_status": "ok" if self.ok else "err",
            "rdb_last_bgsave_time_sec": self._seconds,
            "rdb_current_bgsave_time_sec": self._child.seconds(self),
            "rdb_saves": self._count,
            "rdb_saves_consecutive_failures": self._failures,
            "rdb_next_try_sec": max(0, round(self._retry_at - time.monotonic())) if self._will_retry else -1,
            "rdb_last_cow_size": 0,
        }
