"""EVAL: scripts in real Lua 5.1, through lupa.

A script runs in the loop thread from start to end, so nothing happens between its commands. Each command goes through
`Engine.call` like a client's, with a session of its own that has no output. The changes are logged as one unit, never
the script. lua/sandbox.lua is the Lua half: what a script can see, and how its value becomes a reply.

A script that runs too long: Lua calls `_tick` every few milliseconds (lua/sandbox.lua and lua/effort.lua say how).
After busy-reply-threshold, the fast path is off, other clients get BUSY, and SCRIPT KILL makes the next tick end the
script unless it has written. To serve them while the loop thread runs Lua, the tick calls
`engine.serve_while_script_runs`, which the server sets to a function that reads its sockets. One call of a C function,
such as string.rep or a command, cannot be interrupted.

The interpreter itself, and its memory limit, is lua/interpreter.py.

Rejected: a thread for scripts. Switching to one costs more than most scripts take, and the data is the loop thread's.
"""

from __future__ import annotations

import hashlib
import logging
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lupa import lua51

from penstock.engine.declarations import REGISTRY, Argv, Command, Flag, Reply
from penstock.engine.lua import interpreter
from penstock.engine.run_handler import CLIENT, TRIAL
from penstock.engine.script_calls import as_argument, direct_call, internal_error
from penstock.engine.session import Session
from penstock.engine.stream_history import Foreseen, fetch_first, may_fetch_first, read_from_files
from penstock.protocol.errors import (
    Busy,
    MasterDown,
    Misconf,
    NoPerm,
    NoReplicas,
    NotBusy,
    OutOfMemory,
    ProtocolError,
    ReadOnly,
    ReplyError,
    Unkillable,
    one_line,
)
from penstock.protocol.grammar import split_inline
from penstock.protocol.resp import Raw
from penstock.types.stream.messages import Place

if TYPE_CHECKING:
    from penstock.engine.dispatch import Engine
    from penstock.engine.keyspace.databases import Database

logger = logging.getLogger("penstock.script")

BUSY_SCRIPT = "busy script"
"""Why others must pass the gates while a script runs too long."""
REHEARSED = "rehearsed script"
"""Why all commands of a rehearsal take the long way."""
REHEARSAL = 0.005
"""Seconds after which a rehearsal ends, at the next look at the clock."""
LATE = 0.05
"""Seconds since the last tick after which a command of a script looks at the clock itself: slow commands are few
instructions.
"""
POLL_INTERVAL = 0.01
"""Seconds between two looks at the sockets while a script is busy."""
LONGEST_LINE = 1 << 20
"""Bytes of a line that redis.log writes; what is behind them is left out."""
_LOG_LEVELS = (logging.DEBUG, logging.DEBUG, logging.INFO, logging.WARNING)
_FLAGS = frozenset({"no-writes", "allow-oom", "allow-stale", "no-cluster", "allow-cross-slot-keys"})


class _StartsAgain(Exception):
    """The script is over, whatever it makes of the error that its command gets: it will start again."""


class ScriptError(ReplyError):
    """What a script answers as an error; the script chooses the code word too."""

    def __init__(self, text: str, counted: bool) -> None:
        super().__init__(text)
        self._counted = counted  # as the error of a command that the script called

    @property
    def counted_as(self) -> str:
        return "" if self._counted else str(self).split(" ", 1)[0]

    def wire(self) -> bytes:
        return one_line(str(self))


@dataclass(frozen=True, slots=True)
class Script:
    """A compiled script."""

    sha: bytes
    function: Any
    flags: frozenset[str] | None  # None without a shebang: then nothing is checked before it runs

    @property
    def read_only(self) -> bool:
        return self.flags is not None and "no-writes" in self.flags

    @property
    def allow_oom(self) -> bool:
        return self.flags is not None and "allow-oom" in self.flags


