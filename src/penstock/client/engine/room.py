"""The batches that wait for room (max_buffered_commands, max_buffered_bytes), in the order of their calls.

Only the first of the queue may be submitted, so small batches do not overtake a large one. A batch that leaves the
queue, submitted or not, wakes the next one. How a caller waits is up to the driver: `wake` wakes the caller of one
batch.

Rejected: a Condition for threads. An interrupt leaves it without its lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice

from penstock.client.engine.batch import Batch
from penstock.client.engine.connection import ConnectionCore
from penstock.client.errors import BufferFull, NotSent


def _always(batch: Batch) -> bool:
    return True


class RoomQueue:
    """See the top of this file; a driver with threads calls it under its lock."""

    def __init__(
        self, core: ConnectionCore, wake: Callable[[Batch], None], is_waiting: Callable[[Batch], bool] = _always
    ) -> None:
        """`is_waiting` is false for a batch whose caller is gone without having left the queue, as after an
        interrupt.
        """
        self._core = core
        self._wake = wake
        self._is_waiting = is_waiting
        self.batches: deque[Batch] = deque()

    def submit(self, batch: Batch, now: float) -> None:
        """As ConnectionCore.submit, in the order of calls: BufferFull if other batches wait already."""
        core = self._core
        if not self.batches:
            core.submit(batch, now)
            return
        if self.first() not in (None, batch):
            raise core.pending.full()
        try:
            core.submit(batch, now)
        except BufferFull:
            raise
        except NotSent:
            self.leave(batch)
            raise
        self.leave(batch)

    def first(self) -> Batch | None:
        """The batch whose turn it is."""
        batches = self.batches
        while batches and not self._is_waiting(batches[0]):
            batches.popleft()
        return batches[0] if batches else None

    def enter(self, batch: Batch) -> None:
        """Wait behind the others. Raises BufferFull if `when_full` says so."""
        if self._core.settings.when_full == "raise":
            self.leave(batch)
            raise self._core.pending.full()
        if batch not in self.batches:
            self.batches.append(batch)

    def leave(self, batch: Batch) -> None:
        """The batch waits no longer, and there may be room for the next."""
        batch.waiter = None
        if batch in self.batches:
            self.batches.remove(batch)
        self.wake()

    def wake(self, most: int = 1) -> None:
        """Let the first batches look whether there is room for them."""
        if self.first() is not None:
            for batch in list(islice(self.batches, most)):
                self._wake(batch)
