"""Strings as a whole: GET, SET, counting. string_parts.py has what reads or changes a part of one.

A string is `bytes`; a `bytearray` after it was edited in place, unless it is small; an `int` after INCR or DECR, so
that they parse and print nothing. GET and the three-word SET run most often: they handle the plainest case only, and
call a slower function for everything else.

Invariant: a reply is never a live `bytearray`. Inside MULTI replies are encoded after later commands have run, and
would show what those wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.engine.arguments import INT64_MAX, INT64_MIN, to_integer
from penstock.engine.declarations import Access, Argv, Effect, Flag, NotLazy, Reply, command, key, keys
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError, not_a_float, syntax_error, wrong_arity
from penstock.protocol.resp import OK
from penstock.types import long_double

READ = Flag.READONLY | Flag.FAST
GROW = Flag.WRITE | Flag.DENYOOM
ONE_READ = key(1, Access.READ)
ONE_UPDATED = key(1, Access.UPDATE)


@command("GET", arity=2, flags=READ, keys=ONE_READ, group="string", syntax="key")
def get(session: Session, argv: Argv) -> Reply:
    """Answer the string at key, or null."""
    value = session.db.get(argv[1])
    if value is None or type(value) is bytes:
        return value
    return find_frozen(session, argv[1])


def find_frozen(session: Session, name: bytes) -> bytes | None:
    """The string at a key as it is now, whatever happens to the key afterwards."""
    value = session.db.find_string(name)
    return bytes(value) if value is not None else None


def _take(session: Session, name: bytes) -> bytes | None:
    """The string that a command answers before it changes it; counted as a lookup."""
    old = find_frozen(session, name)
    session.engine.stats.count_lookup(old is not None)
    return old


# -- SET and its older forms ----------------------------------------------------------------------------------


def _access_of_set(argv: Sequence[bytes]) -> Access:
    return Access.UPDATE if any(word.upper() == b"GET" for word in argv[3:]) else Access.WRITE


def _set_expires(argv: Argv) -> bool:
    return any(word.upper() in _EXPIRY_UNITS for word in argv[3:])


@command(
    "SET",
    arity=-3,
    flags=GROW | Flag.DIRECT,
    keys=key(1, Access.UPDATE, narrow=_access_of_set, effect=Effect.OVERWRITE),
    group="string",
    syntax="key value [NX | XX] [GET] [EX seconds | PX milliseconds | EXAT unix-time-seconds | "
    "PXAT unix-time-milliseconds | KEEPTTL]",
    not_lazy=NotLazy("depends on the clock, with EX, PX, EXAT or PXAT", _set_expires),
    check_words=lambda session, argv: _options_of_set(argv),
)
def set_(session: Session, argv: Argv) -> Reply:
    """Set the string at key, replacing any value, and remove its expiry time unless an option says otherwise.

    NX sets only a key that does not exist, XX only one that does; GET answers what the key held.
    """
    if len(argv) == 3:
        session.db.set(argv[1], argv[2])
        return OK
    return _set_with_options(session, argv)


_EXPIRY_UNITS = {b"EX": 1000, b"PX": 1, b"EXAT": 1000, b"PXAT": 1}


@dataclass(slots=True)
class _Options:
    """The options after the value of SET, or after the key of GETEX."""

    words: set[bytes]
    expiry: bytes = b""  # EX, PX, EXAT or PXAT
    amount: bytes = b""

    def deadline(self, session: Session, command_name: str) -> int | None:
        """When the key expires, in milliseconds since 1970; None if no time was given."""
        if not self.expiry:
            return None
        base = 0 if self.expiry.endswith(b"AT") else session.engine.clock.now
        return to_deadline(self.amount, _EXPIRY_UNITS[self.expiry], base, command_name)


def to_deadline(raw: bytes, unit: int, base: int, command_name: str) -> int:
    """An expiry time from a positive number of units (in milliseconds) after `base`."""
    deadline = to_integer(raw) * unit
    if not 0 < deadline <= INT64_MAX - base:
        raise ReplyError(f"invalid expire time in '{command_name}' command")
    return deadline + base


def _parse_options(words: Argv, allowed: frozenset[bytes], exclusive: tuple[frozenset[bytes], ...]) -> _Options:
    """Options in any order; of each set in `exclusive` at most one may be there."""
    options = _Options(set())
    given = options.words
    remaining = iter(words)
    for raw in remaining:
        word = raw.upper()
        if word in _EXPIRY_UNITS:
            amount = next(remaining, None)
            if amount is None or (options.expiry and options.expiry != word):
                raise syntax_error()
            options.expiry, options.amount = word, amount
        elif word not in allowed:
            raise syntax_error()
        given.add(word)
    if any(len(given & group) > 1 for group in exclusive):
        raise syntax_error()
    return options


_SET_WORDS = frozenset((b"NX", b"XX", b"GET", b"KEEPTTL"))
_SET_EXCLUSIVE = (frozenset((b"NX", b"XX")), frozenset((b"KEEPTTL", *_EXPIRY_UNITS)))


def _options_of_set(argv: Argv) -> _Options:
    return _parse_options(argv[3:], _SET_WORDS, _SET_EXCLUSIVE)


def _set_with_options(session: Session, argv: Argv) -> Reply:
    options = _options_of_set(argv)
    deadline = options.deadline(session, "set")
    db, name, value = session.db, argv[1], argv[2]
    words = options.words
    old = _take(session, name) if b"GET" in words else None
    if (b"NX" in words and name in db) or (b"XX" in words and name not in db):
        return old
    if b"KEEPTTL" in words:
        db.get(name)  # deletes the key if it has expired, so that its old time is not kept
        db.replace(name, value)
    elif deadline is None:
        db.set(name, value)
    else:
        _set_until(session, name, value, deadline)
    return old if b"GET" in words else OK


def _set_until(session: Session, name: bytes, value: bytes, deadline: int) -> None:
    session.db.set(name, value)
    session.db.expire_at(name, deadline)
    session.log([b"SET", name, value, b"PXAT", b"%d" % deadline])


@command(
    "SETNX",
    arity=3,
    flags=GROW | Flag.FAST,
    keys=key(1, Access.WRITE, Effect.CREATE),
    group="string",
    syntax="key value",
)
def setnx(session: Session, argv: Argv) -> Reply:
    """Set the string at key if there is no such key; answer 1 if it was set, 0 if not."""
    if argv[1] in session.db:
        return 0
    session.db.set(argv[1], argv[2])
    return 1


_TIMED = GROW | Flag.DIRECT | Flag.TIMED


@command(
    "SETEX",
    arity=4,
    flags=_TIMED,
    keys=key(1, Access.WRITE, Effect.OVERWRITE),
    group="string",
    syntax="key seconds value",
)
def setex(session: Session, argv: Argv) -> Reply:
    """Set the string at key, to expire after so many seconds."""
    _set_until(session, argv[1], argv[3], to_deadline(argv[2], 1000, session.engine.clock.now, "setex"))
    return OK


@command(
    "PSETEX",
    arity=4,
    flags=_TIMED,
    keys=key(1, Access.WRITE, Effect.OVERWRITE),
    group="string",
    syntax="key milliseconds value",
)
def psetex(session: Session, argv: Argv) -> Reply:
    """Set the string at key, to expire after so many milliseconds."""
    _set_until(session, argv[1], argv[3], to_deadline(argv[2], 1, session.engine.clock.now, "psetex"))
    return OK


# -- reading and changing at once -----------------------------------------------------------------------------


@command("GETSET", arity=3, flags=GROW | Flag.FAST, keys=ONE_UPDATED, group="string", syntax="key value")
def getset(session: Session, argv: Argv) -> Reply:
    """Set the string at key and answer the one it held, or null."""
    old = _take(session, argv[1])
    session.db.set(argv[1], argv[2])
    return old


@command(
    "GETDEL",
    arity=2,
    flags=Flag.WRITE | Flag.FAST,
    keys=key(1, Access.UPDATE, Effect.DELETE),
    group="string",
    syntax="key",
)
def getdel(session: Session, argv: Argv) -> Reply:
    """Answer the string at key, or null, and delete the key."""
    old = _take(session, argv[1])
    session.db.delete(argv[1])
    return old


_GETEX_WORDS = frozenset((b"PERSIST",))
_GETEX_EXCLUSIVE = (frozenset((b"PERSIST", *_EXPIRY_UNITS)),)


@command(
    "GETEX",
    arity=-2,
    flags=Flag.WRITE | Flag.FAST | Flag.TIMED,
    keys=ONE_UPDATED,
    group="string",
    syntax="key [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | PERSIST]",
)
def getex(session: Session, argv: Argv) -> Reply:
    """Answer the string at key, or null, and set or remove the key's expiry time."""
    options = _parse_options(argv[2:], _GETEX_WORDS, _GETEX_EXCLUSIVE)
    db, name = session.db, argv[1]
    value = _take(session, name)
    if value is None:
        return None
    deadline = options.deadline(session, "getex")
    if deadline is None:
        if b"PERSIST" in options.words and db.persist(name):
            db.changed(name)
            session.log([b"PERSIST", name])
    elif deadline <= session.engine.clock.now and not session.engine.loading:
        db.delete(name)
        session.log([b"DEL", name])
    else:
        db.expire_at(name, deadline)
        db.changed(name)
        session.log([b"PEXPIREAT", name, b"%d" % deadline])
    return value


