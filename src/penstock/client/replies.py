"""Bytes to replies, and each reply to its command: by position in the FIFO, and by nothing else.

A reply that was read whole and cannot be decoded is the loss of its command alone. What nobody asked for is either a push,
which is passed over, or a sign that the connection is out of step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

import hiredis
import redis

from penstock.client.batch import Batch
from penstock.client.delivery import State
from penstock.client.errors import reply_error

_MORE: Final = object()


class Replies:
    """The reading side of an engine."""

    def __init__(self, encoding: str | None, encoding_errors: str) -> None:
        self._options = {"encoding": encoding, "errors": encoding_errors}
        self._reader: Any = None

    def begin(self) -> None:
        """A new connection."""
        self._reader = hiredis.Reader(
            protocolError=redis.InvalidResponse, replyError=reply_error, notEnoughData=_MORE, **self._options
        )

    def read(self, data: Any, awaiting: deque[Batch], complete: Callable[[Batch], None]) -> None:
        """Give the replies in `data` to those who wait for them, in order; a batch that has all of its own is complete."""
        reader = self._reader
        reader.feed(data)
        gets = reader.gets
        while awaiting:
            batch = awaiting[0]
            replies = batch.replies
            try:
                while True:
                    reply = gets() if batch.raw is None else gets(len(replies) not in batch.raw)
                    if reply is _MORE:
                        return
                    if type(reply) is hiredis.PushNotification:
                        continue
                    replies.append(reply)
                    if batch.skipped:
                        batch.take_skipped()
                    if len(replies) >= batch.count:
                        break
            except redis.InvalidResponse:
                raise
            except Exception as error:
                error.state = State.REPLIED  # type: ignore[attr-defined]
                replies.append(error)
                if batch.skipped:
                    batch.take_skipped()
                if len(replies) < batch.count:
                    continue
            awaiting.popleft()
            complete(batch)
        while reader.has_data():
            reply = gets()
            if reply is _MORE:
                return
            if type(reply) is not hiredis.PushNotification:
                raise redis.InvalidResponse(f"a reply nobody asked for: {reply!r}")
