"""Hashes: HSET, HGET and the other commands on fields."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

from penstock.engine.arguments import INT64_MAX, INT64_MIN, to_integer, to_sample_count
from penstock.engine.concurrency.long_work import LONG, reply_aside, reply_draws
from penstock.engine.declarations import Access, Argv, Effect, Flag, Reply, command, key
from penstock.engine.keyspace.cursors import to_cursor
from penstock.engine.keyspace.scanning import scan_elements
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError, WrongType, not_a_float, syntax_error, wrong_arity
from penstock.protocol.resp import OK, Pairs
from penstock.types import long_double
from penstock.types.hash import Hash
from penstock.types.kernels import listed, take_sample

_GROW = Flag.WRITE | Flag.DENYOOM | Flag.FAST
_READ = Flag.READONLY | Flag.FAST
_NONE = Hash()  # what a missing key reads as; never changed


# -- setting ------------------------------------------------------------------------------------------------------


def _want_pairs(session: Session, argv: Argv) -> None:
    if len(argv) & 1:
        raise wrong_arity(argv[0].decode().lower())


@command(
    "HSET",
    arity=-4,
    flags=_GROW,
    keys=key(1, Access.WRITE),
    group="hash",
    syntax="key field value [field value ...]",
    cost="O(1) a field",
    check_words=_want_pairs,
)
def hset(session: Session, argv: Argv) -> Reply:
    """Set fields of the hash at key, creating it, and answer how many of them are new."""
    count = len(argv)
    if count != 4:
        _want_pairs(session, argv)
    db = session.db
    name = argv[1]
    found = db.get(name)
    if type(found) is not Hash:
        found = db.obtain(name, Hash)
    before = len(found)
    if count == 4:
        found[argv[2]] = argv[3]
    else:
        found.update(zip(argv[2::2], argv[3::2]))  # noqa: B905 - the count is even, and `strict` costs 100 ns
    db.changed(name)
    return len(found) - before


@command(
    "HMSET",
    arity=-4,
    flags=_GROW,
    keys=key(1, Access.WRITE),
    group="hash",
    syntax="key field value [field value ...]",
    cost="O(1) a field",
    check_words=_want_pairs,
)
def hmset(session: Session, argv: Argv) -> Reply:
    """Set fields of the hash at key, creating it. HSET does the same and also answers how many are new."""
    hset(session, argv)
    return OK


@command(
    "HSETNX", arity=4, flags=_GROW, keys=key(1, Access.WRITE, Effect.INSERT), group="hash", syntax="key field value"
)
def hsetnx(session: Session, argv: Argv) -> Reply:
    """Set a field of the hash at key unless it exists; answer 1 if it was set, 0 if not."""
    db = session.db
    found = db.obtain(argv[1], Hash)
    if argv[2] in found:
        return 0
    found[argv[2]] = argv[3]
    db.changed(argv[1])
    return 1


@command(
    "HINCRBY",
    arity=4,
    flags=_GROW,
    keys=key(1, Access.UPDATE),
    group="hash",
    syntax="key field increment",
    check_words=lambda session, argv: to_integer(argv[3]),
)
def hincrby(session: Session, argv: Argv) -> Reply:
    """Add to the integer in a field, which counts as 0 if there is none, and answer the sum."""
    increment = to_integer(argv[3])
    db = session.db
    found = db.find(argv[1], Hash)
    old = None if found is None else found.get(argv[2])
    total = increment if old is None else increment + to_integer(old, _not_an_integer)
    if not INT64_MIN <= total <= INT64_MAX:
        raise ReplyError("increment or decrement would overflow")
    if found is None:
        found = db.obtain(argv[1], Hash)
    found[argv[2]] = b"%d" % total
    db.changed(argv[1])
    return total


def _not_an_integer() -> ReplyError:
    return ReplyError("hash value is not an integer")


@command(
    "HINCRBYFLOAT",
    arity=4,
    flags=_GROW,
    keys=key(1, Access.UPDATE),
    group="hash",
    syntax="key field increment",
    check_words=lambda session, argv: _to_increment(argv[3]),
)
def hincrbyfloat(session: Session, argv: Argv) -> Reply:
    """Add to the number in a field, which counts as 0 if there is none, and answer the sum as text.

    The sum is logged as an HSET, so that a replay needs no arithmetic.
    """
    db = session.db
    increment = _to_increment(argv[3])
    old = (db.find(argv[1], Hash) or _NONE).get(argv[2])
    try:
        total = increment if old is None else long_double.add(old, argv[3])
    except ValueError:
        raise ReplyError("hash value is not a float") from None
    except long_double.Infinite:
        raise ReplyError("increment would produce NaN or Infinity") from None
    db.obtain(argv[1], Hash)[argv[2]] = total
    session.log([b"HSET", argv[1], argv[2], total])
    db.changed(argv[1])
    return total


def _to_increment(raw: bytes) -> bytes:
    try:
        return long_double.add(b"0", raw)
    except ValueError:
        raise not_a_float() from None
    except long_double.Infinite:
        raise ReplyError("value is NaN or Infinity") from None


@command(
    "HDEL",
    arity=-3,
    flags=Flag.WRITE | Flag.FAST,
    keys=key(1, Access.WRITE, Effect.DELETE),
    group="hash",
    syntax="key field [field ...]",
    cost="O(1) a field",
)
def hdel(session: Session, argv: Argv) -> Reply:
    """Remove fields of the hash at key and answer how many of them there were."""
    db = session.db
    found = db.find(argv[1], Hash)
    if found is None:
        return 0
    removed = found.remove_all(argv[2:])
    if removed:
        db.emptied(argv[1], found)
    return removed


# -- reading ------------------------------------------------------------------------------------------------------


@command("HGET", arity=3, flags=_READ, keys=key(1, Access.READ), group="hash", syntax="key field")
def hget(session: Session, argv: Argv) -> Reply:
    """Answer the value of a field of the hash at key, or null."""
    found = session.db.get(argv[1])
    if type(found) is Hash:
        return found.get(argv[2])
    if found is None:
        return None
    raise WrongType


@command(
    "HMGET",
    arity=-3,
    flags=_READ,
    keys=key(1, Access.READ),
    group="hash",
    syntax="key field [field ...]",
    cost="O(1) a field",
)
def hmget(session: Session, argv: Argv) -> Reply:
    """Answer the values of fields of the hash at key, null for those it has not."""
    return list(map((session.db.find(argv[1], Hash) or _NONE).get, argv[2:]))


@command(
    "HGETALL",
    arity=2,
    flags=Flag.READONLY | Flag.DIRECT,
    keys=key(1, Access.READ),
    group="hash",
    syntax="key",
    cost="O(N) with N fields",
)
def hgetall(session: Session, argv: Argv) -> Reply:
    """Answer all fields of the hash at key and their values."""
    found = session.db.find(argv[1], Hash) or _NONE
    if len(found) > LONG:
        return reply_aside(session, dict, len(found), found.items)
    # A copy, because EXEC encodes its replies only when all its commands have run; it is cheap beside the encoding.
    return found.copy()


@command("HKEYS", arity=2, flags=Flag.READONLY, keys=key(1, Access.READ), group="hash", syntax="key", cost="O(N)")
def hkeys(session: Session, argv: Argv) -> Reply:
    """Answer the names of all fields of the hash at key."""
    found = session.db.find(argv[1], Hash) or _NONE
    return list(found) if len(found) <= LONG else reply_aside(session, list, len(found), found.keys)


@command("HVALS", arity=2, flags=Flag.READONLY, keys=key(1, Access.READ), group="hash", syntax="key", cost="O(N)")
def hvals(session: Session, argv: Argv) -> Reply:
    """Answer the values of all fields of the hash at key."""
    found = session.db.find(argv[1], Hash) or _NONE
    return list(found.values()) if len(found) <= LONG else reply_aside(session, list, len(found), found.values)


@command("HLEN", arity=2, flags=_READ, keys=key(1, Access.READ, Effect.SIGHT), group="hash", syntax="key")
def hlen(session: Session, argv: Argv) -> Reply:
    """Answer how many fields the hash at key has."""
    return len(session.db.find(argv[1], Hash) or _NONE)


@command("HSTRLEN", arity=3, flags=_READ, keys=key(1, Access.READ, Effect.SIGHT), group="hash", syntax="key field")
def hstrlen(session: Session, argv: Argv) -> Reply:
    """Answer the length of a field's value, 0 if there is none."""
    return len((session.db.find(argv[1], Hash) or _NONE).get(argv[2], b""))


