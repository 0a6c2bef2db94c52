"""The feed: the bytes of all increments of a log, in order. Replicas follow it, by offsets.

Owned by the loop thread.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.storage.aof import AppendOnlyFile


class Feed:
    """Where the feed of a log begins and ends, and which files hold it."""

    def __init__(self, aof: AppendOnlyFile) -> None:
        self._aof = aof
        self.keep_from: Callable[[], int | None] = lambda: None  # the offset from which replicas need it, if any

    @property
    def start(self) -> int:
        """The first offset that is on disk."""
        return min(self._aof.manifest.starts.values(), default=0)

    @property
    def base_end(self) -> int:
        """Where it goes on after what the base holds."""
        manifest = self._aof.manifest
        return manifest.starts[manifest.increments[0]] if manifest.increments else 0

    @property
    def end(self) -> int:
        """The offset after the last batch that is in the log."""
        return self._aof.writer.file.end if self._aof.writer is not None else 0

    @property
    def synced_end(self) -> int:
        """The offset up to which it is safe from a power cut."""
        return self._aof.writer.synced_end if self._aof.writer is not None else 0

    def increment_at(self, offset: int) -> tuple[Path, int, int | None]:
        """The increment that holds an offset, or will: its path, where it begins, and where it ends.

        The end of the last one is not known: None. LookupError if it is gone.
        """
        end = None
        for start, name in reversed(self._increments()):
            if start <= offset:
                return self._aof.folder / name, start, end
            end = start
        raise LookupError(f"the log begins at {self.start}")

    def _increments(self) -> list[tuple[int, str]]:
        return sorted((start, name) for name, start in self._aof.manifest.starts.items())

    def trim(self) -> None:
        """Remove the increments that the base has replaced and no replica needs."""
        self._aof.finish_switch_and_install()
        needed, increments, manifest = self.keep_from(), self._increments(), self._aof.manifest
        gone = {
            name
            for (_, name), (end, _) in itertools.pairwise(increments)
            if name in manifest.kept and (needed is None or end <= needed)
        }
        if gone:
            starts = {name: start for start, name in increments if name not in gone}
            self._aof.list_files(replace(manifest, starts=starts))
            self._aof.remove_history()
