"""LAZY: a write that is answered at once and runs later (engine/lazy.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.engine.lazy_rules import NAME, refusal
from penstock.engine.session import Session
from penstock.engine.spec import REGISTRY, Access, Argv, Flag, KeySpec, Reply, command
from penstock.protocol.errors import ReplyError
from penstock.protocol.resp import Status

_ENQUEUED = Status(b"LAZY-ENQUEUED")


def _inner_keys(access: Access) -> Callable[[Argv], Iterable[int]]:
    """Where the keys of the command behind LAZY are that it does this to."""

    def find(argv: Argv) -> Iterable[int]:
        inner = argv[1:]
        named = REGISTRY.find(inner) if inner else None
        if named is None or named.name == NAME or not named.low <= len(inner) <= named.high:
            return []
        return [position + 1 for position, found in named.key_positions(inner) if found == access]

    return find


@command(
    NAME, arity=-2, flags=Flag.WRITE | Flag.NOSCRIPT, group="generic", syntax="command [argument ...] | STATUS",
    keys=tuple(KeySpec(access, find=_inner_keys(access)) for access in (Access.READ, Access.WRITE, Access.UPDATE)),
    cost="O(1) an argument, whatever the command costs",
)  # fmt: skip
def lazy(session: Session, argv: Argv) -> Reply:
    """Have a write run later, and answer LAZY-ENQUEUED at once.

    It runs when somebody asks for what it changes, or when the server is idle. It is logged now. Its reply is lost; if it
    fails, LAZY STATUS and INFO lazy count it.
    """
    inner = argv[1:]
    engine = session.engine
    if len(inner) == 1 and inner[0].upper() == b"STATUS":
        return engine.lazy.status()
    named = REGISTRY.resolve(inner)
    why = refusal(named, inner)
    if why is not None:
        raise ReplyError(f"'{named.wire_name}' may not be LAZY: it {why}")
    if engine.memory.limit or not session.user.unrestricted:  # the other gates were asked about LAZY itself
        engine.pass_gates(session, named, inner, engine.acl.check)
    engine.lazy.enqueue(session.db, named, inner)
    session.log(inner)
    engine.keyspace.dirty += 1
    return _ENQUEUED
