"""The writing end of a replica's log: it appends the batches of its leader as they came, so that the two logs are equal
byte for byte, and an offset means the same in both.
"""

from __future__ import annotations

from penstock.engine.declarations import Argv
from penstock.engine.interfaces import LogEntry
from penstock.storage.batches import Batch
from penstock.storage.switching_writer import SwitchingWriter


class FollowerWriter(SwitchingWriter):
    """See the top of this file. Its pieces are whole batches."""

    def append_batches(self, batches: Batch) -> None:
        """Take whole batches."""
        self._pieces += batches
        if not self._planned and self.trouble is None:
            self._write_soon()

    def write_batches(self, batches: Batch) -> None:
        """Take whole batches, and write them now, or when the thread is done: the leader waits for them."""
        self._pieces += batches
        self.pending = self._planned = True
        self.flush()

    def log(self, entries: list[LogEntry]) -> None:
        raise AssertionError(f"a replica changed something by itself: {entries[0][1][:2]!r}")

    def append(self, database: int, argv: Argv) -> None:
        raise AssertionError(f"a replica changed something by itself: {argv[:2]!r}")

    def _take_batch(self) -> Batch:
        pieces, self._pieces = self._pieces, []
        return pieces

    def _take_back(self, batch: Batch) -> None:
        self._pieces[:0] = batch

    def _join(self) -> None:
        """Batches have nothing between them."""
