"""The clock of a logical connection: when commands are given up, and when a silent connection counts as lost.

A command is given up at its deadline. A connection is silent if replies are owed and no byte has come for
`silence_timeout`, plus what the first command may wait on the server (`patience`). `next_tick` is never later than the
first of these times.
"""

from __future__ import annotations

import math
from collections import deque

from penstock.client.delivery import Settings
from penstock.client.engine.batch import Batch
from penstock.client.engine.pending import PendingBatches


class Timeouts:
    """Part of a ConnectionCore; see the top of this file."""

    def __init__(self, settings: Settings, pending: PendingBatches, awaiting: deque[Batch]) -> None:
        self._settings, self._pending, self._awaiting = settings, pending, awaiting
        self.heard = 0.0
        """When the last byte came, or the first reply became owed."""
        self.next_tick = math.inf
        """When ConnectionCore.tick has something to do at the earliest."""

    def set_deadline(self, batch: Batch, now: float) -> None:
        """Give a submitted batch its deadline, unless its driver has given it one."""
        if self._settings.command_timeout is not None:
            batch.deadline = now + self._settings.command_timeout + batch.patience
        if batch.deadline is not None and batch.deadline < self.next_tick:
            self.next_tick = batch.deadline

    def replies_owed(self) -> None:
        """The first reply became owed: silence counts from now on."""
        self.next_tick = min(self.next_tick, self.silent_at())

    def silent_at(self) -> float:
        """When the connection counts as silent, if nothing comes until then."""
        limit = self._settings.silence_timeout
        if not self._awaiting or limit is None:
            return math.inf
        return self.heard + limit + self._awaiting[0].patience

    def overdue(self, now: float) -> list[Batch]:
        """Batches whose deadline has passed, in order."""
        return [
            batch
            for batch in (*self._awaiting, *self._pending.queue)
            if batch.deadline is not None and batch.deadline <= now and not batch.is_finished
        ]

    def update(self) -> None:
        """Set `next_tick` from what is under way now."""
        queues = (self._awaiting, self._pending.queue)
        unfinished = (batch for queue in queues for batch in queue if not batch.is_finished)
        deadlines = (batch.deadline for batch in unfinished if batch.deadline is not None)
        self.next_tick = min(self.silent_at(), min(deadlines, default=math.inf))

    def time_to_connect(self, now: float) -> float | None:
        """Seconds until the first command that waits to be written is given up; None: all may wait for ever."""
        first = self._pending.first_deadline()
        return None if first == math.inf else max(first - now, 0.001)
