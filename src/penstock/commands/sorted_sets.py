"""Sorted sets, member by member: adding, scores and ranks, popping, random choice.

Ranges are in sorted_set_ranges.py, unions, intersections and differences in sorted_set_algebra.py, and commands that
wait in blocking_sorted_sets.py. Popping from the first of several keys is here because ZMPOP and the waiting commands
share it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from typing import Any

from penstock.commands.multi_pop import MultiPop, parse_multi_pop
from penstock.commands.sorted_set_ranges import rows_in_steps
from penstock.engine.arguments import INT64_MAX, to_double, to_positive, to_sample_count
from penstock.engine.concurrency.long_work import (
    LONG,
    is_long_removal,
    reply_aside,
    reply_draws,
    reply_maker,
    sort_first,
    with_key,
)
from penstock.engine.concurrency.loop_steps import InSteps
from penstock.engine.declarations import Access, Argv, Effect, Flag, Reply, command, counted_keys, key
from penstock.engine.keyspace.cursors import to_cursor
from penstock.engine.keyspace.databases import Database
from penstock.engine.keyspace.scanning import SMALL, scan_elements
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError, syntax_error
from penstock.protocol.resp import NULL_ARRAY, Pairs, format_float
from penstock.types.kernels import finish, listed, take_sample
from penstock.types.zset import Row, SortedSet

# -- adding and removing --------------------------------------------------------------------------------------


@command(
    "ZADD",
    arity=-4,
    flags=Flag.WRITE | Flag.DENYOOM | Flag.FAST,
    keys=key(1, Access.WRITE),
    group="sorted-set",
    syntax="key [NX | XX] [GT | LT] [CH] [INCR] score member [score member ...]",
    cost="O(log N) a member, O(1) while the set is not read in order",
    check_words=lambda session, argv: _zadd_arguments(argv),
)
def zadd(session: Session, argv: Argv) -> Reply:
    """Set the score of members of the sorted set at key, adding new ones; answer how many were added.

    XX changes only members that exist, NX adds only new ones; GT and LT only raise or lower a score. CH counts changed
    members too. INCR adds to the score of one member and answers the new score, or null if an option prevented the
    change.
    """
    if len(argv) == 4 and argv[2] < b"A":  # one pair and no option: no score but inf starts with a letter
        score = to_double(argv[2])
        name = argv[1]
        db = session.db
        old = db.obtain(name, SortedSet).put(argv[3], score)
        if old == score:
            return 0
        db.changed(name)
        return 1 if old is None else 0
    options, pairs = _zadd_arguments(argv)
    return _add(session.db, argv[1], options, pairs)


_ZADD_OPTIONS = frozenset((b"NX", b"XX", b"GT", b"LT", b"CH", b"INCR"))


def _zadd_arguments(argv: Argv) -> tuple[set[bytes], list[Row]]:
    options: set[bytes] = set()
    first = 2
    while first < len(argv) and (word := argv[first].upper()) in _ZADD_OPTIONS:
        options.add(word)
        first += 1
    if (len(argv) - first) % 2 or first == len(argv):
        raise syntax_error()
    if {b"NX", b"XX"} <= options:
        raise ReplyError("XX and NX options at the same time are not compatible")
    if len({b"NX", b"GT", b"LT"} & options) > 1:
        raise ReplyError("GT, LT, and/or NX options at the same time are not compatible")
    if b"INCR" in options and len(argv) - first > 2:
        raise ReplyError("INCR option supports a single increment-element pair")
    return options, [(to_double(argv[at]), argv[at + 1]) for at in range(first, len(argv), 2)]


def _add(db: Database, name: bytes, options: set[bytes], pairs: list[Row]) -> Reply:
    """ZADD with its options."""
    if b"XX" in options and db.find(name, SortedSet) is None:
        return None if b"INCR" in options else 0
    zset = db.obtain(name, SortedSet)  # if it is new it will not stay empty: only XX leaves members out
    added = updated = 0
    reached: float | None = None
    for score, member in pairs:
        old = zset.scores.get(member)
        if old is None:
            if b"XX" in options:
                continue
            added += 1
        else:
            if b"NX" in options:
                continue
            if b"INCR" in options:
                score = _total(old, score)
            if (b"GT" in options and score <= old) or (b"LT" in options and score >= old):
                continue
            updated += old != score
        zset.put(member, score)
        reached = score
    if added or updated:
        db.changed(name)
    if b"INCR" in options:
        return reached
    return added + updated if b"CH" in options else added


def _total(score: float, increment: float) -> float:
    total = score + increment
    if math.isnan(total):
        raise ReplyError("resulting score is not a number (NaN)")
    return total


@command(
    "ZINCRBY",
    arity=4,
    flags=Flag.WRITE | Flag.DENYOOM | Flag.FAST,
    keys=key(1, Access.UPDATE),
    group="sorted-set",
    syntax="key increment member",
    cost="O(log N), O(1) while the set is not read in order",
    check_words=lambda session, argv: to_double(argv[2]),
)
def zincrby(session: Session, argv: Argv) -> Reply:
    """Add to the score of a member, which starts from 0 if it is new, and answer the sum."""
    score = to_double(argv[2])
    _, name, _, member = argv
    db = session.db
    zset = db.obtain(name, SortedSet)
    old = zset.scores.get(member)
    if old is not None:
        score = _total(old, score)
    if old != score:
        zset.put(member, score)
        db.changed(name)
    return score


@command(
    "ZREM",
    arity=-3,
    flags=Flag.WRITE | Flag.FAST,
    keys=key(1, Access.WRITE, Effect.DELETE),
    group="sorted-set",
    syntax="key member [member ...]",
    cost="O(log N) a member, O(1) while the set is not read in order",
)
def zrem(session: Session, argv: Argv) -> Reply:
    """Remove members, and answer how many existed."""
    zset = session.db.find(argv[1], SortedSet)
    if zset is None:
        return 0
    removed = sum(map(zset.remove, argv[2:]))
    if removed:
        session.db.emptied(argv[1], zset)
    return removed


# -- scores and ranks -----------------------------------------------------------------------------------------


@command(
    "ZSCORE",
    arity=3,
    flags=Flag.READONLY | Flag.FAST,
    keys=key(1, Access.READ),
    group="sorted-set",
    syntax="key member",
)
def zscore(session: Session, argv: Argv) -> Reply:
    """Answer the score of a member, or null."""
    zset = session.db.find(argv[1], SortedSet)
    return None if zset is None else zset.scores.get(argv[2])


@command(
    "ZMSCORE",
    arity=-3,
    flags=Flag.READONLY | Flag.FAST,
    keys=key(1, Access.READ),
    group="sorted-set",
    syntax="key member [member ...]",
    cost="O(1) a member",
)
def zmscore(session: Session, argv: Argv) -> Reply:
    """Answer the scores of members, null for those that do not exist."""
    zset = session.db.find(argv[1], SortedSet)
    return [None] * (len(argv) - 2) if zset is None else list(map(zset.scores.get, argv[2:]))


@command(
    "ZCARD",
    arity=2,
    flags=Flag.READONLY | Flag.FAST,
    keys=key(1, Access.READ, Effect.SIGHT),
    group="sorted-set",
    syntax="key",
)
def zcard(session: Session, argv: Argv) -> Reply:
    """Answer the number of members."""
    return len(session.db.find(argv[1], SortedSet) or ())


@command(
    "ZRANK",
    arity=3,
    flags=Flag.READONLY | Flag.FAST,
    keys=key(1, Access.READ),
    group="sorted-set",
    syntax="key member",
    cost="O(log N)",
)
def zrank(session: Session, argv: Argv) -> Reply:
    """Answer how many members come before this one, or null if it does not exist."""
    zset = session.db.find(argv[1], SortedSet)
    if zset is None:
        return None
    if zset.disorder > LONG:
        return sort_first(session, zset, lambda: zset.rank(argv[2]))
    return zset.rank(argv[2])


@command(
    "ZREVRANK",
    arity=3,
    flags=Flag.READONLY | Flag.FAST,
    keys=key(1, Access.READ),
    group="sorted-set",
    syntax="key member",
    cost="O(log N)",
)
def zrevrank(session: Session, argv: Argv) -> Reply:
    """Answer how many members come after this one, or null if it does not exist."""
    zset = session.db.find(argv[1], SortedSet)
    if zset is None:
        return None
    if zset.disorder > LONG:
        return sort_first(session, zset, lambda: zrevrank(session, argv))
    rank = zset.rank(argv[2])
    return None if rank is None else len(zset) - 1 - rank


# -- popping --------------------------------------------------------------------------------------------------


def pop_rows(session: Session, name: bytes, zset: SortedSet, count: int, highest: bool) -> list[Row]:
    """Remove rows from the set at a key, and the key if it is empty then."""
    rows = zset.pop(count, highest)
    if rows:
        session.db.emptied(name, zset)
    return rows


def first_disordered(session: Session, names: list[bytes]) -> SortedSet | None:
    """The sorted set that `pop_from_first` would pop from, if much of it must be sorted first."""
    zset = next(filter(None, (session.db.find(name, SortedSet) for name in names)), None)
    return zset if zset is not None and zset.disorder > LONG else None


def pop_from_first(session: Session, names: list[bytes], count: int, highest: bool) -> tuple[bytes, list[Row]] | None:
    """Pop from the first of the keys that exists, logged as the equivalent ZPOPMIN or ZPOPMAX."""
    for name in names:
        zset = session.db.find(name, SortedSet)
        if zset is not None:
            rows = pop_rows(session, name, zset, count, highest)
            session.log([b"ZPOPMAX" if highest else b"ZPOPMIN", name, b"%d" % len(rows)])
            return name, rows
    return None


def _count_to_pop(session: Session, argv: Argv) -> int:
    """The count of ZPOPMIN and ZPOPMAX."""
    if len(argv) > 3:
        raise syntax_error()
    return to_positive(argv[2]) if len(argv) == 3 else 1


def _pop(session: Session, argv: Argv, highest: bool) -> Reply:
    count = _count_to_pop(session, argv)
    zset = session.db.find(argv[1], SortedSet)
    if zset is not None and zset.disorder > LONG:
        return sort_first(session, zset, lambda: _pop(session, argv, highest))
    if len(argv) == 3 and zset is not None and is_long_removal(min(count, len(zset)), len(zset)):
        return _pop_aside(session, argv[1], zset, min(count, len(zset)), highest, Pairs, tuple)
    rows = [] if zset is None else pop_rows(session, argv[1], zset, count, highest)
    if len(argv) == 3:
        return Pairs((member, score) for score, member in rows)
    return [rows[0][1], rows[0][0]] if rows else []


def _pop_aside(
    session: Session, name: bytes, zset: SortedSet, count: int, highest: bool, kind: type, row_kind: type,
    done: Callable[[Reply], Reply] = lambda made: made,
) -> Reply:  # fmt: skip
    """Remove so many rows from the set at a key; a worker thread copies the rest and encodes the reply.

    The reply is a `kind` of rows that are `row_kind`s of member and score; `done` is called when they are removed, and
    gives the answer.
    """
    size, make_reply = len(zset), reply_maker(session)
    span = (size - count, size) if highest else (0, count)

    def compute() -> tuple[SortedSet, Reply]:
        rows = (row_kind((member, score)) for score, member in zset.walk(*span, highest))
        return zset.without_span(*span), finish(make_reply(kind, count, rows))

    def commit(made: tuple[SortedSet, Reply]) -> Reply:
        session.db.replace_or_delete(name, made[0])
        return done(made[1])

    return session.aside(size, compute, commit)


@command(
    "ZPOPMIN",
    arity=-2,
    flags=Flag.WRITE | Flag.FAST,
    keys=key(1, Access.UPDATE, Effect.DELETE),
    group="sorted-set",
    syntax="key [count]",
    cost="O(log N) a member",
    check_words=_count_to_pop,
)
def zpopmin(session: Session, argv: Argv) -> Reply:
    """Remove the members with the lowest scores, one or count, and answer them with their scores."""
    return _pop(session, argv, highest=False)


@command(
    "ZPOPMAX",
    arity=-2,
    flags=Flag.WRITE | Flag.FAST,
    keys=key(1, Access.UPDATE, Effect.DELETE),
    group="sorted-set",
    syntax="key [count]",
    cost="O(log N) a member",
    check_words=_count_to_pop,
)
def zpopmax(session: Session, argv: Argv) -> Reply:
    """Remove the members with the highest scores, one or count, and answer them with their scores."""
    return _pop(session, argv, highest=True)


def pop_wanted_members(session: Session, names: list[bytes], wanted: MultiPop) -> Reply:
    """Pop as ZMPOP does from the first of `names` that exists; the answer, None if none does."""
    for name in names:
        zset = session.db.find(name, SortedSet)
        if zset is not None and is_long_removal(min(wanted.count, len(zset)), len(zset)):
            return _pop_logged_aside(session, name, zset, wanted)
        if zset is not None:
            break
    popped = pop_from_first(session, names, wanted.count, highest=not wanted.first)
    return popped and [popped[0], [[member, score] for score, member in popped[1]]]


def _pop_logged_aside(session: Session, name: bytes, zset: SortedSet, wanted: MultiPop) -> Reply:
    count = min(wanted.count, len(zset))

    def done(popped: Reply) -> Reply:
        session.log([b"ZPOPMIN" if wanted.first else b"ZPOPMAX", name, b"%d" % count])
        return with_key(name, popped)

    return _pop_aside(session, name, zset, count, not wanted.first, list, list, done)


@command(
    "ZMPOP",
    arity=-4,
    flags=Flag.WRITE | Flag.MOVABLEKEYS,
    keys=counted_keys(1, Access.UPDATE, Effect.DELETE),
    group="sorted-set",
    syntax="numkeys key [key ...] <MIN | MAX> [COUNT count]",
    cost="O(K) with K keys, and O(log N) a member",
    check_words=lambda session, argv: parse_multi_pop(argv[1:], b"MIN", b"MAX"),
)
def zmpop(session: Session, argv: Argv) -> Reply:
    """Remove the members with the lowest or the highest scores from the first of the sorted sets that is not empty."""
    wanted = parse_multi_pop(argv[1:], b"MIN", b"MAX")
    if (disordered := first_disordered(session, wanted.names)) is not None:
        return sort_first(session, disordered, lambda: zmpop(session, argv))
    return pop_wanted_members(session, wanted.names, wanted) or NULL_ARRAY


# -- looking around -------------------------------------------------------------------------------------------


@command(
    "ZRANDMEMBER",
    arity=-2,
    flags=Flag.READONLY | Flag.RANDOM,
    keys=key(1, Access.READ),
    group="sorted-set",
    syntax="key [count [WITHSCORES]]",
    cost="O(log N) a member",
)
def zrandmember(session: Session, argv: Argv) -> Reply:
    """Answer a random member, or count different ones; a negative count allows the same one several times."""
    count, with_scores = _random_arguments(argv)
    zset = session.db.find(argv[1], SortedSet)
    if zset is None:
        return None if count is None else []
    size = len(zset)
    kind = Pairs if with_scores else list
    if count is not None and count < -LONG:
        return reply_draws(session, kind, -count, size, lambda: _columns(zset, with_scores))
    if count is not None and LONG < count < size:
        return reply_aside(session, kind, count, lambda: _random_rows(zset, count, with_scores), size)
    if count is not None and count >= size > LONG:
        protocol = session.protocol
        everything = InSteps(lambda: rows_in_steps(zset, lambda _: (0, size), True, with_scores, protocol))
        return session.aside(size, everything)
    if zset.disorder > LONG:
        return sort_first(session, zset, lambda: zrandmember(session, argv))
    if count is None:
        return _row(zset, random.randrange(size))[1]
    if count >= size:
        rows = zset.rows(0, size, backwards=True)  # as Redis happens to walk it
    else:
        ranks = random.sample(range(size), count) if count > 0 else random.choices(range(size), k=-count)
        rows = [_row(zset, rank) for rank in ranks]
    return Pairs((member, score) for score, member in rows) if with_scores else [member for _, member in rows]


def _columns(zset: SortedSet, with_scores: bool) -> tuple[list[Any], ...]:
    members = listed(zset.scores)
    return (members, listed(zset.scores.values())) if with_scores else (members,)


def _random_rows(zset: SortedSet, count: int, with_scores: bool) -> Iterable[Any]:
    """So many different members; the set is not sorted for that."""
    members = take_sample(listed(zset.scores), count)
    return ((member, zset.scores[member]) for member in members) if with_scores else members


def _random_arguments(argv: Argv) -> tuple[int | None, bool]:
    if len(argv) == 2:
        return None, False
    count = to_sample_count(argv[2])
    if len(argv) > 4 or (len(argv) == 4 and argv[3].upper() != b"WITHSCORES"):
        raise syntax_error()
    if len(argv) == 4 and abs(count) > INT64_MAX // 2:
        raise ReplyError("value is out of range")
    return count, len(argv) == 4


def _row(zset: SortedSet, rank: int) -> Row:
    return zset.rows(rank, rank + 1)[0]


@command(
    "ZSCAN",
    arity=-3,
    flags=Flag.READONLY,
    keys=key(1, Access.READ),
    group="sorted-set",
    syntax="key cursor [MATCH pattern] [COUNT count]",
    cost="O(1) a call, O(N) for a whole iteration",
)
def zscan(session: Session, argv: Argv) -> Reply:
    """Answer the next cursor, 0 at the end, and some members with their scores; start with cursor 0.

    A member that exists from the first call to the last is answered at least once.
    """
    cursor = to_cursor(argv[2])
    zset = session.db.find(argv[1], SortedSet)
    if zset is None:
        return [b"0", []]
    scores = zset.scores

    def rows(members: Iterable[bytes]) -> Iterable[bytes]:
        return (part for member in members for part in (member, format_float(scores[member])))

    return scan_elements(session, argv, cursor, zset if len(zset) <= SMALL else scores, rows)
