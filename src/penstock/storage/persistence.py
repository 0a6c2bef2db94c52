"""Persistence: what is kept on disk, from the start of a server to its end.

The App owns one of these and calls `tick` hz times a second. It combines the parts: reading at the start (loading.py),
snapshots (saves.py), the log (aof.py) and its rewrites (rewrites.py), the one child that writes for them
(one_child.py), and the files of old messages of streams (history.py). It decides which of them may start the child, and
whether writes are refused because the disk fails.

Everything here is on the loop thread; slow work is done by the child or by the log's thread (syncs).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Coroutine
from pathlib import Path

from penstock.engine.dispatch import Engine
from penstock.protocol.errors import ReplyError
from penstock.storage.aof import AppendOnlyFile
from penstock.storage.files import check_writable
from penstock.storage.folder_lock import FolderInUse, FolderLock, FolderUnusable
from penstock.storage.history import History
from penstock.storage.lineage import Lineage
from penstock.storage.loading import Loader
from penstock.storage.log_or_snapshot import check_start
from penstock.storage.one_child import OneChild
from penstock.storage.rewrites import Rewrites
from penstock.storage.saves import Saves
from penstock.storage.writer import Loop
from penstock.types.once_records import OnceRecords

logger = logging.getLogger("penstock.storage")

SNAPSHOT_FAILED = (
    "Redis is configured to save RDB snapshots, but it's currently unable to persist to disk. Commands that may modify "
    "the data set are disabled, because this instance is configured to report errors during writes if RDB snapshotting "
    "fails (stop-writes-on-bgsave-error option). Please check the Redis logs for details about the RDB error."
)
PREDECESSOR_SECONDS = 1
"""How long a server that is just ending, or a child of one that was killed, may delay our start."""


class Persistence:
    """engine.interfaces.Persistence; see the top of this file."""

    def __init__(
        self, engine: Engine, loop: Loop, stop: Callable[[], None], sync: Callable[[int], None] = os.fdatasync
    ) -> None:
        self._engine = engine
        self._config = engine.config
        self._stop = stop
        self._lock = FolderLock(Path(engine.config.dir))
        self.aof = AppendOnlyFile(engine, loop, engine.stats.syncs.timing(sync))
        self.on_another_log: Callable[[], None] = lambda: None  # it does not continue the one before
        self.on_trouble: Callable[[bool], None] = lambda refuses: None  # the disk refuses the log, or takes it again
        self.is_catching_up: Callable[[], bool] = lambda: False  # a replica that was away gets what it has missed
        self._child = OneChild(engine)
        self._saves = Saves(engine, self._child, self._lock, self.aof.memory.standing, self._refuse_writes)
        self._rewrites = Rewrites(engine, self.aof, self._child)
        self._rewrites.is_catching_up = lambda: self.is_catching_up()
        self.loader = Loader(engine, self._lock, self.aof, self._saves)
        self.history = History(engine, loop, self.aof, self._refuse_writes, self._rewrites.soon)
        self._saves.files = self._rewrites.files = self.history.known
        self.closed_whole = True  # False: `close` could not bring everything to disk
        self._started = False  # everything is loaded: memory is what the disk should hold, and not a part of it
        self._save_at_end = True
        self._has_whole = True  # memory has no half of a script
        self.loader.set_loading(True)  # from now on, not from `start`: sockets may be open before that
        engine.persistence = self
        engine.lock_gate.on_quiet = self._start_what_is_due

    # -- start and end ----------------------------------------------------------------------------------------

    async def start(self, unwanted: Callable[[], bool] = lambda: False) -> None:
        """Load the data, then keep the disk up to date. Clients get LOADING until that is done and the log is open.

        Gives up when `unwanted` says so; then `close` leaves everything on disk as it is.
        """
        try:
            await self._lock_folder()
            from_log = self._config.appendonly and self.aof.exists
            if self.aof.exists:
                check_start(from_log, self.aof.manifest_path, self._saves.path)
            await self.loader.load_in_slices(unwanted)
            if unwanted():
                return
            if self.aof.exists and not from_log:
                self.aof.memory.begin_without_log(self._saves.path)
            if self._config.appendonly:  # perhaps only since a moment ago: CONFIG SET while the snapshot was loaded
                self._lock.take()
                try:
                    if not from_log:
                        self.aof.create()
                    self.aof.open(self._log_trouble, following=self._engine.following)
                except OSError as error:
                    raise self._unusable(error) from None
        except BaseException:
            self._lock.release()
            raise
        self.loader.set_loading(False)  # only now: no client may see, change or save a part of the data
        self._started = True
        if self._lock.held:
            self.history.start(self._saves.path)
        self._config.on_change("appendonly", self._switch_log)
        self._config.on_change("appendfsync", self.aof.set_policy)
        self._config.on_change("stop-writes-on-bgsave-error", lambda _: self._refuse_writes())
        self._config.on_change("save", self._rules_change)

    def _rules_change(self, rules: object) -> None:
        if rules and not self.history.started:
            self._take_lock()
            self.history.start(self._saves.path)
        self._refuse_writes()

    def _take_lock(self) -> None:
        """For CONFIG SET; ValueError if another server has the folder."""
        try:
            self._lock.take()
        except FolderInUse as error:
            raise ValueError(str(error)) from None

    async def _lock_folder(self) -> None:
        """Two servers would destroy each other's log, and replace each other's snapshots."""
        if not self._config.appendonly and not self._config.save:
            return
        try:
            await self._wait_for_lock()
            check_writable(Path(self._config.dir))
        except OSError as error:
            raise self._unusable(error) from None

    def _unusable(self, error: OSError) -> FolderUnusable:
        return FolderUnusable(Path(self._config.dir).absolute(), error)

    async def _wait_for_lock(self) -> None:
        patience = time.monotonic() + PREDECESSOR_SECONDS
        while True:
            try:
                self._lock.take()
                return
            except FolderInUse:
                if time.monotonic() > patience:
                    raise
            await asyncio.sleep(0.02)

    def close(self) -> None:
        """Write and sync the log, take the last snapshot if there are save rules, end the child."""
        self._engine.lazy.drain()
        self._child.kill()
        self.history.close()
        try:
            self.aof.close()
            if self._started and self._has_whole and self._config.appendonly and not self.aof.manifest.base:
                self.aof.create(at_end=True)  # the log was turned on a moment ago, and the child was not ready
        except OSError as error:
            logger.error("the log could not be written to its end: %s", error)
            self.closed_whole = False
        if self._started and self._save_at_end and self._config.save:
            try:
                self.save()
            except ReplyError as error:
                logger.error("no last snapshot: %s", error)
                self.closed_whole = False
        self._lock.release()

    def shut_down(self, save: bool | None, force: bool) -> None:
        """SHUTDOWN: steps that can fail come first, so that a server that cannot save continues."""
        if self._started:
            wanted = bool(self._config.save) if save is None else save
            try:
                if self.aof.writer is not None:
                    self.aof.writer.drain()
                if wanted:
                    self._child.kill(self._saves)
                    self.save()
            except (OSError, ReplyError) as error:
                if not force:
                    raise ReplyError("Errors trying to SHUTDOWN. Check logs.") from error
        self._save_at_end = False
        self._has_whole = self._engine.scripting.running is None
        self._engine.workers.stop()  # what a thread would still write is in no snapshot
        self._stop()
        self._engine.scripting.abandon()

    # -- from time to time ------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Called hz times a second."""
        if self.aof.writer is not None:
            may_sync = self._child.running is None or not self._config.no_appendfsync_on_rewrite
            self.aof.writer.tick(may_sync=may_sync)
        self._child.tick()
        self.history.tick()
        self._start_what_is_due()

    def _start_what_is_due(self) -> None:
        """Fork if something is due and no thread has a key locked for writing; if one has, this is called again.

        Not while data is loaded, which takes many turns of the loop: the child would write a part of it.
        """
        if self._child.running is not None or self._engine.loading:
            return
        saves, rewrites = self._saves, self._rewrites
        rewrite = (rewrites.scheduled or rewrites.is_due()) and not self._save_comes_first
        if not (rewrite or saves.scheduled or saves.is_due()):
            self._engine.lock_gate.reopen()
        elif not self._engine.lock_gate.may_fork():
            return
        elif rewrite:
            if not rewrites.must_wait():
                rewrites.scheduled = False
                rewrites.start()
        else:
            saves.scheduled = False
            saves.start()

    @property
    def _save_comes_first(self) -> bool:
        """The log was turned off, and what only it has is to be in a snapshot before a base replaces it."""
        return self._saves.replaces_log and self.aof.writer is None

    # -- snapshots --------------------------------------------------------------------------------------------

    @property
    def last_save(self) -> int:
        """Seconds since 1970."""
        return self._saves.last

    def save(self) -> None:
        if self.aof.writer is None and self._child.does(self._rewrites):
            self._child.kill(self._rewrites)  # its base would be older than the snapshot, and taken for newer
            self._rewrites.scheduled = True
        self._saves.save()

    def save_nothing(self) -> None:
        """A server that is killed after FLUSHALL must not load the keys again when it starts."""
        if self._config.save and not self._engine.loading:
            self._child.kill(self._saves)  # it writes the data from before
            with contextlib.suppress(ReplyError):
                self.save()

    def start_save(self, now: bool = True, may_schedule: bool = False) -> bool:
        return self._saves.request(now, may_schedule)

    # -- the log ----------------------------------------------------------------------------------------------

    def start_rewrite(self, now: bool = True) -> bool:
        self._saves.claim_folder("base of a log")
        return self._rewrites.request(now and not self._save_comes_first)

    def when_log_began(self, then: Callable[[str | None], None]) -> bool:
        return self._rewrites.when_log_began(then)

    def _switch_log(self, on: bool) -> None:
        """CONFIG SET appendonly. The log is of no use until a child has written its base."""
        if on and self.aof.writer is None:
            self._take_lock()
            self._child.kill(self._rewrites)  # it writes a base for a log without increments: not the one wanted now
            self.aof.open_without_base(self._log_trouble)
            self._rewrites.scheduled = True
            self._saves.replaces_log = False
            if not self.history.started:
                self.history.start(self._saves.path)
        elif not on and self.aof.writer is not None:
            self._child.kill(self._rewrites)
            self._rewrites.scheduled = False
            if self.aof.is_listed and self._config.save:
                self._saves.replaces_log = True
            try:
                self.aof.memory.turn_log_off(for_good=not self._config.save)
            except OSError as error:  # it may well be turned off because the disk is full
                logger.warning("the log is off; its end could not be written: %s", error)
            self._log_trouble(None)
            self._rewrites.tell_begun("it was turned off again")

    def change_role(self, following: bool) -> None:
        """The log continues as that of a replica, or of a server that writes by itself; OSError if the disk refuses."""
        self.aof.change_role(self._log_trouble, following)

    def replace_by(self, base: Path, start: int, lineage: Lineage) -> Coroutine[None, None, None]:
        """A replica has copied its leader's base: forget everything, and load that.

        Clients get LOADING from now on, and not only when this has begun to run: it must not forget what they write
        after REPLICAOF NO ONE. OSError if the disk refuses the base: then all is as before.
        """
        self.loader.set_loading(True)
        return self._replace_by(base, start, lineage)

    async def _replace_by(self, base: Path, start: int, lineage: Lineage) -> None:
        engine = self._engine
        try:
            while engine.workers.jobs:  # they read the values that go
                await asyncio.sleep(0.001)
            self._child.kill()
            self.aof.replace_by(base, start, lineage)
            self._forget_everything()
            await self.loader.load_in_slices(lambda: False)
            self.aof.open(self._log_trouble, following=True)
            self.history.start(self._saves.path)
            engine.streams.find_all()
        finally:
            self.loader.set_loading(False)
        for database in engine.keyspace.databases:
            database.touch_observed(existing_only=True)
        engine.blocking.serve()

    def _forget_everything(self) -> None:
        keyspace = self._engine.keyspace
        for database in keyspace.databases:
            database.clear()
            self._engine.streams.cleared(database)
        keyspace.once_records = OnceRecords()

    def _log_trouble(self, problem: str | None) -> None:
        if problem is not None and self._engine.write_error is None:
            logger.error("the log cannot be written: %s; writes are refused until it can be", problem)
        elif problem is None and self._engine.write_error is not None:
            logger.warning("the log can be written again")
        self._refuse_writes(problem)
        self.on_trouble(problem is not None)

    def _refuse_writes(self, log_problem: str | None = None) -> None:
        """Tell the engine whether writes are refused, or only new messages of streams, and why."""
        writer = self.aof.writer
        problem = log_problem or (writer.trouble if writer is not None else None)
        error = None
        if problem is not None:
            error = f"Errors writing to the AOF file: {problem}"
        elif not self._saves.ok and self._config.stop_writes_on_bgsave_error and self._config.save:
            error = SNAPSHOT_FAILED
        full = self.history.refusal
        self._engine.write_error, self._engine.streams_full = error, full
        self._engine.require_gates("disk", error is not None or full is not None)

    # -- DEBUG ------------------------------------------------------------------------------------------------

    def reload(self, save: bool, flush: bool) -> None:
        unchanged = save and flush
        another_log = self.aof.writer is not None and not unchanged
        if another_log and (self._engine.following or self._config.etcd):
            raise ReplyError(
                "DEBUG RELOAD NOSAVE and NOFLUSH would make this server differ from its leader or replicas"
            )
        if another_log and self._engine.in_unit:  # what is done of it is logged at its end
            raise ReplyError("DEBUG RELOAD NOSAVE and NOFLUSH cannot run in a transaction")
        if save:
            self._child.kill(self._saves)
            self.save()
        self.loader.load_again(self.loader.load_snapshot, flush, unchanged)
        if another_log:  # what was loaded is not what was logged: replicas must copy everything
            self._child.kill(self._rewrites)
            self.aof.close()
            self.aof.create()
            self.aof.open(self._log_trouble)
            self.on_another_log()

    def reload_log(self) -> None:
        if self._engine.in_unit:  # the log gets all of a transaction at its end: what is done of it would be lost
            raise ReplyError("DEBUG LOADAOF cannot run in a transaction, which is not in the log yet")
        if self.aof.writer is not None:
            self.aof.writer.drain()
        self.loader.load_again(self.loader.load_log, flush=True, unchanged=True)

    # -- INFO -------------------------------------------------------------------------------------------------

    def info(self) -> dict[str, int | str]:
        """INFO persistence, with Redis's names; rdb means the snapshot."""
        writer = self.aof.writer
        fields: dict[str, int | str] = {
            "loading": int(self._engine.loading),
            "async_loading": 0,
            "current_cow_peak": 0,
            "current_cow_size": 0,
            "current_cow_size_age": 0,
            "current_fork_perc": "0.00",
            "current_save_keys_processed": 0,
            "current_save_keys_total": 0,
            **self._saves.info(),
            "rdb_last_load_keys_expired": 0,
            "rdb_last_load_keys_loaded": self.loader.loaded_keys,
            **self._rewrites.info(),
            **self.history.info(),
            "module_fork_in_progress": 0,
            "module_fork_last_cow_size": 0,
        }
        if writer is not None:
            fields |= {
                "aof_current_size": self.aof.size,
                "aof_base_size": self.aof.size_at_rewrite,
                "aof_pending_rewrite": int(self._rewrites.scheduled),
                "aof_buffer_length": writer.waiting_bytes,
                "aof_pending_bio_fsync": int(writer.syncing),
                "aof_delayed_fsync": writer.delayed_syncs,
            }
        if self._engine.loading:
            fields["loading_start_time"] = self.loader.since
        return fields
