"""Expiry times: EXPIRE, TTL, PERSIST and their variants.

An expiry time is kept and logged as an absolute time in milliseconds, whatever the client sent, so that a replay of the
log years later gives the same. A time in the past deletes the key at once, and the deletion is logged; except while
loading, when keys are deleted only as the log says.
"""

from __future__ import annotations

from penstock.engine.arguments import INT64_MAX, INT64_MIN, to_integer
from penstock.engine.declarations import Access, Argv, Flag, Reply, command, key
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError, shown

_CHANGE = Flag.WRITE | Flag.FAST | Flag.TIMED
_ASK = Flag.READONLY | Flag.FAST


@command(
    "EXPIRE",
    arity=-3,
    flags=_CHANGE,
    keys=key(1, Access.WRITE),
    group="generic",
    syntax="key seconds [NX | XX | GT | LT]",
)
def expire(session: Session, argv: Argv) -> Reply:
    """Have a key deleted in so many seconds; 1 if the time was set, 0 if there is no key or the condition fails.

    NX requires a key without an expiry time, XX one with; GT and LT require that the new time is later or earlier than
    the current one. A key without an expiry time counts as one that expires at the end of time.
    """
    return _expire(session, argv, 1000, session.db.clock.now)


@command(
    "PEXPIRE",
    arity=-3,
    flags=_CHANGE,
    keys=key(1, Access.WRITE),
    group="generic",
    syntax="key milliseconds [NX | XX | GT | LT]",
)
def pexpire(session: Session, argv: Argv) -> Reply:
    """Have a key deleted in so many milliseconds; conditions as for EXPIRE."""
    return _expire(session, argv, 1, session.db.clock.now)


@command(
    "EXPIREAT",
    arity=-3,
    flags=_CHANGE,
    keys=key(1, Access.WRITE),
    group="generic",
    syntax="key unix-time-seconds [NX | XX | GT | LT]",
)
def expireat(session: Session, argv: Argv) -> Reply:
    """Have a key deleted at a time in seconds since 1970; conditions as for EXPIRE."""
    return _expire(session, argv, 1000, 0)


@command(
    "PEXPIREAT",
    arity=-3,
    flags=_CHANGE,
    keys=key(1, Access.WRITE),
    group="generic",
    syntax="key unix-time-milliseconds [NX | XX | GT | LT]",
)
def pexpireat(session: Session, argv: Argv) -> Reply:
    """Have a key deleted at a time in milliseconds since 1970; conditions as for EXPIRE."""
    return _expire(session, argv, 1, 0)


def _expire(session: Session, argv: Argv, unit: int, base: int) -> int:
    """All four: the time is in `unit` milliseconds and counts from `base`."""
    conditions = _conditions(argv) if len(argv) > 3 else None
    when = to_integer(argv[2]) * unit
    if not INT64_MIN <= when <= INT64_MAX - base:
        raise ReplyError(f"invalid expire time in '{argv[0].decode().lower()}' command")
    when += base
    db = session.db
    name = argv[1]
    if db.get(name) is None or (conditions and not _allowed(conditions, when, db.expires.get(name))):
        return 0
    if when <= db.clock.now and db.keyspace.expiring:
        db.delete(name)
        session.log([b"DEL", name])
    else:
        db.expire_at(name, when)
        db.changed(name)
        session.log([b"PEXPIREAT", name, b"%d" % when])
    return 1


def _conditions(argv: Argv) -> set[bytes]:
    found = set()
    for word in argv[3:]:
        if word.upper() not in (b"NX", b"XX", b"GT", b"LT"):
            raise ReplyError(f"Unsupported option {shown(word)}")
        found.add(word.upper())
    if b"NX" in found and len(found) > 1:
        raise ReplyError("NX and XX, GT or LT options at the same time are not compatible")
    if {b"GT", b"LT"} <= found:
        raise ReplyError("GT and LT options at the same time are not compatible")
    return found


def _allowed(conditions: set[bytes], when: int, current: int | None) -> bool:
    """Whether a key that expires at `current` (None: never) may be made to expire at `when`."""
    if current is None:
        return not conditions & {b"XX", b"GT"}
    if b"NX" in conditions or (b"GT" in conditions and when <= current):
        return False
    return not (b"LT" in conditions and when >= current)


@command("TTL", arity=2, flags=_ASK | Flag.TIMED, keys=key(1, Access.READ), group="generic", syntax="key")
def ttl(session: Session, argv: Argv) -> Reply:
    """Answer how many seconds a key has left, rounded; -1 if it does not expire, -2 if there is no such key."""
    return _in_seconds(_time_left(session, argv[1]))


@command("PTTL", arity=2, flags=_ASK | Flag.TIMED, keys=key(1, Access.READ), group="generic", syntax="key")
def pttl(session: Session, argv: Argv) -> Reply:
    """Answer how many milliseconds a key has left; -1 if it does not expire, -2 if there is no such key."""
    return _time_left(session, argv[1])


@command("EXPIRETIME", arity=2, flags=_ASK, keys=key(1, Access.READ), group="generic", syntax="key")
def expiretime(session: Session, argv: Argv) -> Reply:
    """Answer when a key expires, in seconds since 1970, rounded; -1 if it does not, -2 if there is no such key."""
    return _in_seconds(_time_of_expiry(session, argv[1]))


@command("PEXPIRETIME", arity=2, flags=_ASK, keys=key(1, Access.READ), group="generic", syntax="key")
def pexpiretime(session: Session, argv: Argv) -> Reply:
    """Answer when a key expires, in milliseconds since 1970; -1 if it does not, -2 if there is no such key."""
    return _time_of_expiry(session, argv[1])


def _time_of_expiry(session: Session, name: bytes) -> int:
    db = session.db
    return db.expires.get(name, -1) if db.get(name) is not None else -2


def _time_left(session: Session, name: bytes) -> int:
    when = _time_of_expiry(session, name)
    return max(when - session.db.clock.now, 0) if when >= 0 else when


def _in_seconds(milliseconds: int) -> int:
    return (milliseconds + 500) // 1000 if milliseconds >= 0 else milliseconds


@command("PERSIST", arity=2, flags=Flag.WRITE | Flag.FAST, keys=key(1, Access.WRITE), group="generic", syntax="key")
def persist(session: Session, argv: Argv) -> Reply:
    """Remove a key's expiry time; 1 if it had one."""
    db = session.db
    if db.get(argv[1]) is None or not db.persist(argv[1]):
        return 0
    db.changed(argv[1])
    return 1
