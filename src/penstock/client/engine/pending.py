"""The batches of a logical connection that are not finished: its queue, its bounds, and how a batch is finished.

A batch is held from `add` until it is finished, whether it waits to be written or for its replies; `counters` say how
much is held. Every held batch is finished exactly once, by `finish` or `finish_replied`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from penstock.client.delivery import Counters, Settings, State
from penstock.client.engine.batch import Batch
from penstock.client.errors import BufferFull, DeliveryError, NotSent, OutcomeUnknown


class PendingBatches:
    """Part of a core; see the top of this file."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.counters = Counters()
        self.queue: deque[Batch] = deque()
        """Batches to be written, in order; some may be finished already, and are passed over."""
        self._finished: list[Batch] = []

    # -- bounds -----------------------------------------------------------------------------------------------

    def has_room(self, batch: Batch) -> bool:
        """Whether a batch fits within the bounds; one that never would is taken when nothing else is held."""
        counters, settings = self.counters, self.settings
        commands = counters.buffered_commands
        return not commands or (
            commands + batch.count <= settings.max_buffered_commands
            and counters.buffered_bytes + batch.size <= settings.max_buffered_bytes
        )

    def full(self) -> BufferFull:
        counters, settings = self.counters, self.settings
        return BufferFull(
            f"{counters.buffered_commands} commands ({counters.buffered_bytes} bytes) are held already; "
            f"max_buffered_commands={settings.max_buffered_commands} and "
            f"max_buffered_bytes={settings.max_buffered_bytes} allow no more"
        )

    def add(self, batch: Batch) -> None:
        """Put a batch at the end of the queue."""
        counters = self.counters
        counters.buffered_commands += batch.count
        counters.buffered_bytes += batch.size
        batch.is_submitted = True
        self.queue.append(batch)

    def first_deadline(self) -> float:
        """When the first of those that wait to be written is given up."""
        deadlines = (batch.deadline for batch in self.queue if batch.deadline is not None and not batch.is_finished)
        return min(deadlines, default=math.inf)

    # -- finishing ---------------------------------------------------------------------------------------------

    def finish_replied(self, batch: Batch) -> None:
        """The usual end, without the questions that `finish` asks: written once, and every command has its reply."""
        batch.results, batch.is_finished = batch.replies, True
        counters = self.counters
        counters.replied += batch.count
        counters.buffered_commands -= batch.count
        counters.buffered_bytes -= batch.size
        self._finished.append(batch)

    def finish(self, batch: Batch, results: list[Any]) -> None:
        batch.results = results
        batch.is_finished = True
        counters = self.counters
        counters.buffered_commands -= batch.count
        counters.buffered_bytes -= batch.size
        failed = sum(isinstance(result, DeliveryError) for result in results)
        counters.failed += failed
        counters.replied += batch.count - failed
        self._finished.append(batch)

    def take_finished(self) -> list[Batch]:
        """Batches that were finished since the last call, in order."""
        finished, self._finished = self._finished, []
        return finished

    def fail_queued(
        self,
        why: str,
        unsent: type[NotSent],
        unknown: type[OutcomeUnknown],
        cause: Exception | None = None,
        instead: Exception | None = None,
        is_meant: Callable[[Batch], bool] = lambda batch: True,
    ) -> None:
        """Finish what waits to be written, as far as it is meant: with `unsent`, or `instead` of it, or `unknown` if it
        had been written before.
        """
        for batch in list(self.queue):
            if batch.is_finished or not is_meant(batch):
                continue
            results = batch.failures(why, unsent, unknown, instead)
            for result in results:
                if isinstance(result, DeliveryError) and result.__cause__ is None:
                    result.__cause__ = cause
            self.finish(batch, results)
        self._drop_finished()

    def rescue(self, batches: Iterable[Batch], why: str) -> None:
        """Finish batches that are neither finished nor in the queue: they may have been written, and no reply will find
        them.

        Then count again what is held: the counting, too, may have been interrupted.
        """
        queued = set(map(id, self.queue))
        for batch in batches:
            if batch.is_submitted and not batch.is_finished and id(batch) not in queued:
                if batch.reached is State.QUEUED:
                    batch.reached = State.WRITING
                self.finish(batch, batch.failures(why, NotSent, OutcomeUnknown))
        waiting = [batch for batch in self.queue if not batch.is_finished]
        self.counters.buffered_commands = sum(batch.count for batch in waiting)
        self.counters.buffered_bytes = sum(batch.size for batch in waiting)

    def review(self, look: Callable[[Batch], object]) -> None:
        """Let `look` skip commands of what waits to be written again; finish batches of which that leaves nothing."""
        for batch in list(self.queue):
            if batch.is_finished:
                continue
            if batch.was_written:
                look(batch)
            if len(batch.replies) == batch.count:
                self.finish(batch, list(batch.replies))
        self._drop_finished()

    def filter(self) -> None:
        """Ask the replay filter about all that would be written again; what it names fails here and now."""
        wanted = self.settings.replay_filter
        if wanted is None:
            return

        def look(batch: Batch) -> None:
            self.counters.filtered += batch.filter(wanted)

        self.review(look)

    def _drop_finished(self) -> None:
        """Drop finished batches. The queue is replaced in one step: an interrupt in between must not lose batches of
        other callers.
        """
        self.queue = deque([batch for batch in self.queue if not batch.is_finished])
