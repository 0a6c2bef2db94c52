"""The engine: from an argument vector to a reply.

`execute` is the whole way: find the command, pass the gates in order, queue it in a transaction or `call` it. `call`
runs the handler and does what follows from the declaration: timing, the log, waking blocked clients. The server's
inner loop has a shorter way for FAST commands of sessions that no gate concerns (`fast`), which is the same minus
everything that could not apply; anything that makes a gate matter empties that table.

Owned by the loop thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from penstock.engine.acl import AccessControl
from penstock.engine.blocking import Blocking
from penstock.engine.clock import Clock
from penstock.engine.config import Config
from penstock.engine.keyspace import Database, Keyspace
from penstock.engine.session import Session
from penstock.engine.spec import REGISTRY, Argv, Command, Flag, Handler, Reply
from penstock.engine.stats import Stats
from penstock.engine.transactions import unwatch
from penstock.protocol.errors import Loading, Misconf, NoAuth, OutOfMemory, ReplyError
from penstock.protocol.resp import QUEUED

LogEntry = tuple[int, Argv]  # database number, command
FastTable = dict[bytes, tuple[Handler, int, int]]


class Timers(Protocol):
    """What the engine needs of an event loop."""

    def call_later(self, delay: float, callback: Callable[[], None]) -> object: ...

    def cancel(self, timer: object | None) -> None: ...


class Commit(Protocol):
    """Replies that must not leave before the log is on disk."""

    pending: bool  # something was logged that is not on disk yet

    def hold(self, write: Callable[[bytes], None], data: bytes) -> None:
        """Call `write(data)` once everything logged so far is on disk, in the order of the calls."""


class NoTimers:
    """For engines that nobody blocks in: tools, tests of single commands."""

    def call_later(self, delay: float, callback: Callable[[], None]) -> object:
        return None

    def cancel(self, timer: object | None) -> None:
        return


class Engine:
    """See the top of this file."""

    def __init__(self, config: Config | None = None, clock: Clock | None = None, timers: Timers | None = None) -> None:
        self.config = config or Config()
        self.clock = clock or Clock()
        self.timers: Timers = timers or NoTimers()
        self.keyspace = Keyspace(self.config.databases, self.clock)
        self.keyspace.on_expired = self._log_expired
        self.acl = AccessControl()
        self.stats = Stats(self.clock)
        self.blocking = Blocking(self)
        self.sessions: dict[int, Session] = {}  # connected clients by id
        self.log: Callable[[list[LogEntry]], None] | None = None  # the append-only file; one call, one atomic unit
        self.commit: Commit | None = None  # set while replies must wait for the disk (appendfsync always)
        self._unit: list[LogEntry] | None = None  # collects the effects of a transaction or a script
        self._last_id = 0
        # state that gates ask about
        self.loading = False
        self.over_memory = False
        self.write_error: str | None = None  # why writes are refused: the log or the snapshot cannot be written
        self.gates: list[Callable[[Session, Command, Argv], None]] = [
            self._gate_auth, self._gate_acl, self._gate_loading, self._gate_disk, self._gate_memory,
        ]  # fmt: skip
        self._gate_reasons: set[str] = set()
        self._fast_all = _fast_table()
        self.fast: FastTable = self._fast_all

    def next_session_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def forget(self, session: Session) -> None:
        """A client went away: it waits for nothing, watches nothing, listens to nothing."""
        self.sessions.pop(session.id, None)
        if session.waiter is not None:
            self.blocking.leave(session.waiter)
        unwatch(session)

    # -- the fast path ----------------------------------------------------------------------------------------

    def require_gates(self, reason: str, needed: bool) -> None:
        """Turn the fast path off while any named reason holds (a log, memory limits, MONITOR, locks, ...)."""
        (self._gate_reasons.add if needed else self._gate_reasons.discard)(reason)
        self.fast = {} if self._gate_reasons else self._fast_all

    # -- the whole way ----------------------------------------------------------------------------------------

    def execute(self, session: Session, argv: Argv) -> Reply:
        """Run one command of a client, or raise the ReplyError it gets."""
        transaction = session.transaction
        try:
            command = REGISTRY.resolve(argv)
            for gate in self.gates:
                gate(session, command, argv)
            if transaction is not None and Flag.CONTROL not in command.flags:
                if Flag.NO_MULTI in command.flags:
                    raise ReplyError("Command not allowed inside a transaction")
                transaction.queue.append((command, argv))
                return QUEUED
        except ReplyError:
            if transaction is not None:
                transaction.aborted = True
            raise
        return self.call(session, command, argv)

    def call(self, session: Session, command: Command, argv: Argv) -> Reply:
        """Run a handler, and log what it changed."""
        keyspace = self.keyspace
        before = keyspace.dirty
        session.effects = None
        outer = session.current
        session.current = (command, argv)
        started = time.perf_counter_ns()
        try:
            return command.handler(session, argv)
        except ReplyError:
            command.failed += 1
            raise
        finally:
            session.current = outer
            took = (time.perf_counter_ns() - started) // 1000
            command.calls += 1
            command.microseconds += took
            self.stats.commands += 1
            if keyspace.dirty != before and command.writes:
                self.propagate(session.db, session.effects if session.effects is not None else [argv])
            if took >= self.stats.slow_threshold and Flag.SKIP_SLOWLOG not in command.flags:
                self.stats.remember_slow(session, argv, took)

    # -- logging ----------------------------------------------------------------------------------------------

    def propagate(self, database: Database, commands: list[Argv]) -> None:
        """Log commands that change `database`, alone or as part of the unit under way."""
        if self.log is None or self.loading or not commands:
            return
        entries = [(database.index, argv) for argv in commands]
        if self._unit is not None:
            self._unit.extend(entries)
        else:
            self.log(entries)

    def unit(self) -> _Unit:
        """`with engine.unit():` everything logged inside is one atomic entry of the log."""
        return _Unit(self)

    def _log_expired(self, database: Database, key: bytes) -> None:
        self.propagate(database, [[b"DEL", key]])

    # -- gates: each passes or raises -------------------------------------------------------------------------

    def _gate_auth(self, session: Session, command: Command, argv: Argv) -> None:
        if not session.authenticated and Flag.NO_AUTH not in command.flags:
            raise NoAuth

    def _gate_acl(self, session: Session, command: Command, argv: Argv) -> None:
        pass

    def _gate_loading(self, session: Session, command: Command, argv: Argv) -> None:
        if self.loading and Flag.LOADING not in command.flags:
            raise Loading

    def _gate_disk(self, session: Session, command: Command, argv: Argv) -> None:
        if self.write_error is not None and command.writes:
            raise Misconf(self.write_error)

    def _gate_memory(self, session: Session, command: Command, argv: Argv) -> None:
        if self.over_memory and Flag.DENYOOM in command.flags:
            raise OutOfMemory


class _Unit:
    """Collects log entries; nested units belong to the outermost."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._outermost = engine._unit is None

    def __enter__(self) -> None:
        if self._outermost:
            self._engine._unit = []

    def __exit__(self, *exc: Any) -> None:
        if self._outermost:
            entries, self._engine._unit = self._engine._unit, None
            if entries and self._engine.log is not None:
                self._engine.log(entries)


def _fast_table() -> FastTable:
    """Handlers that the inner loop may call without gates, in both cases a client is likely to write."""
    table: FastTable = {}
    for name, command in REGISTRY.by_name.items():
        if Flag.FAST in command.flags and command.keys and Flag.BLOCKING not in command.flags:
            table[name] = table[name.lower()] = (command.handler, command.low, command.high)
    return table
