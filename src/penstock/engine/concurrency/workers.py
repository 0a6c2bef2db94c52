"""Worker threads: the slow part of a command runs in one, with its keys locked, while the loop serves other clients.

A handler gives its slow part to `session.aside(work, compute, commit)`. If there is little work, or the session may not
wait, both parts run at once. Otherwise the command's keys are locked, the client is blocked, and `compute` runs in a
thread. When it is done the loop runs `commit` as if it were the whole command: changed, logged, watched, monitored and
timed in one step. So the order of the log is the order of commits, and memory never holds half a command.

The command happens at its commit. If a value that it locked is no longer there by then (it expired, FLUSHALL, SWAPDB),
or LAZY has queued a command for one of its keys, the computed result is outdated. A command that writes is then run
again from the start, so that a flush that came first stays a flush (kvrocks#2620) and a replay of the log gives the
same. One that reads answers what it read.

A client that disconnects does not stop the work: as in Redis, a write that was received is carried out, and the result
of a read is dropped. In both cases the locks last until the thread returns, because the thread still reads the values.

Work that can stop after every chunk is not given to a thread but done on the loop in short slices, unless the loop has
too little time for it (loop_steps.py). All that is said here about threads holds for it too.

Work that no command waits for, and that touches no value, is a chore (`in_background`): it is neither locked nor waited
for.

A long LAZY command also uses a thread, but no client waits for it: its end calls `Session.later` instead. A caller that
cannot wait for such a thread finishes the work at once (`finish_now`).

Threads share the interpreter's lock; thread_switching.py says what changes while any is busy. They are started when
first needed and are daemons: a thread that does not return cannot keep the process from ending. Commands of modules
have threads of their own, as many again: they may take long, and a built-in command does not wait for them.

Rejected: concurrent.futures. The interpreter waits for its threads at exit, however long they take.

Owned by the loop thread, except `Job.run`, which a worker calls and which touches only its job.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.engine.blocking import Waiter
from penstock.engine.concurrency import thread_switching
from penstock.engine.concurrency.loop_steps import InSteps, LoopSteps
from penstock.engine.declarations import Argv, Command, Handler, Reply
from penstock.engine.internal_errors import internal_error
from penstock.engine.module_loader import checked_after, checked_reply
from penstock.engine.observe.monitors import in_short
from penstock.engine.run_handler import NotNow
from penstock.engine.transactions import refused
from penstock.protocol.errors import ReplyError
from penstock.protocol.resp import NO_REPLY, RawPieces, encode
from penstock.types.kernels import Steps, finish
from penstock.types.zset import SortedSet

if TYPE_CHECKING:
    from penstock.engine.dispatch import Engine
    from penstock.engine.keyspace.databases import Database
    from penstock.engine.session import Session

logger = logging.getLogger("penstock.engine")

Result = TypeVar("Result")
Deliver = Callable[[Callable[[], None]], object]
"""Has the loop call something; may be called by any thread."""

NEVER = 1 << 63
"""More work than any command has."""
STOP_PATIENCE = 5.0
"""Seconds that the end of the server waits for threads."""


class LongWay(Exception):
    """Raised out of a handler that the inner loop called: run the command by `Engine.execute` instead."""


class Job:
    """A command whose slow part runs in a thread, or which only holds its locks for a while."""

    __slots__ = (
        "_around", "_claim", "_over", "argv", "command", "commit", "compute", "database", "error", "growth", "insists",
        "later", "prepares",
        "result", "seen", "session", "spent", "steps", "threaded", "waiter",
    )  # fmt: skip

    def __init__(self, session: Session, commit: Callable[[Any], Reply], compute: Callable[[], Any]) -> None:
        assert session.current is not None
        self.session = session
        self.command: Command
        self.argv: Argv
        self.command, self.argv = session.current
        self.waiter = Waiter(session, self.command, self.argv, [], 0, None)
        self.later = session.later
        self.insists = session.repeated is self.argv  # it ran before, and LAZY came in between
        self._around = session.around
        self._claim = threading.Lock()  # the thread that has it computes
        self._over = threading.Event()
        self.database: Database = session.db
        self.seen: list[tuple[Database, bytes, Any]] = []  # the values it locked
        self.prepares = False  # `commit` keeps what was computed, and then the whole command is run again
        self.threaded = False  # it is in the queue for a thread, or in one, or it is done in steps
        self.steps: Steps[Any] | None = None  # those that are left, on the loop
        self.compute = compute
        self.commit = commit
        self.result: Any = None
        self.error: BaseException | None = None
        self.spent = 0  # nanoseconds in the thread, or in steps
        self.growth = 0  # bytes that are reserved for what it computes

    def run(self) -> None:
        """In a worker thread, if no other thread was faster."""
        if not self._claim.acquire(blocking=False):
            return
        started = time.perf_counter_ns()
        try:
            self.result = self.compute() if self.steps is None else finish(self.steps)
        except BaseException as error:
            self.error = error
        self.spent += time.perf_counter_ns() - started
        self._over.set()

    def advance(self, until: int) -> bool:
        """On the loop: do a step, and more until `time.perf_counter_ns()` is as late; whether it is computed."""
        assert self.steps is not None
        started = now = time.perf_counter_ns()
        took = 0
        over = False
        try:
            while not took or now + took <= until:  # the next one will take as long
                next(self.steps)
                took, now = time.perf_counter_ns() - now, time.perf_counter_ns()
        except StopIteration as end:
            self.result, over = end.value, True
        except Exception as error:
            self.error, over = error, True
        self.spent += time.perf_counter_ns() - started
        if over:
            self._claim.acquire(blocking=False)
            self._over.set()
        return over

    def complete(self) -> None:
        """Wait until it is computed; if no thread has begun, it is done here."""
        self.run()
        self._over.wait()

    def finish(self, session: Session, argv: Argv) -> Reply:
        """The rest of the command, as its handler."""
        called, at = self.command.inside(self.argv) or (self.command, 0)
        last_step = self._last_step if self._around is None else partial(self._around, self._last_step)
        if not called.of_module:
            return last_step()
        with checked_after(session, called, self.argv[at:]):
            return checked_reply(called, last_step())

    def _last_step(self) -> Reply:
        if self.error is not None:
            if not isinstance(self.error, Exception):  # SystemExit in a thread must not end the loop
                raise RuntimeError(repr(self.error)) from self.error
            raise self.error
        return self.commit(self.result)

    def saw(self, value: object) -> bool:
        """Whether it is one of the values it locked, and not what has taken its place."""
        return any(value is seen for _, _, seen in self.seen)

    @property
    def outdated(self) -> bool:
        """Whether it would write a result that was computed from values that are no longer there."""
        return self.command.writes and any(database.data.get(key) is not value for database, key, value in self.seen)


class Chore:
    """Work for a thread that belongs to no command, and what the loop does when it is over, however it ended."""

    __slots__ = ("_compute", "over")

    def __init__(self, compute: Callable[[], object], over: Callable[[], None]) -> None:
        self._compute = compute
        self.over = over

    def run(self) -> None:
        try:
            self._compute()
        except BaseException:
            logger.exception("internal error in a thread")


class Pool:
    """Threads that take jobs from one queue; each runs `work`. They are started when first needed."""

    def __init__(self, name: str, work: Callable[[SimpleQueue[Job | Chore | None]], None]) -> None:
        self._name = name
        self._work = work
        self._queue: SimpleQueue[Job | Chore | None] = SimpleQueue()
        self.threads = 0

    def put(self, item: Job | Chore, most: int) -> bool:
        """Give a job to a thread, and start one more if there are fewer than `most`; False if there is none."""
        if self.threads < most:
            with contextlib.suppress(RuntimeError):  # the system gives no more threads
                threading.Thread(target=self._work, args=(self._queue,), name=self._name, daemon=True).start()
                self.threads += 1
        if self.threads:
            self._queue.put(item)
        return self.threads > 0

    def shrink(self, most: int) -> None:
        while self.threads > most:
            self.threads -= 1
            self._queue.put(None)


class Workers:
    """See the top of this file."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._locks = engine.lock_gate.locks
        self.threshold = NEVER  # `work` from which a command is worth a thread
        self.jobs: dict[Job, None] = {}  # under way, in the order in which they began
        self.done = 0  # by threads
        self._deliver: Deliver | None = None
        self._pool = Pool("penstock-worker", self._work)
        self._module_pool = Pool("penstock-module", self._work)
        self._loop_steps: LoopSteps[Job] = LoopSteps(self.jobs.__contains__, self._finished, self._continue_in_thread)
        self._until_idle: list[Waiter] = []  # clients that want to stop the server
        self._patience: object | None = None  # the timer of their wait
        for name in ("worker-threads", "worker-threshold"):
            engine.config.on_change(name, lambda _: self._configure())

    def start(self, deliver: Deliver) -> None:
        """Use threads from now on."""
        self._deliver = deliver
        self._configure()

    def stop(self) -> None:
        """Use no threads from now on, and abandon the work under way."""
        self._deliver = None
        # before locks are released: a command that waits for them must not begin in a thread whose end is not delivered
        self._configure()
        self.abandon()

    def _configure(self) -> None:
        config = self._engine.config
        wanted = config.worker_threads if self._deliver is not None else 0
        usable = wanted and not self._until_idle
        self.threshold = config.worker_threshold if usable else NEVER
        for pool in (self._pool, self._module_pool):
            pool.shrink(wanted)

    @property
    def load(self) -> tuple[int, int]:
        """How many jobs are in threads or done in steps, and how many wait for a thread."""
        running = sum(job.steps is not None for job in self.jobs)
        waiting = 0
        for pool in (self._pool, self._module_pool):
            jobs = sum(job.threaded and job.steps is None and self._pool_of(job) is pool for job in self.jobs)
            running += min(jobs, pool.threads)
            waiting += max(jobs - pool.threads, 0)
        return running, waiting

    def job_of(self, session: Session) -> Job | None:
        """What is under way for a session that is still there."""
        return next(
            (job for job in self.jobs if job.waiter is session.waiter or (job.later and job.session is session)), None
        )

    def held(self, session: Session) -> list[bytes]:
        """The keys that are locked for a session's command."""
        return [lock.key for lock in self._locks.held(self.job_of(session))]

    # -- beginning --------------------------------------------------------------------------------------------

    def aside(self, session: Session, compute: Callable[[], Any], commit: Callable[[Any], Reply], lock: bool) -> Reply:
        """Have a thread run `compute` for the session's current command, or do its steps, and `commit` after it.

        Not as part of a unit, of which the log has all or nothing: there both run at once.
        """
        if self._engine.in_unit:
            return commit(compute())
        job = self._begin(session, commit, compute, lock)
        if job is None and session.later is not None:
            raise NotNow
        if job is not None:
            job.threaded = True
            if isinstance(compute, InSteps):
                job.steps = compute.begin()
            self._submit(job)
        return NO_REPLY

    def prepare(self, session: Session, compute: Callable[[], Result], keep: Callable[[Result], None]) -> Reply:
        """Have a thread run `compute` and the loop `keep`, and then run the current command from the start.

        As if it came then, gates included. If the client disconnects before, the command never ran.
        """
        job = self._begin(session, keep, compute, lock=False)
        assert job is not None, "it needs no locks"
        job.prepares = job.threaded = True
        self._submit(job)
        return NO_REPLY

    def hold(self, session: Session, milliseconds: int, commit: Callable[[Any], Reply]) -> Reply:
        """Keep the current command's keys locked for a while, as a thread would."""
        job = self._begin(session, commit, lambda: None)
        if job is not None:
            self._engine.timers.call_later(milliseconds / 1000, partial(self._finished, job))
        return NO_REPLY

    def _begin(
        self, session: Session, commit: Callable[[Any], Reply], compute: Callable[[], Any], lock: bool = True
    ) -> Job | None:
        """Lock the current command's keys and block its client; None if it must wait before it can have them."""
        if session.current is None:
            raise LongWay
        job = Job(session, commit, compute)
        if lock and not self._engine.lock_gate.take(job, session, job.command, job.argv, wait=job.later is None):
            return None
        for held in self._locks.held(job):
            database = job.database
            if held.table is not database.locked:
                database = next(each for each in self._engine.keyspace.databases if each.locked is held.table)
            job.seen.append((database, held.key, database.data.get(held.key)))
        for _, _, value in job.seen:
            if type(value) is SortedSet:
                value.build_index()  # the only type whose reads build something that others see (valkey#4604)
        thread_switching.begin()
        self.jobs[job] = None
        self._reserve(job)
        if job.later is None:
            self._engine.blocking.enter(job.waiter)
        return job

    def in_background(self, compute: Callable[[], object], over: Callable[[], None], for_disk: bool = False) -> bool:
        """Have a thread run `compute`, and the loop `over` after it; False if that would take nothing off the loop.

        So it is without threads, and where they have only the loop's own processor, unless it waits `for_disk`.
        """
        if self.threshold == NEVER or (_processors() < 2 and not for_disk):
            return False
        return self._pool.put(Chore(compute, over), self._engine.config.worker_threads)

    def _pool_of(self, job: Job) -> Pool:
        called, _ = job.command.inside(job.argv) or (job.command, 0)
        return self._module_pool if called.of_module else self._pool

    def _submit(self, job: Job) -> None:
        """Have a job done, in a thread or in steps."""
        assert self._deliver is not None
        if job.steps is not None:
            self._loop_steps.add(job, self._deliver)
        elif not self._pool_of(job).put(job, self._engine.config.worker_threads):  # slowly is better than never
            job.run()
            self._deliver(partial(self._finished, job))

    def _continue_in_thread(self, job: Job) -> bool:
        """Have a thread do the steps that are left; whether there is a thread."""
        steps, job.steps = job.steps, None
        assert steps is not None
        job.compute = partial(finish, steps)
        if self._pool_of(job).put(job, self._engine.config.worker_threads):
            return True
        job.steps = steps
        return False

    def _work(self, queue: SimpleQueue[Job | Chore | None]) -> None:
        """The main function of a worker."""
        while (job := queue.get()) is not None:
            job.run()
            deliver = self._deliver
            if deliver is None:
                return
            with contextlib.suppress(RuntimeError):  # the loop has ended
                deliver(partial(self._finished, job) if isinstance(job, Job) else job.over)
            del job  # it may hold much memory, and the next job may come late

    # -- ending -----------------------------------------------------------------------------------------------

    def _finished(self, job: Job) -> None:
        """A thread is done: carry the command out, answer, and let others continue."""
        if job not in self.jobs:
            return  # abandoned
        self._engine.clock.refresh()
        self._end(job)
        if self._engine.keyspace.ready:
            self._engine.blocking.serve()

    def finish_now(self, job: Job) -> None:
        """Finish a job that no client waits for before this returns, in the middle of another command."""
        job.complete()
        self._end(job, midway=True)

    def drop(self, job: Job) -> None:
        """Drop a job that no client waits for and whose values are no longer in the keyspace."""
        self._remove(job)
        self._engine.lock_gate.release(job, midway=True)

    def _end(self, job: Job, midway: bool = False) -> None:
        self._remove(job)
        self.done += job.threaded
        if job.prepares:
            self._run_prepared(job)
        elif job.later is None:
            self._answer(job)
        else:
            job.later(job)
            self._engine.lock_gate.release(job, midway)

    def _run_prepared(self, job: Job) -> None:
        session = job.session
        if job.error is not None:
            logger.error("internal error in a thread", exc_info=job.error)
        elif session.waiter is job.waiter:
            job.commit(job.result)
        if session.waiter is job.waiter:
            session.postponed = job.argv
            self._engine.blocking.run_again(session)

    def _answer(self, job: Job) -> None:
        engine, session, waiter = self._engine, job.session, job.waiter
        connected = session.waiter is waiter
        # LAZY commands that were queued for its keys in between are before it in the log.
        overtaken = job.command.writes and engine.lazy.is_needed_by(job.database, job.command, job.argv)
        session.repeated = job.argv if overtaken else None
        again = overtaken or job.outdated
        if connected and again:
            session.postponed = job.argv
            engine.lock_gate.release(job)
            engine.blocking.run_again(session)
        elif connected:
            engine.blocking.leave(waiter)
            reply = self._carry_out(job, self._confirmed if engine.hidden_changes.concern(job.command) else job.finish)
            engine.lock_gate.release(job)
            session.unblocked(reply if isinstance(reply, RawPieces) else encode(reply, session.protocol), waiter.silent)
        else:
            if job.command.writes:
                session.may_block = False  # if it is to be run again, then here
                self._carry_out(job, job.command.handler if again else job.finish)
            engine.lock_gate.release(job)

    def _confirmed(self, session: Session, argv: Argv) -> Reply:
        """In place of the rest of a command that began before reads were refused: it may have read what will vanish."""
        self._engine.hidden_changes.refuse_reads()
        return NO_REPLY

    def _carry_out(self, job: Job, handler: Handler) -> Reply:
        try:
            return self._engine.call(job.session, job.command, job.argv, handler, job.spent)
        except ReplyError as error:
            return error.as_reply()
        except Exception as error:
            return internal_error(job.argv, error)

    def _reserve(self, job: Job) -> None:
        """Reserve the memory that the job will take; that of queued LAZY commands is reserved already."""
        if job.later is None:
            called, at = job.command.inside(job.argv) or (job.command, 0)
            job.growth = self._engine.growth(job.session, called, job.argv[at:])
            self._engine.memory.reserved += job.growth

    def _remove(self, job: Job) -> None:
        del self.jobs[job]
        self._engine.memory.reserved -= job.growth
        thread_switching.end()
        if not self.jobs and self._until_idle:
            self._end_wait()

    # -- the end of the server --------------------------------------------------------------------------------

    def wait_until_idle(self, session: Session) -> Reply:
        """Run the current command again when no thread is busy; after STOP_PATIENCE the threads are abandoned."""
        assert session.current is not None
        self._engine.blocking.postpone(session, *session.current)
        assert session.waiter is not None
        if not self._until_idle:
            self._patience = self._engine.timers.call_later(STOP_PATIENCE, self.abandon)
        self._until_idle.append(session.waiter)
        self._configure()
        return NO_REPLY

    def _end_wait(self) -> None:
        """No thread is busy: the clients that waited for that continue."""
        self._engine.timers.cancel(self._patience)
        waiters, self._until_idle = self._until_idle, []
        self._configure()
        for waiter in waiters:
            if waiter.session.waiter is waiter:
                self._engine.blocking.run_again(waiter.session)

    def abandon(self, error: ReplyError | None = None) -> None:
        """Abandon all work under way: nothing of it will be written, and its clients get an error."""
        if error is None:
            error = ReplyError("the server is shutting down: the command was given up on, and changed nothing")
        for job in list(self.jobs):
            if job.later is None:
                logger.warning("given up on %r, which is still in its thread", in_short(job.argv))
            self._remove(job)
            self._engine.lock_gate.release(job)
            if job.session.waiter is job.waiter:
                self._engine.blocking.answer(job.waiter, refused(job.session, job.argv, error))


def _processors() -> int:
    """How many the calling thread may use, and those that it starts."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
