"""A message as a consumer gets it: a Message that knows its attempts, and can be acknowledged.

It is a tuple of offset, tag and entry, as every Message, so code that takes a Message takes it. It is made when its
body begins. Until then, and after its body, the consumer keeps the row of the reply alone: hundreds of thousands come
in a second, and Python's garbage collector looks at every object that lives long.
"""

from __future__ import annotations

from typing import Any, Protocol

from penstock.client.api.stream_replies import Message

Row = list[Any]
"""A message in a reply: offset, tag, entry, time, and attempts before this one. Its identity is that of the delivery:
when the message comes again, it is another list.
"""


class Holder(Protocol):
    """The methods of a consumer that a message calls."""

    def is_open(self, row: Row) -> bool:
        """Whether the message is held and neither acknowledged nor given back."""

    def settle(self, row: Row, verdict: int | None) -> None:
        """Acknowledge a message (None), or give it back after milliseconds."""


class Delivered(Message):
    """A message that this consumer holds."""

    row: Row
    holder: Holder

    @classmethod
    def of(cls, row: Row, holder: Holder) -> Delivered:
        message = tuple.__new__(cls, row[:3])
        message.row = row
        message.holder = holder
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

    @property
    def is_open(self) -> bool:
        """Whether it is held and neither acknowledged nor given back."""
        return self.holder.is_open(self.row)

    def ack(self) -> None:
        """Acknowledge it now. From any thread, also after the body has returned if the consumer is `manual`."""
        self.holder.settle(self.row, None)

    def nack(self, delay_ms: int = 0) -> None:
        """Have it delivered again, at once or after a delay."""
        self.holder.settle(self.row, delay_ms)

    def __reduce__(self) -> Any:
        """To another process it goes without its lease."""
        return _elsewhere, (self.row,)


class _Elsewhere:
    """The holder of a message that came from another process."""

    def is_open(self, row: Row) -> bool:
        return False

    def settle(self, row: Row, verdict: int | None) -> None:
        raise RuntimeError(f"message {row[0]} is held by another process: acknowledge it there")


def _elsewhere(row: Row) -> Delivered:
    return Delivered.of(row, _Elsewhere())
