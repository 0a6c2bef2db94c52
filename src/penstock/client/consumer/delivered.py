"""A message as a consumer gets it: a Message that knows its attempts, and can be acknowledged.

It is a tuple of offset, tag and entry, as every Message, so code that takes a Message takes it. The rest are
attributes, as few as possible: hundreds of thousands of messages are made in a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.client.api.stream_replies import Message


class Lease:
    """What the messages of one read have in common."""

    __slots__ = ("due", "fetched", "settle", "token")

    def __init__(
        self, token: int, due: float, settle: Callable[[Delivered, int | None], None], fetched: float = 0.0
    ) -> None:
        self.token = token
        self.fetched = fetched
        """When they were read."""
        self.due = due
        """When the server gives them to another member, unless the lease is extended."""
        self.settle = settle


class Delivered(Message):
    """A message that this consumer holds."""

    row: list[Any]
    lease: Lease
    is_open: bool = True
    """Whether it is held and neither acknowledged nor given back."""
    is_begun: bool = False
    """Whether it was begun, and then put back into the queue."""

    @classmethod
    def of(cls, row: list[Any], lease: Lease) -> Delivered:
        """A message from a row of a reply: offset, tag, entry, time, and attempts before this one."""
        message = tuple.__new__(cls, row[:3])
        message.row = row
        message.lease = lease
        return message

    @property
    def time(self) -> int:
        """When it was written, in milliseconds since 1970."""
        time: int = self.row[3]
        return time

    @property
    def attempts(self) -> int:
        """How many times a body has begun with it, this time included."""
        before: int = self.row[4]
        return before + 1

    def ack(self) -> None:
        """Acknowledge it now. From any thread, also after the body has returned if the consumer is `manual`."""
        self.lease.settle(self, None)

    def nack(self, delay_ms: int = 0) -> None:
        """Have it delivered again, at once or after a delay."""
        self.lease.settle(self, delay_ms)

    def __reduce__(self) -> Any:
        """To another process it goes without its lease."""
        return _elsewhere, (self.row,)


def _elsewhere(row: list[Any]) -> Delivered:
    message = Delivered.of(row, Lease(0, 0.0, _not_here))
    message.is_open = False
    return message


def _not_here(message: Delivered, delay_ms: int | None) -> None:
    raise RuntimeError(f"message {message.offset} is held by another process: acknowledge it there")
