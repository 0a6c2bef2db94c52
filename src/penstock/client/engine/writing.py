"""The writing side of a core: which bytes go out next, what was given out and has no reply, and how far its bytes came.

`awaiting` is the FIFO of the law in connection.py. Three positions in the bytes of a connection say what may have
happened to a batch: `given` out to the driver, `handed` to the operating system or about to be, `sent` for sure.
"""

from __future__ import annotations

from collections import deque

from penstock.client.engine.batch import Batch
from penstock.client.engine.exactly_once import ExactlyOnce
from penstock.client.engine.handshake import Handshake
from penstock.client.engine.pending import PendingBatches

CHUNK = 256 * 1024
"""About how many bytes are given out at a time: a long queue is not copied whole to be written."""


class RequestWriter:
    """Part of a core; see the top of this file."""

    def __init__(self, pending: PendingBatches, handshake: Handshake, exactly_once: ExactlyOnce) -> None:
        self._pending, self._handshake, self._exactly_once = pending, handshake, exactly_once
        self.awaiting: deque[Batch] = deque()
        self.given = self.handed = self.sent = 0
        self._connection = 0

    def begin(self) -> None:
        """A new connection."""
        self.given = self.handed = self.sent = 0
        self._connection += 1

    def begin_write(self, count: int) -> None:
        """`count` more bytes are about to be given to the operating system."""
        self.handed += count

    def end_write(self, count: int) -> None:
        """The operating system has taken `count` of them; the others are to be offered again."""
        self.sent += count
        self.handed = self.sent

    def has_given(self, batch: Batch) -> bool:
        """Whether a batch was given out on this connection."""
        return batch.connection == self._connection

    def take(self, heard: float) -> bytes:
        """Bytes to write next, b"" if there are none; `heard` is when something last came, and not later than now."""
        queue, awaiting = self._pending.queue, self.awaiting
        if queue and not self._handshake:
            self._exactly_once.renew(heard)
        if self._handshake:
            return self._take_handshake()
        if not queue:
            return b""
        pieces: list[bytes] = []
        position, limit = self.given, self.given + CHUNK
        number, connection = self._exactly_once.numberer(heard), self._connection
        sent, counters = 0, self._pending.counters
        while queue and position < limit:
            batch = queue[0]
            if batch.is_finished:
                queue.popleft()
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
            queue.popleft()
        self.given = position
        counters.sent += sent
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _take_handshake(self) -> bytes:
        batches = self._handshake.take()
        self.awaiting += batches
        data = b"".join([batch.data for batch in batches])
        self.given += len(data)
        return data
