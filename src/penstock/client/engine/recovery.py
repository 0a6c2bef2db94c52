"""Decides for each batch after a lost connection or a cancelled call: it waits for the next connection, or it fails.

The table at the top of connection.py is carried out here. The invariant: at every step, each unfinished batch is in one
of the two queues, `pending.queue` or the writer's `awaiting`, so that an interrupt (KeyboardInterrupt) between two
steps loses none. `take_back` may be called again after an interrupt in the middle of it.

Rejected: deciding when the batch is written again. A command that must not be repeated would then fail only after the
next connection is open, which may be never.
"""

from __future__ import annotations

from collections.abc import Iterable

import redis

from penstock.client.delivery import Delivery, Settings
from penstock.client.engine.batch import Batch
from penstock.client.engine.command_kinds import Kind, kind_of, name_of
from penstock.client.engine.handshake import Handshake
from penstock.client.engine.once_numbers import fail_forgotten
from penstock.client.engine.pending import PendingBatches
from penstock.client.engine.reconnecting import Reconnecting
from penstock.client.engine.refused_by_replica import take_back
from penstock.client.engine.replies import ReplyReader
from penstock.client.engine.session_state import SessionState
from penstock.client.engine.writing import RequestWriter
from penstock.client.errors import NotReplayed, NotSent, OutcomeUnknown, TransactionLost
from penstock.client.events import Node

INTERRUPTED = "the thread that used the connection was interrupted"


