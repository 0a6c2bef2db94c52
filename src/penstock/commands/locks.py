"""LOCKS shows key locks, DEBUG LOCK makes one for tests. The locks are in engine/concurrency/locks.py."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.commands.debugging import FLAGS, check_allowed
from penstock.engine.arguments import to_integer
from penstock.engine.concurrency.locks import KeyLock
from penstock.engine.concurrency.workers import Job
from penstock.engine.declarations import Access, Argv, Flag, KeySpec, Reply, command
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError, syntax_error
from penstock.protocol.resp import OK

LONGEST_HOLD = 1 << 31
"""Milliseconds."""


def _access(argv: Sequence[bytes]) -> Access:
    return Access.READ if argv[3].upper() == b"READ" else Access.UPDATE


@command(
    "DEBUG LOCK",
    arity=-5,
    flags=FLAGS | Flag.NO_MULTI,
    keys=(KeySpec(Access.UPDATE, 4, -1, narrow=_access),),
    group="server",
    syntax="milliseconds READ | WRITE key [key ...]",
    cost="O(N) with N keys",
)
def debug_lock(session: Session, argv: Argv) -> Reply:
    """Lock keys for so many milliseconds as a command that runs in a thread would, then answer OK."""
    check_allowed(session)
    milliseconds = to_integer(argv[2])
    if not 0 <= milliseconds <= LONGEST_HOLD:
        raise ReplyError(f"milliseconds must be between 0 and {LONGEST_HOLD}")
    if argv[3].upper() not in (b"READ", b"WRITE"):
        raise syntax_error()
    return session.engine.workers.hold(session, milliseconds, lambda _: OK)


@command("LOCKS", arity=1, flags=Flag.ADMIN | Flag.NOSCRIPT, group="server", cost="O(N) with N locked keys")
def locks(session: Session, argv: Argv) -> Reply:
    """Answer a row for each key that is locked or waited for.

    A row has the database, the key, the type of the lock (read, write, or pending if clients only wait for it), its age
    in milliseconds, the ids of the clients that hold it, and the ids of those that wait for it, in order. A queued LAZY
    command holds keys for no client.
    """
    return [
        _row(session, database.index, lock)
        for database in session.engine.keyspace.databases
        for lock in database.locked.values()
    ]


def _row(session: Session, index: int, lock: KeyLock) -> dict[bytes, Reply]:
    owners = [lock.writer] if lock.writer is not None else list(lock.readers)
    return {
        b"db": index,
        b"key": lock.key,
        b"type": lock.kind.value.encode(),
        b"milliseconds": session.engine.clock.now - lock.since,
        b"clients": [owner.session.id for owner in owners if isinstance(owner, Job) and owner.later is None],
        b"waiting": [wait.who.id for wait in lock.queue if isinstance(wait.who, Session)],
    }
