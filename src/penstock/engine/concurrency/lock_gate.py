"""Commands and locks: which commands must wait before they run, which continue, and when a child may be forked.

locks.py decides about keys; here are the clients. A session that finds a locked key is blocked before its command runs,
as by CLIENT PAUSE, and the whole command is run again, gates included, when the lock is released. So no handler knows
that locks exist. The rest follows from the declarations: a key with Access.WRITE needs an exclusive lock, any other a
shared one.

- Queued LAZY commands that a command needs are begun first; a command that must wait for them is held back here, too.
- LAZY waits only for a command that it has made run again already, and when its queue is full.
- EXEC needs the keys of all queued commands. Threaded commands inside it run inline, because nothing may come in
  between.
- A script needs the keys it declares; if it touches another one that is locked, it gets the error LOCKED.
- The feed of a replica waits a little (follower.py) and then leaves the old values to the threads (`spare_readers`).
- A blocked command (BLPOP) whose turn comes while a key is locked keeps its place and is served when the lock is
  released.
- Whole-keyspace commands need no locks. KEYS and SCAN do not look at values; FLUSHALL unlinks them now, and workers.py
  drops what was computed from them.

The fork gate: `may_fork` runs the queued commands, long ones in threads. Then it denies new write locks and says no
while there are any left, for at most FORK_PATIENCE. Forking later is safe too, because a threaded command changes
memory only in its commit, on the loop. The gate only makes sure that a snapshot holds the commands that were under way
when it was requested.

Owned by the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.engine.concurrency.lazy_rules import NAME as LAZY
from penstock.engine.concurrency.locks import Locks, Wait, Want
from penstock.engine.concurrency.workers import Job
from penstock.engine.declarations import Access, Argv, Command, Reach
from penstock.engine.keyspace.transaction_databases import TransactionDatabases
from penstock.protocol.errors import Locked, ReplyError, shown
from penstock.types import codec

if TYPE_CHECKING:
    from penstock.engine.blocking import Waiter
    from penstock.engine.dispatch import Engine
    from penstock.engine.keyspace.databases import Database
    from penstock.engine.session import Session

FORK_PATIENCE = 5000
"""Milliseconds that a fork waits for threaded writes, and that new ones wait for the fork."""


class LockGate:
    """See the top of this file."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.locks = Locks(engine.busy_names)
        self._names = engine.busy_names.table
        # the last write lock was released while the server wants to fork
        self.on_quiet: Callable[[], None] = lambda: None
        self._fork_wanted = 0  # since when, by the clock of leases; 0 if it is not
        self._put_off: dict[tuple[Database, bytes], None] = {}  # changed keys whose waiters found them locked

    # -- what a command touches -------------------------------------------------------------------------------

    def wants(self, session: Session, command: Command, argv: Argv) -> list[Want]:
        """The keys of a command, or of all the commands that EXEC will run, each once.

        EXEC is known by its name: no other command runs what its session has queued.
        """
        commands = [(command, argv)]
        if command.name == "EXEC" and session.transaction is not None:
            commands = session.transaction.queue
        return self._wants(session.db, commands)

    def _wants(self, database: Database, commands: list[tuple[Command, Argv]]) -> list[Want]:
        databases = TransactionDatabases(self._engine.keyspace, database)
        found: dict[tuple[int, bytes], Want] = {}

        def add(where: Database | None, name: bytes, exclusive: bool) -> None:
            if where is not None:
                before = found.get((where.index, name))
                exclusive = exclusive or (before is not None and before.exclusive)
                found[where.index, name] = Want(where.locked, name, exclusive)

        for command, argv in commands:
            called, at = command.inside(argv) or (command, 0)
            places = called.beyond.places if called.beyond is not None else None
            elsewhere = {at + place: word for place, word in places(argv[at:])} if places is not None else {}
            try:
                for position, access in command.key_positions(argv):
                    if position in elsewhere:
                        add(databases.named(elsewhere[position]), argv[position], Access.WRITE in access)
                    if position not in elsewhere or Access.READ in access:
                        add(databases.current, argv[position], Access.WRITE in access)
            except ReplyError:
                continue  # its handler will say what is wrong with the arguments
            databases.after(called.name, argv[at:])
        return list(found.values())

    # -- passing and waiting ----------------------------------------------------------------------------------

    def hold(self, session: Session, command: Command, argv: Argv) -> bool:
        """Whether the command must wait; the session is then blocked. Called only while there are busy names."""
        lazy = self._engine.lazy
        near = not lazy.pending or command.reach(argv) is Reach.KEYS
        if near and session.transaction is None and self._names.keys().isdisjoint(argv):
            return False  # for most commands the positions of their keys are not needed
        is_lazy = command.name == LAZY
        ready = is_lazy or not lazy.pending or lazy.prepare(session, command, argv)
        wants = self.wants(session, command, argv)
        if is_lazy and not lazy.is_full():
            wants = [want for want in wants if self._is_insisted_on(want)]
        if self.locks.blocked(wants):
            self._wait(session, command, argv, wants, takes=False)
            return True
        if not ready:
            lazy.wait(session, command, argv)
        return not ready

    def is_locked(self, database: Database, command: Command, argv: Argv) -> bool:
        """Whether a command without a client finds a lock in its way."""
        locks = self.locks
        if not (locks.read_locks or locks.write_locks):
            return False
        return locks.blocked(self._wants(database, [(command, argv)]))

    def _is_insisted_on(self, want: Want) -> bool:
        """Whether a key is locked by a command that LAZY has made run again already: it must not happen twice."""
        lock = want.table.get(want.key)
        return lock is not None and any(
            isinstance(owner, Job) and owner.insists for owner in (lock.writer, *lock.readers)
        )

    def take(self, owner: object, session: Session, command: Command, argv: Argv, wait: bool = True) -> bool:
        """Lock a command's keys for `owner`, or have the session wait and run the command again later."""
        wants = self._wants(session.db, [(command, argv)])
        if self.locks.take(owner, wants, self._engine.clock.now, self._ticket(session, argv)):
            session.turn = None
            return True
        if wait:
            self._wait(session, command, argv, wants, takes=True)
        return False

    def check_script(self, session: Session, command: Command, argv: Argv) -> None:
        """A script can neither wait nor see half a change: a locked key that it did not declare is an error."""
        if self._engine.lazy.pending:
            self._engine.lazy.before(session, command, argv)  # a queued LAZY command must not be the reason
        for want in self._wants(session.db, [(command, argv)]):
            if self.locks.blocked([want]):
                raise Locked(f"the key '{shown(want.key)}' is locked; a script that declares it waits for it")

    def may_serve(self, waiter: Waiter, key: bytes) -> bool:
        """Whether a blocked command may be served with a key that changed; if not, it is
        when the locks are released.
        """
        if not self.locks.blocked(self._wants(waiter.database, [(waiter.command, waiter.argv)])):
            return True
        self._put_off[waiter.database, key] = None
        return False

    def _wait(self, session: Session, command: Command, argv: Argv, wants: list[Want], takes: bool) -> None:
        wait = self.locks.wait(session, wants, takes, self._engine.clock.now, self._ticket(session, argv))
        session.turn = (argv, wait)
        self._engine.blocking.postpone(session, command, argv)

    def _ticket(self, session: Session, argv: Argv) -> int | None:
        """The ticket of a command that waited before and runs again."""
        turn = session.turn
        return turn[1].ticket if turn is not None and turn[0] is argv else None

    # -- what cannot wait -------------------------------------------------------------------------------------

    def meets_locks(self, database: Database, commands: list[tuple[Command, Argv]]) -> bool:
        """Whether commands that begin in a database and run one after the other find locks in their way."""
        names = self._names.keys()
        if all(names.isdisjoint(argv) for _, argv in commands):
            return False
        return self.locks.blocked(self._wants(database, commands))

    def spare_all_readers(self, database: Database, commands: list[tuple[Command, Argv]]) -> None:
        """Before these commands run in spite of locks: see `spare_readers`."""
        for want in self._wants(database, commands):
            if want.exclusive:
                where = next(each for each in self._engine.keyspace.databases if each.locked is want.table)
                self.spare_readers(where, want.key)

    def spare_readers(self, database: Database, key: bytes) -> None:
        """Replace a value that threads read by a copy: they keep the old one, as after FLUSHALL."""
        lock, value = database.locked.get(key), database.data.get(key)
        owners = () if lock is None else (lock.writer, *lock.readers)
        if value is None or not any(isinstance(owner, Job) and owner.saw(value) for owner in owners):
            return
        copy = database.data[key] = codec.copy(value)
        for waiter in database.observed[key].waiters if key in database.observed else ():
            if waiter.wish is not None and waiter.wish.came_upon(value):
                waiter.wish.goes_on_with(key, copy)

    # -- going on ---------------------------------------------------------------------------------------------

    def release(self, owner: object, midway: bool = False) -> None:
        """A thread is done: unlock, and continue the waiters; blocked commands are served by the next `serve`.

        `midway` in a command, where a child must not be forked.
        """
        self._call(self.locks.release(owner))
        if self._put_off:
            self._engine.keyspace.ready.extend(self._put_off)
            self._put_off.clear()
        self._engine.lazy.go_on()
        if self._fork_wanted and not self.locks.write_locks and not midway:
            self.on_quiet()

    def forget(self, session: Session) -> None:
        """A client disconnected: it leaves every queue (redis#15594). Its locks last until its thread returns."""
        if session.turn is not None:
            self._call(self.locks.leave(session.turn[1]))
            session.turn = None

    def awaited(self, session: Session) -> list[bytes]:
        """The keys at which a session waits."""
        return [lock.key for lock in session.turn[1].places] if session.turn is not None else []

    def _call(self, waits: list[Wait]) -> None:
        for wait in waits:
            session: Session = wait.who  # type: ignore[assignment]
            self._engine.blocking.run_again(session)

    # -- the fork gate ----------------------------------------------------------------------------------------

    def may_fork(self) -> bool:
        """Whether a child may be forked now. After a no, ask again when `on_quiet` is called, or a little later."""
        now, lazy = self._engine.clock.lease_time(), self._engine.lazy
        self._fork_wanted = self._fork_wanted or now
        if now - self._fork_wanted >= FORK_PATIENCE:
            return True
        if lazy.pending and not self.locks.writes_denied and not lazy.run_what_is_short():
            return False  # threads are at the rest, and must be given their locks
        if not self.locks.write_locks:
            return True
        self.locks.deny_writes()
        return False

    def reopen(self) -> None:
        """The child was forked, or is no longer needed: allow write locks again."""
        self._fork_wanted = 0
        if self.locks.writes_denied:
            self._call(self.locks.allow_writes())
            self._engine.lazy.go_on()