@command("HEXISTS", arity=3, flags=_READ, keys=key(1, Access.READ, Effect.SIGHT), group="hash", syntax="key field")
def hexists(session: Session, argv: Argv) -> Reply:
    """Answer 1 if the hash at key has the field, 0 if not."""
    return 1 if argv[2] in (session.db.find(argv[1], Hash) or _NONE) else 0


@command(
    "HRANDFIELD",
    arity=-2,
    flags=Flag.READONLY | Flag.RANDOM,
    keys=key(1, Access.READ),
    group="hash",
    syntax="key [count [WITHVALUES]]",
    cost="O(1) a field, O(N) the first time a hash of N fields is asked",
)
def hrandfield(session: Session, argv: Argv) -> Reply:
    """Answer a random field, or count different ones; a negative count allows the same one several times."""
    if len(argv) == 2:
        found = session.db.find(argv[1], Hash)
        return None if found is None else found.random_field()
    count = to_sample_count(argv[2])
    with_values = len(argv) == 4 and argv[3].upper() == b"WITHVALUES"
    if len(argv) > 3 and not with_values:
        raise syntax_error()
    if with_values and abs(count) > INT64_MAX // 2:
        raise ReplyError("value is out of range")
    found = session.db.find(argv[1], Hash)
    if found is None or count == 0:
        return []
    if count < -LONG:
        return reply_draws(
            session, Pairs if with_values else list, -count, len(found), lambda: _columns(found, with_values)
        )
    if min(count, len(found)) > LONG:
        return _many_random(session, found, min(count, len(found)), with_values)
    fields = found.random_fields(count) if count > 0 else [found.random_field() for _ in range(-count)]
    return Pairs((field, found[field]) for field in fields) if with_values else fields


