"""The few file operations that durability depends on, and the error that storage/ raises.

A file that replaces another is written beside it, synced, renamed over it, and then the folder is synced: at every
instant either the old or the new one exists, whole.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from penstock.protocol.errors import PenstockError

TEMPORARY = "temp-"
"""The prefix of unfinished files; those that a crash left are removed at the next start."""
MOST_PIECES = 1000
"""Pieces that the system takes at once; Linux takes 1024."""
AT_ONCE = 1 << 20
"""Bytes that are given to the system at once, if there are several pieces."""


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


def write_pieces(descriptor: int, pieces: Sequence[bytes | memoryview]) -> int:
    """Write all of them, about a megabyte at a time; answers how many bytes these are.

    What comes together is copied to larger pieces of the system's own memory: that takes half of the time that it takes
    to write 34 kB after 34 kB. For 4 MB at a time the system looks for such large ones that it often takes longer.
    """
    total = sum(map(len, pieces))
    if total <= AT_ONCE and len(pieces) <= MOST_PIECES:
        _write_together(descriptor, pieces, total)
        return total
    together: list[bytes | memoryview] = []
    size = 0
    for piece in pieces:
        if together and (size + len(piece) > AT_ONCE or len(together) == MOST_PIECES):
            _write_together(descriptor, together, size)
            together, size = [], 0
        together.append(piece)
        size += len(piece)
    _write_together(descriptor, together, size)
    return total


def _write_together(descriptor: int, pieces: Sequence[bytes | memoryview], size: int) -> None:
    written = os.writev(descriptor, pieces)
    if written < size:
        write_rest(descriptor, pieces, written)


def write_rest(descriptor: int, pieces: Sequence[bytes | memoryview], written: int) -> None:
    """The system took no more than so many bytes of them at once, perhaps because the disk is nearly full."""
    for piece in pieces:
        rest = memoryview(piece)[written:]
        written = max(written - len(piece), 0)
        while rest:
            rest = rest[os.write(descriptor, rest) :]


def install(temporary: Path, path: Path) -> None:
    """Give a synced temporary file its name, for good."""
    temporary.replace(path)
    sync_folder(path.parent)


def replace_file(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Replace or make `path`, all of it or nothing."""
    temporary = path.with_name(f"{TEMPORARY}{os.getpid()}-{path.name}")
    write_synced(temporary, write)
    install(temporary, path)


def unlink_held(path: Path) -> int | None:
    """Remove the name of a file, if it exists. To close the descriptor that this answers frees what the file takes.

    That is most of the work, about 50 ms for 256 MB, and any thread can do it. None if there is nothing to close.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # it does not exist, or there are too many open files
        descriptor = None
    try:
        path.unlink(missing_ok=True)
    except OSError:
        if descriptor is not None:
            os.close(descriptor)
        raise
    return descriptor


def unused_name(path: Path) -> Path:
    """`path`, or with a number behind it: what an earlier repair kept is not to be lost by the next."""
    candidates = (path.with_name(f"{path.name}.{number}") if number else path for number in itertools.count())
    return next(candidate for candidate in candidates if not candidate.exists())


def remove_unfinished(folder: Path, ending: str) -> None:
    """Remove files that an earlier process did not finish."""
    for path in folder.glob(f"{TEMPORARY}*-{ending}"):
        path.unlink(missing_ok=True)