# -- several keys ---------------------------------------------------------------------------------------------


@command(
    "MGET",
    arity=-2,
    flags=READ,
    keys=keys(1, -1, Access.READ),
    group="string",
    syntax="key [key ...]",
    cost="O(1) a key",
)
def mget(session: Session, argv: Argv) -> Reply:
    """Answer the strings at several keys; null for a key that does not exist or holds another type."""
    values = list(map(session.db.get, argv[1:]))
    for at, value in enumerate(values):
        if value is not None and type(value) is not bytes:
            values[at] = b"%d" % value if type(value) is int else bytes(value) if type(value) is bytearray else None
    return values


def _want_pairs(session: Session, argv: Argv) -> None:
    if len(argv) % 2 == 0:
        raise wrong_arity(argv[0].decode().lower())


@command(
    "MSET",
    arity=-3,
    flags=GROW,
    keys=keys(1, -1, Access.WRITE, Effect.OVERWRITE, step=2),
    group="string",
    syntax="key value [key value ...]",
    cost="O(1) a key",
    check_words=_want_pairs,
)
def mset(session: Session, argv: Argv) -> Reply:
    """Set several keys to several strings, all at once."""
    _want_pairs(session, argv)
    install = session.db.set
    for at in range(1, len(argv), 2):
        install(argv[at], argv[at + 1])
    return OK


