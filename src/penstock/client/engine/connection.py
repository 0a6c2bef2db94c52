"""One logical connection without I/O: the core that drivers/sync.py and drivers/aio.py drive.

Events go in (`submit`, `connected`, `received`, `lost`, `tick` ...), and three things come out: bytes to write
(`output`), finished batches (`pending.take_finished`), and the times at which to act (`connect_at`,
`timeouts.next_tick`). The core has no clock, no socket, no thread and no lock: time is an argument, and a driver with
threads calls it under one lock.

A command moves through these states, and its error says how far it came when the connection was lost:

    state     entered when                                  lost: AT_MOST_ONCE    AT_LEAST_ONCE, EXACTLY_ONCE
    QUEUED    `submit`                                      NotSent               stays queued
    WRITING   `writer.begin_write` reaches its first byte   OutcomeUnknown        written again, unless filtered
    WRITTEN   `writer.end_write` passes its last byte       OutcomeUnknown        written again, unless filtered
    REPLIED   `received` completes its reply                finished: no change   finished: never written again

The level is that of `submit`: a level that is raised later counts for later commands only. A level that is lowered
counts at once for all commands: that is how a program cancels what is queued.

The invariant of this file: the FIFO `writer.awaiting` is exactly the batches whose bytes were given out on this
connection and whose replies have not come, in the order of their bytes. A batch that times out or is cancelled stays in
it as a finished batch. Replies are matched by position and nothing else. Every batch is finished exactly once.

How to drive it:

    core.submit(batch, now)              raises NotSent (BufferFull, ClientClosed ...) or takes the batch
    core.connect_at                      when to open a connection; None: not wanted
      -> connected(now) | connect_failed(error, now) | refused(error, now)
    data = core.output()                 bytes to write next, b"" if none; given out once
      -> writer.begin_write(n) before giving n bytes to the system, writer.end_write(m) when it has taken m
    core.received(data, now)             True: drop the connection, which was given up
    core.reader.room()                   where to receive instead, for as long as it is not None; then filled(n, now)
    core.lost(error, now)                the connection is gone, on either side
    core.tick(now) at timeouts.next_tick True: as for received, and so for cancel(batch, now)
    core.pending.take_finished()         wake the callers of these
    core.take_events()                   Reconnected, Replayed: for callbacks, outside of any lock

Its parts: pending.py (the queue and its bounds), writing.py and replies.py (bytes), handshake.py (what a connection
begins with), session_state.py (what it must remember), exactly_once.py (ONCE), reconnecting.py (when to connect),
timeouts.py (the clock), recovery.py (the table above), refused_by_replica.py (servers that do not lead).

Rejected: a coroutine that reads and writes by turns. It cannot write while it reads, and many callers could not share
the connection; and a test could not choose the order of events.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import redis

from penstock.client.delivery import Counters, Delivery, ReplayFilter, ServerContact, Settings, State
from penstock.client.engine.batch import Batch
from penstock.client.engine.exactly_once import ExactlyOnce
from penstock.client.engine.handshake import Handshake, HandshakeRefused
from penstock.client.engine.pending import PendingBatches
from penstock.client.engine.reconnecting import Reconnecting
from penstock.client.engine.recovery import INTERRUPTED, Recovery
from penstock.client.engine.replies import ReplyReader
from penstock.client.engine.session_state import SessionState
from penstock.client.engine.timeouts import Timeouts
from penstock.client.engine.writing import RequestWriter
from penstock.client.errors import (
    ClientClosed,
    NoReplyInTime,
    NotSent,
    NotSentInTime,
    OutcomeUnknown,
    stated,
)
from penstock.client.events import Event, Node, Replayed

_AT_MOST_ONCE = Delivery.AT_MOST_ONCE  # looked up for each command, which an enum makes slow


class ConnectionCore:
    """See the top of this file."""

    def __init__(
        self, settings: Settings, *, encoding: str | None = None, encoding_errors: str = "strict",
        jitter: Callable[[], float] = random.random, contact: ServerContact | None = None,
    ) -> None:  # fmt: skip
        self.settings = settings
        self.session = SessionState()
        self.pending = PendingBatches(settings)
        contact = self._contact = contact or ServerContact()
        self.reader = ReplyReader(encoding, encoding_errors, contact)
        self._handshake = Handshake()  # nothing else is given out before its replies
        self.exactly_once = ExactlyOnce(self._handshake, settings)
        self.writer = RequestWriter(self.pending, self._handshake, self.exactly_once, self.session, contact)
        self._awaiting = self.writer.awaiting
        self.timeouts = Timeouts(settings, self.pending, self._awaiting)
        self._reconnecting = Reconnecting(settings, jitter, contact)
        self._backoff = self._reconnecting.backoff
        self._recovery = Recovery(
            settings, self.pending, self.writer, self.reader, self._handshake, self.session, self._reconnecting
        )
        self.events: list[Event] = []
        """What `take_events` will give."""
        self._server: Node | None = None
        self.is_closed = False

    @property
    def counters(self) -> Counters:
        return self.pending.counters

    @property
    def up(self) -> bool:
        """Whether there is a connection."""
        return self._reconnecting.up

    @property
    def connect_at(self) -> float | None:
        """When to open a connection; None if there is one, or no command needs one."""
        return self._reconnecting.connect_at

    # -- settings that may change at any time -----------------------------------------------------------------

    def set_delivery(self, level: Delivery, now: float) -> None:
        """Change the level. AT_MOST_ONCE, set while there is no connection, cancels what is queued."""
        self.settings.delivery = level
        if level is Delivery.AT_MOST_ONCE and self._reconnecting.is_outage:
            self._recovery.fail_all("there is no connection, and at-most-once holds nothing", NotSent, OutcomeUnknown)
        if level is Delivery.EXACTLY_ONCE and self.up and not self.exactly_once.is_on:
            self.exactly_once.prepare(now)
            if not self._awaiting:
                self.timeouts.heard = now
        elif level is not Delivery.EXACTLY_ONCE:
            self.exactly_once.stop()

    def set_replay_filter(self, replay_filter: ReplayFilter | None) -> None:
        """Change the filter; it is asked at once about what already waits to be written again."""
        self.settings.replay_filter = replay_filter
        if not self.up:
            self.pending.filter()

    def inherit(self, other: ConnectionCore) -> None:
        """In a child process: take over the session state of the parent's core, but not its WATCH."""
        self.session.adopt(other.session)
        self._recovery.is_transaction_lost = other._recovery.is_transaction_lost or other.session.in_transaction

    def adopt_session(self, session: SessionState) -> None:
        """Take over another connection's session state, on this connection and later ones, but not its WATCH."""
        self._recovery.is_transaction_lost = False  # that of an earlier caller
        if self.session.watching:  # its pipeline was never ended
            self.session.watching = False
            if self.up:
                self._handshake.ask("UNWATCH")
        if self.session.adopt(session) and self.up:
            self._handshake.restore(self.session)

    # -- commands ---------------------------------------------------------------------------------------------

    def submit(self, batch: Batch, now: float) -> None:
        """Take a batch, at the end of the queue. Raises NotSent, and then has not taken it."""
        if self.is_closed:
            raise ClientClosed("the client is closed; enter it again (`with client:`), or make a new one")
        pending, reconnecting = self.pending, self._reconnecting
        if not pending.has_room(batch):
            raise pending.full()
        if self._recovery.is_transaction_lost:
            self._recovery.refuse_after_lost_transaction(batch)
        if not reconnecting.up and not reconnecting.is_opening:
            reconnecting.request(now)
        if self.settings.delivery is _AT_MOST_ONCE:
            batch.is_at_most_once = True
        self.timeouts.set_deadline(batch, now)
        if reconnecting.up and not self._awaiting and not pending.queue:
            self._use_after_idle(now)
        pending.add(batch)
        if reconnecting.connect_at is not None and batch.deadline is not None:
            reconnecting.hurry(now, batch.deadline)

    def _use_after_idle(self, now: float) -> None:
        """No reply was owed until now. After a long silence, ask whether the server is there before sending what cannot
        be taken back.
        """
        interval, timeouts = self.settings.health_check_interval, self.timeouts
        if interval and now - timeouts.heard >= interval and not self._handshake:
            self._handshake.ask("PING")
        timeouts.heard = now

    def cancel(self, batch: Batch, now: float) -> bool:
        """Its caller waits no longer: it is not written if it was not yet, and never again. True: drop the connection,
        as for `tick`.
        """
        if not self._recovery.abandon(batch, "it was cancelled", NotSent, OutcomeUnknown):
            return False
        self._take_back_blocked(now)
        return True

    def cancel_all(self, why: str) -> None:
        """No caller waits any longer."""
        self._recovery.abandon_all(why)

    def _take_back_blocked(self, now: float) -> None:
        """End the connection of a blocked command: left alone it would take the next element of its key, and no caller
        would get it.
        """
        self._backoff.failures = 0  # the server is well: the next connection need not wait
        self.lost(redis.ConnectionError("a command that blocked was given up"), now)
        self._reconnecting.lost_at = None  # it was ended on purpose

    def interrupted(self, now: float) -> None:
        """The connection ends because a thread was interrupted in using it, and the server is well."""
        if self.up:
            self._backoff.failures = 0  # the server is well: the next connection need not wait
            self.lost(redis.ConnectionError(INTERRUPTED), now)

    def rescue(self, batches: Iterable[Batch], was_leading: bool, now: float) -> None:
        """After `interrupted`: finish batches that are in no queue any more; see recovery.py."""
        self._recovery.rescue(batches, was_leading, now, not self.is_closed)

    # -- the connection ---------------------------------------------------------------------------------------

    def connecting(self) -> None:
        """A driver has begun to open a connection."""
        self._reconnecting.opening()

    def connected(self, now: float, left: Sequence[str] = (), server: Node | None = None) -> None:
        """A connection is open, and redis-py's part of the handshake is done. `left` are identities of ONCE that were
        used on it by another client, and are to be ended. `server` is the one that it leads to.
        """
        self._server = server
        was_reached, event = self._reconnecting.was_reached, self._reconnecting.opened(now)
        self.reader.begin(self._awaiting)
        self.writer.begin(now, server)
        self.timeouts.heard = now
        self.exactly_once.forget_server()
        self._handshake.restore(self.session)
        if self.settings.delivery is Delivery.EXACTLY_ONCE:
            self.exactly_once.prepare(now)
        if left:
            self._handshake.ask("ONCEEND", *left)
        if was_reached:
            self._handshake.ask("PING")  # a server that was restarted may be loading its data still
        if event is not None:
            self.counters.reconnects += 1
            self.events.append(event)
        self.pending.filter()
        self._recovery.fail_silent(server)
        again = [
            batch.described(index)
            for batch in self.pending.queue
            if batch.attempts and not batch.is_finished
            for index in batch.unanswered()
            if batch.state(index) is not State.QUEUED
        ]
        if again:
            self.events.append(Replayed(again))

    def connect_failed(self, error: Exception, now: float) -> None:
        """No connection could be opened. Before the first one of the client, its callers are told at once; later it is
        tried again.
        """
        self._reconnecting.is_opening = False
        self._reconnecting.reason = str(error)
        for batch in self.pending.queue:
            batch.waits_for_leader &= batch.deadline is not None  # else it would wait for ever
        self._retry(now)
        unsent = NotSentInTime if isinstance(error, redis.TimeoutError) else NotSent
        if not self._reconnecting.was_reached:
            self._recovery.fail_all(str(error), unsent, OutcomeUnknown, error)
        else:
            self._recovery.fail_at_most_once(str(error), unsent, error)

    def refused(self, error: Exception, now: float) -> None:
        """The server refused us (a wrong password): another attempt would not help, so everything fails."""
        reconnecting = self._reconnecting
        self._recovery.take_back()
        if reconnecting.up:
            reconnecting.lost_at = now
        reconnecting.is_opening = reconnecting.up = False
        self._retry(now)
        self._recovery.fail_all(str(error), NotSent, OutcomeUnknown, error, instead=stated(error, State.QUEUED))

    def lost(self, error: Exception, now: float) -> None:
        """The connection is gone; the table at the top says what that means for each command."""
        reconnecting = self._reconnecting
        if not reconnecting.up:
            return
        reconnecting.up, reconnecting.lost_at = False, now
        was_left = self.writer.is_left
        self._recovery.take_back()
        self._recovery.hold_or_fail(error)
        self._retry(now, was_left)

    def _retry(self, now: float, was_left: bool = False) -> None:
        retry = self._reconnecting.left if was_left else self._reconnecting.retry
        retry(now, bool(self.pending.queue) and not self.is_closed)
        self._reconnecting.hurry(now, self.pending.first_deadline())

    @property
    def is_idle(self) -> bool:
        """Whether there is a connection, and nothing is under way on it. If its session state, too, is that of a new
        one, another client could use it.
        """
        return self.up and not (self._awaiting or self.pending.queue or self._handshake)

    def close(self) -> None:
        """Finish everything; take nothing any more."""
        if self.is_closed:
            return
        self._recovery.take_back()
        self.is_closed, self._reconnecting.up = True, False
        self._recovery.fail_all("the client was closed", ClientClosed, OutcomeUnknown)

    # -- bytes ------------------------------------------------------------------------------------------------

    @property
    def has_output(self) -> bool:
        """Whether `output` may have something to give."""
        return self.up and not self.writer.is_left and bool(self._handshake or self.pending.queue)

    def output(self) -> bytes:
        """Bytes to write next; b"" if there are none, or none may be given out yet."""
        if not self._reconnecting.up:
            return b""
        was_idle = not self._awaiting
        data = self.writer.take(self.timeouts.heard)
        if was_idle and data:
            self.timeouts.replies_owed()
        return data

    def filled(self, count: int, now: float) -> None:
        """So many bytes came where `reader.room` said."""
        self.timeouts.heard = now
        self.reader.filled(count)

    def received(self, data: Any, now: float) -> bool:
        """Bytes came. True: they are no replies to what was asked, or the server refuses us; drop the connection, as
        for `tick`.
        """
        self.timeouts.heard = now
        try:
            self.reader.read(data, self._awaiting, self._complete)
        except HandshakeRefused as refusal:
            self.refused(refusal.error, now)
            return True
        except redis.InvalidResponse as error:
            self.lost(error, now)
            return True
        if self.writer.is_left and not self._awaiting:
            self.lost(redis.ConnectionError(self._reconnecting.reason), now)
            return True
        return False

    def _complete(self, batch: Batch) -> None:
        if batch.is_handshake:
            name, reply = self._handshake.answered(batch)
            if name == "ROLE" and reply[:1] != [b"master"]:
                self.writer.leave()
                self._reconnecting.reason = "the server does not lead any more"
            self.exactly_once.take_reply(name, reply, self.settings.delivery, self.pending)
            return
        if batch.refused is not None and self._recovery.take_refused(batch):
            return
        self._backoff.failures = 0
        if batch.notable:
            self.session.learn(batch)
        elif batch.atomic:
            self.session.watching = False  # EXEC was answered
        if batch.numbered is not None:
            self.exactly_once.answered(batch, self.timeouts.heard)
        if batch.is_finished:
            return
        if batch.attempts == 1:  # nearly always, so without another call
            self.pending.finish_replied(batch)
        else:
            self._recovery.finish_repeated(batch)

    def take_events(self) -> list[Event]:
        events, self.events = self.events, []
        return events

    # -- time -------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> bool:
        """Let time-outs happen. True: the connection was silent, or blocked, and was given up; the driver is to close
        it.
        """
        timeouts, writer = self.timeouts, self.writer
        if now < timeouts.next_tick:
            return False
        blocked = False
        for batch in timeouts.overdue(now):
            blocked |= self._recovery.abandon(batch, self._reconnecting.why_late(), NotSentInTime, NoReplyInTime)
        silent = now >= timeouts.silent_at()
        if silent:
            head = self._awaiting[0]
            if self._contact.finds_leader:
                self._recovery.silent = (head, self._server)
            elif not head.is_handshake and not head.is_finished:
                # The server may be busy with this very command: sent again it would only make things worse.
                head.remember(writer.handed, writer.sent)
                self._recovery.fail_first(head)
            self.lost(redis.TimeoutError("nothing came from the server"), now)
        elif blocked:
            self._take_back_blocked(now)
        timeouts.update()
        return silent or blocked
