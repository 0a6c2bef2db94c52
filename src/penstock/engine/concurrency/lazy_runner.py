"""How queued commands of LAZY run: on the loop at once, or a long one in a thread.

`run_all` is for what cannot wait: it finishes what threads have begun, and works on a copy of a value that a client's
thread reads. `begin` and `advance` are for what can: they give the slow part of a command to a thread, its keys locked
(workers.py), and leave a command alone that finds locks in its way. A command stays queued until it is committed, and
runs at the time of its enqueueing.

Owned by the loop thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from penstock.engine.concurrency.lazy_counts import Counts
from penstock.engine.concurrency.lazy_order import Order, Queued
from penstock.engine.declarations import Handler
from penstock.engine.observe.monitors import in_short
from penstock.engine.run_handler import QUEUED, NotNow, run_handler
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError
from penstock.protocol.resp import NO_REPLY

if TYPE_CHECKING:
    from penstock.engine.concurrency.workers import Job
    from penstock.engine.dispatch import Engine

logger = logging.getLogger("penstock.lazy")


class Runner:
    """See the top of this file."""

    def __init__(self, engine: Engine, order: Order, counts: Counts) -> None:
        self._engine = engine
        self._order = order
        self._pending = order.pending
        self._counts = counts
        self.running: Queued | None = None  # on the loop, at this moment
        self._in_threads: dict[Session, Queued] = {}  # by the session that runs it
        self._spare: list[Session] = []  # sessions for threads that none uses at the moment
        self.on_thread_done: Callable[[], None] = lambda: None

    @property
    def in_threads(self) -> int:
        """How many threads are at work."""
        return len(self._in_threads)

    def advance(self, wanted: list[Queued]) -> bool:
        """Run these, or give them to threads, as far as nothing is in the way; whether all have run."""
        for queued in wanted:
            if queued.number in self._pending and self.job(queued) is None and self._order.is_next(queued):
                queued.needed = True
                self.begin(queued)
        return not any(queued.number in self._pending for queued in wanted)

    def run_all(self, last: list[Queued]) -> int:
        """Run these and all that must run before them, in the order in which they came.

        Answers how many were not begun by a thread.
        """
        return sum([self.run(queued) for queued in self._order.with_those_before(last)])

    def run(self, queued: Queued) -> bool:
        """Run one whose predecessors have run, whatever it takes; False if a thread had
        begun and it only had to end.
        """
        job = self.job(queued)
        if job is not None:
            self._engine.workers.finish_now(job)
        if queued.number not in self._pending:
            return False
        for key, writes in queued.keys.items():
            if writes:
                self._engine.lock_gate.spare_readers(queued.database, key)
        self._perform(queued, self._session, queued.command.handler)
        return True

    def begin(self, queued: Queued) -> None:
        """Run one whose predecessors have run, or have a thread begin with it, unless locks are in its way."""
        if self._engine.lock_gate.is_locked(queued.database, queued.command, queued.argv):
            return
        session = self._spare.pop() if self._spare else self._new_session()
        session.later = self._thread_is_done
        session.may_block = True
        try:
            self._perform(queued, session, queued.command.handler)
        except NotNow:
            pass
        finally:
            session.may_block = False
        if queued.number in self._pending and (job := self._engine.workers.job_of(session)) is not None:
            queued.job = job
            self._in_threads[session] = queued
        else:
            self._spare.append(session)

    def job(self, queued: Queued) -> Job | None:
        """What a thread does for it at this moment."""
        if queued.job is not None and queued.job not in self._engine.workers.jobs:
            self._release(queued)  # the workers were stopped
        return queued.job

    def _release(self, queued: Queued) -> None:
        """Its thread is done."""
        assert queued.job is not None
        session, queued.job = queued.job.session, None
        del self._in_threads[session]
        self._spare.append(session)

    def _thread_is_done(self, job: Job) -> None:
        """Run what a thread worked on, unless that is out of date."""
        queued = self._in_threads[job.session]
        self._release(queued)
        if not job.outdated:
            self._perform(queued, job.session, job.finish, job.spent)
            if queued.needed:
                self._counts.ran_actively += 1
            else:
                self._counts.ran_passively += 1
        self.on_thread_done()

    def _perform(self, queued: Queued, session: Session, handler: Handler, spent: int = 0) -> None:
        """The one place where queued commands run: the whole of one, or what is left of it after `spent` nanoseconds.

        Nothing is logged and nothing counts as changed, as that was done when it was enqueued. Its slow part is what
        its handler gives to `session.aside`; if that went to a thread, it stays queued.
        """
        engine, command = self._engine, queued.command
        session.db = queued.database
        outer, self.running = self.running, queued
        queued.running = over = True
        try:
            reply = run_handler(engine, session, command, queued.argv, QUEUED, handler, spent, queued.moment)
            over = reply is not NO_REPLY
        except NotNow:
            over = False
            raise
        except ReplyError as error:
            self._count_failure(queued, error.wire().decode("utf-8", "replace"))
        except Exception as error:
            logger.exception("internal error in LAZY %r", in_short(queued.argv), exc_info=error)
            self._count_failure(queued, f"internal error: {error!r}")
        finally:
            self.running = outer
            queued.running = False
            if over:
                self.remove(queued)

    def _count_failure(self, queued: Queued, text: str) -> None:
        self._counts.failed += 1
        self._counts.last_error = f"{queued.command.name}: {text}"

    @cached_property
    def _session(self) -> Session:
        """Runs commands that cannot wait: it never uses a thread."""
        return self._new_session()

    def _new_session(self) -> Session:
        """Runs queued commands: it has no client."""
        session = Session(self._engine)
        session.authenticated = True
        session.may_block = False
        session.name = b"lazy"  # shown in the slow log
        return session

    def remove(self, queued: Queued) -> None:
        """It has run, or was dropped."""
        self._order.remove(queued)
        self._engine.memory.reserved -= queued.growth
        if queued.job is not None:
            self._release(queued)
        if not self._pending:
            self._engine.keyspace.before_expiry = None

    def are_threads_busy(self) -> bool:
        return any(self.job(queued) is not None for queued in list(self._in_threads.values()))

    def check(self) -> None:
        """Assert every invariant; for tests."""
        for session, queued in self._in_threads.items():
            assert self._pending[queued.number] is queued and queued.job is not None and queued.job.session is session
            assert self._order.is_next(queued), "a thread runs a command whose turn has not come"
