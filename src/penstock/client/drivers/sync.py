"""The driver for threads: any number of threads, one socket, no thread of our own.

A thread that calls while no other thread reads becomes the leader: it reads for all until its own reply has come, then
another waiting thread leads. A single thread therefore pays for no other thread, and sixty-four threads share one read
of many replies. Likewise one thread writes for all: what others submit while it is in `send` goes out with its next
`send` (write_turn.py). Threads whose replies have come wake each other one by one (wake_chain.py). While they are being
woken no thread writes, and the last one writes for all; no command waits for that longer than PAUSE.

A thread can be interrupted between any two steps (KeyboardInterrupt). Unless it only waited, it ends its connection
then. Commands of other threads are in one of the core's queues at every step, so they go on as after any lost
connection, and the interrupted thread wakes every thread that it may have kept from being woken. If it is interrupted
in that, too (Ctrl-C twice), it stays in `_interrupted_in`, and the leader ends the connection in its place, after
PATROL or at the next call.

A call that finds no room (max_buffered_commands, max_buffered_bytes) waits in the order of calls (engine/room.py).

What threads share is under `_lock`, which is never held while waiting for the network. `_leader` is the batch whose
thread leads.

Rejected: a reader thread. It costs two switches of threads for each call, lives on after fork, and keeps programs from
ending.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from threading import get_ident
from time import monotonic

import redis

from penstock.client.drivers.base import DrivenConnection
from penstock.client.drivers.connecting import report_failure, server_of
from penstock.client.drivers.polling import POLLIN, POLLOUT, Poll
from penstock.client.drivers.pool_handoff import Leave, identities_left
from penstock.client.drivers.socket_io import ClientSocket
from penstock.client.drivers.wake_chain import WakeChain, wake
from penstock.client.drivers.wake_up import WakeUp
from penstock.client.drivers.write_turn import Write, WriteTurn
from penstock.client.engine.batch import Batch
from penstock.client.engine.connection import ConnectionCore
from penstock.client.engine.room import RoomQueue
from penstock.client.errors import BufferFull, NotSent

PAUSE = 0.01
"""Seconds that a command may wait to be written together with those of threads that are just waking up."""
PATROL = 1.0
"""Seconds after which a waiting thread looks whether another thread reads for it: an interrupt may have ended that
thread.
"""


class Reentered(Exception):
    """This thread is in the middle of a call: a signal handler came in between, and would wait for what it
    interrupts.
    """


class SyncConnection(DrivenConnection):
    """One core on one socket at a time."""

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._leader: Batch | None = None
        self._inside: dict[int, Batch] = {}  # threads that are in `run`, and with what
        self._followers: deque[Batch] = deque()
        # Threads that were interrupted in using the connection, and have not ended it yet.
        self._interrupted_in: set[int] = set()
        self._socket: ClientSocket | None = None
        self._wake_chain = WakeChain()
        self._write_turn = WriteTurn(self.core)
        inside = self._inside
        self._room = RoomQueue(self.core, wake, lambda batch: batch in list(inside.values()))
        self._wake_up = WakeUp()
        self._poll = self._wake_up.new_poll()

    # -- calls ------------------------------------------------------------------------------------------------

    def run(self, batch: Batch) -> None:
        """Submit a batch and return when it is finished. Raises NotSent, or Reentered, if it was not taken."""
        thread, only_waits = get_ident(), False
        if thread in self._inside:
            raise Reentered
        try:
            self._inside[thread] = batch
            waiter, patience = self._submit(batch), PAUSE
            while waiter is not None:
                only_waits = True
                is_woken = waiter.acquire(timeout=patience)
                only_waits = False
                if is_woken or self._is_passed_over(batch):
                    waiter = None
                self._wake_next()  # not woken: the thread that should have woken us is held up, as by a signal handler
                patience = PATROL
            while not batch.is_finished:
                self._turn()
        except NotSent:
            raise
        except BaseException:
            if not only_waits or self._leader is batch:
                self._interrupted_in.add(thread)  # first of all: no other interrupt comes before this step is done
            try:
                self._interrupted(batch)
            except BaseException:
                self._interrupted_in.add(thread)
                raise
            raise
        finally:
            try:
                if self._leader is batch:
                    self._hand_over(batch)
            except BaseException:
                self._hand_over(batch)  # it may have been between any two steps of it
                raise
            finally:
                self._inside.pop(thread, None)
            if self.core.events:
                self._tell()  # not while leading: a listener may use this client

    def _submit(self, batch: Batch) -> threading.Lock | None:
        """Give a batch to the core and write if writing is free. None: we lead; else what wakes us."""
        patience = self.core.settings.command_timeout
        waiter = turn = until = None
        while not batch.is_submitted:
            talks = room = None
            with self._lock:
                if self._interrupted_in:
                    self._end_interrupted()
                if self._leader is None:
                    self._leader = batch
                    if self._socket is not None and self._poll.poll(0):
                        # It was idle and has something to say, most likely that it is closed. Better know before
                        # writing.
                        talks = self._socket
                if talks is None:
                    try:
                        self._room.submit(batch, monotonic())
                    except BufferFull:
                        if until is None:
                            until = math.inf if patience is None else monotonic() + patience
                        room = self._queue_for_room(batch, until)
                    else:
                        if self._leader is not batch:
                            waiter = batch.waiter = threading.Lock()
                            waiter.acquire()
                            self._followers.append(batch)
                            if not self._leader.is_submitted:
                                # it waits for room, and its timeout was computed without this batch
                                self._wake_up.set()
                        turn = None if self._wake_chain.is_waking else self._write_turn.claim(self._socket)
            if talks is not None:
                self._exchange(talks)
            elif until is not None and not batch.is_submitted:
                self._wait_for_room(batch, room, until)
        self._send(turn)
        return waiter

    def _is_passed_over(self, batch: Batch) -> bool:
        """Whether the thread of a batch waits without need: its batch is finished, or it is to lead, and it was not
        woken.
        """
        with self._lock:
            if self._interrupted_in:
                self._end_interrupted()
            if not batch.is_finished and not self._leads(batch):
                return False
            batch.waiter = None
            return True

    def _leads(self, batch: Batch) -> bool:
        """With the lock held: whether a batch's thread leads. If no thread leads, this one does from now on."""
        if not self._is_led():
            self._leader = batch
        return self._leader is batch

    def _is_led(self) -> bool:
        """With the lock held: whether there is a leader, and it did not go without handing over."""
        return self._leader is not None and self._leader in list(self._inside.values())

    def close(self, leave: Leave | None = None) -> None:
        """Finish everything and end the connection, or leave it to another if it is as new; for any thread."""
        self._at_once_or_next(lambda: self._close(leave))

    def _close(self, leave: Leave | None) -> None:
        with self._lock:
            sock = self._socket
            if sock is not None and self.core.is_idle:
                if leave is not None and self._leader is None and leave(sock.redis_connection, self.core):
                    self._socket, self._poll = None, self._wake_up.new_poll()
                elif farewell := self.core.exactly_once.farewell():
                    sock.send(farewell)
            self.core.close()
            self._drop()
            self._wake_finished()
            if not self._is_led():
                self._wake_up.close()
        self._wake_up.set()

    def change(self, change: Callable[[ConnectionCore, float], object]) -> None:
        """Change the core's settings, and wake the threads whose batches that finishes."""
        self._at_once_or_next(lambda: self._change(change))

    def _change(self, change: Callable[[ConnectionCore, float], object]) -> None:
        thread = get_ident()
        try:
            with self._lock:
                change(self.core, monotonic())
                self._wake_finished()
                turn = self._write_turn.claim(self._socket)
            self._wake_up.set()  # the leader may be one of them
            self._send(turn)
        except BaseException:
            self._interrupted_in.add(thread)
            self._interrupted(None)
            raise

    def _at_once_or_next(self, work: Callable[[], None]) -> None:
        """Do work that takes the lock, at once or, if this thread has the lock already, in another thread: a signal
        handler or a replay filter must not wait for itself. A call of this thread meanwhile raises Reentered.
        """
        thread = get_ident()
        if thread not in self._inside:
            try:
                self._inside[thread] = _NO_CALL
                work()
            finally:
                self._inside.pop(thread, None)
        elif self._lock.locked():
            threading.Thread(target=self._at_once_or_next, args=[work], name="penstock-next").start()
        else:
            work()

    def _interrupted(self, batch: Batch | None) -> None:
        """Clean up after a KeyboardInterrupt or the like. A thread that only waited leaves the connection to the
        others.
        """
        with self._lock:
            if self._write_turn.is_sent_by(get_ident()):
                self._write_turn.sending = None  # no thread is in `send` any more
            if batch is not None:
                self._room.leave(batch)
                if self.core.cancel(batch, monotonic()):
                    self._drop()
            if self._interrupted_in:
                self._end_interrupted()
            self._wake_all_finished()
        self._wake_next()  # it may have been our turn to

    def _end_interrupted(self) -> None:
        """With the lock held: end the connection that a thread was interrupted in using, and finish batches that are in
        no queue any more. It is not known how much was read, written or counted. The interrupted thread does this
        itself. If it is gone, the leader does, or any thread if none leads.
        """
        me, inside = get_ident(), self._inside
        gone = [thread for thread in list(self._interrupted_in) if thread == me or thread not in inside]
        is_leading = not self._is_led() or self._leader is inside.get(me)
        if not gone:
            return
        if not is_leading and me not in gone:
            self._wake_up.set()
            return
        if self._write_turn.is_sent_by(*gone):
            self._write_turn.sending = None
        self.core.interrupted(monotonic())
        self._drop()
        others = [*self._followers] if self._leader is None else [self._leader, *self._followers]
        self.core.rescue(others, is_leading, monotonic())
        present = set(map(id, list(inside.values())))
        for batch in list(self.core.pending.queue):
            if id(batch) not in present:  # its thread was interrupted again before it had cancelled it
                self.core.cancel(batch, monotonic())
        self._wake_all_finished()
        self._interrupted_in.difference_update(gone)

    def _wake_all_finished(self) -> None:
        """With the lock held: wake all threads whose batches are finished, in no order, and the leader, which may be
        one of them.
        """
        self._wake_finished()
        for other in list(self._inside.values()):
            if other.is_finished:
                wake(other)
        self._wake_up.set()

    # -- room -------------------------------------------------------------------------------------------------

    def _queue_for_room(self, batch: Batch, until: float) -> threading.Lock | None:
        """With the lock held: what wakes us when it may be our turn, None if we lead. Raises BufferFull if waiting is
        not wanted, or over.
        """
        if monotonic() >= until:
            self._room.leave(batch)
            raise self.core.pending.full()
        self._room.enter(batch)
        if batch.waiter is None:
            batch.waiter = threading.Lock()
            batch.waiter.acquire()
        return None if self._leader is batch else batch.waiter

    def _wait_for_room(self, batch: Batch, room: threading.Lock | None, until: float) -> None:
        """Let replies come: read them, or wait until other threads have."""
        if room is None:
            self._turn()
        elif not room.acquire(timeout=min(max(until - monotonic(), 0.001), PATROL)):
            with self._lock:
                self._leads(batch)

    # -- writing ----------------------------------------------------------------------------------------------

    def _send(self, turn: Write | None) -> None:
        """Write, and then what was queued during that, until there is no more or the socket is full."""
        while turn is not None:
            data, sock = turn
            count = sock.send(data)
            with self._lock:
                if sock is not self._socket:
                    sock.close()  # it was lost while we were using it; its bytes are accounted for
                    return
                if not self._write_turn.sent(data, count, monotonic()):
                    self._wake_up.set()  # the leader waits for the socket to take more
                    return
                turn = self._write_turn.claim(sock)

    # -- leading ----------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Wait for one thing to happen, and deal with it."""
        core = self.core
        with self._lock:
            if self._interrupted_in:
                self._end_interrupted()
            sock, poll, connect_at, next_tick = self._socket, self._poll, core.connect_at, core.timeouts.next_tick
            waking = self._wake_chain.is_waking
            if sock is not None and self._write_turn.rest:
                poll.modify(sock.raw, POLLIN | POLLOUT)
        now = monotonic()
        until = min(next_tick, now + PATROL)
        if sock is None:
            if connect_at is not None and connect_at <= now:
                self._open()
            else:
                self._wait(poll, until if connect_at is None else min(connect_at, until), now)
        elif sock.has_more or self._wait(poll, now + PAUSE if waking else until, now):
            self._exchange(sock)
        elif waking:
            self._wake_next()
        if monotonic() >= core.timeouts.next_tick:
            with self._lock:
                if core.tick(monotonic()):
                    self._drop()
                self._wake_finished()

    def _wait(self, poll: Poll, until: float, now: float) -> bool:
        """Sleep until the socket has something, another thread wakes us, or the time comes. True if it is
        the socket.
        """
        found = False
        for descriptor, _ in poll.poll(None if until == math.inf else max(until - now, 0.0) * 1000 + 1):
            if descriptor == self._wake_up.number:
                self._wake_up.clear()
            else:
                found = True
        return found

    def _exchange(self, sock: ClientSocket) -> None:
        """The socket has something for us, or room: read once, and write what waits."""
        room = self.core.reader.room()  # only the leader reads, so it does not change without the lock
        data = failure = None
        try:
            data = sock.receive(room)
        except (redis.ConnectionError, redis.TimeoutError) as error:
            failure = error
        with self._lock:
            if sock is not self._socket:
                return
            if failure is not None:
                self.core.lost(failure, monotonic())
                self._drop()
            elif data and room is not None:
                self.core.filled(data, monotonic())
            elif data and self.core.received(data, monotonic()):
                self._drop()
            self._wake_finished()
            if self._write_turn.rest:
                self._poll.modify(sock.raw, POLLIN)
            turn = self._write_turn.claim_rest(self._socket)
        self._send(turn)

    def _open(self) -> None:
        with self._lock:
            self.core.connecting()
            seconds = self.core.timeouts.time_to_connect(monotonic())
        try:
            redis_connection = self._make_redis_connection()
        except Exception as error:  # an option that redis-py does not know
            with self._lock:
                self.core.refused(error, monotonic())
            return
        try:
            sock = ClientSocket(redis_connection, seconds, self.core.settings.silence_timeout)
        except Exception as error:
            with self._lock:
                report_failure(self.core, error, redis_connection, monotonic())
            return
        try:
            with self._lock:
                if self.core.is_closed:  # while it waited
                    sock.close()
                    return
                self._write_turn.is_taken, self._socket = True, sock
                self._poll.register(sock.raw, POLLIN)
                self.core.connected(monotonic(), identities_left(redis_connection), server_of(redis_connection))
                turn = self._write_turn.take(sock)
        except BaseException:
            if self._socket is not sock:  # an interrupt: no other thread knows of it
                sock.close()
            raise
        self._send(turn)

    def _drop(self) -> None:
        """With the lock held: end the socket. A thread that is in `send` or `poll` on it is woken by the shutdown."""
        sock = self._socket
        self._write_turn.end()
        if sock is None:
            return
        self._poll = self._wake_up.new_poll()
        self._socket = None
        sock.shut_down()
        if self._write_turn.sending is not sock:
            sock.close()  # else the thread in `send` closes it: its number must not be given to another file before
        self._write_turn.sending = None

    def _wake_finished(self) -> None:
        """With the lock held."""
        finished = self.core.pending.take_finished()
        if finished:
            self._wake_chain.add(finished)
        if self._room.batches:
            self._room.wake()

    def _wake_next(self) -> None:
        """Wake the next thread whose reply has come; if all are awake, write what they have submitted since."""
        with self._lock:
            self._wake_chain.wake_one()
            turn = None if self._wake_chain.is_waking else self._write_turn.claim(self._socket)
        self._send(turn)

    def _hand_over(self, batch: Batch) -> None:
        """Let another thread lead, if this one does; called again after an interrupt, it goes on from there."""
        with self._lock:
            if self._leader is batch:
                followers = self._followers
                while followers and followers[0].is_finished:
                    followers.popleft()
                self._leader = followers[0] if followers else None
            leader = self._leader
            if leader is None:
                self._room.wake()
                if self.core.is_closed:
                    self._wake_up.close()
            elif leader.waiter is not None:
                wake(leader)
                leader.waiter = None

    # -- fork -------------------------------------------------------------------------------------------------

    def _let_go_in_child(self) -> None:
        self._wake_up.close_in_child()
        if self._socket is not None:
            self._socket.close_in_child()


_NO_CALL = Batch(("NO CALL",), b"")
"""Stands for the batch of a thread that makes no call."""
_NO_CALL.is_finished = True
