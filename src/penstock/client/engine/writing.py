"""The writing side of an engine: which bytes go out next, what was given out and has no reply, and how far its bytes came.

`awaiting` is the FIFO of the law in connection.py. Three positions in the bytes of a connection say what may have happened to a
batch: `given` out to the driver, `handed` to the operating system or about to be, `sent` for sure.
"""

from __future__ import annotations

from collections import deque

from penstock.client.engine.batch import Batch
from penstock.client.engine.exactly_once import Numbering
from penstock.client.engine.handshake import Preface
from penstock.client.engine.pending import Held

CHUNK = 256 * 1024
"""About how many bytes are given out at a time: a long queue is not copied whole to be written."""


class Outgoing:
    """Part of an engine; see the top of this file."""

    def __init__(self, held: Held, preface: Preface, numbering: Numbering) -> None:
        self._held, self._preface, self._numbering = held, preface, numbering
        self.awaiting: deque[Batch] = deque()
        self.given = self.handed = self.sent = 0
        self._connection = 0

    def begin(self) -> None:
        """A new connection."""
        self.given = self.handed = self.sent = 0
        self._connection += 1

    def has_given(self, batch: Batch) -> bool:
        """Whether a batch was given out on this connection."""
        return batch.connection == self._connection

    def take(self, heard: float) -> bytes:
        """Bytes to write next, b"" if there are none; `heard` is when something last came, and not later than now."""
        pending, awaiting = self._held.pending, self.awaiting
        if pending and not self._preface:
            self._numbering.renew(heard)
        if self._preface:
            return self._take_preface()
        if not pending:
            return b""
        pieces: list[bytes] = []
        position, limit = self.given, self.given + CHUNK
        number, connection = self._numbering.numberer(heard), self._connection
        sent, counters = 0, self._held.counters
        while pending and position < limit:
            batch = pending[0]
            if batch.settled:
                pending.popleft()
                continue
            if number is not None:
                number(batch)
            if batch.attempts:
                count, data = batch.outstanding()
                batch.first = len(batch.replies)
                counters.replayed += count
            else:
                data = batch.data
                sent += batch.count
            batch.attempts += 1
            batch.connection, batch.start = connection, position
            pieces.append(data)
            position += len(data)
            batch.end = position
            awaiting.append(
                batch
            )  # before it leaves the other queue: an interrupt in between must find it in one of them
            pending.popleft()
        self.given = position
        counters.sent += sent
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _take_preface(self) -> bytes:
        batches = self._preface.take()
        self.awaiting += batches
        data = b"".join([batch.data for batch in batches])
        self.given += len(data)
        return data
