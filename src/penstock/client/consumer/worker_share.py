"""Messages that were begun together, for one worker: it takes one after the other and says how each went.

A worker takes from the left without a lock; the keeper of the consumer takes back from the right what a slow body
keeps waiting. Both are single operations of a deque. `done` is the method of a list: it is called for every message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from time import monotonic
from typing import TYPE_CHECKING

from penstock.client.consumer.delivered import Delivered, Row

if TYPE_CHECKING:
    from penstock.client.consumer.core import ConsumerCore


class WorkerShare:
    """The messages that a worker processes together."""

    __slots__ = ("_core", "_left", "_seen", "began", "done", "failures", "finished", "rows", "taken_back", "waiting")

    def __init__(self, core: ConsumerCore, rows: list[Row], clock: Callable[[], float] = monotonic) -> None:
        self._core = core
        self.rows = rows
        self.waiting = deque(rows)
        self.finished: list[Row] = []
        """Messages whose body has come to its end, until the server is told."""
        self.done: Callable[[Row], object] = self.finished.append
        """The body has come to its end: to be called with `message.row`."""
        self.failures: list[tuple[Row, BaseException]] = []
        """What failed, if the consumer tries it again itself."""
        self.taken_back = 0
        self.began = clock()
        """When the first body began."""
        self._left, self._seen = len(rows), self.began

    def each(self) -> Iterator[Delivered]:
        """The messages to process; it ends when the worker should come back."""
        core, take, make = self._core, self.waiting.popleft, Delivered.of
        holder, failures = core.holdings, self.failures
        # The only attempt of a message is counted already: it is made, although the consumer stops.
        must_begin = core.settings.max_attempts == 1
        while not failures and (must_begin or not core.is_stopping):
            try:
                row = take()
            except IndexError:
                return
            must_begin = False
            yield make(row, holder)

    @property
    def ran(self) -> int:
        """How many bodies have begun."""
        return len(self.rows) - len(self.waiting) - self.taken_back

    def seconds_without_progress(self, now: float) -> float:
        """For how long the same body runs, as far as the calls of this method show."""
        left = len(self.waiting)
        if left != self._left:
            self._left, self._seen = left, now
        return now - self._seen

    def take_finished(self) -> list[Row]:
        """Messages that can be acknowledged. The worker may append others meanwhile."""
        count = len(self.finished)
        taken = self.finished[:count]
        del self.finished[:count]
        return taken

    def take_back(self) -> list[Row]:
        """Messages that no body has begun with."""
        found: list[Row] = []
        while self.waiting:
            try:
                found.append(self.waiting.pop())
            except IndexError:
                break
        self.taken_back += len(found)
        return found

    def failed(self, message: Delivered, error: BaseException) -> None:
        """The body failed."""
        if message.is_open:
            self._core.counts.failed += 1
            if self._core.retries_here:
                self.failures.append((message.row, error))
            else:
                self._core.settle_failure(message.row, error)