def _columns(found: Hash, with_values: bool) -> tuple[list[bytes], ...]:
    fields = listed(found)
    return (fields, listed(found.values())) if with_values else (fields,)


def _many_random(session: Session, found: Hash, count: int, with_values: bool) -> Reply:
    """So many different fields, or all of them, collected in a worker thread."""

    def rows() -> Iterable[Any]:
        fields = take_sample(listed(found), count) if count < len(found) else found
        return ((field, found[field]) for field in fields) if with_values else fields

    return reply_aside(session, Pairs if with_values else list, count, rows, len(found))


@command(
    "HSCAN",
    arity=-3,
    flags=Flag.READONLY,
    keys=key(1, Access.READ),
    group="hash",
    syntax="key cursor [MATCH pattern] [COUNT count]",
    cost="O(1) a field, O(N) for the whole iteration",
)
def hscan(session: Session, argv: Argv) -> Reply:
    """Answer some fields with their values, and the cursor for the next call, which is 0 at the end."""
    cursor = to_cursor(argv[2])
    found = session.db.find(argv[1], Hash)
    if found is None:
        return [b"0", []]

    def rows(names: Iterable[bytes]) -> Iterable[bytes]:
        fields = list(names)
        return chain.from_iterable(zip(fields, map(found.__getitem__, fields), strict=True))

    return scan_elements(session, argv, cursor, found, rows)