class Run:
    """A script under way."""

    def __init__(self, caller: Session, argv: Argv, script: Script, read_only: bool) -> None:
        self.caller = caller
        self.argv = argv
        self.may_start_again = may_fetch_first(caller, argv)  # until it has done more than read
        self.unread: list[Place] = []  # nodes in files that it came upon: it ends, and starts again when they are there
        self.read_only = read_only
        self.allow_oom = script.allow_oom
        self.started = time.monotonic()
        self.looked = self.started  # at the clock
        self.polled = 0.0
        self.wrote = False
        self.killed = False
        self.interrupted = False  # as soon as it is busy, it ends
        self.rehearses = False  # only to see what it reads
        self.rehearsed = False  # it must end


class Scripting:
    """The scripts of a server. Owned by the loop thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.scripts: dict[bytes, Script] = {}  # by SHA1 in lower-case hexadecimal
        self._known: dict[bytes, Command] = {}  # commands that scripts called, as they spelled them
        self.running: Run | None = None
        self.busy = False  # it has run too long: others are told so, and may do little
        self.may_debug = False  # scripts may call DEBUG; for test suites

    # -- scripts ----------------------------------------------------------------------------------------------

    def load(self, source: bytes) -> Script:
        """Compile a script, or find it compiled."""
        sha = hashlib.sha1(source, usedforsecurity=False).hexdigest().encode()
        script = self.scripts.get(sha)
        if script is None:
            flags, body = _shebang(source)
            ok, function = self.lua.compile(body)
            if not ok:
                problem = function.decode("utf-8", "surrogateescape")
                raise ReplyError(f"Error compiling script (new function): {problem}")
            script = self.scripts[sha] = Script(sha, function, flags)
        return script

    def forget_scripts(self) -> None:
        """Forget every script that was loaded."""
        if self.scripts:
            self.scripts.clear()
            self.lua.forget_code()

    def run(self, caller: Session, argv: Argv, script: Script, keys: Argv, arguments: Argv, read_only: bool) -> Reply:
        """Run a script for a session and answer its value. `argv` are the words of its EVAL."""
        engine, lua = self._engine, self.lua
        self._admit(script, read_only)
        in_transaction = caller.fetched is not None and caller.fetched.argv is not argv
        session = self._session
        session.user, session.db = caller.user, caller.db
        session.name, session.peer = caller.name, caller.peer
        session.fetched = caller.fetched
        self.running = run = Run(caller, argv, script, read_only or script.read_only)
        try:
            with engine.unit():
                ok, reply, counted = lua.run(
                    script.function, script.sha, lua.table(keys), lua.table(arguments), caller.protocol
                )
        except lua51.LuaError as error:  # memory ran out where the sandbox could not catch it
            problem = str(error) or "not enough memory"
            ok, reply, counted = False, b"ERR %b script: %b" % (problem.encode(), script.sha), False
        finally:
            self.running = session.fetched = None
            lua.limit_memory(False)
            was_busy, self.busy = self.busy, False
            if was_busy:
                engine.require_gates(BUSY_SCRIPT, False)
            if was_busy or lua.memory_used() > interpreter.MEMORY_LIMIT >> 4:  # so that the next one has room
                lua.collect()
        if run.unread:
            return fetch_first(caller, argv, run.unread, run.started)
        if not in_transaction:
            caller.fetched = None
        if not ok:
            raise ScriptError(reply.decode("utf-8", "surrogateescape"), bool(counted))
        return Raw(reply)

    def _admit(self, script: Script, read_only: bool) -> None:
        """Refuse a script whose shebang says more than the server's state allows, whatever it would call."""
        engine, flags = self._engine, script.flags
        if engine.stale and (flags is None or "allow-stale" not in flags):
            raise MasterDown
        if flags is None:
            return
        if not script.read_only:
            if engine.following:
                raise ReadOnly("Can not run script with write flag on readonly replica")
            if engine.write_error is not None:
                raise Misconf(engine.write_error)
            if read_only:
                raise ReplyError("Can not execute a script with write flag using *_ro command.")
            if engine.lacks_replicas:
                raise NoReplicas
        if not (script.read_only or script.allow_oom) and engine.memory.limit:
            engine.memory.account([])
            if engine.over_memory:
                raise OutOfMemory

    def rehearse(
        self, caller: Session, database: Database, argv: Argv, script: Script, keys: Argv, arguments: Argv
    ) -> Foreseen:
        """Which nodes in files a script will read first: run it until it comes upon some, or does more than read.

        For scripts inside a transaction or ONCE, which cannot start again by themselves. Nothing of it happens, is
        counted or shown, and it takes REHEARSAL at most. The keys may change before it runs: then it reads in place.
        """
        engine, lua, session = self._engine, self.lua, self._session
        session.user, session.db = caller.user, database
        session.name, session.peer = caller.name, caller.peer
        session.fetched = caller.fetched
        outer = caller.fetched.argv if caller.fetched is not None else argv
        self.running = run = Run(caller, outer, script, read_only=True)
        run.rehearses = True
        engine.require_gates(REHEARSED, True)  # the short way of commands (script_calls.py) counts them
        try:
            with engine.unit(), suppress(lua51.LuaError):
                lua.run(script.function, script.sha, lua.table(keys), lua.table(arguments), caller.protocol)
        finally:
            self.running = session.fetched = None
            engine.require_gates(REHEARSED, False)
            lua.limit_memory(False)
            if lua.memory_used() > interpreter.MEMORY_LIMIT >> 4:
                lua.collect()
        return Foreseen([], places=run.unread)

    def may_write(self, name: str, script: bytes) -> bool:
        """Whether EVAL or EVALSHA, by name, of this script or SHA1 may change something: unless the script says
        no-writes.
        """
        if name == "EVALSHA":
            known = self.scripts.get(script.lower())
            return known is None or not known.read_only
        try:
            flags, _ = _shebang(script)
        except ReplyError:
            return True
        return flags is None or "no-writes" not in flags

    def kill(self) -> None:
        """Have the script that blocks other clients end at its next tick."""
        run = self.killable()
        run.killed = run.read_only = True  # it begins no write before it ends

    def killable(self) -> Run:
        """The script that blocks other clients; an error if there is none, or if it has written."""
        run = self.running
        if run is None:
            raise NotBusy
        if run.wrote:
            raise Unkillable(
                "Sorry the script already executed write commands against the dataset. You can either wait the script "
                "termination or kill the server in a hard way using the SHUTDOWN NOSAVE command."
            )
        return run

    def abandon(self) -> None:
        """End a busy script at its next tick, even if it has written, and without a reply: the server stops without
        saving. The log gets nothing of its unit, and nothing later.
        """
        run = self.running
        if run is not None:
            run.killed = True
            self._engine.log_to(None)
            run.caller.output.close(after_reply=False)

    def interrupt(self) -> None:
        """A signal asks the server to stop: a busy script ends at its next tick, if that leaves no half of it.

        One that has written nothing just ends. With a log, which gets all of a script or nothing, one that has written
        ends as by SHUTDOWN NOSAVE. Without a log it continues: a snapshot would have half of it, and none would lack
        what others have written.
        """
        if self.running is not None:
            self.running.interrupted = True

    def _ends_by_signal(self, run: Run) -> bool:
        engine = self._engine
        if run.wrote and engine.log is not None and engine.persistence is not None:
            try:
                engine.persistence.shut_down(save=False, force=False)
            except ReplyError:  # the log lacks what others have written, and the disk takes no more
                run.interrupted = False
        return run.killed or not run.wrote

    def gate(self, session: Session, command: Command, argv: Argv) -> None:
        """While a script is busy, others may do little."""
        if Flag.ALLOW_BUSY not in command.flags and session is not self._session:
            self.refuse_if_busy()

    def refuse_if_busy(self) -> None:
        if self.busy:
            raise Busy("Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.")

    # -- called from Lua --------------------------------------------------------------------------------------

    @cached_property
    def lua(self) -> interpreter.Lua:
        return interpreter.Lua(
            lambda lua: {
                "call": direct_call(self, self._engine, self._session, lua),
                "tick": self._tick,
                "may": self._may,
                "log": self._log,
            }
        )

    @cached_property
    def _session(self) -> Session:
        """Runs the commands of scripts: it has no client and never waits."""
        session = Session(self._engine)
        session.authenticated = True
        session.may_block = False
        session.scripted = True
        return session

    def call(self, protocol: int, *arguments: Any) -> Any:
        """redis.call of any command (script_calls.py has the short way of most): a Lua value, or the table of an error.

        Raises nothing, see lua/native.py.
        """
        try:
            return self.lua.hand(self._command(protocol, arguments), protocol)
        except (ReplyError, _StartsAgain) as error:
            return self.lua.hand(error if isinstance(error, ReplyError) else ReplyError("not read yet"), protocol)
        except Exception as error:
            return self.lua.hand(internal_error(arguments, error), protocol)

    def _command(self, protocol: int, arguments: tuple[Any, ...]) -> Reply:
        if not arguments:
            raise ReplyError("Please specify at least one argument for this redis lib call")
        argv = [as_argument(argument) for argument in arguments]
        run = self.running
        ends = run is not None and time.monotonic() - run.looked > LATE and self._tick() is True
        if run is not None and (run.unread or run.rehearsed):
            raise _StartsAgain
        if ends:
            raise ReplyError("Script killed by user with SCRIPT KILL...")  # the next tick in Lua ends it
        is_trial = run is not None and run.rehearses
        try:
            command = self._admitted(argv, protocol)
        except ReplyError as error:
            if not is_trial:
                self._engine.count_rejected(argv, error)
            raise
        return self._engine.call(self._session, command, argv, caller=TRIAL if is_trial else CLIENT)

    def _admitted(self, argv: Argv, protocol: int) -> Command:
        """The command, if the script may run it now."""
        command = self._known.get(argv[0])
        if command is None or not command.low <= len(argv) <= command.high:
            command = self._look_up(argv)
        engine, session, run = self._engine, self._session, self.running
        assert run is not None, "a command from no script"
        if run.rehearses:
            self._rehearse_call(run, command, argv)
        if run.read_only and (Flag.MAY_REPLICATE in command.flags or command.may_write(argv)):
            raise ReplyError("Write commands are not allowed from read-only scripts.")
        session.protocol = protocol
        if engine.scripts_gated or not session.user.unrestricted:
            # A script that has begun to write may go on: half of it would be worse than a little too much memory.
            growing = run.allow_oom or run.wrote
            try:
                engine.pass_gates(session, command, argv, engine.acl.check_scripted, memory=not growing)
            except NoPerm as error:
                raise ReplyError(str(error)) from None
        if engine.busy_names.table:
            engine.lock_gate.check_script(session, command, argv)
        session.may_outgrow = run.allow_oom
        writes = command.writes and command.may_write(argv)
        if run.may_start_again and not run.wrote:
            self._look_ahead(run, command, argv)
            run.may_start_again = _only_reads(command, argv)
        run.wrote = run.wrote or writes
        return command

    def _rehearse_call(self, run: Run, command: Command, argv: Argv) -> None:
        """End the rehearsal if it has taken its time, has found what the script reads, or comes to a change or to what
        its user may not do.
        """
        user = self._session.user
        is_refused = not user.unrestricted and user.refusal(command, argv) is not None
        run.rehearsed = is_refused or time.monotonic() - run.started >= REHEARSAL
        if not run.rehearsed:
            self._look_ahead(run, command, argv)
            run.rehearsed = not _only_reads(command, argv)
        if run.rehearsed:
            raise _StartsAgain

    def _look_ahead(self, run: Run, command: Command, argv: Argv) -> None:
        """End the script before a command that would read files: a thread reads them, and the script starts again.

        Until then it has only read, so that nothing of it happens twice.
        """
        if command.foresees is not None:
            run.unread = read_from_files(self._session, run.argv, [(command, argv)])
            if run.unread:
                raise _StartsAgain

    def _look_up(self, argv: Argv) -> Command:
        """A command that a script may call; one without subcommands is remembered, as looking it up takes longest."""
        command = self._find(argv)
        if Flag.NOSCRIPT in command.flags and not (self.may_debug and command.name.startswith("DEBUG ")):
            raise ReplyError("This Redis command is not allowed from script")
        name = argv[0]
        if command is REGISTRY.by_name.get(name.upper()) and name in (name.upper(), name.lower()):
            self._known[name] = command
        return command

    def _find(self, argv: Argv) -> Command:
        """The command a script calls, with the words scripts get for mistakes."""
        command = self._engine.commands.find(argv)
        if command is None:
            raise ReplyError("Unknown Redis command called from script")
        try:
            command.check_arity(argv)
        except ReplyError:
            raise ReplyError("Wrong number of args calling Redis command from script") from None
        return command

    def _may(self, *arguments: Any) -> bool | None:
        """redis.acl_check_cmd: whether the user may run this; None if there is no such command."""
        try:
            argv = [as_argument(argument) for argument in arguments]
            command = self._find(argv)
        except ReplyError:
            return None
        user = self._session.user
        try:
            return user.unrestricted or user.refusal(command, argv) is None
        except ReplyError:  # no keys can be found in its words
            return True

    def _log(self, level: int, text: bytes) -> None:
        """redis.log: the line of a rehearsal comes when the script runs."""
        if self.running is None or not self.running.rehearses:
            line = text[:LONGEST_LINE].decode("utf-8", "backslashreplace")
            logger.log(_LOG_LEVELS[int(level)], "%s", line)

    def _tick(self) -> bool | int:
        """Lua asks from time to time: True if the script must end, else the milliseconds since it last asked."""
        run, engine = self.running, self._engine
        if run is None or run.unread or run.rehearsed:
            return run is not None
        now = time.monotonic()
        passed = int((now - run.looked) * 1000)
        run.looked = now
        if run.rehearses:
            run.rehearsed = now - run.started >= REHEARSAL
            return run.rehearsed or passed
        if not self.busy:
            threshold = engine.config.busy_reply_threshold
            if not threshold or now - run.started < threshold / 1000:
                return passed
            logger.warning("Slow script detected: still in execution after %d milliseconds.", threshold)
            self.busy = True
            engine.require_gates(BUSY_SCRIPT, True)
        if now - run.polled >= POLL_INTERVAL:
            run.polled = now
            seen = engine.clock.now
            try:
                engine.serve_while_script_runs()
            except Exception as error:  # none of their errors may reach the script
                logger.exception("cannot read from other clients", exc_info=error)
            engine.clock.now = seen  # the script's clock does not advance
        return run.killed or (run.interrupted and self._ends_by_signal(run)) or passed


def _shebang(source: bytes) -> tuple[frozenset[str] | None, bytes]:
    """The flags of a script's first line, None if it is no shebang; and the source with that line blanked."""
    if not source.startswith(b"#!"):
        return None, source
    head, newline, body = source.partition(b"\n")
    if not newline:
        raise ReplyError("Invalid script shebang")
    try:
        engine, *options = [word.decode("utf-8", "backslashreplace") for word in split_inline(head)]
    except ProtocolError:
        raise ReplyError("Invalid engine in script shebang") from None
    if engine != "#!lua":
        raise ReplyError(f"Unexpected engine in script shebang: {engine}")
    flags: set[str] = set()
    for option in options:
        if not option.startswith("flags="):
            raise ReplyError(f"Unknown lua shebang option: {option}")
        names = option.removeprefix("flags=")
        for flag in names.split(",") if names else []:
            if flag not in _FLAGS:
                raise ReplyError(f"Unexpected flag in script shebang: {flag}")
            flags.add(flag)
    return frozenset(flags), newline + body


def _only_reads(command: Command, argv: Argv) -> bool:
    """Whether nothing has happened after a command, so that the script may start again."""
    return Flag.READONLY in command.flags or (command.writes and not command.may_write(argv))
