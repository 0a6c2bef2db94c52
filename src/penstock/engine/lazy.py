"""LAZY: writes that are answered now and run later, in the gaps or when somebody needs to know.

One invariant: nobody can tell it from immediate execution, except by the clock. The log gets a command when it is
enqueued, and nothing when it runs, so what runs later must make of memory what a replay would make of it:

- A command runs after every earlier one that it could tell from: one that writes a key it reads or writes, or reads a
  key it writes. The same holds for a client's ordinary command, which is why dispatch asks `before` while anything is
  queued (`pending`). The keys' names are busy for as long (busy_names.py), so the inner loop hands over such commands.
- It runs at the time it was enqueued: the clock is set back for it. Keys that had expired by then were deleted, and
  that was logged, before it was enqueued. A key that expires while it is queued stays until it has run (`before_expiry`).
- Whoever looks at everything (KEYS, snapshots, a rewrite of the log) has everything run first; FLUSHALL forgets it.
- Who waits for a key that it writes, or has run out of memory, does not wait for an idle moment.

Each key has a tail, its last writer and those who read it since; a new command comes after the tail of each of its keys.
These edges are all that is kept of the order, and they are enough: what comes before a tail comes before its members.

Passive execution takes the oldest first, in slices, when no byte came in for a while, or when it is too old. A random key,
as the proposal has it, could let one of them wait for ever.

A long one is begun in an idle moment and goes on in a thread, its keys locked (workers.py), one at a time and the queue
behind it. It is still queued then: it runs, at its own time, when it is committed. Who needs its outcome waits at the
lock, and who needs that of one behind it does, too (`wants`); who cannot wait, such as a script, has it finished at once. LAZY
alone need not wait, as the queue keeps the order.

Rejected: logging a command when it runs. A crash would lose what was acknowledged. Rejected: a list of commands a key, as
the proposal has it; to run one, all lists it is in must be searched.

Owned by the loop thread.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from contextlib import suppress
from functools import cached_property
from time import perf_counter_ns
from typing import TYPE_CHECKING

from penstock.engine import lazy_rules
from penstock.engine.locks import Want
from penstock.engine.memory import OVERHEAD
from penstock.engine.session import Session
from penstock.engine.spec import Access, Argv, Command, Flag, Handler, Reach
from penstock.engine.stats import CALLS, FAILED, NANOSECONDS
from penstock.engine.workers import NotNow
from penstock.protocol.errors import ReplyError
from penstock.protocol.resp import NO_REPLY

if TYPE_CHECKING:
    from penstock.engine.dispatch import Engine
    from penstock.engine.keyspace import Database
    from penstock.engine.workers import Job

log = logging.getLogger("penstock.lazy")

QUIET = 0.005
"""Seconds without a byte from any client after which the server counts as idle."""
SLICE = 1_000_000
"""Nanoseconds that passive execution works before it lets clients have their turn."""

Place = tuple["Database", bytes]


class Queued:
    """A command that was answered and has not run."""

    __slots__ = ("after", "argv", "command", "database", "growth", "keys", "moment", "number", "running", "size")

    def __init__(self, number: int, database: Database, command: Command, argv: Argv, keys: dict[bytes, bool]) -> None:
        self.number = number  # in the order of enqueueing
        self.database = database
        self.command = command
        self.argv = argv
        self.keys = keys  # whether it writes each
        self.moment = database.clock.now  # milliseconds since 1970: the time that it will see
        self.after: list[Queued] = []  # those that must run before; some may have run
        self.running = False  # on the loop, at this moment
        self.size = sum(map(len, argv)) + OVERHEAD * len(argv)
        self.growth = 0  # bytes that are reserved for what it makes


class Tail:
    """The end of a key's queue: its last writer and those who read the key since, as far as they have not run."""

    __slots__ = ("readers", "writer")

    def __init__(self) -> None:
        self.writer: Queued | None = None
        self.readers: dict[Queued, None] = {}


