"""When to write what: loads at start, save rules, the one child at a time, retries, the last snapshot.

The App owns one of these and calls `tick` hz times a second. Everything here is on the loop thread; what takes long is
done by a child (snapshots, rewrites) or the log's thread (syncs).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from penstock.engine.directives import DIRECTIVES
from penstock.engine.dispatch import Engine
from penstock.protocol.errors import ReplyError
from penstock.storage import snapshot
from penstock.storage.aof import AppendOnlyFile
from penstock.storage.child import Child
from penstock.storage.files import TEMPORARY, StorageError, install, remove_unfinished
from penstock.storage.folder_lock import FolderInUse, FolderLock
from penstock.storage.writer import Loop
from penstock.types.once_records import OnceRecords

log = logging.getLogger("penstock.storage")

NOTICE = 25  # what server/logs.py calls notice; storage does not import the server

SNAPSHOT_FAILED = (
    "Redis is configured to save RDB snapshots, but it's currently unable to persist to disk. Commands that may modify "
    "the data set are disabled, because this instance is configured to report errors during writes if RDB snapshotting "
    "fails (stop-writes-on-bgsave-error option). Please check the Redis logs for details about the RDB error."
)
PREDECESSOR_SECONDS = 1
"""How long a server that is just ending, or a child of one that was killed, may keep us from starting."""
RETRY_SECONDS = 5
"""How long a save rule waits after a snapshot that failed."""
_SLICE = 0.02
"""Seconds of loading after which clients are told that it is still going on."""


class Persistence:
    """engine.dispatch.Persistence; see the top of this file."""

    def __init__(
        self, engine: Engine, loop: Loop, stop: Callable[[], None], sync: Callable[[int], None] = os.fdatasync
    ) -> None:
        self._engine = engine
        self._config = engine.config
        self._stop = stop
        self._aof = AppendOnlyFile(engine, loop, sync)
        self._lock = FolderLock(Path(engine.config.dir))
        self.closed_whole = True  # False: `close` could not bring everything to disk
        self._started = False  # everything is loaded: memory is what the disk should hold, and not a part of it
        # snapshots
        self.last_save = int(time.time())
        self._saved_at = time.monotonic()  # the save rules go by this: a clock that is set back must not stop them
        self._saved_dirty = 0  # keyspace.dirty at the last snapshot
        self._saves = 0
        self._last_save_try = 0.0
        self._save_ok = True
        self._save_seconds = -1
        self._save_scheduled = False
        self._save_at_end = True
        # rewrites
        self._rewrites = 0
        self._rewrite_failures = 0  # in a row
        self._rewrite_seconds = -1
        self._last_rewrite_try = 0.0
        self._rewrite_scheduled = False
        self._when_begun: list[Callable[[str | None], None]] = []  # who wait for the first base of the log
        # the child
        self._child: Child | None = None
        self._child_rewrites = False
        self._child_dirty = 0  # keyspace.dirty when it was forked
        # loading
        self._loaded_keys = 0
        self._loading_since = 0
        self._set_loading(True)  # from now on, not from `start`: sockets may be open before that
        engine.persistence = self
        engine.lock_gate.on_quiet = self._start_what_is_due

    @property
    def snapshot_path(self) -> Path:
        return Path(self._config.dir) / str(self._config.dbfilename)

    # -- start and end ----------------------------------------------------------------------------------------

    async def start(self, unwanted: Callable[[], bool] = lambda: False) -> None:
        """Load what there is, then keep it up to date. Clients get LOADING until that is done and the log is open.

        Gives up when `unwanted` says so; then `close` leaves everything on disk as it is.
        """
        try:
            await self._lock_folder()
            from_log = self._config.appendonly and self._aof.exists
            await self._load_in_slices(unwanted)
            if unwanted():
                return
            if self._config.appendonly:  # perhaps only since a moment ago: CONFIG SET while the snapshot was loaded
                self._lock.take()
                if not from_log:
                    self._aof.create()
                self._aof.open(self._log_trouble)
        except BaseException:
            self._lock.release()
            raise
        self._set_loading(False)  # only now: no client may see, change or save a part of the data
        self._started = True
        self._config.on_change("appendonly", self._switch_log)
        self._config.on_change("appendfsync", self._aof.set_policy)
        self._config.on_change("stop-writes-on-bgsave-error", lambda _: self._refuse_writes())
        self._config.on_change("save", lambda _: self._refuse_writes())

    def _set_loading(self, on: bool) -> None:
        self._engine.loading, self._engine.keyspace.expiring = on, not on
        self._engine.require_gates("loading", on)

    async def _lock_folder(self) -> None:
        """Two servers would destroy each other's log; with snapshots alone the last one wins, as with Redis."""
        if not self._config.appendonly and not self._config.save:
            return
        patience = time.monotonic() + PREDECESSOR_SECONDS
        while True:
            try:
                self._lock.take()
                return
            except FolderInUse as error:
                if not self._config.appendonly:
                    log.warning("%s; each will replace the snapshots of the other", error)
                    return
                if time.monotonic() > patience:
                    raise
            await asyncio.sleep(0.02)

    async def _load_in_slices(self, unwanted: Callable[[], bool]) -> None:
        pause = time.monotonic() + _SLICE
        for _ in self._load():
            if time.monotonic() > pause:
                await asyncio.sleep(0)
                if unwanted():
                    return
                pause = time.monotonic() + _SLICE

    def _load(self) -> Iterator[None]:
        """Read the log if it is on and there is one, else the snapshot if there is one."""
        keyspace = self._engine.keyspace
        if self._config.appendonly and self._aof.exists:
            load = self._load_log
        elif self.snapshot_path.exists():
            load = self._load_snapshot
        else:
            return
        self._loading_since = int(time.time())
        began = time.monotonic()
        yield from load()
        self._loaded_keys = sum(map(len, keyspace.databases))
        self._saved_dirty = keyspace.dirty
        if self._lock.held:
            remove_unfinished(self.snapshot_path.parent, self.snapshot_path.name)
        log.log(NOTICE, "loaded %d keys in %.3f seconds", self._loaded_keys, time.monotonic() - began)

    def _load_log(self) -> Iterator[None]:
        log.log(NOTICE, "loading the log in %s", self._aof.folder)
        shown = time.monotonic()
        for done in self._aof.load():
            if time.monotonic() - shown > 1:
                shown = time.monotonic()
                log.log(NOTICE, "loading the log: %d MB", done >> 20)
            yield None

    def _load_snapshot(self) -> Iterator[None]:
        log.log(NOTICE, "loading the snapshot %s", self.snapshot_path)
        shown, count = time.monotonic(), 0
        # A log that goes on after a reload must name every key that goes, so none may be left out silently.
        expired_before = self._engine.clock.now if self._aof.writer is None else 0
        for keys in snapshot.load(self.snapshot_path, self._engine.keyspace, expired_before):
            count += keys
            if time.monotonic() - shown > 1:
                shown = time.monotonic()
                log.log(NOTICE, "loading the snapshot: %d keys", count)
            yield None
        self.last_save = int(self.snapshot_path.stat().st_mtime)

    def close(self) -> None:
        """Write and sync the log, take the last snapshot if there are save rules, end the child."""
        self._engine.lazy.drain()
        if self._child is not None:
            self._child.kill()
            self._child = None
        try:
            self._aof.close()
            if self._started and self._config.appendonly and not self._aof.manifest.base:
                self._aof.create()  # the log was turned on a moment ago, and the child was not ready
        except OSError as error:
            log.error("the log could not be written to its end: %s", error)
            self.closed_whole = False
        if self._started and self._save_at_end and self._config.save:
            try:
                self.save()
            except ReplyError as error:
                log.error("no last snapshot: %s", error)
                self.closed_whole = False
        self._lock.release()

    def shut_down(self, save: bool | None, force: bool) -> None:
        """SHUTDOWN: what can fail is done first, so that a server that cannot save goes on."""
        if self._started:
            wanted = bool(self._config.save) if save is None else save
            try:
                if self._aof.writer is not None:
                    self._aof.writer.drain()
                if wanted:
                    self._end_child(rewrites=False)
                    self.save()
            except (OSError, ReplyError):
                if not force:
                    raise ReplyError("Errors trying to SHUTDOWN. Check logs.") from None
        self._save_at_end = False
        self._engine.workers.stop()  # what a thread would still write is in no snapshot
        self._stop()

    # -- from time to time ------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Called hz times a second."""
        if self._aof.writer is not None:
            self._aof.writer.tick(may_sync=self._child is None or not self._config.no_appendfsync_on_rewrite)
        if self._child is not None:
            problem = self._child.poll()
            if problem is not None:
                child, self._child = self._child, None
                (self._rewrite_ended if self._child_rewrites else self._save_ended)(child, problem)
        self._start_what_is_due()

    def _start_what_is_due(self) -> None:
        """Fork if something is due and no thread has a key locked for writing; if one has, this is called again."""
        if self._child is not None:
            return
        rewrite = self._rewrite_scheduled or self._rewrite_is_due()
        if not (rewrite or self._save_scheduled or self._save_is_due()):
            self._engine.lock_gate.reopen()
        elif not self._engine.lock_gate.may_fork():
            return
        elif rewrite:
            self._rewrite_scheduled = False
            self._try_rewrite()
        else:
            self._save_scheduled = False
            self._try_save()

    def _save_is_due(self) -> bool:
        changes = self._changes
        waited = time.monotonic() - self._last_save_try
        if not changes or (not self._save_ok and waited < RETRY_SECONDS):
            return False
        passed = time.monotonic() - self._saved_at
        return any(changes >= wanted and passed > seconds for seconds, wanted in self._config.save)

    def _rewrite_is_due(self) -> bool:
        writer, config = self._aof.writer, self._config
        if writer is None:
            return False
        passed = time.monotonic() - self._last_rewrite_try
        if writer.needs_rewrite:  # writes are refused until it is done
            return writer.sync_works and passed >= min(self._rewrite_failures, 60)
        if passed < 60 * self._rewrite_failures:
            return False
        if not self._aof.manifest.base:
            return True
        grown_by = config.auto_aof_rewrite_percentage
        if not grown_by or writer.file.size < config.auto_aof_rewrite_min_size // 2:
            return False  # asks the disk about sizes only when there is a chance
        size = self._aof.size
        before = max(self._aof.size_at_rewrite, 1)
        return bool(size >= config.auto_aof_rewrite_min_size and (size - before) * 100 // before >= grown_by)

    # -- snapshots --------------------------------------------------------------------------------------------

    @property
    def _changes(self) -> int:
        return self._engine.keyspace.dirty - self._saved_dirty

    def save(self) -> None:
        if self._child is not None and not self._child_rewrites:
            raise ReplyError("Background save already in progress")
        self._engine.lazy.drain()
        began = time.monotonic()
        try:
            snapshot.save(self.snapshot_path, self._engine.keyspace)
        except OSError as error:
            self._save_failed(str(error))
            raise ReplyError(f"the snapshot could not be written: {error.strerror}") from error
        self._saved(self._engine.keyspace.dirty, time.monotonic() - began)

    def save_nothing(self) -> None:
        """A server that is killed after FLUSHALL must not find the keys again when it starts."""
        if self._config.save and not self._engine.loading:
            self._end_child(rewrites=False)  # it writes what was there before
            with contextlib.suppress(ReplyError):
                self.save()

    def start_save(self, now: bool = True, may_schedule: bool = False) -> bool:
        if self._child is not None:
            if not self._child_rewrites:
                raise ReplyError("Background save already in progress")
            if now and not may_schedule:
                raise ReplyError(
                    "Another child process is active (AOF?): can't BGSAVE right now. Use BGSAVE SCHEDULE in order to "
                    "schedule a BGSAVE whenever possible."
                )
        if self._child is not None or not now or not self._engine.lock_gate.may_fork():
            self._save_scheduled = True
            return False
        if not self._try_save():
            raise ReplyError("the snapshot's child could not be started; see the server's log")
        return True

    def _try_save(self) -> bool:
        path, keyspace = self.snapshot_path, self._engine.keyspace
        temporary = path.with_name(f"{TEMPORARY}{os.getpid()}-{path.name}")
        self._last_save_try = time.monotonic()
        self._engine.lazy.drain()
        try:
            child = Child(temporary, lambda file, go_on: snapshot.write(file, keyspace, go_on))
        except OSError as error:
            self._save_failed(str(error))
            return False
        finally:
            self._engine.lock_gate.reopen()
        self._watch(child, rewrites=False)
        return True

    def _watch(self, child: Child, rewrites: bool) -> None:
        self._child = child
        self._child_rewrites = rewrites
        self._child_dirty = self._engine.keyspace.dirty
        stats = self._engine.stats
        stats.forks, stats.last_fork = stats.forks + 1, child.fork_nanoseconds
        self._engine.latency.note("fork", child.fork_nanoseconds)
        log.info("process %d writes %s", child.pid, child.path)

    def _save_ended(self, child: Child, problem: str) -> None:
        if not problem:
            try:
                install(child.path, self.snapshot_path)
            except OSError as error:
                problem = str(error)
        if problem:
            self._save_failed(problem)
        else:
            self._saved(self._child_dirty, child.seconds)

    def _saved(self, dirty: int, seconds: float) -> None:
        self._saved_dirty = dirty
        self.last_save = int(time.time())
        self._saved_at = time.monotonic()
        self._saves += 1
        self._save_ok = True
        self._save_seconds = int(seconds)
        self._refuse_writes()
        log.log(NOTICE, "snapshot written to %s", self.snapshot_path)

    def _save_failed(self, problem: str) -> None:
        self._save_ok = False
        self._refuse_writes()
        log.error("the snapshot %s could not be written: %s", self.snapshot_path, problem)

    def _end_child(self, rewrites: bool) -> None:
        """Kill the child if it does that."""
        if self._child is not None and self._child_rewrites == rewrites:
            self._child.kill()
            self._child = None

    # -- the log ----------------------------------------------------------------------------------------------

    def start_rewrite(self, now: bool = True) -> bool:
        if self._child is not None and self._child_rewrites:
            raise ReplyError("Background append only file rewriting already in progress")
        if self._child is not None or not now or not self._engine.lock_gate.may_fork():
            self._rewrite_scheduled = True
            return False
        if not self._try_rewrite():
            raise ReplyError(
                "Can't execute an AOF background rewriting. Please check the server logs for more information."
            )
        return True

    def _try_rewrite(self) -> bool:
        self._last_rewrite_try = time.monotonic()
        self._engine.lazy.drain()
        try:
            child = self._aof.start_rewrite()
        except (OSError, StorageError) as error:
            self._rewrite_failed(str(error))
            return False
        finally:
            self._engine.lock_gate.reopen()
        self._watch(child, rewrites=True)
        return True

    def _rewrite_ended(self, child: Child, problem: str) -> None:
        if not problem:
            try:
                self._aof.finish_rewrite(child)
            except OSError as error:
                problem = str(error)
        if problem:
            self._rewrite_failed(problem)
            return
        self._tell_begun(None)
        self._rewrites += 1
        self._rewrite_failures = 0
        self._rewrite_seconds = child.seconds
        log.log(NOTICE, "the log was rewritten: %d bytes", self._aof.size)

    def _rewrite_failed(self, problem: str) -> None:
        self._rewrite_failures += 1
        log.error("the log could not be rewritten: %s", problem)
        if self._aof.writer is not None and not self._aof.manifest.base:  # it was just turned on, and is worth nothing
            self._tell_begun(problem)
            self._config.change([(DIRECTIVES["appendonly"], "no")])

    def when_log_began(self, then: Callable[[str | None], None]) -> bool:
        if self._aof.writer is None or self._aof.manifest.base:
            return False
        self._when_begun.append(then)
        return True

    def _tell_begun(self, problem: str | None) -> None:
        waiting, self._when_begun = self._when_begun, []
        for then in waiting:
            then(problem)

    def _switch_log(self, on: bool) -> None:
        """CONFIG SET appendonly. What is logged is worth nothing until a child has written the base it goes on from."""
        if on and self._aof.writer is None:
            try:
                self._lock.take()
            except FolderInUse as error:
                raise ValueError(str(error)) from None
            self._end_child(rewrites=True)  # it writes a base for a log without increments: not the one wanted now
            self._aof.open_without_base(self._log_trouble)
            self._rewrite_scheduled = True
        elif not on and self._aof.writer is not None:
            self._end_child(rewrites=True)
            self._rewrite_scheduled = False
            try:
                self._aof.close()
            except OSError as error:  # it may well be turned off because the disk is full
                log.warning("the log is off; its end could not be written: %s", error)
            self._log_trouble(None)
            self._tell_begun("it was turned off again")

    def _log_trouble(self, problem: str | None) -> None:
        if problem is not None and self._engine.write_error is None:
            log.error("the log cannot be written: %s; writes are refused until it can be", problem)
        elif problem is None and self._engine.write_error is not None:
            log.warning("the log can be written again")
        self._refuse_writes(problem)

    def _refuse_writes(self, log_problem: str | None = None) -> None:
        """Tell the engine whether writes are refused, and why."""
        writer = self._aof.writer
        problem = log_problem or (writer.trouble if writer is not None else None)
        error = None
        if problem is not None:
            error = f"Errors writing to the AOF file: {problem}"
        elif not self._save_ok and self._config.stop_writes_on_bgsave_error and self._config.save:
            error = SNAPSHOT_FAILED
        self._engine.write_error = error
        self._engine.require_gates("disk", error is not None)

    # -- DEBUG ------------------------------------------------------------------------------------------------

    def reload(self, save: bool, flush: bool) -> None:
        if save:
            self._end_child(rewrites=False)
            self.save()
        self._load_again(self._load_snapshot, flush, unchanged=save and flush)
        if self._aof.writer is not None and not (save and flush):
            self._rewrite_scheduled = True  # what was loaded is not what was logged

    def reload_log(self) -> None:
        if self._engine.in_unit:  # the log gets all of a transaction at its end: what is done of it would be lost
            raise ReplyError("DEBUG LOADAOF cannot run in a transaction, which is not in the log yet")
        if self._aof.writer is not None:
            self._aof.writer.drain()
        self._load_again(self._load_log, flush=True, unchanged=True)

    def _load_again(self, load: Callable[[], Iterator[None]], flush: bool, unchanged: bool) -> None:
        """Read what is on disk; `unchanged` says that it is what memory holds."""
        engine, keyspace = self._engine, self._engine.keyspace
        engine.lazy.drain()
        waiting = engine.blocking.before_reload() if unchanged else []
        dirty = keyspace.dirty
        if flush:
            for database in keyspace.databases:
                database.clear()
            keyspace.once_records = OnceRecords()
        engine.loading, keyspace.expiring = True, False
        try:
            for _ in load():
                pass
        except (StorageError, OSError) as error:
            log.error("cannot reload: %s", error)
            raise ReplyError("Error trying to load the RDB dump, check server logs.") from error
        finally:
            engine.loading, keyspace.expiring = False, True
            keyspace.dirty = dirty
        engine.streams.find_all()
        engine.blocking.after_reload(waiting)
        for database in keyspace.databases:
            database.touch_observed()

    # -- INFO -------------------------------------------------------------------------------------------------

    def info(self) -> dict[str, int | str]:
        """INFO persistence, with Redis's names; rdb means the snapshot."""
        engine, child, writer = self._engine, self._child, self._aof.writer
        saving = child is not None and not self._child_rewrites
        rewriting = child is not None and self._child_rewrites
        seconds = child.seconds if child is not None else -1
        fields: dict[str, int | str] = {
            "loading": int(engine.loading),
            "async_loading": 0,
            "current_cow_peak": 0,
            "current_cow_size": 0,
            "current_cow_size_age": 0,
            "current_fork_perc": "0.00",
            "current_save_keys_processed": 0,
            "current_save_keys_total": 0,
            "rdb_changes_since_last_save": self._changes,
            "rdb_bgsave_in_progress": int(saving),
            "rdb_last_save_time": self.last_save,
            "rdb_last_bgsave_status": "ok" if self._save_ok else "err",
            "rdb_last_bgsave_time_sec": self._save_seconds,
            "rdb_current_bgsave_time_sec": seconds if saving else -1,
            "rdb_saves": self._saves,
            "rdb_last_cow_size": 0,
            "rdb_last_load_keys_expired": 0,
            "rdb_last_load_keys_loaded": self._loaded_keys,
            "aof_enabled": int(writer is not None),
            "aof_rewrite_in_progress": int(rewriting),
            "aof_rewrite_scheduled": int(self._rewrite_scheduled),
            "aof_last_rewrite_time_sec": self._rewrite_seconds,
            "aof_current_rewrite_time_sec": seconds if rewriting else -1,
            "aof_last_bgrewrite_status": "err" if self._rewrite_failures else "ok",
            "aof_rewrites": self._rewrites,
            "aof_rewrites_consecutive_failures": self._rewrite_failures,
            "aof_last_write_status": "err" if writer is not None and writer.trouble else "ok",
            "aof_last_cow_size": 0,
            "module_fork_in_progress": 0,
            "module_fork_last_cow_size": 0,
        }
        if writer is not None:
            fields |= {
                "aof_current_size": self._aof.size,
                "aof_base_size": self._aof.size_at_rewrite,
                "aof_pending_rewrite": int(self._rewrite_scheduled),
                "aof_buffer_length": writer.waiting_bytes,
                "aof_pending_bio_fsync": int(writer.syncing),
                "aof_delayed_fsync": writer.delayed_syncs,
            }
        if engine.loading:
            fields["loading_start_time"] = self._loading_since
        return fields
