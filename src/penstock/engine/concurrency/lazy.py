"""LAZY: writes that are answered now and run later, in the gaps or when a client needs to know.

One invariant: clients cannot tell it from immediate execution, except by the clock. The log gets a command when it is
enqueued, and nothing when it runs, so what runs later must make of memory what a replay would make of it:

- A command runs after every earlier one that it could tell from (lazy_order.py). The same holds for a client's ordinary
  command, so dispatch asks while anything is queued (`pending`). The keys' names are busy for as long (busy_names.py), and
  the inner loop hands such commands over.
- It runs at the time it was enqueued: the clock is set back for it. Keys that had expired by then were deleted, and
  that was logged, before it was enqueued. A key that expires while it is queued stays until it has run (`before_expiry`).
- Commands that look at everything (KEYS, snapshots, a rewrite of the log) have everything run first; FLUSHALL forgets it.
- Commands for a key that a client is blocked on, and those queued when memory has run out, do not wait for an idle moment.

Passive execution takes the oldest first, in slices, when no byte came in for a while, or when it is too old. A random key,
as the proposal has it, could let one of them wait for ever.

A long one goes on in a thread, its keys locked (workers.py), whether an idle moment begins it or a client's command that
needs it (`prepare`). It is still queued then: it runs, at its own time, when it is committed. A client that needs its
outcome, or that of one behind it, waits at the lock or in `_waiting`, and its command is run again. What cannot wait, such
as a script or expiry, has it finished at once.

LAZY itself does not wait for locks. A command that is queued for a key which a client's thread has locked runs when the
lock goes; if it cannot be waited for, it works on a copy of the value. The thread's command, if it writes, comes later in
the log and is run again (workers.py).

Rejected: logging a command when it runs. A crash would lose what was acknowledged.

Owned by the loop thread.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from functools import cached_property
from time import perf_counter_ns
from typing import TYPE_CHECKING

from penstock.engine.concurrency.lazy_order import Order, Queued
from penstock.engine.concurrency.lazy_rules import NAME
from penstock.engine.declarations import Access, Argv, Command, Flag, Handler
from penstock.engine.observe.monitors import in_short
from penstock.engine.run_handler import QUEUED, NotNow, run_handler
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError
from penstock.protocol.resp import NO_REPLY
from penstock.types import codec

if TYPE_CHECKING:
    from penstock.engine.blocking import Waiter
    from penstock.engine.concurrency.workers import Job
    from penstock.engine.dispatch import Engine
    from penstock.engine.keyspace.databases import Database

log = logging.getLogger("penstock.lazy")

QUIET = 0.005
"""Seconds without a byte from any client after which the server counts as idle."""
SLICE = 1_000_000
"""Nanoseconds that passive execution works before it lets clients have their turn."""
PATIENCE = 5000
"""Milliseconds that a command waits for threads, however much is queued anew; then it has what it needs run at once."""


class Lazy:
    """The queue of a server. See the top of this file."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._order = Order(engine.busy_names)
        self.pending: OrderedDict[int, Queued] = self._order.pending
        self._running: Queued | None = None
        self._in_threads: dict[Session, Queued] = {}  # by the session that runs it
        self._spare: list[Session] = []  # sessions for threads that none uses at the moment
        self._waiting: dict[Waiter, None] = {}  # of clients whose command needs what a thread, or a lock, keeps back
        self._asked: dict[Session, tuple[Argv, int]] = {}  # commands that had to wait, and since when
        self._hurried: dict[Queued, None] = {}  # a blocked client waits for these
        self._timer: object | None = None
        self._idle = False
        self._input_seen = -1  # stats.input_bytes when it was last looked at
        self.reset()
        for name in ("lazy-queue-enabled", "lazy-max-age"):
            engine.config.on_change(name, lambda _: self._replan())

    def reset(self) -> None:
        """CONFIG RESETSTAT."""
        self.enqueued = 0
        self.ran_actively = 0  # because a client needed it
        self.ran_passively = 0  # in an idle moment, or of old age
        self.ran_inline = 0  # at once: the queue was full, or a client waited for it
        self.discarded = 0  # by FLUSHALL or FLUSHDB
        self.failed = 0  # with an error that no client was there to get
        self.last_error = ""

    # -- entering ---------------------------------------------------------------------------------------------

    def enqueue(self, database: Database, command: Command, argv: Argv, growth: int = 0) -> None:
        """Have the command run later. It passed the gates and may be LAZY; the caller logs it.

        It may take `growth` bytes beyond its arguments when it runs: they are reserved until then.
        """
        keys: dict[bytes, bool] = {}
        for position, access in command.key_positions(argv):
            key = argv[position]
            keys[key] = access is not Access.READ or keys.get(key, False)
        for key in keys:
            self._expire_if_due(database, key)
        if not self.pending:
            self._engine.keyspace.before_expiry = self.before_expiry
        queued = self._order.add(database, command, argv, keys)
        queued.growth = growth
        self._engine.memory.reserved += growth
        self.enqueued += 1
        if (
            len(self.pending) > self._engine.config.lazy_max_queued
            or self._order.bytes > self._engine.config.lazy_max_bytes
        ):
            self.ran_inline += self._run_all([queued])
        elif self._is_waited_for(queued):
            self._hurry(queued)
        else:
            self._plan()

    def is_full(self) -> bool:
        """Whether one more would run at once."""
        config = self._engine.config
        return bool(len(self.pending) >= config.lazy_max_queued or self._order.bytes >= config.lazy_max_bytes)

    def _expire_if_due(self, database: Database, key: bytes) -> None:
        """Delete a key of a new command whose time has come; that is logged before the command is.

        Whether it has come is only known when those have run that may give the key the expiry time of another.
        """
        writer = self._order.writer_of(database, key)
        if writer is not None and Flag.RENAMES in writer.command.flags:
            self.run_for(database, key)
        database.get(key)

    def _is_waited_for(self, queued: Queued) -> bool:
        observed = queued.database.observed
        if not observed:
            return False
        return any(writes and key in observed and observed[key].waiters for key, writes in queued.keys.items())

    def _hurry(self, queued: Queued) -> None:
        """Run it as soon as threads and locks allow: a blocked client waits for what it does."""
        before = len(self.pending)
        if not self._advance(self._order.with_those_before([queued])):
            self._hurried[queued] = None
        self.ran_inline += before - len(self.pending)

    def _remove(self, queued: Queued) -> None:
        self._order.remove(queued)
        self._engine.memory.reserved -= queued.growth
        self._hurried.pop(queued, None)
        if queued.job is not None:
            self._release(queued)
        if not self.pending:
            self._engine.keyspace.before_expiry = None

    # -- a client's command -----------------------------------------------------------------------------------

    def prepare(self, session: Session, command: Command, argv: Argv) -> bool:
        """Run what a client's command needs, and have threads begin with what is long; False if it must wait for some.

        For the lock gate, while anything is pending. A command that had to wait for long is let through: `before` then
        runs the rest at once.
        """
        needed = self._order.with_those_before(self._needed(session, command, argv))
        if not needed:
            self._asked.pop(session, None)
            return True
        if self._has_waited_enough(session, argv):
            return True
        before = len(self.pending)
        done = self._advance(needed)
        self.ran_actively += before - len(self.pending)
        return done

    def _needed(self, session: Session, command: Command, argv: Argv) -> list[Queued]:
        if command.name != "EXEC" or session.transaction is None:
            return self._order.needed_by(session.db, command, argv)
        watched = [each for place in session.watching for each in self._order.last_of(*place, to_write=False)]
        queue = session.transaction.queue
        return watched + [each for called, words in queue for each in self._order.needed_by(session.db, called, words)]

    def _has_waited_enough(self, session: Session, argv: Argv) -> bool:
        asked, now = self._asked.get(session), self._engine.clock.lease_time()
        if asked is None or asked[0] is not argv:
            self._asked[session] = (argv, now)
            return False
        return now - asked[1] >= PATIENCE

    def wait(self, session: Session, command: Command, argv: Argv) -> None:
        """Run the command again when a thread is done or locks go; `prepare` said that it must wait."""
        self._engine.blocking.postpone(session, command, argv)
        assert session.waiter is not None
        self._waiting[session.waiter] = None

    def go_on(self) -> None:
        """Locks were released: try again what had to wait for them."""
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting:
            if waiter.session.waiter is waiter:
                self._engine.blocking.run_again(waiter.session)
        for queued in list(self._hurried):
            if queued.number in self.pending:
                self._hurry(queued)

    def forget(self, session: Session) -> None:
        """A client went away."""
        self._asked.pop(session, None)
        self._waiting = {waiter: None for waiter in self._waiting if waiter.session is not session}

    def run_what_is_short(self) -> bool:
        """Run everything, the long ones in threads; whether nothing is left. For those who can come back later."""
        before = len(self.pending)
        done = self._advance(list(self.pending.values()))
        self.ran_actively += before - len(self.pending)
        return done

    def _advance(self, wanted: list[Queued]) -> bool:
        """Run these, or have threads begin with them, as far as nothing is in the way; whether all have run."""
        for queued in wanted:
            if queued.number in self.pending and self._job(queued) is None and self._order.is_next(queued):
                queued.needed = True
                self._begin(queued)
        return not any(queued.number in self.pending for queued in wanted)

    def before(self, session: Session, command: Command, argv: Argv) -> None:
        """Run what a command could tell from not having run, whatever it takes. For dispatch, while anything is pending."""
        if command.name != NAME:
            self.ran_actively += self._run_all(self._order.needed_by(session.db, command, argv))

    def is_needed_by(self, database: Database, command: Command, argv: Argv) -> bool:
        """Whether anything queued must run before a command."""
        return bool(self.pending and self._order.needed_by(database, command, argv))

    # -- what cannot wait -------------------------------------------------------------------------------------

    def run_for(self, database: Database, key: bytes, to_write: bool = False) -> bool:
        """Run what writes a key or, before it is written, also what reads it; whether there was any."""
        last = self._order.last_of(database, key, to_write)
        self.ran_actively += self._run_all(last)
        return bool(last)

    def before_expiry(self, database: Database, key: bytes) -> bool:
        """A key's time has come: run those who may still see it; whether there were any."""
        return self._running is None and self.run_for(database, key, to_write=True)

    def drain(self, database: Database | None = None) -> None:
        """Run everything, or everything in one database."""
        self.ran_actively += self._run_all(self._order.of(database))

    def discard(self, database: Database) -> None:
        """Forget what is queued for a database that is about to be emptied; but who watches a key is told."""
        if not self.pending:
            return
        for key in list(database.observed):
            self.run_for(database, key)
        for queued in self._order.of(database):
            job = self._job(queued)
            self._remove(queued)
            self.discarded += 1
            if job is not None:
                self._engine.workers.drop(job)

    # -- running ----------------------------------------------------------------------------------------------

    def _run_all(self, last: list[Queued]) -> int:
        """Run these and all that must run before them, in the order in which they came; how many no thread had begun."""
        return sum([self._run(queued) for queued in self._order.with_those_before(last)])

    def _run(self, queued: Queued) -> bool:
        """Run one whose predecessors have run, whatever it takes; False if a thread had begun and it only had to end."""
        job = self._job(queued)
        if job is not None:
            self._engine.workers.finish_now(job)
        if queued.number not in self.pending:
            return False
        for key, writes in queued.keys.items():
            if writes:
                self._spare_readers(queued.database, key)
        self._perform(queued, self._session, queued.command.handler)
        return True

    def _spare_readers(self, database: Database, key: bytes) -> None:
        """Put a copy in the place of a value that threads read: they keep the other, as after FLUSHALL."""
        lock, value = database.locked.get(key), database.data.get(key)
        if lock is None or value is None or not (lock.readers or lock.writer is not None):
            return
        copy = database.data[key] = codec.copy(value)
        for waiter in database.observed[key].waiters if key in database.observed else ():
            if waiter.wish is not None and waiter.wish.came_upon(value):
                waiter.wish.goes_on_with(copy)

    def _begin(self, queued: Queued) -> None:
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
        if queued.number in self.pending and (job := self._engine.workers.job_of(session)) is not None:
            queued.job = job
            self._in_threads[session] = queued
        else:
            self._spare.append(session)

    def _job(self, queued: Queued) -> Job | None:
        """What a thread does for it at this moment."""
        if queued.job is not None and queued.job not in self._engine.workers.jobs:
            self._release(queued)  # the workers were stopped
        return queued.job

    def _release(self, queued: Queued) -> None:
        """No thread is at it any more."""
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
                self.ran_actively += 1
            else:
                self.ran_passively += 1
        self._plan()

    def _perform(self, queued: Queued, session: Session, handler: Handler, spent: int = 0) -> None:
        """The one place where queued commands run: the whole of one, or what is left of it after `spent` nanoseconds.

        Nothing is logged and nothing counts as changed, as that was done when it was enqueued. Its slow part is what
        its handler gives to `session.aside`; if that went to a thread, it stays queued.
        """
        engine, command = self._engine, queued.command
        session.db = queued.database
        outer, self._running = self._running, queued
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
            log.exception("internal error in LAZY %r", in_short(queued.argv), exc_info=error)
            self._count_failure(queued, f"internal error: {error!r}")
        finally:
            self._running = outer
            queued.running = False
            if over:
                self._remove(queued)

    def _count_failure(self, queued: Queued, text: str) -> None:
        self.failed += 1
        self.last_error = f"{queued.command.name}: {text}"

    @cached_property
    def _session(self) -> Session:
        """Runs what cannot wait: it never goes to a thread."""
        return self._new_session()

    def _new_session(self) -> Session:
        """Runs what is queued: it has no client."""
        session = Session(self._engine)
        session.authenticated = True
        session.may_block = False
        session.name = b"lazy"  # so that the slow log tells
        return session

    # -- passive execution ------------------------------------------------------------------------------------

    @property
    def enabled(self) -> bool:
        return bool(self._engine.config.lazy_queue_enabled)

    @property
    def oldest_age(self) -> int:
        """Milliseconds that the oldest has been waiting."""
        return self._engine.clock.lease_time() - next(iter(self.pending.values())).since if self.pending else 0

    def _replan(self) -> None:
        self._engine.timers.cancel(self._timer)
        self._timer = None
        self._plan()

    def _plan(self) -> None:
        """See to it that the queue is looked at again."""
        if self._timer is not None or not self.pending or self._are_threads_busy():
            return
        max_age = self._engine.config.lazy_max_age
        if self.enabled:
            delay = 0.0 if self._idle else QUIET
        elif max_age:
            delay = max((max_age - self.oldest_age) / 1000, QUIET)  # what is old already waits for a lock
        else:
            return
        self._timer = self._engine.timers.call_later(delay, self._look)

    def _are_threads_busy(self) -> bool:
        return any(self._job(queued) is not None for queued in list(self._in_threads.values()))

    def _look(self) -> None:
        """Work for a slice if the server is idle, or if something has waited too long."""
        engine = self._engine
        self._timer = None
        engine.clock.refresh()
        received = engine.stats.input_bytes
        self._idle = self.enabled and received == self._input_seen
        self._input_seen = received
        max_age = engine.config.lazy_max_age
        until = perf_counter_ns() + SLICE
        while (
            self.pending and (self._idle or (max_age and self.oldest_age >= max_age)) and not self._are_threads_busy()
        ):
            queued = next(iter(self.pending.values()))
            self._begin(queued)
            if queued.number not in self.pending:
                self.ran_passively += 1
            elif queued.job is None:
                self._idle = False  # locks are in its way: a little later
                break
            if perf_counter_ns() >= until:
                break
        self._idle = self._idle and bool(self.pending)
        self._plan()
        if engine.keyspace.ready:
            engine.blocking.serve()

    # -- for people and tests ---------------------------------------------------------------------------------

    def status(self) -> dict[str, int | str]:
        """What LAZY STATUS and INFO tell."""
        return {
            "enabled": int(self.enabled),
            "queued": len(self.pending),
            "in_thread": len(self._in_threads),
            "bytes": self._order.bytes,
            "oldest_age_ms": self.oldest_age,
            "enqueued": self.enqueued,
            "ran_actively": self.ran_actively,
            "ran_passively": self.ran_passively,
            "ran_inline": self.ran_inline,
            "discarded": self.discarded,
            "failed": self.failed,
            "last_error": self.last_error,
        }

    def check(self) -> None:
        """Assert every invariant; for tests."""
        self._order.check()
        for session, queued in self._in_threads.items():
            assert self.pending[queued.number] is queued and queued.job is not None and queued.job.session is session
            assert self._order.is_next(queued), "a thread is at one whose turn has not come"
        assert all(queued.number in self.pending for queued in self._hurried)
