"""The few file operations that durability depends on, and the error that storage/ raises.

A file that replaces another is written beside it, synced, renamed over it, and then the folder is synced: at every
instant either the old or the new one exists, whole.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from penstock.protocol.errors import PenstockError

TEMPORARY = "temp-"
"""The prefix of unfinished files; those that a crash left are removed at the next start."""


class StorageError(PenstockError):
    """A file that cannot be used: which one, where it is damaged, and what to do about it."""

    def __init__(self, path: Path, offset: int, problem: str, remedy: str = "") -> None:
        self.path = path
        self.offset = offset
        self.problem = problem
        text = f"{path}: at byte {offset}: {problem}"
        super().__init__(f"{text}. {remedy}" if remedy else text)


def sync_folder(folder: Path) -> None:
    """Make renames and new names in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_writable(folder: Path) -> None:
    """OSError if no file can be made in a folder. Only a try tells: a mount may be read-only for root, too."""
    probe = folder / f"{TEMPORARY}{os.getpid()}-probe"
    try:
        probe.touch()
    finally:
        probe.unlink(missing_ok=True)


def write_synced(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Make a file with what `write` writes and sync it; if that fails, it is removed."""
    try:
        with path.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def install(temporary: Path, path: Path) -> None:
    """Give a synced temporary file its name, for good."""
    temporary.replace(path)
    sync_folder(path.parent)


def replace_file(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Replace or make `path`, all of it or nothing."""
    temporary = path.with_name(f"{TEMPORARY}{os.getpid()}-{path.name}")
    write_synced(temporary, write)
    install(temporary, path)


def unused_name(path: Path) -> Path:
    """`path`, or with a number behind it: what an earlier repair kept is not to be lost by the next."""
    candidates = (path.with_name(f"{path.name}.{number}") if number else path for number in itertools.count())
    return next(candidate for candidate in candidates if not candidate.exists())


def remove_unfinished(folder: Path, ending: str) -> None:
    """Remove files that an earlier process did not finish."""
    for path in folder.glob(f"{TEMPORARY}*-{ending}"):
        path.unlink(missing_ok=True)
