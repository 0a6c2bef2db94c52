"""MULTI, EXEC and WATCH: a session's queue of commands, and the keys that must not change before it runs.

Dispatch puts commands into the queue; here is what EXEC makes of it. A watch is an entry in `Database.observed`, so a
write pays for it only where a client watches, and `Database` itself breaks it. The one change without a write is the
passing of time: a watched key that has expired but was not deleted yet is found by `run`.

Invariant: outside a handler, `session.watching` and the watchers of every database name the same pairs.

Rejected: comparing versions of keys at EXEC. It costs every value a counter, and a key that was deleted and made again
looks unchanged.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from penstock.engine.declarations import Argv, Command, Reply
from penstock.engine.hidden_changes import REFUSED
from penstock.engine.internal_errors import internal_error
from penstock.engine.stream_history import fetch_first, may_fetch_first, read_from_files
from penstock.protocol.errors import ExecAbort, NoPerm, NoReplicas, ReplyError
from penstock.protocol.resp import NULL_ARRAY

if TYPE_CHECKING:
    from penstock.engine.session import Session


AN_ARGUMENT = 64
"""Bytes an argument takes besides its own."""


class Transaction:
    """What a session queued since MULTI."""

    def __init__(self) -> None:
        self.queue: list[tuple[Command, Argv]] = []
        self.size = 0  # bytes that the queue takes, about
        self.aborted = False  # an error while queueing: EXEC must refuse

    def add(self, command: Command, argv: Argv) -> None:
        """Queue one more command."""
        self.queue.append((command, argv))
        self.size += sum(map(len, argv)) + AN_ARGUMENT * len(argv)


def watch(session: Session, keys: list[bytes]) -> None:
    """Have the session's next EXEC refuse if one of these keys changes before it."""
    database = session.db
    for key in keys:
        # Looking at a key deletes it if it has expired, so that its end, already past, breaks nothing of ours later.
        database.get(key)
        watchers = database.observed.of(key).watchers
        if session not in watchers:
            watchers.add(session)
            session.watching.append((database, key))


def unwatch(session: Session) -> None:
    """Stop watching every key of the session."""
    for database, key in session.watching:
        observers = database.observed.get(key)
        if observers is not None:
            observers.watchers.discard(session)
            database.observed.forget(key)
    session.watching.clear()
    session.watch_broken = False


def discard(session: Session) -> None:
    """Leave the transaction, if there is one, and stop watching."""
    session.transaction = None
    unwatch(session)


def refused(session: Session, argv: Argv, error: ReplyError) -> ReplyError:
    """The error for a command that was refused; inside MULTI it also means that EXEC will run nothing.

    If EXEC itself is refused, there is nothing left to wait for: the transaction is over.
    """
    session.fetched = None
    if argv[0].upper() == b"EXEC":
        discard(session)
        return _aborted_by(error)
    if session.transaction is not None:
        session.transaction.aborted = True
    return error


def _aborted_by(error: ReplyError) -> ExecAbort:
    reason = str(error) if error.code == "ERR" else f"{error.code} {error}"
    return ExecAbort(f"Transaction discarded because of: {reason}")


def run(session: Session, argv: Argv) -> Reply:
    """Run everything that was queued as one unit of the log; no blocked client is served before it is over.

    If it will read messages that lie in files, a thread fetches them first; until then nothing has happened.
    """
    transaction = session.transaction
    assert transaction is not None, "EXEC checks that there is one"
    engine = session.engine
    for database, key in session.watching:
        engine.lazy.run_for(database, key)
    broken = session.watch_broken or any(database.is_expired(key) for database, key in session.watching)
    if not (transaction.aborted or broken) and may_fetch_first(session, argv):
        began = monotonic()
        places = read_from_files(session, argv, transaction.queue)
        if places:
            return fetch_first(session, argv, places, began)
    discard(session)
    try:
        refusals = _gates_again(session, transaction) if engine.gates_matter(session) else {}
        if transaction.aborted:
            raise ExecAbort
        if broken:
            engine.hidden_changes.refuse_reads()  # that is what a change of a watched key may be
            return NULL_ARRAY
        return _run_queue(session, transaction, refusals)
    finally:
        session.fetched = None


def _run_queue(session: Session, transaction: Transaction, refusals: dict[int, ReplyError]) -> Reply:
    engine = session.engine
    may_block, session.may_block = session.may_block, False
    try:
        with engine.unit():
            replies = [
                refusals.get(at) or _reply(session, command, argv)
                for at, (command, argv) in enumerate(transaction.queue)
            ]
        if engine.hidden_changes:  # since a REPLICAOF among them: what was read before it may be lost
            replies = [
                NoReplicas(REFUSED) if engine.hidden_changes.concern(command) else reply
                for reply, (command, _) in zip(replies, transaction.queue, strict=True)
            ]
        return replies
    finally:
        session.may_block = may_block


def _reply(session: Session, command: Command, argv: Argv) -> Reply:
    """A queued command's reply; its error is one too and stops nothing."""
    engine = session.engine
    try:
        if engine.following:  # perhaps since the command before it: REPLICAOF
            engine.refuse_as_replica(command, argv)
        return engine.call(session, command, argv)
    except ReplyError as error:
        return error.as_reply()
    except Exception as error:
        return internal_error(argv, error)


def _gates_again(session: Session, transaction: Transaction) -> dict[int, ReplyError]:
    """Ask the gates about every queued command once more: their state may have changed since it was queued.

    A permission that was removed refuses the one command, whose place in the queue is answered here; anything else (no
    memory, loading, the disk) refuses them all.
    """
    engine = session.engine
    refusals: dict[int, ReplyError] = {}
    for at, (command, argv) in enumerate(transaction.queue):
        try:
            engine.pass_gates(session, command, argv, permission=engine.acl.check_queued)
        except NoPerm as error:
            refusals[at] = error.as_reply()
        except ReplyError as error:
            raise _aborted_by(error) from None
    return refusals
