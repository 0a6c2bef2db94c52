"""LAZY: a write that is answered at once and runs later (engine/concurrency/lazy.py)."""

from __future__ import annotations

from penstock.engine.concurrency.lazy_rules import NAME, refusal
from penstock.engine.declarations import Argv, Flag, Reply, command, inner_keys
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError
from penstock.protocol.resp import Status

_ENQUEUED = Status(b"LAZY-ENQUEUED")


@command(
    NAME,
    arity=-2,
    flags=Flag.WRITE | Flag.NOSCRIPT,
    keys=inner_keys(1),
    group="generic",
    syntax="command [argument ...] | STATUS",
    cost="O(1) an argument, whatever the command costs",
)
def lazy(session: Session, argv: Argv) -> Reply:
    """Have a write run later, and answer LAZY-ENQUEUED at once.

    It runs when a command needs its result, or when the server is idle. It is logged now. Its reply is lost; if it
    fails, LAZY STATUS and INFO lazy count it.
    """
    inner = argv[1:]
    engine = session.engine
    if len(inner) == 1 and inner[0].upper() == b"STATUS":
        return engine.lazy.status()
    named = engine.commands.resolve(inner)
    if named.check_words is not None:
        named.check_words(session, inner)
    why = refusal(named, inner)
    if why is not None:
        raise ReplyError(f"'{named.wire_name}' may not be LAZY: it {why}")
    if engine.memory.limit or not session.user.unrestricted:  # the other gates were checked for LAZY itself
        engine.pass_gates(session, named, inner)
    if named.copies_from and not session.user.unrestricted:  # after it is queued, it is not checked again
        engine.lazy.run_for(session.db, inner[named.copies_from])
        engine.acl.check_value(session, session.db.get(inner[named.copies_from]))
    if named.grows is not None and engine.memory.limit and engine.lazy.pending:
        engine.lazy.before(session, named, inner)  # how much memory it takes depends on the commands queued before it
    growth = engine.require_growth(session, named, inner)
    engine.lazy.enqueue(session.db, named, inner, growth)
    session.log(inner)
    engine.keyspace.dirty += 1
    return _ENQUEUED