class Recovery:
    """Part of a ConnectionCore; see the top of this file."""

    def __init__(
        self,
        settings: Settings,
        pending: PendingBatches,
        writer: RequestWriter,
        reader: ReplyReader,
        handshake: Handshake,
        session: SessionState,
        reconnecting: Reconnecting,
    ) -> None:
        self._settings, self._pending, self._session, self._reconnecting = settings, pending, session, reconnecting
        self._writer, self._reader, self._handshake = writer, reader, handshake
        self.is_transaction_lost = False
        """A connection with an open WATCH or MULTI was lost, and its caller has not been told yet."""
        self.silent: tuple[Batch, Node | None] | None = None
        """What was not answered before the connection was given up, and the server that did not: sent there again it
        would only make things worse.
        """

    # -- callers that wait no longer ----------------------------------------------------------------------------

    def abandon(self, batch: Batch, why: str, unsent: type[NotSent], unknown: type[OutcomeUnknown]) -> bool:
        """Finish a batch without a reply. True if it still blocks on the server: then the connection has to be closed,
        too.
        """
        if batch.is_finished or not batch.is_submitted:
            return False
        writer = self._writer
        was_given = self._reconnecting.up and writer.has_given(batch)
        if was_given:
            batch.remember(writer.given, writer.sent)  # what was given out will be written
        self._pending.finish(batch, batch.failures(why, unsent, unknown))
        if not was_given:
            # The queue passes over a finished batch, so its bytes are not needed any more. Not before it is finished:
            # after an interrupt it would be written as no bytes, and get the reply of the next one.
            batch.data = b""
        return was_given and batch.blocks

    def abandon_all(self, why: str) -> None:
        for batch in [*self._writer.awaiting, *self._pending.queue]:
            self.abandon(batch, why, NotSent, OutcomeUnknown)

    def refuse_after_lost_transaction(self, batch: Batch) -> None:
        """Raise TransactionLost for a command that would run outside of its transaction; once, if the command ends or
        begins one.
        """
        name = name_of(batch.commands[0])
        if batch.atomic or name in ("WATCH", "UNWATCH", "EXEC", "DISCARD"):
            self.is_transaction_lost = False
        if name not in ("WATCH", "UNWATCH"):
            raise TransactionLost(f"{name} was not sent: the connection with its WATCH or MULTI is gone; begin again")

    # -- the end of a connection --------------------------------------------------------------------------------

    def take_back(self) -> None:
        """Move what was given out and has no reply to the head of the queue, in order; drop finished batches."""
        awaiting, queue, refused = self._writer.awaiting, self._pending.queue, self._writer.refused
        self._handshake.clear()
        self._reader.end()
        for batch in (*refused, *awaiting):
            if batch.notable:
                self._session.learn(batch)
        if self._writer.is_left:
            for batch in queue:
                batch.waits_for_leader = True  # it would have been written, had the connection not been left
        queued = set(map(id, queue))
        returned = set(map(id, refused))
        given = [*refused, *(batch for batch in awaiting if id(batch) not in returned)]
        waiting = [batch for batch in given if not batch.is_handshake and id(batch) not in queued]
        for batch in waiting:
            if batch.is_finished or id(batch) in returned:
                continue
            if len(batch.replies) == batch.count:  # an interrupt kept it from being finished
                self.finish_repeated(batch)
                continue
            batch.remember(self._writer.handed, self._writer.sent)
            if batch.atomic:
                batch.replies.clear()  # replies of a part of it count for nothing
            self._drop_what_has_lost_its_meaning(batch)
        queue.extendleft([batch for batch in reversed(waiting) if not batch.is_finished])
        awaiting.clear()
        refused.clear()
        self._writer.is_left = False

    def _drop_what_has_lost_its_meaning(self, batch: Batch) -> None:
        """Fail what must not be written on the next connection, at any level."""
        if batch.notable and Kind.FINAL in batch.notable.values():
            batch.filter(lambda command: command.name == "SHUTDOWN", "it is not sent to a server that has come back")
        if batch.patience and not batch.atomic and (batch.replies or kind_of(batch.commands[0]) is Kind.WAITING):
            why = "it asks about writes on the connection that is lost; write again, and send WAIT in the same pipeline"
            batch.filter(lambda command: command.name in ("WAIT", "WAITAOF"), why, also_unsent=True)
        if len(batch.replies) == batch.count:
            self._pending.finish(batch, list(batch.replies))

    def take_refused(self, batch: Batch) -> bool:
        """The server could not run some of it, because it does not lead. False if its caller gets the replies."""
        assert batch.refused is not None
        self._writer.leave()
        reply = batch.replies[next(reversed(batch.refused))]
        self._reconnecting.reason = f"the server does not lead: {reply}"
        if batch.is_finished or not take_back(batch):
            return batch.is_finished
        self._writer.refused.append(batch)
        return True

    def hold_or_fail(self, error: Exception) -> None:
        """There is no connection any more: fail what must not wait for the next one."""
        self._reconnecting.reason = why = str(error) or type(error).__name__
        session = self._session
        if session.in_transaction:
            self.is_transaction_lost = True
            session.watching = session.queueing = False
            self.fail_all(f"{why}, and with it the WATCH or MULTI", TransactionLost, NotReplayed, error)
        else:
            self.fail_at_most_once(why, NotSent, error)
            self._pending.filter()

    def fail_first(self, batch: Batch) -> None:
        """The server did not answer the first command of a batch; the others are written again."""
        batch.fail_first("nothing came from the server")
        if len(batch.replies) == batch.count:
            self._pending.finish(batch, list(batch.replies))

    def fail_silent(self, server: Node | None) -> None:
        """A connection leads to this server: fail what it did not answer before. Another server may answer it."""
        silent, self.silent = self.silent, None
        if silent is not None:
            batch, there = silent
            if there is not None and there == server and not (batch.is_finished or batch.is_handshake):
                self.fail_first(batch)

    def fail_all(
        self, why: str, unsent: type[NotSent], unknown: type[OutcomeUnknown],
        cause: Exception | None = None, instead: Exception | None = None,
    ) -> None:  # fmt: skip
        """Fail all that waits to be written; then no connection is needed."""
        self._pending.fail_queued(why, unsent, unknown, cause, instead)
        self._reconnecting.connect_at = None

    def fail_at_most_once(self, why: str, unsent: type[NotSent], cause: Exception) -> None:
        """Fail what must not wait for a connection, by the level as it is now or by that of its submission. What was
        not run for want of a leader waits at every level.
        """
        is_level = self._settings.delivery is Delivery.AT_MOST_ONCE

        def is_meant(batch: Batch) -> bool:
            return (is_level or batch.is_at_most_once) and (batch.was_written or not batch.waits_for_leader)

        self._pending.fail_queued(why, unsent, OutcomeUnknown, cause, is_meant=is_meant)
        if not self._pending.queue:
            self._reconnecting.connect_at = None

    def finish_repeated(self, batch: Batch) -> None:
        """All replies are here, after more than one attempt or an interrupt."""
        if batch.numbered is not None:
            fail_forgotten(batch)
        self._pending.finish(batch, batch.replies)

    def rescue(self, batches: Iterable[Batch], was_leading: bool, now: float, is_needed: bool) -> None:
        """After an interrupt in the middle of the work here, and the end of the connection: finish batches that are in
        no queue any more.

        A thread that led may have been opening a connection, or have just learnt that it is lost; that is brought to
        its end.
        """
        reconnecting = self._reconnecting
        if not reconnecting.up:
            self.take_back()  # again, if that was interrupted
        if was_leading and not reconnecting.up:
            reconnecting.is_opening = False
            self.hold_or_fail(redis.ConnectionError(INTERRUPTED))
            reconnecting.retry_interrupted(now, is_needed and bool(self._pending.queue))
        self._pending.rescue(batches, INTERRUPTED)
