"""The writing side of a core: which bytes go out next, what was given out and has no reply, and how far its bytes came.

`awaiting` is the FIFO of the law in connection.py. Three positions in the bytes of a connection say what may have
happened to a batch: `given` out to the driver, `handed` to the operating system or about to be, `sent` for sure.
"""

from __future__ import annotations

from collections import deque

from penstock.client.delivery import ServerContact
from penstock.client.engine.batch import Batch
from penstock.client.engine.exactly_once import ExactlyOnce
from penstock.client.engine.handshake import Handshake
from penstock.client.engine.pending import PendingBatches
from penstock.client.engine.session_state import SessionState
from penstock.client.events import Node

CHUNK = 256 * 1024
"""About how many bytes are given out at a time: a long queue is not copied whole to be written."""


LEADS_FOR = 1.0
"""Seconds for which a server that leads is believed to lead. A replica answers reads, with old data perhaps."""


class RequestWriter:
    """Part of a core; see the top of this file."""

    def __init__(
        self, pending: PendingBatches, handshake: Handshake, exactly_once: ExactlyOnce, session: SessionState,
        contact: ServerContact,
    ) -> None:  # fmt: skip
        """If `contact` is one with a leader, this is asked from time to time whether it leads."""
        self._pending, self._handshake, self._exactly_once = pending, handshake, exactly_once
        self._session, self._contact = session, contact
        self._asked_role, self._doubts = 0.0, 0  # when the server was asked, and what `leader_doubts` was then
        self.awaiting: deque[Batch] = deque()
        self.given = self.handed = self.sent = 0
        self._connection = 0
        self.refused: list[Batch] = []
        """Batches of this connection that the server could not run, in order (refused_by_replica.py)."""
        self.is_left = False
        """The connection is given up as soon as all that was written is answered; nothing more is written."""

    def begin(self, heard: float, server: Node | None) -> None:
        """A new connection, which was opened at that time."""
        contact = self._contact
        if contact.leader is not None and server != contact.leader:
            contact.leader_doubts += 1
        contact.leader, self._doubts = server, contact.leader_doubts
        self.given = self.handed = self.sent = 0
        self._connection += 1
        self.is_left = False
        self._asked_role = heard

    def leave(self) -> None:
        """The server does not lead any more."""
        self.is_left = True
        self._contact.leader_doubts += 1

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
        if self.is_left:
            return b""
        if queue and not self._handshake:
            self._exactly_once.renew(heard)
            if self._contact.finds_leader:
                self._ask_role(heard)
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

    def _ask_role(self, heard: float) -> None:
        """Ask whether the server leads, if it was not asked for a while, or another connection learned of a change."""
        doubts = self._contact.leader_doubts
        is_due = heard - self._asked_role >= LEADS_FOR or doubts != self._doubts
        if is_due and not self._session.queueing:
            self._asked_role, self._doubts = heard, doubts
            self._handshake.ask("ROLE", raw=True)

    def _take_handshake(self) -> bytes:
        batches = self._handshake.take()
        self.awaiting += batches
        data = b"".join([batch.data for batch in batches])
        self.given += len(data)
        return data
