"""Messages that were begun together, for one worker: it takes one after the other and says how each went.

A worker takes from the left without a lock; the keeper of the consumer takes back from the right what a slow body
keeps waiting. Both are single operations of a deque. `done` is the method of a list: it is called for every message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from time import monotonic
from typing import TYPE_CHECKING

from penstock.client.consumer.delivered import Delivered

if TYPE_CHECKING:
    from penstock.client.consumer.core import ConsumerCore


class Part:
    """What a worker is given."""

    __slots__ = ("_clock", "_core", "at", "began", "done", "failures", "finished", "messages", "taken_back", "waiting")

    def __init__(self, core: ConsumerCore, messages: list[Delivered], clock: Callable[[], float] = monotonic) -> None:
        self._core = core
        self._clock = clock
        self.messages = messages
        self.waiting = deque(messages)
        self.finished: list[Delivered] = []
        """Messages whose body has come to its end, until the server is told."""
        self.done: Callable[[Delivered], object] = self.finished.append
        """The body has come to its end."""
        self.failures: list[tuple[Delivered, BaseException]] = []
        """What failed, if the consumer tries it again itself."""
        self.taken_back = 0
        self.began = self.at = clock()
        """When the first body began, and the last one."""

    def each(self) -> Iterator[Delivered]:
        """The messages to process; it ends when the worker should come back."""
        core, take, clock = self._core, self.waiting.popleft, self._clock
        # The only attempt of a message is counted already: it is made, although the consumer stops.
        must_begin = core.terms.max_attempts == 1
        while not self.failures and (must_begin or not core.is_stopping):
            try:
                message = take()
            except IndexError:
                return
            self.at = clock()
            must_begin = False
            yield message

    @property
    def ran(self) -> int:
        """How many bodies have begun."""
        return len(self.messages) - len(self.waiting) - self.taken_back

    def take_finished(self) -> list[Delivered]:
        """Messages that can be acknowledged. The worker may append others meanwhile."""
        count = len(self.finished)
        taken = self.finished[:count]
        del self.finished[:count]
        return taken

    def take_back(self) -> list[Delivered]:
        """Messages that no body has begun with."""
        found: list[Delivered] = []
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
                self.failures.append((message, error))
            else:
                self._core.settle_failure(message, error)
