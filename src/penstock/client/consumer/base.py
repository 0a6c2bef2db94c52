"""The part that the consumers of both clients share: the core, its counters, and the end of a loop over it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from penstock.client.consumer.core import ConsumerCore, Steps
from penstock.client.consumer.counts import Counts
from penstock.client.consumer.delivered import Delivered
from penstock.client.consumer.options import ConsumerSettings
from penstock.client.consumer.worker_share import WorkerShare


class Iteration:
    """A loop over a consumer: its steps, and the message that the loop is at."""

    def __init__(self, steps: Steps, client: Any) -> None:
        self.steps = steps
        self.client = client
        self.share: WorkerShare | None = None
        self.message: Delivered | None = None

    def each(self, share: WorkerShare) -> Iterator[Delivered]:
        """The messages of a share. Each is done when the loop asks for the next one."""
        self.share = share
        for message in share.each():
            self.message = message
            yield message
            self.message = None
            share.done(message.row)
        self.share = None

    def leave(self, error: BaseException | None) -> None:
        """The message that the loop is at is done, or failed."""
        if self.share is not None and self.message is not None:
            if error is None:
                self.share.done(self.message.row)
            else:
                self.share.failed(self.message, error)


class ConsumerBase:
    """See the top of this file."""

    def __init__(self, client: Any, settings: ConsumerSettings, wake: Callable[[], None]) -> None:
        self._client = client
        self._core = ConsumerCore(settings)
        self._core.wake = wake

    @property
    def counts(self) -> Counts:
        """The counters of this consumer."""
        return self._core.counts

    @property
    def held(self) -> int:
        """How many messages it holds."""
        return self._core.held

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for a server that does not answer."""
        return self._core.is_waiting

    def stop(self) -> None:
        """End the iteration, and all workers, after the message at hand. From any thread, or from the body."""
        self._core.stop()
