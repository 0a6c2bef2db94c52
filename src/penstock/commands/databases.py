"""Whole databases: SELECT, DBSIZE, FLUSHDB, FLUSHALL, SWAPDB."""

from __future__ import annotations

from penstock.engine.arguments import to_int32
from penstock.engine.declarations import Argv, Beyond, Flag, Reach, Reply, command
from penstock.engine.dispatch import Engine
from penstock.engine.keyspace.databases import Database
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError, syntax_error
from penstock.protocol.resp import OK


def database_index(session: Session, raw: bytes) -> int:
    """A database number that exists."""
    index = to_int32(raw)
    if not 0 <= index < len(session.engine.keyspace):
        raise ReplyError("DB index is out of range")
    return index


@command("SELECT", arity=2, flags=Flag.LOADING | Flag.STALE | Flag.FAST, group="connection", syntax="index")
def select(session: Session, argv: Argv) -> Reply:
    """Use the database with this number from now on."""
    session.db = session.engine.keyspace[database_index(session, argv[1])]
    return OK


@command(
    "DBSIZE",
    arity=1,
    flags=Flag.READONLY | Flag.FAST,
    group="server",
    categories=["keyspace", "read"],
    beyond=Beyond(Reach.DATABASE, "counts every key of the database"),
)
def dbsize(session: Session, argv: Argv) -> Reply:
    """Answer the number of keys in the database, expired ones that are not deleted yet included."""
    return len(session.db)


def _check_flush(argv: Argv) -> None:
    if len(argv) > 2 or (len(argv) == 2 and argv[1].upper() not in (b"SYNC", b"ASYNC")):
        raise syntax_error()


def _flush(engine: Engine, databases: list[Database]) -> None:
    keyspace = engine.keyspace
    before = keyspace.dirty
    for database in databases:
        engine.lazy.discard(database)
        database.clear()
        engine.streams.cleared(database)
    if keyspace.dirty == before:
        keyspace.dirty += 1  # logged even if there were no keys, because queued LAZY commands are gone


_FLUSH = {"keyspace", "dangerous"}


@command("FLUSHDB", arity=-1, flags=Flag.WRITE, group="server", syntax="[ASYNC | SYNC]", cost="O(1)", categories=_FLUSH)
def flushdb(session: Session, argv: Argv) -> Reply:
    """Remove every key of the database."""
    _check_flush(argv)
    _flush(session.engine, [session.db])
    return OK


@command(
    "FLUSHALL", arity=-1, flags=Flag.WRITE, group="server", syntax="[ASYNC | SYNC]", cost="O(1)", categories=_FLUSH
)
def flushall(session: Session, argv: Argv) -> Reply:
    """Remove every key of every database.

    If there are save rules, the snapshot on disk is also replaced before the reply.
    """
    _check_flush(argv)
    _flush(session.engine, session.engine.keyspace.databases)
    if session.engine.persistence is not None:
        session.engine.persistence.save_nothing()
    return OK


@command(
    "SWAPDB",
    arity=3,
    flags=Flag.WRITE | Flag.FAST,
    group="server",
    syntax="index1 index2",
    cost="O(N) with N clients that watch or wait for keys of the two",
    categories=["keyspace", "dangerous"],
    beyond=Beyond(Reach.SERVER, "changes two databases"),
)
def swapdb(session: Session, argv: Argv) -> Reply:
    """Exchange the contents of two databases; clients stay on the number they selected."""
    one = to_int32(argv[1], lambda: ReplyError("invalid first DB index"))
    other = to_int32(argv[2], lambda: ReplyError("invalid second DB index"))
    if not (0 <= one < len(session.engine.keyspace) and 0 <= other < len(session.engine.keyspace)):
        raise ReplyError("DB index is out of range")
    if one == other:
        session.engine.keyspace.dirty += 1  # counts as a change even if both are empty: Redis logs it as well
        return OK
    session.engine.keyspace.swap(one, other)
    session.engine.streams.swapped(one, other)
    return OK
