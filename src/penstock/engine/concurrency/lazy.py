"""LAZY: writes that are answered now and run later, in the gaps or when a client needs to know.

One invariant: clients cannot tell it from immediate execution, except by the clock. The log gets a command when it is
enqueued, and nothing when it runs, so what runs later must make of memory what a replay would make of it:

- A command runs after every earlier one that it could tell from (lazy_order.py). The same holds for a client's ordinary
  command, so dispatch asks while anything is queued (`pending`). The keys' names are busy for as long (busy_names.py),
  and the inner loop hands such commands over.
- It runs at the time it was enqueued: the clock is set back for it. Keys that had expired by then were deleted, and
  that was logged, before it was enqueued. A key that expires while it is queued stays until it has run
  (`before_expiry`).
- Commands that look at everything (KEYS, snapshots, a rewrite of the log) have everything run first; FLUSHALL forgets
  it.
- Commands for a key that a client is blocked on, and those queued when memory has run out, do not wait for an idle
  moment.

Passive execution (lazy_passive.py) runs the oldest first, when the server is idle or they are too old. A client's
command that needs the outcome of one runs it first (`prepare`, `before`). lazy_runner.py is how one runs.

A long one goes on in a thread, its keys locked (workers.py), whether an idle moment begins it or a client's command
that needs it. It is still queued then: it runs, at its own time, when it is committed. A client that needs its outcome,
or that of one behind it, waits at the lock or in `_waiting`, and its command is run again. What cannot wait, such as a
script or expiry, has it finished at once.

LAZY itself does not wait for locks. A command that is queued for a key which a client's thread has locked runs when the
lock goes; if it cannot be waited for, it works on a copy of the value. The thread's command, if it writes, comes later
in the log and is run again (workers.py).

Rejected: logging a command when it runs. A crash would lose what was acknowledged.

Owned by the loop thread.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from penstock.engine.concurrency.lazy_counts import Counts
from penstock.engine.concurrency.lazy_order import Order, Queued
from penstock.engine.concurrency.lazy_passive import PassiveRuns
from penstock.engine.concurrency.lazy_rules import NAME
from penstock.engine.concurrency.lazy_runner import Runner
from penstock.engine.declarations import Access, Argv, Command, Flag
from penstock.engine.session import Session

if TYPE_CHECKING:
    from penstock.engine.blocking import Waiter
    from penstock.engine.dispatch import Engine
    from penstock.engine.keyspace.databases import Database

PATIENCE = 5000
"""Milliseconds that a command waits for threads, whatever is queued anew; then the commands it needs run at once."""


class Lazy:
    """The queue of a server. See the top of this file."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._order = Order(engine.busy_names)
        self.pending: OrderedDict[int, Queued] = self._order.pending
        self._counts = Counts()
        self._runner = Runner(engine, self._order, self._counts)
        self._passive = PassiveRuns(engine, self._order, self._runner, self._counts)
        self._waiting: dict[Waiter, None] = {}  # clients whose command waits for a thread or a lock
        self._asked: dict[Session, tuple[Argv, int]] = {}  # commands that had to wait, and since when

    def reset(self) -> None:
        """CONFIG RESETSTAT."""
        self._counts.reset()

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
        self._counts.enqueued += 1
        if (
            len(self.pending) > self._engine.config.lazy_max_queued
            or self._order.bytes > self._engine.config.lazy_max_bytes
        ):
            self._counts.ran_inline += self._runner.run_all([queued])
        elif self._is_waited_for(queued):
            self._hurry(queued)
        else:
            self._passive.plan()

    def is_full(self) -> bool:
        """Whether one more would run at once."""
        config = self._engine.config
        return bool(len(self.pending) >= config.lazy_max_queued or self._order.bytes >= config.lazy_max_bytes)

    def _expire_if_due(self, database: Database, key: bytes) -> None:
        """Delete a key of a new command if it has expired; that is logged before the command is.

        Whether it has expired is known only after the queued commands that may give the key another expiry time have
        run.
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
        """Run it as soon as threads and locks allow: a blocked client waits for its result."""
        before = len(self.pending)
        if not self._runner.advance(self._order.with_those_before([queued])):
            self._order.hurried[queued] = None
        self._counts.ran_inline += before - len(self.pending)

    # -- a client's command -----------------------------------------------------------------------------------

    def prepare(self, session: Session, command: Command, argv: Argv) -> bool:
        """Run what a client's command needs, and give long commands to threads; False if it must wait for some.

        For the lock gate, while anything is pending. A command that has waited for long passes: `before` then runs the
        rest at once.
        """
        needed = self._order.with_those_before(self._needed(session, command, argv))
        if not needed:
            self._asked.pop(session, None)
            return True
        if self._has_waited_enough(session, argv):
            return True
        before = len(self.pending)
        done = self._runner.advance(needed)
        self._counts.ran_actively += before - len(self.pending)
        return done

    def _needed(self, session: Session, command: Command, argv: Argv) -> list[Queued]:
        if command.name != "EXEC" or session.transaction is None:  # by name: only EXEC runs what was queued
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
        """Run the command again when a thread is done or locks are released; `prepare` said that it must wait."""
        self._engine.blocking.postpone(session, command, argv)
        assert session.waiter is not None
        self._waiting[session.waiter] = None

    def go_on(self) -> None:
        """Locks were released: try again what had to wait for them."""
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting:
            if waiter.session.waiter is waiter:
                self._engine.blocking.run_again(waiter.session)
        for queued in list(self._order.hurried):
            if queued.number in self.pending:
                self._hurry(queued)

    def forget(self, session: Session) -> None:
        """A client disconnected."""
        self._asked.pop(session, None)
        self._waiting = {waiter: None for waiter in self._waiting if waiter.session is not session}

    def run_what_is_short(self) -> bool:
        """Run everything, the long ones in threads; whether nothing is left. For callers that can try again later."""
        before = len(self.pending)
        done = self._runner.advance(list(self.pending.values()))
        self._counts.ran_actively += before - len(self.pending)
        return done

    def before(self, session: Session, command: Command, argv: Argv) -> None:
        """Run every queued command whose effect a command could notice, whatever it takes.

        For dispatch, while anything is pending.
        """
        if command.name != NAME:
            self._run_needed(self._order.needed_by(session.db, command, argv))

    def is_needed_by(self, database: Database, command: Command, argv: Argv) -> bool:
        """Whether anything queued must run before a command."""
        return bool(self.pending and self._order.needed_by(database, command, argv))

    # -- what cannot wait -------------------------------------------------------------------------------------

    def run_for(self, database: Database, key: bytes, to_write: bool = False) -> bool:
        """Run the commands that write a key or, before it is written, also those that
        read it; whether there were any.
        """
        last = self._order.last_of(database, key, to_write)
        self._run_needed(last)
        return bool(last)

    def before_expiry(self, database: Database, key: bytes) -> bool:
        """A key has expired: run the commands that may still see it; whether there were any."""
        return self._runner.running is None and self.run_for(database, key, to_write=True)

    def drain(self, database: Database | None = None) -> None:
        """Run everything, or everything in one database."""
        self._run_needed(self._order.of(database))

    def discard(self, database: Database) -> None:
        """Drop the commands queued for a database that is about to be emptied; clients
        that watch a key are informed.
        """
        if not self.pending:
            return
        for key in list(database.observed):
            self.run_for(database, key)
        for queued in self._order.of(database):
            job = self._runner.job(queued)
            self._runner.remove(queued)
            self._counts.discarded += 1
            if job is not None:
                self._engine.workers.drop(job)

    def _run_needed(self, last: list[Queued]) -> None:
        ran = self._runner.run_all(last)  # before the sum: a thread that is finished counts one itself
        self._counts.ran_actively += ran

    # -- for people and tests ---------------------------------------------------------------------------------

    def status(self) -> dict[str, int | str]:
        """The figures of LAZY STATUS and INFO."""
        return {
            "enabled": int(self._passive.enabled),
            "queued": len(self.pending),
            "in_thread": self._runner.in_threads,
            "bytes": self._order.bytes,
            "oldest_age_ms": self._passive.oldest_age,
            **self._counts.fields(),
        }

    def check(self) -> None:
        """Assert every invariant; for tests."""
        self._order.check()
        self._runner.check()
