"""One server for each folder: two that append to the same log would damage each other's batches.

The folder itself is locked (flock). So no lock file can be left over, a folder without write permission can be locked
too, and the lock ends with the process, however that ends. A forked child has the lock as well until it closes what it
inherited.

Rejected: a file with a process number in it. After a crash it names a process that is gone, or another one.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from pathlib import Path

from penstock.protocol.errors import PenstockError
from penstock.storage.files import StorageError

logger = logging.getLogger("penstock.storage")


class FolderInUse(StorageError):
    """Another server has the folder; the message says which process, if the system tells."""

    def __init__(self, folder: Path, owner: int | None) -> None:
        self.path = folder
        self.offset = 0
        self.problem = f"the folder is in use by {f'process {owner}' if owner else 'another server'}"
        PenstockError.__init__(self, f"{folder.resolve()}: {self.problem}. Give each server a `dir` of its own")


class FolderUnusable(StorageError):
    """The folder cannot be made, or nothing can be written there."""

    def __init__(self, folder: Path, error: OSError) -> None:
        self.path = folder
        self.offset = 0
        problem = "it is no folder" if isinstance(error, FileExistsError) else error.strerror or str(error)
        self.problem = problem
        remedy = "Name a folder with --dir that can be, or start with --appendonly no --save '' to keep nothing"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = "Make room on that disk"
        PenstockError.__init__(self, f"dir {folder} cannot be written: {problem}. {remedy}")


class FolderLock:
    """See the top of this file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        return self._descriptor is not None

    def take(self) -> None:
        """Lock the folder unless that is done already; FolderInUse if another process has it."""
        if self._descriptor is not None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise FolderInUse(self._folder, _owner(self._folder)) from None
        except OSError as error:  # some network file systems lock no folders
            logger.info("%s cannot be locked: %s", self._folder, error)
        self._descriptor = descriptor

    def release(self) -> None:
        """Release the folder; processes that inherited the lock do not have it any more either."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            finally:
                os.close(descriptor)


def _owner(folder: Path) -> int | None:
    """The process that has the lock, if the system tells (Linux does)."""
    inode = folder.stat().st_ino
    try:
        rows = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    for row in rows:
        words = row.split()  # 1: FLOCK ADVISORY WRITE 4711 08:02:131090 0 EOF
        if len(words) > 5 and words[1] == "FLOCK" and words[5].endswith(f":{inode}") and words[4].isdigit():
            return int(words[4]) or None
    return None
