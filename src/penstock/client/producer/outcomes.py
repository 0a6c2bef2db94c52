"""The outcomes of a producer's messages: each is finished once, with its offset or its own error.

The driver takes what has a slot (`take_finished`) and tells the callers. A failure for which no caller waits is kept
until `flush` or `close` raises it: it must not pass unseen.
"""

from __future__ import annotations

from copy import copy
from typing import Any

from penstock.client.producer.writes import Held, Write

Finished = tuple[Any, Any]
"""The slot of a message, and its offset, None, or an exception."""


class Outcomes:
    """The outcomes of one producer."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.written = self.failed = 0
        self._finished: list[Finished] = []
        self._unheard: Exception | None = None

    @property
    def ended(self) -> int:
        """How many messages are finished, written or not. They finish in the order in which they came."""
        return self.written + self.failed

    def take_finished(self) -> list[Finished]:
        """The messages that are finished and have a slot, for the driver to tell."""
        finished, self._finished = self._finished, []
        return finished

    def take_unheard(self) -> Exception | None:
        """The first failure for which no caller waits."""
        error, self._unheard = self._unheard, None
        return error

    def succeed(self, write: Write, first: int | None) -> None:
        """The messages have offsets in a row from `first` on. None: some of them are in a dead-letter stream, and the
        server does not say which.
        """
        self.written += len(write.messages)
        for place, held in enumerate(write.messages):
            if held.slot is not None:
                self._finished.append((held.slot, None if first is None else first + place))
        self._tell_refused(write)

    def fail(self, write: Write, error: Exception) -> None:
        """All messages of a write have failed, with this."""
        for place, held in enumerate(write.messages):
            text = f"{error} (message {place + 1} of {len(write.messages)} in write {write.sequence} of {self._name})"
            self._fail_one(held, _copy(error, text))
        self._tell_refused(write)

    def fail_unsent(self, messages: list[Held], error: Exception) -> None:
        """Messages have failed that were in no write yet."""
        for held in messages:
            self._fail_one(held, copy(error))

    def _tell_refused(self, write: Write) -> None:
        for held, why in write.refused:
            self._fail_one(held, why)

    def _fail_one(self, held: Held, error: Exception) -> None:
        self.failed += 1
        if held.slot is not None:
            self._finished.append((held.slot, error))
        elif self._unheard is None:
            self._unheard = error


def _copy(error: Exception, text: str) -> Exception:
    """The same error for another message, which may raise it in another thread."""
    copied = copy(error)
    copied.args = (text, *error.args[1:])
    return copied
