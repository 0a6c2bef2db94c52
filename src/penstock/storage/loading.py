"""Reading the data from disk: at the start, in slices, and by DEBUG RELOAD and DEBUG LOADAOF at once.

At the start clients get LOADING until all data is loaded. Keys do not expire while they are loaded: the log itself says
what expired, and when.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator

from penstock.engine.dispatch import Engine
from penstock.protocol.errors import ReplyError
from penstock.storage import snapshot
from penstock.storage.aof import AppendOnlyFile
from penstock.storage.files import StorageError, remove_unfinished
from penstock.storage.folder_lock import FolderLock
from penstock.storage.notice_logging import notice
from penstock.storage.saves import Saves
from penstock.types.once_records import OnceRecords

logger = logging.getLogger("penstock.storage")

_SLICE = 0.02
"""Seconds of loading after which clients get LOADING again."""


class Loader:
    """See the top of this file. Owned by the loop thread."""

    def __init__(self, engine: Engine, lock: FolderLock, aof: AppendOnlyFile, saves: Saves) -> None:
        self._engine = engine
        self._lock = lock
        self._aof = aof
        self._saves = saves
        self.loaded_keys = 0
        self.since = 0  # seconds since 1970

    def set_loading(self, on: bool) -> None:
        """Whether clients get LOADING."""
        self._engine.loading, self._engine.keyspace.expiring = on, not on
        self._engine.require_gates("loading", on)

    async def load_in_slices(self, unwanted: Callable[[], bool]) -> None:
        """Read the log if it is on and exists, else the snapshot if it exists. Gives up if it is unwanted."""
        pause = time.monotonic() + _SLICE
        for _ in self._load():
            if time.monotonic() > pause:
                await asyncio.sleep(0)
                if unwanted():
                    return
                pause = time.monotonic() + _SLICE

    def _load(self) -> Iterator[None]:
        path, keyspace = self._saves.path, self._engine.keyspace
        if self._engine.config.appendonly and self._aof.exists:
            load = self.load_log
        elif path.exists():
            load = self.load_snapshot
        else:
            return
        self.since = int(time.time())
        began = time.monotonic()
        yield from load()
        self.loaded_keys = sum(map(len, keyspace.databases))
        self._saves.memory_is_saved()
        if self._lock.held:
            remove_unfinished(path.parent, path.name)
        notice("loaded %d keys in %.3f seconds", self.loaded_keys, time.monotonic() - began)

    def load_log(self) -> Iterator[None]:
        notice("loading the log in %s", self._aof.folder)
        shown = time.monotonic()
        for done in self._aof.load():
            if time.monotonic() - shown > 1:
                shown = time.monotonic()
                notice("loading the log: %d MB", done >> 20)
            yield None

    def load_snapshot(self) -> Iterator[None]:
        path = self._saves.path
        notice("loading the snapshot %s", path)
        shown, count = time.monotonic(), 0
        # A log that continues after a reload must name every key that is deleted, so none may be left out silently.
        expired_before = self._engine.clock.now if self._aof.writer is None else 0
        for keys in snapshot.load(path, self._engine.keyspace, expired_before):
            count += keys
            if time.monotonic() - shown > 1:
                shown = time.monotonic()
                notice("loading the snapshot: %d keys", count)
            yield None
        self._saves.last = int(path.stat().st_mtime)

    def load_again(self, load: Callable[[], Iterator[None]], flush: bool, unchanged: bool) -> None:
        """DEBUG: read what is on disk; `unchanged` says that it is what memory holds."""
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
            logger.error("cannot reload: %s", error)
            raise ReplyError("Error trying to load the RDB dump, check server logs.") from error
        finally:
            engine.loading, keyspace.expiring = False, True
            keyspace.dirty = dirty
        engine.streams.find_all()
        engine.blocking.after_reload(waiting)
        for database in keyspace.databases:
            database.touch_observed()
