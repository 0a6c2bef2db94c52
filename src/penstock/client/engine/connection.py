"""One logical connection, without the connection: the sans-I/O core that sync.py and aio.py drive.

Events go in (`submit`, `connected`, `received`, `lost`, `tick` ...), and three things come out: bytes to write (`output`),
batches that are finished (`take_finished`), and when to do something next (`connect_at`, `next_tick`). The core has no
clock, no socket, no thread and no lock: time is an argument, and a driver with threads calls it under one lock.

A command moves through these states, and its error says how far it came:

    state     entered when                                  connection lost: AT_MOST_ONCE   AT_LEAST_ONCE, EXACTLY_ONCE
    QUEUED    `submit`                                      NotSent                         stays queued
    WRITING   `begin_write` reaches its first byte          OutcomeUnknown                  written again, unless filtered
    WRITTEN   `end_write` passes its last byte              OutcomeUnknown                  written again, unless filtered
    REPLIED   `received` completes its reply                finished: no change             finished: never written again

The level is that of `submit`: raised later it counts for later commands only. Lowered, it counts at once for all: that is how a
program cancels what is held.

The law of this file: the FIFO `_awaiting` is exactly the batches whose bytes were given out on this connection and whose
replies have not come, in the order of their bytes. Whoever loses interest (time-out, cancel) leaves a tombstone in
it (a finished batch); replies are matched by position and nothing else. Every batch is finished exactly once.

How to drive it:

    core.submit(batch, now)              raises NotSent (BufferFull, ClientClosed ...) or takes the batch
    core.connect_at                      when to open a connection; None: not wanted
      -> connected(now) | connect_failed(error, now) | refused(error, now)
    data = core.output()                 bytes to write next, b"" if none; given out once
      -> begin_write(n) before giving n bytes to the system, end_write(m) when it has taken m
    core.received(data, now)             may raise redis.InvalidResponse: then drop the connection and call lost()
    core.room()                          where to receive instead, for as long as it is not None; then filled(n, now)
    core.lost(error, now)                the connection is gone, whoever ended it
    core.tick(now) at core.next_tick     time-outs; may answer that the connection is to be dropped, and so may cancel(batch, now)
    core.take_finished()                 wake whoever waits for these
    core.take_events()                   Reconnected, Replayed: for callbacks, outside of any lock

Its parts, each an idea of its own: pending.py (the queue, its bounds, finishing), writing.py, replies.py (reading),
handshake.py (what a connection begins with), session_state.py (what it must remember), exactly_once.py (ONCE).

Rejected: a coroutine that reads and writes by turns. It cannot write while it reads, which is what sharing one
connection among many callers is about; and the order of events could not be chosen by a test.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from typing import Any

import redis

from penstock.client.delivery import Acquaintance, Counters, Delivery, ReplayFilter, Settings, State
from penstock.client.engine.backoff import Backoff
from penstock.client.engine.batch import Batch
from penstock.client.engine.command_kinds import Kind, name_of
from penstock.client.engine.exactly_once import ExactlyOnce
from penstock.client.engine.handshake import Handshake
from penstock.client.engine.once_numbers import fail_forgotten
from penstock.client.engine.pending import PendingBatches
from penstock.client.engine.replies import ReplyReader
from penstock.client.engine.session_state import SessionState
from penstock.client.engine.writing import RequestWriter
from penstock.client.errors import (
    BufferFull,
    ClientClosed,
    NoReplyInTime,
    NotReplayed,
    NotSent,
    NotSentInTime,
    OutcomeUnknown,
    TransactionLost,
    stated,
)
from penstock.client.events import Event, Reconnected, Replayed

_AT_MOST_ONCE = Delivery.AT_MOST_ONCE  # looked up for each command, which an enum makes slow
_INTERRUPTED = "the thread that used the connection was interrupted"


class ConnectionCore:
    """See the top of this file."""

    def __init__(
        self, settings: Settings, *, encoding: str | None = None, encoding_errors: str = "strict",
        jitter: Callable[[], float] = random.random, acquaintance: Acquaintance | None = None,
    ) -> None:  # fmt: skip
        self.settings = settings
        self._acquaintance = acquaintance or Acquaintance()
        self._pending = PendingBatches(settings)
        self.session = SessionState()
        self.up = False
        self.connect_at: float | None = None
        """When a connection is to be opened; None if there is one, or nobody needs one."""
        self.next_tick = math.inf
        """When `tick` has something to do at the earliest."""
        self._reader = ReplyReader(encoding, encoding_errors)
        self._handshake = Handshake()  # nothing else is given out before its replies
        self._exactly_once = ExactlyOnce(self._handshake)
        self._writer = RequestWriter(self._pending, self._handshake, self._exactly_once)
        self._awaiting = self._writer.awaiting
        self.events: list[Event] = []
        """What `take_events` will give."""
        self._heard = 0.0  # when the last byte came, or the first reply became owed
        self._backoff = Backoff(settings, jitter)
        self._lost_at: float | None = None
        self._trouble = ""  # why there is no connection
        self._connecting = False
        self.is_closed = False
        self._transaction_lost = False

    @property
    def counters(self) -> Counters:
        return self._pending.counters

    # -- settings that may change at any time -----------------------------------------------------------------

    @property
    def delivery(self) -> Delivery:
        return self.settings.delivery

    def set_delivery(self, level: Delivery, now: float) -> None:
        """Change the level. To AT_MOST_ONCE without a connection: what is held is cancelled, as the level asks."""
        self.settings.delivery = level
        if level is Delivery.AT_MOST_ONCE and not self.up and (self._lost_at is not None or self._backoff.failures):
            self._fail_pending("there is no connection, and at-most-once holds nothing", NotSent, OutcomeUnknown)
        if level is Delivery.EXACTLY_ONCE and self.up and not self._exactly_once.is_on:
            self._exactly_once.prepare(now)
            if not self._awaiting:
                self._heard = now
        elif level is not Delivery.EXACTLY_ONCE:
            self._exactly_once.stop()

    def set_replay_filter(self, replay_filter: ReplayFilter | None) -> None:
        """Change the filter; it is asked at once about what already waits to be written again."""
        self.settings.replay_filter = replay_filter
        if not self.up:
            self._pending.filter()

    def inherit(self, other: ConnectionCore) -> None:
        """In a child, of the parent's engine: have its connection state; what it watches is watched for the parent alone."""
        self.session.adopt(other.session)
        self._transaction_lost = other._transaction_lost or other.session.in_transaction

    def adopt_session(self, session: SessionState) -> None:
        """Have the connection state another core's connection has, on this connection and later ones; and no WATCH."""
        self._transaction_lost = False  # of whoever used it before
        if self.session.watching:  # its pipeline was never ended
            self.session.watching = False
            if self.up:
                self._handshake.ask("UNWATCH")
        if self.session.adopt(session) and self.up:
            self._handshake.restore(self.session)

    # -- commands ---------------------------------------------------------------------------------------------

    def has_room(self, batch: Batch) -> bool:
        """Whether a batch fits within the bounds."""
        return self._pending.has_room(batch)

    def full(self) -> BufferFull:
        return self._pending.full()

    def submit(self, batch: Batch, now: float) -> None:
        """Take a batch, at the end of the queue. Raises NotSent, and then has not taken it."""
        if self.is_closed:
            raise ClientClosed("the client is closed; enter it again (`with client:`), or make a new one")
        settings, pending = self.settings, self._pending
        if not pending.has_room(batch):
            raise pending.full()
        if self._transaction_lost:
            self._after_lost_transaction(batch)
        if not self.up and not self._connecting:
            if settings.delivery is Delivery.AT_MOST_ONCE and now < self._backoff.retry_at:
                raise NotSent(
                    f"there is no connection, and at-most-once holds nothing; the next attempt is in {self._backoff.retry_at - now:.2f} s"
                )
            self.connect_at = max(now, self._backoff.retry_at)
        if settings.delivery is _AT_MOST_ONCE:
            batch.is_at_most_once = True
        if settings.command_timeout is not None:
            batch.deadline = now + settings.command_timeout + batch.patience
        if batch.deadline is not None and batch.deadline < self.next_tick:
            self.next_tick = batch.deadline
        if self.up and not self._awaiting and not pending.queue:
            self._wake(now)
        pending.add(batch)

    def _after_lost_transaction(self, batch: Batch) -> None:
        name = name_of(batch.commands[0])
        if batch.atomic or name in ("WATCH", "UNWATCH", "EXEC", "DISCARD"):
            self._transaction_lost = False
        if name not in ("WATCH", "UNWATCH"):
            raise TransactionLost(f"{name} was not sent: the connection with its WATCH or MULTI is gone; begin again")

    def cancel(self, batch: Batch, now: float) -> bool:
        """Nobody waits for it any more: not written if it still can be helped, and never again. True: as for `tick`."""
        if not self._abandon(batch, "it was cancelled", NotSent, OutcomeUnknown):
            return False
        self._take_back_blocked(now)
        return True

    def cancel_all(self, why: str) -> None:
        """Nobody is there any more who waits for any of it."""
        for batch in [*self._awaiting, *self._pending.queue]:
            self._abandon(batch, why, NotSent, OutcomeUnknown)

    def _abandon(self, batch: Batch, why: str, unsent: type[NotSent], unknown: type[OutcomeUnknown]) -> bool:
        """Finish it without a reply. True if it blocks on the server meanwhile: then the connection has to go, too."""
        if batch.is_finished or not batch.is_submitted:
            return False
        was_given = self.up and self._writer.has_given(batch)
        if was_given:
            batch.remember(self._writer.given, self._writer.sent)  # what was given out will be written
        else:
            batch.data = b""  # it will be passed over in the queue; no need to keep its bytes there
        self._pending.finish(batch, batch.failures(why, unsent, unknown))
        return was_given and batch.blocks

    def interrupted(self, now: float) -> None:
        """The connection ends because of who used it, and the server is well: the next one need not wait."""
        if self.up:
            self._backoff.failures = 0
            self.lost(redis.ConnectionError(_INTERRUPTED), now)

    def rescue(self, batches: Iterable[Batch], was_leading: bool, now: float) -> None:
        """After an interrupt in the middle of the work here, and the end of the connection: finish those that are in no queue any more.

        One who led may have been connecting, or just have learnt that the connection is lost; that is brought to its end.
        """
        if not self.up:
            self._take_back()  # again, if that was interrupted
        if was_leading and not self.up:
            self._connecting = False
            self._hold_or_fail(redis.ConnectionError(_INTERRUPTED))
            self.connect_at = max(now, self._backoff.retry_at) if self._pending.queue and not self.is_closed else None
        self._pending.rescue(batches, _INTERRUPTED)

    def _take_back_blocked(self, now: float) -> None:
        """End the connection of a blocked command: left alone it would take, for nobody, what is pushed to its key next."""
        self._backoff.failures = 0  # the server is well
        self.lost(redis.ConnectionError("a command that blocked was given up"), now)
        self._lost_at = None  # nor is it an outage

    # -- the connection ---------------------------------------------------------------------------------------

    def connecting(self) -> None:
        """A driver has begun to open a connection."""
        self.connect_at = None
        self._connecting = True

    def connected(self, now: float) -> None:
        """A connection is open and shaken hands on."""
        self.up, self._connecting, self.connect_at = True, False, None
        self._reader.begin()
        self._writer.begin()
        self._heard = now
        self._exactly_once.forget_server()
        self._handshake.restore(self.session)
        if self.settings.delivery is Delivery.EXACTLY_ONCE:
            self._exactly_once.prepare(now)
        if self._acquaintance.was_reached:
            self._handshake.ask("PING")  # a server that was restarted may be loading its data still
        if self._lost_at is not None:
            self.counters.reconnects += 1
            self.events.append(Reconnected(now - self._lost_at, self._backoff.failures))
        self._acquaintance.was_reached, self._lost_at = True, None
        self._pending.filter()
        again = [
            batch.described(index)
            for batch in self._pending.queue
            if batch.attempts and not batch.is_finished
            for index in batch.unanswered()
            if batch.state(index) is not State.QUEUED
        ]
        if again:
            self.events.append(Replayed(again))

    def connect_failed(self, error: Exception, now: float) -> None:
        """No connection came about. Before the first one of the client that is told at once; later it is tried again."""
        self._connecting = False
        self._trouble = str(error)
        self._back_off(now)
        unsent = NotSentInTime if isinstance(error, redis.TimeoutError) else NotSent
        if not self._acquaintance.was_reached:
            self._fail_pending(str(error), unsent, OutcomeUnknown, error)
        else:
            self._fail_at_most_once(str(error), unsent, error)

    def refused(self, error: Exception, now: float) -> None:
        """The server answered and does not want us (a wrong password): trying again would not help, so all is failed."""
        self._take_back()
        if self.up:
            self._lost_at = now
        self._connecting = self.up = False
        self._back_off(now)
        self._fail_pending(str(error), NotSent, OutcomeUnknown, error, instead=stated(error, State.QUEUED))

    def lost(self, error: Exception, now: float) -> None:
        """The connection is gone. What that means for each command is the table at the top."""
        if not self.up:
            return
        self.up, self._lost_at = False, now
        self._take_back()
        self._hold_or_fail(error)
        self._back_off(now)

    def _hold_or_fail(self, error: Exception) -> None:
        """There is no connection: what its loss means for all that waits."""
        self._trouble = why = str(error) or type(error).__name__
        if self.session.in_transaction:
            self._transaction_lost = True
            self.session.watching = self.session.queueing = False
            self._fail_pending(f"{why}, and with it the WATCH or MULTI", TransactionLost, NotReplayed, error)
        else:
            self._fail_at_most_once(why, NotSent, error)
            self._pending.filter()

    def _take_back(self) -> None:
        """What was given out and has no reply goes back to the head of the queue, in order; tombstones go away.

        After an interrupt it is done again, from wherever it was: a batch may be in both queues then, and is in none at no time.
        """
        self._handshake.clear()
        self._reader.end()
        for batch in self._awaiting:
            if batch.notable:
                self.session.learn(batch)
        queued = set(map(id, self._pending.queue))
        waiting = [batch for batch in self._awaiting if not batch.is_handshake and id(batch) not in queued]
        for batch in waiting:
            if batch.is_finished:
                continue
            if len(batch.replies) == batch.count:  # an interrupt kept it from being finished
                self._finish_replied(batch)
                continue
            batch.remember(self._writer.handed, self._writer.sent)
            if batch.atomic:
                batch.replies.clear()  # replies of a part of it count for nothing
            if batch.notable and Kind.FINAL in batch.notable.values():
                batch.filter(lambda command: command.name == "SHUTDOWN", "it is not sent to whoever comes back")
                if len(batch.replies) == batch.count:
                    self._pending.finish(batch, list(batch.replies))
        self._pending.queue.extendleft([batch for batch in reversed(waiting) if not batch.is_finished])
        self._awaiting.clear()

    def _back_off(self, now: float) -> None:
        at = self._backoff.failed(now)
        self.connect_at = at if self._pending.queue and not self.is_closed else None

    @property
    def is_as_new(self) -> bool:
        """Whether another could take the connection over: nothing is under way on it, and nobody has changed what it is."""
        return self.up and not (self._awaiting or self._pending.queue or self._handshake or self.session.is_changed)

    def close(self) -> None:
        """Finish all that is held; take nothing any more."""
        if self.is_closed:
            return
        self._take_back()
        self.is_closed, self.up, self.connect_at = True, False, None
        self._fail_pending("the client was closed", ClientClosed, OutcomeUnknown)

    # -- bytes ------------------------------------------------------------------------------------------------

    @property
    def has_output(self) -> bool:
        """Whether `output` may have something to give."""
        return self.up and bool(self._handshake or self._pending.queue)

    def output(self) -> bytes:
        """Bytes to write next; b"" if there are none, or none may be given out yet."""
        if not self.up:
            return b""
        was_idle = not self._awaiting
        data = self._writer.take(self._heard)
        if was_idle and data:
            self._owe()
        return data

    def _owe(self) -> None:
        """Replies are owed again: silence counts."""
        self.next_tick = min(self.next_tick, self._silent_at())

    def begin_write(self, count: int) -> None:
        """`count` more bytes are about to be given to the operating system."""
        self._writer.handed += count

    def end_write(self, count: int) -> None:
        """It has taken `count` of them; the others it has not, and they are to be offered again."""
        self._writer.sent += count
        self._writer.handed = self._writer.sent

    def takes_bytes(self, now: float) -> None:
        """The other side takes what is written, bit by bit: one who listens to something long is not silent."""
        self._heard = now

    def room(self) -> memoryview | None:
        """Where the next bytes are to be received, and no more than fit; None: anywhere, to be given to `received`."""
        return self._reader.room()

    def filled(self, count: int, now: float) -> None:
        """So many bytes came where `room` said."""
        self._heard = now
        self._reader.filled(count)

    def received(self, data: Any, now: float) -> None:
        """Bytes came. Raises redis.InvalidResponse if they are no replies to what was asked."""
        self._heard = now
        self._reader.read(data, self._awaiting, self._complete)

    def _complete(self, batch: Batch) -> None:
        if batch.is_handshake:
            self._take_handshake_reply(batch)
            return
        self._backoff.failures = 0
        if batch.notable:
            self.session.learn(batch)
        elif batch.atomic:
            self.session.watching = False  # EXEC was answered
        if batch.numbered is not None:
            self._exactly_once.answered(batch, self._heard)
        if batch.is_finished:
            return
        if batch.attempts == 1:  # nearly always, so without another call
            self._pending.finish_replied(batch)
        else:
            self._finish_replied(batch)

    def _finish_replied(self, batch: Batch) -> None:
        """All its replies are here, after more than one attempt or an interrupt."""
        if batch.numbered is not None:
            fail_forgotten(batch)
        self._pending.finish(batch, batch.replies)

    def _take_handshake_reply(self, batch: Batch) -> None:
        name, reply = self._handshake.answered(batch)
        if name == "CONFIG GET":
            self._exactly_once.take_timeout(reply)
        elif name == "COMMAND" and self.settings.delivery is Delivery.EXACTLY_ONCE:  # still
            self._exactly_once.take_table(reply, self._pending)
        elif name == "ONCEBEGIN" and self.settings.delivery is Delivery.EXACTLY_ONCE:
            self._exactly_once.take_welcome(reply)

    def _wake(self, now: float) -> None:
        """Nothing was owed until now. If nothing was heard for long, ask before sending what could not be taken back."""
        interval = self.settings.health_check_interval
        if interval and now - self._heard >= interval and not self._handshake:
            self._handshake.ask("PING")
        self._heard = now

    # -- finishing ---------------------------------------------------------------------------------------------

    def take_finished(self) -> list[Batch]:
        """Batches that were finished since the last call, in order."""
        return self._pending.take_finished()

    def take_events(self) -> list[Event]:
        events, self.events = self.events, []
        return events

    def _fail_pending(
        self, why: str, unsent: type[NotSent], unknown: type[OutcomeUnknown],
        cause: Exception | None = None, instead: Exception | None = None,
    ) -> None:  # fmt: skip
        self._pending.fail_pending(why, unsent, unknown, cause, instead)
        self.connect_at = None

    def _fail_at_most_once(self, why: str, unsent: type[NotSent], cause: Exception) -> None:
        """There is no connection: fail what must not wait for one, by the level now or by that of its hand-over."""
        if self.settings.delivery is Delivery.AT_MOST_ONCE:
            self._fail_pending(why, unsent, OutcomeUnknown, cause)
            return
        self._pending.fail_pending(why, unsent, OutcomeUnknown, cause, is_meant=lambda batch: batch.is_at_most_once)
        if not self._pending.queue:
            self.connect_at = None

    # -- time -------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> bool:
        """Let time-outs happen. True: the connection is silent, or blocked, and was given up; the driver is to close it."""
        if now < self.next_tick:
            return False
        blocked = False
        for batch in [*self._awaiting, *self._pending.queue]:
            if batch.deadline is not None and batch.deadline <= now and not batch.is_finished:
                blocked |= self._abandon(batch, self._late(), NotSentInTime, NoReplyInTime)
        silent = now >= self._silent_at()
        if silent:
            head = self._awaiting[0]
            if not head.is_handshake and not head.is_finished:
                # It may be what the server is so busy with: sent again it would only make things worse.
                head.remember(self._writer.handed, self._writer.sent)
                head.fail_first("nothing came from the server")
                if len(head.replies) == head.count:
                    self._pending.finish(head, list(head.replies))
            self.lost(redis.TimeoutError("nothing came from the server"), now)
        elif blocked:
            self._take_back_blocked(now)
        self.next_tick = self._next_tick()
        return silent or blocked

    def _late(self) -> str:
        """Why a command is given up by the clock."""
        down = "" if self.up or not self._trouble else f", and there is no connection: {self._trouble}"
        return f"its time is up, command_timeout={self.settings.command_timeout}{down}"

    def time_left(self, now: float) -> float | None:
        """Seconds until the first command that waits is given up; None: all may wait for ever."""
        first = self._pending.first_deadline()
        return None if first == math.inf else max(first - now, 0.001)

    def _silent_at(self) -> float:
        """When the connection counts as silent, if nothing comes until then."""
        limit = self.settings.silence_timeout
        if not self._awaiting or limit is None:
            return math.inf
        return self._heard + limit + self._awaiting[0].patience

    def _next_tick(self) -> float:
        pending = (batch for queue in (self._awaiting, self._pending.queue) for batch in queue if not batch.is_finished)
        deadlines = (batch.deadline for batch in pending if batch.deadline is not None)
        return min(self._silent_at(), min(deadlines, default=math.inf))
