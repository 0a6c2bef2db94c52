"""SLOWLOG: the commands that took long."""

from __future__ import annotations

from itertools import islice

from penstock.engine.arguments import to_integer
from penstock.engine.declarations import Argv, Flag, Reply, command
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError
from penstock.protocol.resp import OK

OPERATOR = Flag.ADMIN | Flag.LOADING | Flag.STALE


def _bad_count() -> ReplyError:
    return ReplyError("count should be greater than or equal to -1")


@command("SLOWLOG GET", arity=-2, flags=OPERATOR, group="server", syntax="[count]", cost="O(N) with N rows")
def slowlog_get(session: Session, argv: Argv) -> Reply:
    """Answer the latest slow commands, ten unless told otherwise, all of them for -1.

    A row is: its number, the Unix time, the microseconds it took, the arguments (long ones cut), the client's address
    and its name.
    """
    if len(argv) > 3:
        raise ReplyError("unknown subcommand or wrong number of arguments for 'get'. Try SLOWLOG HELP.")
    count = to_integer(argv[2], _bad_count) if len(argv) == 3 else 10
    if count < -1:
        raise _bad_count()
    rows = session.engine.slow_log.rows
    return [
        [row.id, row.time, row.microseconds, row.argv, row.peer, row.name]
        for row in islice(rows, len(rows) if count == -1 else count)
    ]


@command("SLOWLOG LEN", arity=2, flags=OPERATOR, group="server")
def slowlog_len(session: Session, argv: Argv) -> Reply:
    """Answer how many commands the slow log holds."""
    return len(session.engine.slow_log.rows)


@command("SLOWLOG RESET", arity=2, flags=OPERATOR, group="server", cost="O(N) with N rows")
def slowlog_reset(session: Session, argv: Argv) -> Reply:
    """Forget every slow command."""
    session.engine.slow_log.rows.clear()
    return OK