@command(
    "MSETNX",
    arity=-3,
    flags=GROW,
    keys=keys(1, -1, Access.WRITE, Effect.CREATE, step=2),
    group="string",
    syntax="key value [key value ...]",
    cost="O(1) a key",
    check_words=_want_pairs,
)
def msetnx(session: Session, argv: Argv) -> Reply:
    """Set several keys to several strings if none of the keys exists; answer 1 if they were set, 0 if not."""
    _want_pairs(session, argv)
    if any(name in session.db for name in argv[1::2]):
        return 0
    mset(session, argv)
    return 1


# -- counting -------------------------------------------------------------------------------------------------


def _add(session: Session, name: bytes, amount: int) -> int:
    """The string at `name` plus `amount`; it is kept as an int."""
    db = session.db
    value = db.get(name)
    if type(value) is not int:
        text = db.find_string(name)
        value = to_integer(bytes(text)) if text is not None else 0
    total: int = value + amount
    if not INT64_MIN <= total <= INT64_MAX:
        raise ReplyError("increment or decrement would overflow")
    db.replace(name, total)
    return total


@command("INCR", arity=2, flags=GROW | Flag.FAST, keys=ONE_UPDATED, group="string", syntax="key")
def incr(session: Session, argv: Argv) -> Reply:
    """Add one to the integer at key, which starts at 0, and answer the result."""
    return _add(session, argv[1], 1)


@command("DECR", arity=2, flags=GROW | Flag.FAST, keys=ONE_UPDATED, group="string", syntax="key")
def decr(session: Session, argv: Argv) -> Reply:
    """Subtract one from the integer at key, which starts at 0, and answer the result."""
    return _add(session, argv[1], -1)


@command(
    "INCRBY",
    arity=3,
    flags=GROW | Flag.FAST,
    keys=ONE_UPDATED,
    group="string",
    syntax="key increment",
    check_words=lambda session, argv: to_integer(argv[2]),
)
def incrby(session: Session, argv: Argv) -> Reply:
    """Add to the integer at key, which starts at 0, and answer the result."""
    return _add(session, argv[1], to_integer(argv[2]))


@command(
    "DECRBY",
    arity=3,
    flags=GROW | Flag.FAST,
    keys=ONE_UPDATED,
    group="string",
    syntax="key decrement",
    check_words=lambda session, argv: _decrement(argv[2]),
)
def decrby(session: Session, argv: Argv) -> Reply:
    """Subtract from the integer at key, which starts at 0, and answer the result."""
    return _add(session, argv[1], -_decrement(argv[2]))


def _decrement(raw: bytes) -> int:
    amount = to_integer(raw)
    if amount == INT64_MIN:
        raise ReplyError("decrement would overflow")
    return amount


@command(
    "INCRBYFLOAT",
    arity=3,
    flags=GROW | Flag.FAST,
    keys=ONE_UPDATED,
    group="string",
    syntax="key increment",
    check_words=lambda session, argv: _add_decimal(b"0", argv[2]),
)
def incrbyfloat(session: Session, argv: Argv) -> Reply:
    """Add a number to the one at key, which starts at 0, and answer the result.

    Numbers have 64 significant bits and 17 decimals, as in Redis; the log gets the result, not the addition.
    """
    name = argv[1]
    value = find_frozen(session, name)
    total = _add_decimal(value if value is not None else b"0", argv[2])
    session.db.replace(name, total)
    session.log([b"SET", name, total, b"KEEPTTL"])
    return total


def _add_decimal(one: bytes, other: bytes) -> bytes:
    try:
        return long_double.add(one, other)
    except ValueError:
        raise not_a_float() from None
    except long_double.Infinite:
        raise ReplyError("increment would produce NaN or Infinity") from None
