"""The writing end of the log of a leader that holds a lease in etcd: no reply leaves when the lease is over.

All replies come through `hold`, those too that wait for nothing (`pending` is always true), and leave through `_send`.
If the lease does not hold at that moment, they are not sent, and their connections are closed: the client does not
know what became of its command, as when a connection breaks. What was executed stays in the log. If the next leader
does not have it, it is put aside when this server follows (replication/diverged.py).

A process that is stopped between the look at the clock and the write to the socket does no harm: what it sends was true
when it looked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.engine.leadership import Leadership
from penstock.storage.held_replies import Held, lose_all, send_all
from penstock.storage.switching_writer import SwitchingWriter
from penstock.storage.writer import refusal


class FencedWriter(SwitchingWriter):
    """See the top of this file."""

    def __init__(self, leadership: Leadership, *arguments: Any, **named: Any) -> None:
        self._leadership = leadership
        self._waits = False
        super().__init__(*arguments, **named)

    @property
    def pending(self) -> bool:
        """Replies always come to `hold`."""
        return True

    @pending.setter
    def pending(self, waits: bool) -> None:
        self._waits = waits

    def hold(self, write: Callable[[bytes], None], replies: list[bytes | memoryview]) -> None:
        if self._waits and (self.trouble is None or self._confirmations or self._leadership.leading):
            super().hold(write, replies)
        elif self._leadership.leading:
            self._send([(write, replies)], None)
        else:  # a read, or a refusal: this server does not lead any more, and its disk refuses the end of its log
            send_all([(write, replies)], refusal(self) if self.trouble is not None else None)

    def _in_trouble(self, error: OSError) -> None:
        super()._in_trouble(error)
        self._leadership.on_trouble()

    def _send(self, replies: list[Held], error: bytes | None) -> None:
        leadership = self._leadership
        if leadership.leading and leadership.holds():
            send_all(replies, error)
            return
        lose_all(replies)
        if leadership.leading:
            self._loop.call_soon(leadership.on_lapse)
