"""redis.call's short way: a FAST command that a script calls while no gate matters.

`direct_call` does in one function what `Scripting.call` does in six: each function that Python calls takes about as
long as a tenth of a command, and a script calls thousands. It must do the same as `Engine.call`, less what cannot
apply, as the inner loop does for clients (fast_path.py says what). Whatever it does not know it leaves to
`Scripting.call`; until then it has changed nothing.

There are two versions of `direct_call` with one set of tests: this one, and `_script_calls.pyx`, which Cython compiles
if there is a C compiler when the package is installed. The compiled one is used unless PENSTOCK_PURE is set.

Owned by the loop thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.compiled import use_compiled
from penstock.engine.concurrency.workers import LongWay
from penstock.engine.declarations import Argv, Command, Flag, Handler, Reply
from penstock.engine.observe.monitors import in_short
from penstock.engine.observe.slow_log import QUICKEST_TIMED
from penstock.engine.observe.statistics import CALLS, COMMANDS, FAILED, HITS, MANY_ARGUMENTS, MISSES, SAMPLE, UNTIMED
from penstock.engine.run_handler import CLIENT, run_handler
from penstock.protocol.errors import ReplyError
from penstock.protocol.resp import OK

if TYPE_CHECKING:
    from array import array

    from penstock.engine.dispatch import Engine
    from penstock.engine.lua.interpreter import Lua
    from penstock.engine.scripting import Scripting
    from penstock.engine.session import Session

logger = logging.getLogger("penstock.script")

EXACT = 10**17  # integers below it have no more than 17 digits
_SLOW = QUICKEST_TIMED * 1000


class Row(NamedTuple):
    """What `direct_call` knows of a command. It is taken apart at once: a field by name takes longer."""

    command: Command
    handler: Handler
    low: int  # the fewest words
    high: int
    writes: bool
    reads_one: int  # the place of the one key that it reads, or 0
    reads_more: bool
    counters: array[int]  # see observe/statistics.py


def rows_of(engine: Engine) -> dict[bytes, Row]:
    """Commands of the inner loop that cannot take long."""
    return {
        name: Row(
            command=known.command,
            handler=known.command.handler,
            low=known.low,
            high=known.high,
            writes=known.command.writes,
            reads_one=known.command.reads_one,
            reads_more=not known.command.reads_one and bool(known.reads),
            counters=known.counters,
        )
        for name, known in engine.every_fast.items()
        if not known.timed
        and not known.command.flags & (Flag.NOSCRIPT | Flag.MAY_REPLICATE)
        and known.command.foresees is None
    }


def direct_call(scripting: Scripting, engine: Engine, session: Session, lua: Lua) -> Callable[..., Any]:
    """redis.call as Lua calls it: (protocol, *arguments) -> a Lua value, or the table of an error.

    The function raises nothing, see lua/native.py.
    """
    rows = rows_of(engine)
    call_other, hand, ok_mark = scripting.call, lua.hand, lua.ok_mark
    keyspace, stats, tally = engine.keyspace, engine.stats, engine.stats.tally
    busy, queued = engine.busy_names.table, engine.lazy.pending

    def call(protocol: int, *arguments: Any) -> Any:
        try:
            row = rows.get(arguments[0]) if arguments else None
            run = scripting.running
            if row is None or run is None or run.unread or engine.scripts_gated or busy or queued:
                return call_other(protocol, *arguments)
            command, handler, low, high, writes, reads_one, reads_more, counters = row
            if not low <= len(arguments) <= high or not session.user.unrestricted:
                return call_other(protocol, *arguments)
            argv: Argv = list(arguments)
            for place, argument in enumerate(argv):
                if type(argument) is not bytes:
                    argv[place] = as_argument(argument)
            if writes and not run.wrote:
                if run.read_only:
                    return call_other(protocol, *arguments)
                run.wrote = True
            session.protocol = protocol
            session.effects = None
            dirty = keyspace.dirty
            alone = len(argv) > MANY_ARGUMENTS
            timed = alone or counters[UNTIMED] + 1 >= SAMPLE or counters[CALLS] < SAMPLE
            began = perf_counter_ns() if timed else 0
            reply: Reply = None
            try:
                reply = handler(session, argv)
            except LongWay:
                return hand(run_handler(engine, session, command, argv, CLIENT), protocol)
            except ReplyError as error:
                counters[FAILED] += 1
                stats.count_error(error)
                reply = error
            if timed:
                took = perf_counter_ns() - began
                stats.count_time(counters, took, alone)
                if took >= _SLOW:
                    engine.notice(session, command, argv, took)
            else:
                counters[UNTIMED] += 1
            counters[CALLS] += 1
            tally[COMMANDS] += 1
            if reads_one:
                tally[HITS if argv[reads_one] in session.db.data else MISSES] += 1
            elif reads_more:
                engine.count_lookups(session.db.data, command, argv)
            if keyspace.dirty != dirty and engine.log is not None:
                engine.propagate(session.db, [argv] if session.effects is None else session.effects)
            if type(reply) is int and -EXACT < reply < EXACT:
                return reply
            return ok_mark if reply is OK else hand(reply, protocol)
        except ReplyError as error:
            return hand(error, protocol)
        except Exception as error:
            return hand(internal_error(arguments, error), protocol)

    return call


def as_argument(value: Any) -> bytes:
    """A word of a command, from a Lua value."""
    if type(value) is bytes:
        return value
    if type(value) is int and -EXACT < value < EXACT:
        return b"%d" % value  # the same, and quicker
    if type(value) is int or type(value) is float:
        return b"%.17g" % value
    raise ReplyError("Lua redis lib command arguments must be strings or integers")


def internal_error(arguments: tuple[Any, ...], error: Exception) -> ReplyError:
    """A bug of ours is the script's error, not the server's end."""
    logger.exception("internal error in a script's %r", in_short(arguments), exc_info=error)
    return ReplyError(f"internal error: {error!r}")


COMPILED = use_compiled(globals(), "penstock.engine._script_calls", "direct_call")

__all__ = ["COMPILED", "EXACT", "Row", "as_argument", "direct_call", "internal_error", "rows_of"]
