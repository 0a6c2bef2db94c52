"""Strings: GET, SET and their kin."""

from __future__ import annotations

from penstock.engine.arguments import INT64_MAX, INT64_MIN, to_integer
from penstock.engine.session import Session
from penstock.engine.spec import Access, Argv, Flag, Reply, command, key
from penstock.protocol.errors import ReplyError
from penstock.protocol.resp import OK


@command("GET", arity=2, flags=Flag.READONLY | Flag.FAST, keys=key(1, Access.READ), group="string", syntax="key")
def get(session: Session, argv: Argv) -> Reply:
    """Answer the string at key, or null."""
    value = session.db.get(argv[1])
    if value is None or type(value) is bytes:
        return value
    return session.db.find_string(argv[1])


@command(
    "SET",
    arity=-3,
    flags=Flag.WRITE | Flag.DENYOOM | Flag.FAST,
    keys=key(1, Access.UPDATE),
    group="string",
    syntax="key value",
)
def set_(session: Session, argv: Argv) -> Reply:
    """Set the string at key."""
    if len(argv) == 3:
        session.db.set(argv[1], argv[2])
        return OK
    raise NotImplementedError


@command(
    "INCR",
    arity=2,
    flags=Flag.WRITE | Flag.DENYOOM | Flag.FAST,
    keys=key(1, Access.UPDATE),
    group="string",
    syntax="key",
)
def incr(session: Session, argv: Argv) -> Reply:
    """Add one to the integer at key."""
    return _add(session, argv[1], 1)


def _add(session: Session, name: bytes, amount: int) -> int:
    db = session.db
    value = db.get(name)
    if type(value) is not int:
        text = db.find_string(name)
        value = to_integer(bytes(text)) if text is not None else 0
    total = value + amount
    if not INT64_MIN <= total <= INT64_MAX:
        raise ReplyError("increment or decrement would overflow")
    db.replace(name, total)
    return total
