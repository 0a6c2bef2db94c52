"""Transactions: MULTI, EXEC, DISCARD, WATCH, UNWATCH."""

from __future__ import annotations

from penstock.engine import transactions
from penstock.engine.declarations import Access, Argv, Effect, Flag, Reply, command, keys
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError
from penstock.protocol.resp import OK

_QUICK = Flag.NOSCRIPT | Flag.LOADING | Flag.STALE | Flag.FAST | Flag.ALLOW_BUSY


@command("MULTI", arity=1, flags=_QUICK | Flag.CONTROL, group="transactions")
def multi(session: Session, argv: Argv) -> Reply:
    """Start a transaction: the commands that follow are queued, and run together at EXEC."""
    if session.transaction is not None:
        raise ReplyError("MULTI calls can not be nested")
    session.transaction = transactions.Transaction()
    return OK


@command(
    "EXEC",
    arity=1,
    flags=Flag.NOSCRIPT | Flag.LOADING | Flag.STALE | Flag.SKIP_SLOWLOG | Flag.CONTROL,
    group="transactions",
    cost="That of the queued commands",
)
def exec_(session: Session, argv: Argv) -> Reply:
    """Run the queued commands with no other command in between, and answer all their replies.

    If a watched key changed, the answer is null and nothing runs. A command that fails does not stop the others.
    """
    if session.transaction is None:
        raise ReplyError("EXEC without MULTI")
    return transactions.run(session, argv)


@command("DISCARD", arity=1, flags=_QUICK | Flag.CONTROL, group="transactions", cost="O(N) with N keys watched")
def discard(session: Session, argv: Argv) -> Reply:
    """Forget the queued commands and stop watching."""
    if session.transaction is None:
        raise ReplyError("DISCARD without MULTI")
    transactions.discard(session)
    return OK


@command(
    "WATCH",
    arity=-2,
    flags=_QUICK | Flag.CONTROL | Flag.PEEKS,
    keys=keys(1, -1, Access.READ, Effect.SIGHT),
    group="transactions",
    syntax="key [key ...]",
    cost="O(1) a key",
)
def watch(session: Session, argv: Argv) -> Reply:
    """Make the next EXEC run nothing if one of the keys is changed, expires or is deleted before it."""
    if session.transaction is not None:
        raise ReplyError("WATCH inside MULTI is not allowed")
    transactions.watch(session, argv[1:])
    return OK


@command("UNWATCH", arity=1, flags=_QUICK, group="transactions", cost="O(N) with N keys watched")
def unwatch(session: Session, argv: Argv) -> Reply:
    """Stop watching all keys."""
    transactions.unwatch(session)
    return OK
