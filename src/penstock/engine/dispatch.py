"""The engine: from an argument vector to a reply.

`execute` is the complete path: find the command, pass the gates in order, queue it in a transaction or `call` it.
`call` first runs the LAZY commands that come before it, and then the handler (run_handler.py). The server's inner loop
has a shorter path for FAST commands of sessions that no gate concerns (`fast`, see fast_path.py); when a gate matters,
that table is empty.

Owned by the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from penstock.engine.access.users import AccessControl
from penstock.engine.blocking import Blocking
from penstock.engine.clock import Clock
from penstock.engine.concurrency.busy_names import BusyNames
from penstock.engine.concurrency.lazy import Lazy
from penstock.engine.concurrency.lock_gate import LockGate
from penstock.engine.concurrency.once import Once
from penstock.engine.concurrency.workers import Workers
from penstock.engine.config import Config
from penstock.engine.declarations import Argv, Command, Flag, Handler, Module, Reply
from penstock.engine.fast_path import FastTable, fast_table, with_log
from penstock.engine.hidden_changes import HiddenChanges
from penstock.engine.interfaces import Commit, LogEntry, NoTimers, Persistence, Replication, Timers
from penstock.engine.keyspace.cursors import Cursors
from penstock.engine.keyspace.databases import Database, Keyspace
from penstock.engine.keyspace.memory import SMALLEST_STEP, Memory
from penstock.engine.leadership import LEASED, Leadership
from penstock.engine.observe.latency import Latency
from penstock.engine.observe.monitors import Monitors, redacted
from penstock.engine.observe.slow_log import SlowLog
from penstock.engine.observe.statistics import HITS, MISSES, REJECTED, Stats
from penstock.engine.pause import Pause
from penstock.engine.pubsub import Publications
from penstock.engine.run_handler import CLIENT, Caller, run_handler
from penstock.engine.scripting import BUSY_SCRIPT, Scripting
from penstock.engine.server_commands import ServerCommands
from penstock.engine.session import Session
from penstock.engine.stream_compression import Compression
from penstock.engine.stream_members import StreamMembers
from penstock.engine.stream_upkeep import Streams
from penstock.engine.transactions import discard, refused
from penstock.protocol.errors import (
    Loading,
    MasterDown,
    Misconf,
    NoAuth,
    NoReplicas,
    OutOfMemory,
    ReadOnly,
    ReplyError,
)
from penstock.protocol.resp import NO_REPLY, QUEUED

FOLLOWING = "following"
"""The reason for gates on a replica; reads of plain sessions need none of them."""
REPLICAS_ONLY = (
    "Replica can't interact with the keyspace: this connection has said REPLCONF capa penstock, and may only run AUTH, "
    "PING, PSYNC, QUIT and REPLCONF. Use another connection for everything else."
)
_READS_PASS = {FOLLOWING, LEASED}
"""Reasons for gates that only refuse writes."""

Gate = Callable[[Session, Command, Argv], None]  # passes or raises


class Engine:
    """See the top of this file."""

    def __init__(
        self, config: Config | None = None, clock: Clock | None = None, timers: Timers | None = None,
        modules: Sequence[Module] = (),
    ) -> None:  # fmt: skip
        self.config = config or Config()
        self.clock = clock or Clock()
        self.timers: Timers = timers or NoTimers()
        self.keyspace = Keyspace(self.config.databases, self.clock)
        self.keyspace.on_expired = self._log_expired
        self.stats = Stats()
        self.commands = ServerCommands(modules)
        self.blocking = Blocking(self)
        self.cursors = Cursors()  # iterations under way: SCAN, HSCAN, SSCAN, ZSCAN
        self.sessions: dict[int, Session] = {}  # connected clients by id
        self.acl = AccessControl(self)
        self.pause = Pause(self)
        self.busy_names = BusyNames()
        self.lock_gate = LockGate(self)
        self.workers = Workers(self)
        self.publications = Publications()
        self.scripting = Scripting(self)
        self.give_replies: Callable[[], None] = lambda: None  # give `commit` all replies that were not given to it yet
        self.serve_while_script_runs: Callable[[], None] = lambda: (
            None
        )  # serve other clients while a script holds the loop
        self.monitors = Monitors(self)
        self.log: Callable[[list[LogEntry]], None] | None = None  # the append-only file; one call is one atomic unit
        self.commit: Commit | None = None  # set while there is a log that replies must wait for
        self.persistence: Persistence | None = None
        self.replication: Replication | None = None
        self.leadership: Leadership | None = None  # of a server of a shard
        self.strict = False  # replies that acknowledge a change become errors if the log cannot be written
        self._unit: list[LogEntry] | None = None  # collects the effects of a transaction or a script
        self._last_id = 0
        # state that gates ask about
        self.loading = False
        self.over_memory = False  # kept by `memory`
        # DEBUG SET-ACTIVE-EXPIRE: if off, expired keys are deleted only when a command looks at them
        self.active_expiry = True
        self.write_error: str | None = None  # why writes are refused: the log or the snapshot cannot be written
        self.streams_full: str | None = None  # why streams get no more messages: history cannot take them
        self.following = False  # a replica: everything that changes comes from its leader
        self.stale = False  # a replica without its leader, which is to answer nothing then
        self.lacks_replicas = False  # fewer than min-replicas-to-write
        self.cannot_confirm = False  # fewer than replica-acks, which would lose a change
        self.hidden_changes = HiddenChanges(self)
        self.gates: list[Gate] = [
            self._gate_auth, self._gate_acl, self._gate_loading, self._gate_replication, self.require_disk,
            self.hidden_changes.gate, self._gate_memory, self.publications.gate, self.scripting.gate,
        ]  # fmt: skip
        self._gate_reasons: set[str] = set()
        self.scripts_gated = (
            False  # whether there is another reason than a busy script, which is none to the script itself
        )
        self.every_fast = fast_table(self.stats, self.commands)  # as if no gate and no log were there
        self._fast_ungated: FastTable = self.every_fast  # what `fast` is while no gate is needed
        self.fast: FastTable = self.every_fast
        self.streams = Streams(self)
        self.stream_members = StreamMembers(self)
        self.compression = Compression(self)
        self.memory = Memory(self)
        self.slow_log = SlowLog(self)
        self.latency = Latency(self)
        self.once = Once(self)
        self.lazy = Lazy(self)

    def next_session_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def forget(self, session: Session) -> None:
        """A client disconnected: it waits for nothing, watches nothing, and has no subscriptions."""
        self.sessions.pop(session.id, None)
        if session.waiter is not None:
            self.blocking.leave(session.waiter)
        self.lock_gate.forget(session)
        self.lazy.forget(session)
        self.monitors.remove(session)
        discard(session)
        self.publications.forget(session)
        if session.once_clients:
            self.once.disconnected(session)
        if session.link is not None and self.replication is not None:
            self.replication.disconnected(session)
        self.stream_members.ended(session)

    # -- the fast path ----------------------------------------------------------------------------------------

    def require_gates(self, reason: str, needed: bool) -> None:
        """Turn the fast path off while any named reason holds (a log, memory limits, MONITOR, locks, ...)."""
        (self._gate_reasons.add if needed else self._gate_reasons.discard)(reason)
        self.scripts_gated = bool(self._gate_reasons - {BUSY_SCRIPT})
        self._choose_fast()

    def _choose_fast(self) -> None:
        if self._gate_reasons == {LEASED} and self.commit is not None:
            self.fast = self._fast_ungated
        elif self._gate_reasons and self._gate_reasons <= _READS_PASS:
            self.fast = {name: known for name, known in self.every_fast.items() if not known.command.writes}
        else:
            self.fast = {} if self._gate_reasons else self._fast_ungated

    def log_to(self, commit: Commit | None, strict: bool = False) -> None:
        """Log every change from now on, or none; with `strict`, mark the replies that acknowledge one."""
        if commit is None or (commit is self.commit and strict and not self.strict):
            self.give_replies()  # which still belong to the log as it is
        self.log = None if commit is None else commit.log
        self.commit = commit
        self.strict = strict
        self._fast_ungated = (
            self.every_fast if commit is None else with_log(self.every_fast, self, commit.append, strict)
        )
        self._choose_fast()

    @property
    def changes_nothing(self) -> bool:
        """Whether nothing is to change by itself: keys do not expire, and streams keep what they have."""
        return self.following or self.cannot_confirm or bool(self.pause.until)

    def freeze_or_thaw(self) -> None:
        """`changes_nothing` may have another value: expired keys are hidden while it is true, and deleted later."""
        self.keyspace.frozen = self.changes_nothing

    def gates_matter(self, session: Session) -> bool:
        """Whether any gate could refuse a command of this session, which has logged in."""
        return bool(self._gate_reasons) or not session.user.unrestricted

    # -- the whole way ----------------------------------------------------------------------------------------

    def execute(self, session: Session, argv: Argv) -> Reply:
        """Run one command of a client, or raise the ReplyError it gets."""
        transaction = session.transaction
        try:
            command = self.commands.resolve(argv)
            session.last_command = command.name
            session.shows_data = command.shows_data
            if self._gate_reasons or not session.plain:  # else each of them would let it pass, as on the fast path
                for gate in self.gates:
                    gate(session, command, argv)
                if self.leadership is not None:  # asked once: a script that has begun goes on to its end
                    self.leadership.check(session, command, argv)
            if self.pause.until and self.pause.hold(session, command, argv):
                return NO_REPLY
            if transaction is not None and Flag.CONTROL not in command.flags:
                if Flag.NO_MULTI in command.flags:
                    raise ReplyError("Command not allowed inside a transaction")
                transaction.add(command, argv)
                return QUEUED
        except ReplyError as error:
            self.count_rejected(argv, error)
            raise refused(session, argv, error) from None
        if self.busy_names.table and self.lock_gate.hold(session, command, argv):
            return NO_REPLY
        return self.call(session, command, argv)

    def pass_gates(
        self, session: Session, command: Command, argv: Argv, permission: Gate | None = None, memory: bool = True
    ) -> None:
        """Ask every gate about a command that another one runs.

        A transaction and a script have their own error texts for a missing permission. For ONCE and LAZY, their own
        permission includes that of the inner command. `memory=False` lets it grow beyond maxmemory.
        """
        for gate in self.gates:
            if gate == self._gate_acl:
                if permission is not None:
                    permission(session, command, argv)
            elif memory or gate != self._gate_memory:
                gate(session, command, argv)

    def call(
        self, session: Session, command: Command, argv: Argv, handler: Handler | None = None, spent: int = 0,
        caller: Caller = CLIENT,
    ) -> Reply:  # fmt: skip
        """Run a command that has passed the gates: first the LAZY commands that come before it, then its handler.

        `handler` is the rest of the command when a thread has worked on it, for `spent` nanoseconds.
        """
        if self.lazy.pending:
            self.lazy.before(session, command, argv)
        if command.grows is not None and handler is None:
            try:
                self.require_growth(session, command, argv)
            except OutOfMemory as error:
                self.count_rejected(argv, error)
                raise
        return run_handler(self, session, command, argv, caller, handler, spent)

    def notice(self, session: Session, command: Command, argv: Argv, took: int) -> None:
        """Record a command that took so many nanoseconds in the slow log and the latency monitor, if that is long
        enough.
        """
        if took >= self.slow_log.threshold and Flag.SKIP_SLOWLOG not in command.flags:
            self.slow_log.remember(session, redacted(argv), took)
        self.latency.note("fast-command" if Flag.FAST in command.flags else "command", took)

    def count_lookups(self, data: dict[bytes, Any], command: Command, argv: Argv) -> None:
        """Count the keys that a command has read as hits or misses."""
        tally = self.stats.tally
        with suppress(ReplyError):  # its handler has refused the arguments too
            for spec in command.reads:
                for at in spec.positions(argv):
                    tally[HITS if argv[at] in data else MISSES] += 1

    def count_rejected(self, argv: Argv, error: ReplyError) -> None:
        self.stats.count_error(error)
        command = self.commands.find(argv)
        if command is not None:
            self.stats.calls[command.name][REJECTED] += 1

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

    @property
    def in_unit(self) -> bool:
        """Whether the running command is part of a unit, which must not be interrupted."""
        return self._unit is not None

    def unit(self) -> AbstractContextManager[None]:
        """`with engine.unit():` everything logged inside is one atomic entry of the log."""
        return _Unit(self) if self.log is not None else _NO_UNIT

    def require_nothing_written(self) -> None:
        """Refuse to change the log, or its server's role, in a transaction that has written: the log gets its changes
        at its end, and they would be acknowledged as if this log still counted.
        """
        if self._unit:
            raise ReplyError("this transaction has written already: send the command before its writes, or by itself")

    def _log_expired(self, database: Database, key: bytes) -> None:
        self.propagate(database, [[b"DEL", key]])

    # -- gates: each passes or raises -------------------------------------------------------------------------

    def _gate_auth(self, session: Session, command: Command, argv: Argv) -> None:
        if not session.authenticated and Flag.NO_AUTH not in command.flags:
            raise NoAuth

    def _gate_acl(self, session: Session, command: Command, argv: Argv) -> None:
        if not session.user.unrestricted:
            self.acl.check(session, command, argv)

    def _gate_loading(self, session: Session, command: Command, argv: Argv) -> None:
        if self.loading and Flag.LOADING not in command.flags:
            raise Loading

    def _gate_replication(self, session: Session, command: Command, argv: Argv) -> None:
        if self.following:
            self.refuse_as_replica(command, argv)
        elif self.lacks_replicas and command.may_write(argv):
            raise NoReplicas
        if self.stale and Flag.STALE not in command.flags:
            raise MasterDown
        if command.shows_data and session.is_replica:  # what it is answered does not wait
            raise ReplyError(REPLICAS_ONLY)

    @staticmethod
    def refuse_as_replica(command: Command, argv: Argv) -> None:
        """A replica runs no command of a client that may write."""
        if command.may_write(argv):
            raise ReadOnly("You can't write against a read only replica.")

    def require_disk(self, session: Session, command: Command, argv: Argv) -> None:
        """Refuse a change that the disk would not take; also by a command that waited, and is run again."""
        if self.write_error is not None and command.may_write(argv):
            if self.leadership is not None:  # perhaps another server leads by now, and its disk has room
                self.leadership.check(session, command, argv)
            raise Misconf(self.write_error)
        if self.streams_full is not None and command.group == "stream" and Flag.DENYOOM in command.flags:
            raise Misconf(self.streams_full)  # all else goes on; what frees memory must

    def _gate_memory(self, session: Session, command: Command, argv: Argv) -> None:
        if not self.memory.limit:
            return
        queued = session.transaction is not None and Flag.CONTROL not in command.flags  # a queue grows memory too
        if queued or Flag.DENYOOM in command.flags:
            self.require_memory(argv)

    def require_memory(self, words: Argv, growth: int = 0) -> None:
        """Refuse to keep something of these words if there is no memory for it.

        For a command that seldom keeps them; called when it would. `growth` bytes are needed beyond the words.
        """
        memory = self.memory
        if not memory.limit:
            return
        memory.account(words, growth)
        if memory.lacks(growth) and self.lazy.pending:  # what is queued may free some
            self.lazy.drain()
            memory.measure()
        if memory.lacks(growth):
            raise OutOfMemory

    def growth(self, session: Session, command: Command, argv: Argv) -> int:
        """How many bytes a command may take beyond its arguments; 0 where there is no limit for them."""
        if command.grows is None or not self.memory.limit or self.loading or session.may_outgrow:
            return 0
        try:
            return command.grows(session, argv)
        except ReplyError:
            return 0  # its handler will refuse it

    def require_growth(self, session: Session, command: Command, argv: Argv) -> int:
        """Refuse a command for whose result there is no memory; its `growth`.

        A little is left to `_gate_memory`, as for any command: a script or a transaction that has begun may go on.
        """
        growth = self.growth(session, command, argv)
        if growth >= SMALLEST_STEP:
            self.require_memory([], growth)
        return growth


_NO_UNIT = nullcontext()  # nothing is logged


class _Unit(AbstractContextManager[None]):
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
