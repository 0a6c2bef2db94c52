"""The producer of penstock.Client: any number of threads write, and one thread of its own sends.

    with client.producer("clicks") as clicks:
        future = clicks.write("user-7", entry)          # future.result() is the offset
        clicks.send("user-8", entry)                    # no future; a failure is raised by flush() and close()

The thread is needed because messages that no caller waits for must leave all the same. It is a daemon, and what is held
when the program ends is flushed then (`atexit`). It has a connection of its own, at the level at-most-once: the core
(core.py) decides what is sent again.

What threads share is under `_lock`, a lock of C, which an interrupt cannot leave locked. A thread that is interrupted
in a call has written its message or has not; other threads notice nothing.

A producer belongs to the process that made it. In a child process it refuses to write: the thread is not there, and the
messages that are held are the parent's.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from time import monotonic
from types import TracebackType
from typing import Any, Self

from penstock.client.engine.encoding import as_bytes
from penstock.client.producer.core import ProducerCore
from penstock.client.producer.futures import OffsetFuture, finish
from penstock.client.producer.options import ProducerSettings
from penstock.client.producer.writes import MESSAGE_BYTES

PATROL = 1.0
"""Seconds after which the sending thread looks by itself: the thread that should wake it may have been interrupted."""

OnDelivery = Callable[[int | None, Exception | None], object]
"""Called with the offset, or with the error."""

_logger = logging.getLogger(__name__)


class Producer:
    """See the top of this file."""

    def __init__(self, client: Any, settings: ProducerSettings) -> None:
        self._core = ProducerCore(settings)
        self._client = client
        self._lock = threading.Lock()
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._waiters: deque[threading.Lock] = deque()  # threads that wait for room, or for the end of messages
        self._is_over = False  # the thread has ended
        self._process = os.getpid()
        as_bytes(settings.key)  # refuse now what has no wire form
        self._thread = threading.Thread(target=self._work, name=f"penstock-{self.name}", daemon=True)
        self._thread.start()
        _at_work.add(self)

    @property
    def name(self) -> str:
        """Its id on the server."""
        return self._core.name

    @property
    def counters(self) -> dict[str, int]:
        """Messages that were written, failed and are held, and the writes that were sent."""
        with self._lock:
            return self._core.counters()

    # -- for callers ------------------------------------------------------------------------------------------

    def write(self, tag: Any, entry: Any, timeout: float | None = None) -> Future[int | None]:
        """Have a message written; the future of its offset.

        Waits while max_bytes are held, for at most `timeout` seconds (as long as a message may take, unless given), and
        then raises BufferFull. The offset is None if an entry that was written together with this one did
        not fit the schema, and went to the dead-letter stream: the server does not say which did.
        """
        future = OffsetFuture()
        self._put(tag, entry, future, timeout)
        return future

    def send(self, tag: Any, entry: Any, on_delivery: OnDelivery | None = None, timeout: float | None = None) -> None:
        """Have a message written without waiting for it; waits for room as `write` does.

        `on_delivery` is called with the offset and None, or with None and the error, in the thread that sends: it must
        be short. Without it a failure is raised by the next `flush` or `close`.
        """
        self._put(tag, entry, on_delivery, timeout)

    def flush(self, timeout: float | None = None) -> None:
        """Send what is held at once, and return when all of it is written or has failed.

        Raises the first failure of messages that have neither a future nor a callback, and TimeoutError if it takes
        longer than `timeout` seconds.
        """
        self._check_process()
        with self._lock:
            target = self._core.flush()
        self._wake.put(None)
        self._wait_for(lambda: self._core.outcomes.ended >= target, timeout)
        self._raise_unheard()

    def close(self, timeout: float | None = None) -> None:
        """As `flush`, and then end: it takes no more messages.

        After a TimeoutError what is held is still being sent, until it is written or its time is up.
        """
        if self._process != os.getpid():
            return  # its messages, and its thread, are the parent's
        with self._lock:
            self._core.close()
        self._wake.put(None)
        if self._thread is not threading.current_thread():  # as that of on_delivery is
            self._wait_for(lambda: self._is_over, timeout)
        self._raise_unheard()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- messages ---------------------------------------------------------------------------------------------

    def _check_process(self) -> None:
        if self._process != os.getpid():
            raise RuntimeError(
                f"this producer belongs to the process {self._process}, which holds its messages; make one here"
            )

    def _put(self, tag: Any, entry: Any, slot: Any, timeout: float | None) -> None:
        if self._process != os.getpid():
            self._check_process()
        tag = tag if type(tag) is bytes else as_bytes(tag)
        entry = entry if type(entry) is bytes else as_bytes(entry)
        size = MESSAGE_BYTES + len(tag) + len(entry)
        core, until = self._core, None
        while True:
            now = monotonic()
            with self._lock:
                waiter = None
                if core.has_room(size):
                    is_due = core.add(tag, entry, slot, size, now)
                else:
                    core.refuse()
                    waiter = self._queue_up()
            if waiter is None:
                if is_due:
                    self._wake.put(None)
                return
            if until is None:
                until = now + (core.settings.timeout if timeout is None else timeout)
            if until <= now:
                raise core.full()
            waiter.acquire(timeout=min(until - now, PATROL))

    def _queue_up(self) -> threading.Lock:
        """With the lock held: what is released when messages have been finished."""
        waiter = threading.Lock()
        waiter.acquire()
        self._waiters.append(waiter)
        return waiter

    def _wait_for(self, is_done: Callable[[], bool], timeout: float | None) -> None:
        until = None if timeout is None else monotonic() + timeout
        while True:
            with self._lock:
                if is_done():
                    return
                waiter = self._queue_up()
            left = PATROL if until is None else min(until - monotonic(), PATROL)
            if left <= 0:
                raise TimeoutError(f"messages are still held after {timeout} s: {self.counters['held']}")
            waiter.acquire(timeout=left)

    def _raise_unheard(self) -> None:
        with self._lock:
            error = self._core.outcomes.take_unheard()
        if error is not None:
            raise error

    # -- the thread that sends --------------------------------------------------------------------------------

    def _work(self) -> None:
        client = self._client.for_producer(self._core.settings.timeout)
        try:
            while self._turn(client):
                pass
        except BaseException as error:
            with self._lock:
                self._core.fail_all(error if isinstance(error, Exception) else RuntimeError(repr(error)))
            raise
        finally:
            self._tell()
            client.close()
            self._is_over = True
            self._let_look()

    def _turn(self, client: Any) -> bool:
        """Send one window, or wait until there is one; False at the end."""
        core, now = self._core, monotonic()
        with self._lock:
            at = core.act_at(now)
            commands = core.take(now) if at <= now else []
            patience = core.patience(now) if commands else 0.0
            if core.is_closed and core.is_empty:
                return False
        if commands:
            client.settings.command_timeout = patience
            replies = client.execute_many(commands, raise_on_error=False)
            with self._lock:
                core.answered(replies, monotonic())
            self._tell()
        elif at <= now:
            self._tell()  # all was given up
        else:
            self._sleep(min(at - now, PATROL))
        return True

    def _sleep(self, seconds: float) -> None:
        try:
            self._wake.get(timeout=seconds)
            while True:
                self._wake.get_nowait()
        except queue.Empty:
            pass

    def _tell(self) -> None:
        """Finish the futures of messages, call the callbacks of others, and wake the threads that wait."""
        with self._lock:
            finished = self._core.outcomes.take_finished()
        finish([each for each in finished if type(each[0]) is OffsetFuture])
        for slot, outcome in finished:
            if type(slot) is OffsetFuture:
                continue
            is_error = isinstance(outcome, Exception)
            try:
                slot(None if is_error else outcome, outcome if is_error else None)
            except Exception:
                _logger.exception("the on_delivery of a message has failed")
        self._let_look()

    def _let_look(self) -> None:
        while self._waiters:
            self._waiters.popleft().release()


_at_work: weakref.WeakSet[Producer] = weakref.WeakSet()


def _flush_all() -> None:
    """The program ends: write what is held."""
    for producer in list(_at_work):
        try:
            producer.close()
        except Exception:
            _logger.exception("messages of %s were not written", producer.name)


atexit.register(_flush_all)
