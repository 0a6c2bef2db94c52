"""Bytes to replies, and each reply to its command: by position in the FIFO, and by nothing else.

A reply that was read whole and cannot be decoded is the loss of its command alone. A reply without a command is either
a push, which is passed over, or a sign that the connection is out of step. A large reply does not go through hiredis:
see large_reply.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import hiredis
import redis

from penstock.client.delivery import ServerContact, State
from penstock.client.engine.batch import Batch
from penstock.client.engine.large_reply import HINT, LargeReply
from penstock.client.engine.refused_by_replica import asks_about_one_server, verdict
from penstock.client.errors import reply_error, stated

CLOGGED = 1 << 20
"""Bytes of a reply behind which small ones should not wait."""
_MORE: Final = object()


def _noted_error(awaiting: deque[Batch], line: str) -> Exception:
    """The exception for an error reply; the batch it is for takes a note if the server could not run the command."""
    reached = verdict(line)
    if reached is not None and awaiting and not asks_about_one_server(awaiting[0]):
        batch = awaiting[0]
        batch.refused = {**(batch.refused or {}), len(batch.replies): reached}
    return reply_error(line)


class ReplyReader:
    """The reading side of a core."""

    def __init__(self, encoding: str | None, encoding_errors: str, contact: ServerContact) -> None:
        self._contact = contact
        self._options = {"encoding": encoding, "errors": encoding_errors}
        self._reader: Any = None
        self._between = True  # the reader holds no part of a reply
        self._large: LargeReply | None = None  # of the reply that is coming in, if it is a large one
        self._fed = 0  # bytes since the last batch was complete
        self.is_clogged = False
        """More than CLOGGED bytes of a reply, or of those of one batch, are coming in; others would wait long here."""

    def begin(self, awaiting: deque[Batch]) -> None:
        """A new connection."""
        error = partial(_noted_error, awaiting) if self._contact.finds_leader else reply_error
        self._reader = hiredis.Reader(
            protocolError=redis.InvalidResponse, replyError=error, notEnoughData=_MORE, **self._options
        )
        self._between = True

    def end(self) -> None:
        """The connection is gone, and with it what has come of a reply."""
        self._large = None
        self._fed, self.is_clogged = 0, False

    def room(self) -> memoryview | None:
        """See ConnectionCore."""
        return None if self._large is None else self._large.room() or None

    def filled(self, count: int) -> None:
        """See ConnectionCore."""
        assert self._large is not None
        self._large.filled(count)

    def read(self, data: Any, awaiting: deque[Batch], complete: Callable[[Batch], None]) -> None:
        """Give the replies in `data` to the batches that await them, in order; call `complete` with each batch that has
        all of them.
        """
        if self._large is not None:
            data = self._large.take(data)
            if not self._large.is_whole:
                return
            self._take_large(awaiting, complete)
            if not data:
                return
        if self._between and len(data) >= HINT and awaiting:
            self._large = LargeReply.of(data)
            if self._large is not None:
                self._set_clogged(self._large.size, awaiting[0])
                return
        self._between = False
        fed = self._fed + len(data)
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
                        self._fed = fed
                        self._set_clogged(fed, batch)
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
                replies.append(stated(error, State.REPLIED))
                if batch.skipped:
                    batch.take_skipped()
                if len(replies) < batch.count:
                    continue
            complete(batch)  # before it leaves the queue: an interrupt in between must find it there
            awaiting.popleft()
            fed = 0
            if not reader.has_data():
                self._between = True
                self._fed, self.is_clogged = 0, False
                return
        self._fed, self.is_clogged = 0, False
        while reader.has_data():
            reply = gets()
            if reply is _MORE:
                return
            if type(reply) is not hiredis.PushNotification:
                raise redis.InvalidResponse(f"a reply to no command: {reply!r}")
        self._between = True

    def _set_clogged(self, size: int, batch: Batch) -> None:
        """So much of the replies of a batch is coming in."""
        if size >= CLOGGED and not self.is_clogged:
            self.is_clogged = True
            if batch.count == 1:
                self._contact.note_large(batch.commands[0])

    def _take_large(self, awaiting: deque[Batch], complete: Callable[[Batch], None]) -> None:
        """A large reply is whole: what `read` does with one of the reader's."""
        assert self._large is not None
        reply: Any = self._large.value()
        self._large = None
        self.is_clogged = False
        batch = awaiting[0]
        encoding = self._options["encoding"]
        if encoding is not None and (batch.raw is None or len(batch.replies) not in batch.raw):
            try:
                reply = reply.decode(encoding, self._options["errors"])
            except ValueError as error:
                reply = stated(error, State.REPLIED)
        batch.replies.append(reply)
        if batch.skipped:
            batch.take_skipped()
        if len(batch.replies) >= batch.count:
            complete(batch)
            awaiting.popleft()
