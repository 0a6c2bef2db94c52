"""Compares the log on disk with the snapshot, and refuses a start from the older one.

The first block of a snapshot records its relation to the log of its folder (`Standing`):

    written with the log on     it has what the log has up to an offset of the feed, if that is known
    written with the log off    it has more than the log, which ended at an offset of a feed

The manifest of a log says whether the log is on, or was turned off on purpose (manifest.py). Feeds have unique ids
(lineage.py), so these words stay true when a folder is copied or moved, or a file comes from a backup. Times of files
do not.

A folder of a version that wrote none of this starts as it did: from the log if it is on, else from the snapshot, with a
warning. docs/design/0029-log-or-snapshot.md has the reasons.
"""

from __future__ import annotations

import contextlib
import logging
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.protocol.errors import PenstockError
from penstock.storage import manifest as manifests
from penstock.storage import snapshot
from penstock.storage.files import StorageError
from penstock.storage.manifest import Manifest, State

if TYPE_CHECKING:
    from penstock.engine.keyspace.databases import Keyspace
    from penstock.storage.aof import AppendOnlyFile

logger = logging.getLogger("penstock.storage")

_words = re.compile(rb"(with|beyond) ([0-9a-f]{40}|-) (\d+|-)").fullmatch


class OlderData(StorageError):
    """A start would read the older one of log and snapshot, and so lose what only the newer one has."""

    def __init__(self, path: Path, problem: str, remedy: str) -> None:
        self.path = path
        self.offset = 0
        self.problem = problem
        PenstockError.__init__(self, f"{path} {problem}. {remedy}")


@dataclass(frozen=True, slots=True)
class Standing:
    """The relation of a snapshot to the log of its folder."""

    feed: str  # the log's last one; empty for a log of a version that had none
    end: int | None  # the offset up to which it has the log; None if that was not known
    beyond: bool  # it was written while that log was off, and has what came after it

    def dump(self) -> bytes:
        """
        >>> Standing("", 12, True).dump()
        b'beyond - 12'
        """
        kind = "beyond" if self.beyond else "with"
        return f"{kind} {self.feed or '-'} {'-' if self.end is None else self.end}".encode()

    def is_after(self, log: Manifest, end: int) -> bool:
        """Whether the snapshot has all of this log, and more: the log was not written since it was turned off."""
        return self.beyond and (self.feed, self.end) == (log.lineage.id, end)

    def has_all(self, log: Manifest, end: int) -> bool:
        """Whether the snapshot has at least what this log has."""
        if self.beyond:
            return self.is_after(log, end)
        if self.end is None:
            return False
        if self.feed == log.lineage.id:
            return self.end >= end
        # A power cut may have taken the log's last bytes: then the next feed began before the snapshot's end.
        shared = log.lineage.common(self.feed, self.end, end)
        return shared is not None and shared >= end


class MemoryStanding:
    """The relation of memory to the log on disk, which a snapshot of it records. Owned by the loop thread."""

    def __init__(self, aof: AppendOnlyFile, keyspace: Keyspace) -> None:
        self._aof = aof
        self._keyspace = keyspace
        self._left: Standing | None = None  # while that log is not written
        self._dirty = 0  # keyspace.dirty when it was left

    def standing(self) -> Standing | None:
        """None if there is no log."""
        aof = self._aof
        if not aof.is_listed or aof.writer is None:
            if self._left is not None and self._keyspace.dirty != self._dirty:
                return replace(self._left, beyond=True)
            return self._left
        return Standing(aof.lineage.id, aof.writer.file.end if aof.writer.has_all else None, beyond=False)

    def leave_log(self, beyond: bool) -> None:
        """The log on disk is not written from now on; memory has it, or has also what comes after it.

        What is changed from now on comes after it, too.
        """
        self._dirty = self._keyspace.dirty
        with contextlib.suppress(OSError, StorageError):  # one that cannot be read is not newer than anything
            listed = manifests.read(self._aof.manifest_path)
            self._left = Standing(listed.lineage.id, listed.end(self._aof.folder), beyond)

    def begin_without_log(self, snapshot_path: Path) -> None:
        """Memory was loaded from the snapshot, or is empty, and the log that is there is not read."""
        folder, standing = self._aof.folder, standing_of(snapshot_path)
        listed, end = _listed(self._aof.manifest_path)
        if standing is None:
            is_equal = _is_empty(listed, folder) and not any(database.data for database in self._keyspace.databases)
        else:
            is_equal = not standing.beyond and (standing.feed, standing.end) == (listed.lineage.id, end)
        self.leave_log(beyond=not is_equal)

    def turn_log_off(self, for_good: bool) -> None:
        """Stop logging, while memory goes on; OSError if the end of the log could not be written.

        `for_good` says that nothing else will be written either, so that a start without this log is what is wanted.
        """
        aof, was_listed = self._aof, self._aof.is_listed
        try:
            aof.close()
        finally:
            if was_listed and for_good:
                aof.list_files(replace(aof.manifest, state=State.OFF))


def standing_of(path: Path) -> Standing | None:
    """The standing that a snapshot records; None if it is not there, cannot be read, or is of an older version."""
    try:
        found = _words(snapshot.standing(path))
    except (OSError, StorageError):
        return None
    if found is None:
        return None
    feed = "" if found[2] == b"-" else found[2].decode()
    return Standing(feed, None if found[3] == b"-" else int(found[3]), found[1] == b"beyond")


def check_start(from_log: bool, manifest_path: Path, snapshot_path: Path) -> None:
    """OlderData if the data that is about to be read is older than what is there besides.

    Called when there is a log; `from_log` says that it is the one that will be read.
    """
    folder, standing = manifest_path.parent, standing_of(snapshot_path)
    listed, end = _listed(manifest_path)
    if from_log:
        if standing is not None and standing.is_after(listed, end):
            raise OlderData(
                snapshot_path,
                f"is newer than the log in {folder}: it has changes that were made while the log was off",
                "Start with --appendonly no, then CONFIG SET appendonly yes; "
                f"to give these changes up, move {snapshot_path.name} away",
            )
    elif not (standing is not None and standing.has_all(listed, end)) and not _is_empty(listed, folder):
        if listed.state is State.ON:
            lacks = f"the snapshot {snapshot_path} lacks" if snapshot_path.exists() else "are in no snapshot"
            raise OlderData(
                folder,
                f"holds a log with changes that {lacks}, and `appendonly no` would not read it",
                f"Start with --appendonly yes; to give these changes up, move {folder.name} away",
            )
        logger.warning(
            "%s holds a log, and `appendonly no` does not read it. If data is missing, start with --appendonly yes; "
            "if the log is not needed, move that folder away",
            folder,
        )


def _listed(manifest_path: Path) -> tuple[Manifest, int]:
    """The log, and its end; an empty one if it cannot be read. Loading says so, if it is to be loaded."""
    try:
        listed = manifests.read(manifest_path)
        return listed, listed.end(manifest_path.parent)
    except (OSError, StorageError):
        return Manifest(), 0


def _is_empty(listed: Manifest, folder: Path) -> bool:
    """Whether nothing was ever written to a log."""
    try:
        written = any((folder / name).stat().st_size for name in listed.increments)
        return not written and not any(snapshot.read(folder / listed.base))
    except (OSError, StorageError):
        return False
