"""The fast path: what the inner loop of the server needs to run a FAST command without the engine.

The inner loop (server/inner_loop.py and its compiled twin) calls handlers itself and counts in place: a call of
`run_handler` costs more than a whole GET does there. So it is one of three short ways that run handlers without that
(run_handler.py lists them), and must do the same as `Engine.execute` with `run_handler.CLIENT` does, less what cannot
apply:

- no gates, no LAZY, no MONITOR: `Engine.require_gates` empties the table while one of them matters
- no keys that are locked or queued for: the loop hands a command over if an argument is a busy name
- no threads: a handler that has work for one raises LongWay, and the command starts again on the whole way
- time is sampled (observe/statistics.py), and the latency monitor sees what is timed
- the lease of a server of a shard: handlers that write are wrapped in `_leased`, which asks as the gate does, or ask
  for it in `_logged_and_marked`
- the log: handlers that write are wrapped in `_logged`, which does what `run_handler` does for it. Where a reply may
  become an error afterwards (`engine.strict`), it comes out of `_logged_and_marked` as bytes that say so

tests/server/test_fast_path.py sends the same commands both ways, through both inner loops, and compares the replies,
the counters, the log and the data. Scripts and ONCE use the table too, to know which commands need no gates.

FastCommand is the one definition of a row. The compiled loop takes the place of each field from `FastCommand._fields`.

Owned by the loop thread.
"""

from __future__ import annotations

import functools
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.engine.declarations import Argv, Command, Flag, Handler, Reply, Together
from penstock.engine.server_commands import ServerCommands
from penstock.engine.session import Unconfirmed
from penstock.protocol.resp import OK, RawPieces, encode

if TYPE_CHECKING:
    from penstock.engine.dispatch import Engine
    from penstock.engine.leadership import Leadership
    from penstock.engine.observe.statistics import Stats
    from penstock.engine.session import Session


_MARKED_OK = Unconfirmed(encode(OK))


class FastCommand(NamedTuple):
    """What the inner loop knows of a command."""

    command: Command
    handler: Handler  # the command's, or that with `logged` around it
    low: int  # the fewest words
    high: int
    counters: array[int]  # see statistics.py
    together: Callable[[Session, list[Argv]], Reply] | None = None  # the command's, or that with the same around it
    reads: int = 0  # the place of the last key that it reads, -1 for the last argument, 0 if it does not read
    timed: bool = False  # every call is, not some of them: it may take long
    brief: bool = False  # it only reads, and with more words it takes the whole way
    last_key: int = -1  # the place of the last argument that may be a key; -1 if that depends on the arguments


FastTable = dict[bytes, FastCommand]


def fast_table(stats: Stats, commands: ServerCommands) -> FastTable:
    """Every command that the inner loop may run without gates, in both cases a client is likely to write."""
    table: FastTable = {}
    for name, command in commands.by_name():
        if (declared := _declared(command)) is not None:
            table[name] = table[name.lower()] = FastCommand(
                command=command,
                handler=command.handler,
                counters=stats.calls[command.name],
                together=command.together,
                **declared,
            )
    return table


@functools.cache
def _declared(command: Command) -> dict[str, Any] | None:
    """The fields of a row that follow from the declaration; None if the inner loop must not run the command."""
    brief = Flag.BRIEF in command.flags
    quick = command.flags & (Flag.FAST | Flag.DIRECT) and Flag.BLOCKING not in command.flags
    if not (brief or quick) or not command.keys or command.beyond is not None:  # it reaches further than its arguments
        return None
    if any(spec.movable or (spec.first, spec.step) != (1, 1) for spec in command.reads):
        return None  # it is not worth a rule of its own which of its keys were there
    return {
        "low": command.low,
        "high": command.low if brief else command.high,
        "reads": command.reads[0].last if command.reads else 0,
        "timed": brief or (not command.writes and Flag.FAST not in command.flags),
        "brief": brief,
        "last_key": _last_key(command),
    }


def _last_key(command: Command) -> int:
    if any(spec.movable or spec.last < 0 for spec in command.keys):
        return -1
    return max(spec.last for spec in command.keys)


def with_log(table: FastTable, engine: Engine, append: Callable[[int, Argv], None], strict: bool) -> FastTable:
    """The rows while there is a log: handlers that write are logged, and with `strict` their replies are marked."""
    rows: FastTable = {}
    for name, known in table.items():
        if known.brief or not known.command.writes:
            rows[name] = known
            continue
        row = known._replace(handler=(_logged_and_marked if strict else _logged)(engine, known.handler, append))
        if known.command.together is not None:
            together = _logged_together(engine, known.command.together)
            row = row._replace(together=_marked_together(engine, together) if strict else together)
        rows[name] = row if engine.leadership is None else _leased(engine.leadership, row, strict)
    return rows


def _leased(leadership: Leadership, row: FastCommand, strict: bool) -> FastCommand:
    """A row that is asked for its lease first, as the gates do; with `strict` its handler does that itself."""
    check, handler, together = leadership.check_write, row.handler, row.together

    def run(session: Session, argv: Argv) -> Reply:
        check()
        return handler(session, argv)

    def run_together(session: Session, commands: list[Argv]) -> Reply:
        assert together is not None
        check()
        return together(session, commands)

    return row._replace(handler=handler if strict else run, together=None if together is None else run_together)


def _logged(engine: Engine, handler: Handler, append: Callable[[int, Argv], None]) -> Handler:
    """A handler, and what `run_handler` does about the log; no unit is under way on the fast path."""
    keyspace = engine.keyspace

    def run(session: Session, argv: Argv) -> Reply:
        before = keyspace.dirty
        session.effects = None
        try:
            return handler(session, argv)
        finally:
            if keyspace.dirty != before:
                if session.effects is None:
                    append(session.db.index, argv)
                else:
                    engine.propagate(session.db, session.effects)

    return run


def _logged_and_marked(engine: Engine, handler: Handler, append: Callable[[int, Argv], None]) -> Handler:
    """The same, and its reply is marked if it acknowledges a change. The lease is asked for here: a call less."""
    keyspace, leadership = engine.keyspace, engine.leadership

    def run(session: Session, argv: Argv) -> Reply:
        if leadership is not None and not (leadership.leading and leadership.ready and leadership.holds()):
            leadership.check_write()
        before = keyspace.dirty
        session.effects = None
        try:
            reply = handler(session, argv)
        finally:
            if changed := keyspace.dirty != before:
                if session.effects is None:
                    append(session.db.index, argv)
                else:
                    engine.propagate(session.db, session.effects)
        if not changed:
            return reply
        return _MARKED_OK if reply is OK else Unconfirmed(encode(reply, session.protocol))

    return run


def _logged_together(engine: Engine, together: Together) -> Together:
    """The same for several calls at once, which say themselves what to log (`session.log`)."""

    def run(session: Session, commands: list[Argv]) -> int | RawPieces:
        session.effects = None
        try:
            return together(session, commands)
        finally:
            if session.effects is not None:
                engine.propagate(session.db, session.effects)

    return run


def _marked_together(engine: Engine, together: Together) -> Callable[[Session, list[Argv]], Reply]:
    """The same for several calls at once."""
    keyspace = engine.keyspace

    def run(session: Session, commands: list[Argv]) -> Reply:
        before = keyspace.dirty
        reply = together(session, commands)
        if keyspace.dirty == before:
            return reply
        count = len(commands)
        if isinstance(reply, int):
            return Unconfirmed.of(count, b"".join(b":%d\r\n" % number for number in range(reply, reply + count)))
        return Unconfirmed.of(count, b"".join(reply.pieces))

    return run