class Lazy:
    """The queue of a server. See the top of this file."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.pending: OrderedDict[int, Queued] = OrderedDict()  # by number, the oldest first
        self.bytes = 0
        self._tails: dict[Place, Tail] = {}
        self._last_number = 0
        self._running: Queued | None = None
        self._in_thread: Queued | None = None  # what `job` is about
        self._timer: object | None = None
        self._idle = False
        self._input_seen = -1  # stats.input_bytes when it was last looked at
        self.reset()
        for name in ("lazy-queue-enabled", "lazy-max-age"):
            engine.config.on_change(name, lambda _: self._replan())

    def reset(self) -> None:
        """CONFIG RESETSTAT."""
        self.enqueued = 0
        self.ran_actively = 0  # because somebody needed to know
        self.ran_passively = 0  # in an idle moment, or of old age
        self.ran_inline = 0  # at once: the queue was full, or a client waited for it
        self.discarded = 0  # by FLUSHALL or FLUSHDB
        self.failed = 0  # with an error that nobody was there to get
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
            self._settle_expiry(database, key)
        self._last_number += 1
        queued = Queued(self._last_number, database, command, argv, keys)
        queued.growth = growth
        self.enqueued += 1
        self._add(queued)
        if self._is_full() or self._is_waited_for(queued):
            self.ran_inline += self._run_all([queued])
        else:
            self._plan()

    def _settle_expiry(self, database: Database, key: bytes) -> None:
        """Delete a key of a new command whose time has come; that is logged before the command is.

        Whether it has come is only known when those have run that may give the key the expiry time of another.
        """
        tail = self._tails.get((database, key))
        if tail is not None and tail.writer is not None and Flag.RENAMES in tail.writer.command.flags:
            self.settle(database, key)
        database.get(key)

    def _is_full(self) -> bool:
        config = self._engine.config
        return bool(len(self.pending) > config.lazy_max_queued or self.bytes > config.lazy_max_bytes)

    def _is_waited_for(self, queued: Queued) -> bool:
        observed = queued.database.observed
        if not observed:
            return False
        return any(writes and key in observed and observed[key].waiters for key, writes in queued.keys.items())

    def _add(self, queued: Queued) -> None:
        if not self.pending:
            self._engine.keyspace.before_expiry = self.before_expiry
        self.pending[queued.number] = queued
        self.bytes += queued.size
        self._engine.memory.reserved += queued.growth
        after, names = queued.after, self._engine.busy_names
        for key, writes in queued.keys.items():
            place = (queued.database, key)
            names.add(key)
            tail = self._tails.get(place)
            if tail is None:
                tail = self._tails[place] = Tail()
            if tail.writer is not None:
                after.append(tail.writer)
            if writes:
                after.extend(tail.readers)
                tail.writer, tail.readers = queued, {}
            else:
                tail.readers[queued] = None

    def _remove(self, queued: Queued) -> None:
        del self.pending[queued.number]
        self.bytes -= queued.size
        self._engine.memory.reserved -= queued.growth
        queued.after.clear()  # or each would keep all that ever came before it
        for key in queued.keys:
            self._engine.busy_names.remove(key)
            place = (queued.database, key)
            tail = self._tails[place]  # it is in it, or comes before one that is
            if tail.writer is queued:
                tail.writer = None
            tail.readers.pop(queued, None)
            if tail.writer is None and not tail.readers:
                del self._tails[place]
        if not self.pending:
            self._engine.keyspace.before_expiry = None

    # -- what a thread is at ----------------------------------------------------------------------------------

    @property
    def job(self) -> Job | None:
        """What a thread does for the queue at this moment."""
        return None if self._in_thread is None else self._engine.workers.job_of(self._background)

    def wants(self, session: Session, command: Command, argv: Argv, wants: list[Want]) -> list[Want]:
        """What a command that wants these has to wait for while there is a `job`."""
        if command.name == lazy_rules.NAME:
            return [want for want in wants if not self._is_ours(want)]
        assert self._in_thread is not None
        needed, commands = list[Queued](), [(command, argv)]
        if command.name == "EXEC" and session.transaction is not None:
            commands = session.transaction.queue
            needed = [each for place in session.watching for each in self._last_of(*place, to_write=False)]
        needed += [each for called, words in commands for each in self._needed_by(session.db, called, words)]
        if self._in_thread in self._with_those_before(needed).values():
            queued = self._in_thread
            outcome = next(key for key, writes in queued.keys.items() if writes)
            return [*wants, Want(queued.database.locked, outcome, False)]
        return wants

    def _is_ours(self, want: Want) -> bool:
        """Whether nothing but the job is in the way."""
        lock, job = want.table.get(want.key), self.job
        return lock is not None and (lock.writer is job or list(lock.readers) == [job])

    # -- active execution -------------------------------------------------------------------------------------

    def before(self, session: Session, command: Command, argv: Argv) -> None:
        """Run what a client's command could tell from not having run. For dispatch, while anything is pending."""
        if command.name == lazy_rules.NAME:
            return
        self.ran_actively += self._run_all(self._needed_by(session.db, command, argv))

    def _needed_by(self, database: Database, command: Command, argv: Argv) -> list[Queued]:
        """What must run before a client's command, but for what must run before these."""
        reach = command.reach(argv)
        if reach is not Reach.KEYS:
            return self._queued_for(database if reach is Reach.DATABASE else None)
        found: list[Queued] = []
        with suppress(ReplyError):  # its handler will refuse it
            for position, access in command.key_positions(argv):
                found += self._last_of(database, argv[position], to_write=access is not Access.READ)
        return found

    def _last_of(self, database: Database, key: bytes, to_write: bool) -> list[Queued]:
        """The last that writes a key and, if it is to be written, those that read it since."""
        tail = self._tails.get((database, key))
        if tail is None:
            return []
        last = [] if tail.writer is None else [tail.writer]
        return [*last, *tail.readers] if to_write else last

    def _queued_for(self, database: Database | None) -> list[Queued]:
        return [each for each in self.pending.values() if database is None or each.database is database]

    def settle(self, database: Database, key: bytes, to_write: bool = False) -> bool:
        """Run what writes a key or, before it is written, also what reads it; whether there was any."""
        last = self._last_of(database, key, to_write)
        self.ran_actively += self._run_all(last)
        return bool(last)

    def before_expiry(self, database: Database, key: bytes) -> bool:
        """A key's time has come: run those who may still see it; whether there were any."""
        return self._running is None and self.settle(database, key, to_write=True)

    def drain(self, database: Database | None = None) -> None:
        """Run everything, or everything in one database."""
        self.ran_actively += self._run_all(self._queued_for(database))

    def discard(self, database: Database) -> None:
        """Forget what is queued for a database that is about to be emptied; but who watches a key is told."""
        if not self.pending:
            return
        for key in list(database.observed):
            self.settle(database, key)
        for queued in self._queued_for(database):
            if queued is self._in_thread and (job := self.job) is not None:
                self._engine.workers.drop(job)
            self._remove(queued)
            self.discarded += 1

    # -- running ----------------------------------------------------------------------------------------------

    def _run_all(self, last: list[Queued]) -> int:
        """Run these and all that must run before them, in the order in which they came; how many no thread had begun."""
        wanted = self._with_those_before(last)
        return sum([self._run(wanted[number]) for number in sorted(wanted)])

    def _with_those_before(self, last: list[Queued]) -> dict[int, Queued]:
        """These and all that must run before them, by number."""
        wanted: dict[int, Queued] = {}
        stack = list(last)
        while stack:
            queued = stack.pop()
            if queued.number not in wanted and queued.number in self.pending and not queued.running:
                wanted[queued.number] = queued
                stack += queued.after
        return wanted

    def _run(self, queued: Queued) -> bool:
        """Run one whose predecessors have run, whatever it takes; False if a thread had begun and it only had to end."""
        if queued is self._in_thread and (job := self.job) is not None:
            self._engine.workers.finish_now(job)
        if queued.number not in self.pending:
            return False
        self._perform(queued, self._session, queued.command.handler)
        return True

    def _begin(self, queued: Queued) -> bool:
        """Run the oldest, or have a thread begin with it; whether either could be done."""
        session = self._background
        session.may_block = True
        try:
            self._perform(queued, session, queued.command.handler)
        except NotNow:
            return False
        finally:
            session.may_block = False
        if queued.number in self.pending:
            self._in_thread = queued
        else:
            self.ran_passively += 1
        return True

    def _thread_is_done(self, job: Job) -> None:
        """Run what a thread worked on, unless that is out of date."""
        queued, self._in_thread = self._in_thread, None
        assert queued is not None
        if not job.outdated:
            self._perform(queued, job.session, job.finish, job.spent)
            self.ran_passively += 1
        self._plan()

    def _perform(self, queued: Queued, session: Session, handler: Handler, spent: int = 0) -> None:
        """The one place where queued commands run: the whole of one, or what is left of it after `spent` nanoseconds.

        Nothing is logged and nothing counts as changed, as that was done when it was enqueued. Its slow part is what
        its handler gives to `session.aside`; if that went to a thread, it stays queued.
        """
        engine, command = self._engine, queued.command
        keyspace, clock = engine.keyspace, engine.clock
        session.db = queued.database
        session.current = (command, queued.argv)
        outer, self._running = self._running, queued
        dirty, now = keyspace.dirty, clock.now
        clock.now = queued.moment
        started = perf_counter_ns() - spent
        queued.running = over = True
        try:
            over = handler(session, queued.argv) is not NO_REPLY
        except NotNow:
            over = False
            raise
        except ReplyError as error:
            self._count_failure(queued, error.wire().decode("utf-8", "replace"))
        except Exception as error:
            log.exception("internal error in LAZY %r", queued.argv[:3], exc_info=error)
            self._count_failure(queued, f"internal error: {error!r}")
        finally:
            clock.now, keyspace.dirty, self._running, session.current = now, dirty, outer, None
            queued.running = False
            if over:
                self._remove(queued)
                took = perf_counter_ns() - started
                counters = engine.stats.calls[command.name]
                counters[CALLS] += 1
                counters[NANOSECONDS] += took
                if took >= engine.slow_log.threshold:
                    engine.slow_log.remember(session, queued.argv, took)

    def _count_failure(self, queued: Queued, text: str) -> None:
        self._engine.stats.calls[queued.command.name][FAILED] += 1
        self.failed += 1
        self.last_error = f"{queued.command.name}: {text}"

    @cached_property
    def _session(self) -> Session:
        """Runs what is queued: nobody listens to it and it never waits."""
        return self._new_session()

    @cached_property
    def _background(self) -> Session:
        """Runs what is queued in idle moments: what is long may go to a thread, for which nobody waits."""
        session = self._new_session()
        session.later = self._thread_is_done
        return session

    def _new_session(self) -> Session:
        session = Session.of_server(self._engine)
        session.name = b"lazy"  # so that the slow log tells
        return session

    # -- passive execution ------------------------------------------------------------------------------------

    @property
    def enabled(self) -> bool:
        return bool(self._engine.config.lazy_queue_enabled)

    @property
    def oldest_age(self) -> int:
        """Milliseconds that the oldest has been waiting."""
        return self._engine.clock.now - next(iter(self.pending.values())).moment if self.pending else 0

    def _replan(self) -> None:
        self._engine.timers.cancel(self._timer)
        self._timer = None
        self._plan()

    def _plan(self) -> None:
        """See to it that the queue is looked at again."""
        if self._timer is not None or not self.pending or self.job is not None:
            return
        max_age = self._engine.config.lazy_max_age
        if self.enabled:
            delay = 0.0 if self._idle else QUIET
        elif max_age:
            delay = max(max_age - self.oldest_age, 0) / 1000
        else:
            return
        self._timer = self._engine.timers.call_later(delay, self._look)

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
        while self.pending and self.job is None and (self._idle or (max_age and self.oldest_age >= max_age)):
            if not self._begin(next(iter(self.pending.values()))):
                self._idle = False  # a little later
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
            "in_thread": int(self.job is not None),
            "bytes": self.bytes,
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
        assert list(self.pending) == sorted(self.pending)
        assert self.bytes == sum(each.size for each in self.pending.values())
        names = self._engine.busy_names.table
        assert all(key in names for each in self.pending.values() for key in each.keys), "commands could pass by"
        assert self.job is None or next(iter(self.pending.values())) is self._in_thread, "a thread is at another one"
        for (database, key), tail in self._tails.items():
            members = [*([tail.writer] if tail.writer is not None else []), *tail.readers]
            assert members, key
            for each in members:
                assert self.pending[each.number] is each and each.database is database
                assert each.keys[key] == (each is tail.writer)
        for each in self.pending.values():
            assert all(earlier.number < each.number for earlier in each.after)
            assert all((each.database, key) in self._tails for key in each.keys)
