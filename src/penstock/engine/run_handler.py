"""The one function that runs the handler of a command, and does what follows from running it.

What follows depends on the caller, which says it with one of the constants below:

| caller  | used for                                                     | counted | answered | logged | changes |
|---------|--------------------------------------------------------------|---------|----------|--------|---------|
| CLIENT  | a client's command, also in EXEC or a script; a thread's commit | yes  | yes      | yes    | yes     |
| AGAIN   | the same, when a blocked command is tried again              | not the call | yes | yes    | yes     |
| QUEUED  | a LAZY command, when it runs                                 | yes     | no       | no     | no      |
| INNER   | the command inside ONCE or TAPPLY                            | no      | no       | no     | yes     |
| REPLAY  | a command that is read from the log                          | no      | no       | no     | yes     |
| TRIAL   | a read of a script that is rehearsed                         | no      | no       | no     | none    |

- counted: INFO commandstats, keyspace hits and misses, the slow log and the latency monitor.
- answered: a client gets the reply, so total_commands_processed, errorstats and MONITOR know of it.
- logged: what it changed goes to the log, and under `appendfsync always` its reply waits for that.
- changes: what it changed counts for the save rules (`keyspace.dirty`). A LAZY command was logged and counted as a
  change when it was enqueued. The command around an INNER one logs for both.

The clock is set back with `moment`, for the time of the handler alone. Errors are counted here and raised to the
caller, which answers, collects or logs them.

Blocked clients are not woken here. `Database` notes keys that they wait for in `keyspace.ready`, and the loop calls
`blocking.serve` when the whole is over: a transaction and a script are one step for other clients. A caller that runs
outside of a client's command, such as LAZY's idle moments, calls it itself.

Three short ways call handlers without this function. Each must do the same, and a test compares them:

- the inner loop and its compiled twin (fast_path.py says why): tests/server/test_fast_path.py
- redis.call's, script_calls.py and its compiled twin: tests/engine/test_script_calls.py
- ONCE's, `_at_once` in commands/once.py: tests/server/test_fast_path.py and tests/commands/test_once.py

Rejected: a function for each caller. There were nine, four of them counted, and no two counted the same.

Owned by the loop thread.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import perf_counter_ns
from typing import TYPE_CHECKING

from penstock.engine.declarations import Argv, Command, Flag, Handler, Reply
from penstock.engine.observe.statistics import CALLS, COMMANDS, FAILED, HITS, MISSES, NANOSECONDS, PLACE_OF_TIME
from penstock.protocol.errors import ReplyError
from penstock.protocol.resp import NO_REPLY

if TYPE_CHECKING:
    from penstock.engine.dispatch import Engine
    from penstock.engine.session import Session


class NotNow(Exception):
    """Raised out of a handler that works for no client: its keys cannot be locked at the moment."""


@dataclass(frozen=True, slots=True)
class Caller:
    """What follows from a run; the table above has a column for each field."""

    counted: bool
    answered: bool
    logged: bool
    changes: bool = True
    calls: int = 1  # what is added to the calls of the command: 0 if it was counted when it came
    bare: bool = False  # nothing follows: `session.current` and `session.effects` stay those of the command around it


CLIENT = Caller(counted=True, answered=True, logged=True)
AGAIN = replace(CLIENT, calls=0)
QUEUED = Caller(counted=True, answered=False, logged=False, changes=False)
INNER = Caller(counted=False, answered=False, logged=False, bare=True)
REPLAY = Caller(counted=False, answered=False, logged=False, bare=True)

TRIAL = Caller(counted=False, answered=False, logged=False)


def handler_for(command: Command, caller: Caller) -> Handler:
    """What a bare caller with very many commands may call in place of `run_handler`: nothing follows from them.

    The call of `run_handler` was a tenth of what a replica does.
    """
    assert caller.bare
    return command.handler


def run_handler(
    engine: Engine, session: Session, command: Command, argv: Argv, caller: Caller,
    handler: Handler | None = None, spent: int = 0, moment: int | None = None,
) -> Reply:  # fmt: skip
    """Run a command's handler for a caller, and return its reply or raise its error.

    `handler` replaces the declared one: it is the rest of a command after a thread has worked on it for `spent`
    nanoseconds. The clock shows `moment` while it runs.

    A handler that has handed its work to a thread, or waits for a lock, has not run yet: nothing is counted until its
    commit.
    """
    if caller.bare and moment is None:
        return command.handler(session, argv)
    clock = engine.clock
    now = clock.now
    if moment is not None:
        clock.now = moment
    if caller.bare:
        try:
            return command.handler(session, argv)
        finally:
            clock.now = now
    keyspace = engine.keyspace
    dirty, outer = keyspace.dirty, session.current
    session.current = (command, argv)
    session.effects = None
    reply: Reply = None
    started = perf_counter_ns() - spent
    try:
        reply = (handler or command.handler)(session, argv)
        return reply
    except NotNow:
        reply = NO_REPLY
        raise
    except ReplyError as error:
        if caller.counted:
            engine.stats.calls[command.name][FAILED] += 1
        if caller.answered:
            engine.stats.count_error(error)
        raise
    finally:
        session.current = outer
        if moment is not None:
            clock.now = now
        waiter = session.waiter
        with_thread = reply is NO_REPLY and session.later is not None  # a LAZY command
        if not with_thread and (waiter is None or waiter.keys):  # else it is with a thread, or waits for locks
            if caller.counted:
                took = perf_counter_ns() - started
                session.turn = None
                counters, tally = engine.stats.calls[command.name], engine.stats.tally
                counters[CALLS] += caller.calls
                counters[NANOSECONDS] += took
                counters[PLACE_OF_TIME[took.bit_length()]] += caller.calls
                if command.reads_one:
                    tally[HITS if argv[command.reads_one] in session.db.data else MISSES] += 1
                elif command.reads:
                    engine.count_lookups(session.db.data, command, argv)
                if took >= engine.slow_log.threshold or took >= engine.latency.threshold:
                    engine.notice(session, command, argv, took)
            if caller.logged and keyspace.dirty != dirty:
                if command.writes:
                    engine.propagate(session.db, session.effects if session.effects is not None else [argv])
                session.unconfirmed = True
            if caller.answered:
                engine.stats.tally[COMMANDS] += caller.calls
                if engine.monitors.sessions and Flag.SKIP_MONITOR not in command.flags:
                    engine.monitors.feed(session, command, argv)
        if not caller.changes:
            keyspace.dirty = dirty
