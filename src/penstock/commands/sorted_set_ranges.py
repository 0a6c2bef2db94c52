"""Ranges of sorted sets by rank, score or name: to read, count, store or remove them.

Ten commands differ only in their arguments. Each turns its arguments into a `Bounds`, a function from a sorted set to a
span of ranks, before it looks at any key. What is done with a span is the same for all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from penstock.engine.arguments import strtod, to_integer
from penstock.engine.concurrency.long_work import LONG, is_long_removal, reply_in_steps, sort_first
from penstock.engine.concurrency.loop_steps import InSteps
from penstock.engine.declarations import Access, Argv, Effect, Flag, Reply, command, key
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError, syntax_error
from penstock.protocol.resp import Pairs, RawPieces
from penstock.types.kernels import Steps
from penstock.types.zset import SortedSet, Span, most_bytes

Bounds = Callable[[SortedSet], Span]

# -- bounds ---------------------------------------------------------------------------------------------------


def by_rank(low: bytes, high: bytes, backwards: bool = False) -> Bounds:
    """Ranks, both included; negative ones count from the end. Backwards, rank 0 is the highest score."""
    first, last = to_integer(low), to_integer(high)

    def bounds(zset: SortedSet) -> Span:
        size = len(zset)
        start = max(first + size if first < 0 else first, 0)
        stop = min((last + size if last < 0 else last) + 1, size)
        if start >= stop:
            return 0, 0
        return (size - stop, size - start) if backwards else (start, stop)

    return bounds


def by_score(low: bytes, high: bytes) -> Bounds:
    """Scores; ( before a bound excludes it."""
    above, below = low[:1] == b"(", high[:1] == b"("
    lowest, highest = _score(low[above:]), _score(high[below:])
    return lambda zset: zset.score_span(lowest, highest, above, below) if lowest <= highest else (0, 0)


def _score(raw: bytes) -> float:
    """Redis reads bounds less strictly than scores: spaces may come first, and nothing at all is zero."""
    number = strtod(raw.lstrip()) if raw else 0.0
    if number is None:
        raise ReplyError("min or max is not a float")
    return number


def by_name(low: bytes, high: bytes) -> Bounds:
    """Names after [ or, to exclude the bound, after (; - comes before all names and + after."""
    lowest, highest = _name(low), _name(high)
    if low == b"+" or high == b"-":
        return lambda zset: (0, 0)
    return lambda zset: zset.name_span(lowest, highest, low[:1] == b"(", high[:1] == b"(")


def _name(raw: bytes) -> bytes | None:
    if raw in (b"-", b"+"):
        return None
    if raw[:1] not in (b"[", b"("):
        raise ReplyError("min or max not valid string range item")
    return raw[1:]


# -- reading --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class RangeQuery:
    """What one of the range commands asks for."""

    bounds: Bounds
    backwards: bool
    offset: int
    limit: int  # negative: no limit
    with_scores: bool
    ranked: bool = False  # the bounds are ranks, for which no order is needed

    def span(self, zset: SortedSet) -> Span:
        """The ranks that are asked for."""
        start, stop = self.bounds(zset)
        if self.offset < 0 or self.limit == 0:
            return 0, 0
        if self.backwards:
            stop = max(stop - self.offset, start)
            start = max(stop - self.limit, start) if self.limit > 0 else start
        else:
            start = min(start + self.offset, stop)
            stop = min(start + self.limit, stop) if self.limit > 0 else stop
        return start, stop

    def most(self, zset: SortedSet) -> int:
        """An upper limit on how many members are asked for, as far as it is known without sorting them."""
        if self.ranked or not zset.disorder:
            start, stop = self.span(zset)
            return stop - start
        return len(zset) if self.limit < 0 else min(self.limit, len(zset))

    def work(self, zset: SortedSet) -> int:
        """How many members must be sorted or, if they are sorted already, answered."""
        start, stop = (0, zset.disorder) if zset.disorder else self.span(zset)
        return stop - start

    def answer(self, session: Session, name: bytes) -> Reply:
        zset = session.db.find(name, SortedSet)
        if zset is None:
            return []
        work = self.work(zset)
        if work > LONG:
            protocol = session.protocol
            return session.aside(
                work, InSteps(lambda: rows_in_steps(zset, self.span, self.backwards, self.with_scores, protocol))
            )
        rows = zset.rows(*self.span(zset), self.backwards)
        if self.with_scores:
            return Pairs([(member, score) for score, member in rows])
        return [member for _, member in rows]


def rows_in_steps(zset: SortedSet, span: Bounds, backwards: bool, with_scores: bool, protocol: int) -> Steps[RawPieces]:
    """The reply with the members of a span, encoded."""
    if zset.disorder:
        yield from zset.put_in_order()
    start, stop = span(zset)
    rows = zset.walk(start, stop, backwards)
    if with_scores:
        pairs = ((member, score) for score, member in rows)
        return (yield from reply_in_steps(Pairs, stop - start, pairs, protocol))
    return (yield from reply_in_steps(list, stop - start, (member for _, member in rows), protocol))


def parse_range(
    argv: Argv, first: int, kind: bytes | None = None, backwards: bool | None = None, storing: bool = False
) -> RangeQuery:
    """`low high [options]` from argument `first` on. `kind` and `backwards` are None where options may choose them."""
    offset, limit, with_scores = 0, -1, False
    options = iter(argv[first + 2 :])
    for option in options:
        word = option.upper()
        if word == b"WITHSCORES" and not storing:
            with_scores = True
        elif word == b"LIMIT" and len(numbers := list(islice(options, 2))) == 2:
            offset, limit = map(to_integer, numbers)
        elif word == b"REV" and backwards is None:
            backwards = True
        elif word in (b"BYSCORE", b"BYLEX") and kind is None:
            kind = word
        else:
            raise syntax_error()
    return _range_query(argv[first], argv[first + 1], kind, bool(backwards), offset, limit, with_scores)


def _range_query(
    low: bytes, high: bytes, kind: bytes | None, backwards: bool, offset: int, limit: int, with_scores: bool
) -> RangeQuery:
    if kind not in (b"BYSCORE", b"BYLEX"):
        if limit != -1:
            raise ReplyError("syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX")
        return RangeQuery(by_rank(low, high, backwards), backwards, 0, -1, with_scores, ranked=True)
    if kind == b"BYLEX" and with_scores:
        raise ReplyError("syntax error, WITHSCORES not supported in combination with BYLEX")
    if backwards:
        low, high = high, low
    bounds = by_score(low, high) if kind == b"BYSCORE" else by_name(low, high)
    return RangeQuery(bounds, backwards, offset, limit, with_scores)


_READ_COST = "O(log N) and O(1) a member answered"


@command(
    "ZRANGE",
    arity=-4,
    flags=Flag.READONLY,
    keys=key(1, Access.READ),
    group="sorted-set",
    syntax="key start stop [BYSCORE | BYLEX] [REV] [LIMIT offset count] [WITHSCORES]",
    cost=_READ_COST,
)
def zrange(session: Session, argv: Argv) -> Reply:
    """Answer the members between two ranks, scores or names, both included, in order or, with REV, from the end.

    ( before a score excludes it. A name starts with [ or, to be excluded, with (; - and + stand for before and after
    all names. With REV the higher bound comes first.
    """
    if len(argv) == 4:  # no options: the most common of all ranges
        bounds = by_rank(argv[2], argv[3])
        zset = session.db.find(argv[1], SortedSet)
        if zset is None:
            return []
        start, stop = bounds(zset)
        if stop - start <= LONG and zset.disorder <= LONG:
            return [member for _, member in zset.rows(start, stop)]
    return parse_range(argv, 2).answer(session, argv[1])


@command(
    "ZREVRANGE",
    arity=-4,
    flags=Flag.READONLY,
    keys=key(1, Access.READ),
    group="sorted-set",
    syntax="key start stop [WITHSCORES]",
    cost=_READ_COST,
)
def zrevrange(session: Session, argv: Argv) -> Reply:
    """Answer the members between two ranks, counted from the highest score down."""
    return parse_range(argv, 2, kind=b"BYRANK", backwards=True).answer(session, argv[1])


@command(
    "ZRANGEBYSCORE",
    arity=-4,
    flags=Flag.READONLY,
    keys=key(1, Access.READ),
    group="sorted-set",
    syntax="key min max [WITHSCORES] [LIMIT offset count]",
    cost=_READ_COST,
)
def zrangebyscore(session: Session, argv: Argv) -> Reply:
    """Answer the members with scores between two bounds, the lowest first."""
    return parse_range(argv, 2, kind=b"BYSCORE", backwards=False).answer(session, argv[1])


@command(
    "ZREVRANGEBYSCORE",
    arity=-4,
    flags=Flag.READONLY,
    keys=key(1, Access.READ),
    group="sorted-set",
    syntax="key max min [WITHSCORES] [LIMIT offset count]",
    cost=_READ_COST,
)
def zrevrangebyscore(session: Session, argv: Argv) -> Reply:
    """Answer the members with scores between two bounds, the highest first."""
    return parse_range(argv, 2, kind=b"BYSCORE", backwards=True).answer(session, argv[1])


@command(
    "ZRANGEBYLEX",
    arity=-4,
    flags=Flag.READONLY,
    keys=key(1, Access.READ),
    group="sorted-set",
    syntax="key min max [LIMIT offset count]",
    cost=_READ_COST,
)
def zrangebylex(session: Session, argv: Argv) -> Reply:
    """Answer the members with names between two bounds, in order; meant for sets whose scores are all equal."""
    return parse_range(argv, 2, kind=b"BYLEX", backwards=False).answer(session, argv[1])


@command(
    "ZREVRANGEBYLEX",
    arity=-4,
    flags=Flag.READONLY,
    keys=key(1, Access.READ),
    group="sorted-set",
    syntax="key max min [LIMIT offset count]",
    cost=_READ_COST,
)
def zrevrangebylex(session: Session, argv: Argv) -> Reply:
    """Answer the members with names between two bounds, from the last; meant for sets whose scores are all equal."""
    return parse_range(argv, 2, kind=b"BYLEX", backwards=True).answer(session, argv[1])


def _growth_of_store(session: Session, argv: Argv) -> int:
    query = parse_range(argv, 3, storing=True)
    zset = session.db.find(argv[2], SortedSet)
    return most_bytes(query.most(zset)) if zset is not None else 0


@command(
    "ZRANGESTORE",
    arity=-5,
    flags=Flag.WRITE | Flag.DENYOOM,
    keys=key(1, Access.WRITE, Effect.OVERWRITE) + key(2, Access.READ),
    group="sorted-set",
    syntax="dst src min max [BYSCORE | BYLEX] [REV] [LIMIT offset count]",
    cost="O(log N) and O(1) a member stored",
    grows=_growth_of_store,
    check_words=lambda session, argv: parse_range(argv, 3, storing=True),
)
def zrangestore(session: Session, argv: Argv) -> Reply:
    """Store at dst what ZRANGE answers for src, replacing what dst held, and answer how many members that are."""
    query = parse_range(argv, 3, storing=True)
    zset = session.db.find(argv[2], SortedSet)
    if zset is None:
        return store(session, argv[1], SortedSet())

    def compute() -> SortedSet:
        rows = zset.walk(*query.span(zset), query.backwards)
        return SortedSet({member: score for score, member in rows})

    work = query.work(zset)
    if work <= LONG:
        return store(session, argv[1], compute())
    return session.aside(work, compute, lambda found: store(session, argv[1], found))


def store(session: Session, name: bytes, zset: SortedSet) -> int:
    """Store this sorted set at a key, replacing any value, and answer its size; an empty one deletes the key."""
    if zset:
        session.db.set(name, zset)
    else:
        session.db.delete(name)
    return len(zset)


# -- counting and removing ------------------------------------------------------------------------------------


def _count(session: Session, argv: Argv, by: Callable[[bytes, bytes], Bounds]) -> Reply:
    bounds = by(argv[2], argv[3])
    zset = session.db.find(argv[1], SortedSet)
    if zset is None:
        return 0
    if zset.disorder > LONG:
        return sort_first(session, zset, lambda: _count(session, argv, by))
    start, stop = bounds(zset)
    return stop - start


@command(
    "ZCOUNT",
    arity=4,
    flags=Flag.READONLY | Flag.FAST,
    keys=key(1, Access.READ),
    group="sorted-set",
    syntax="key min max",
    cost="O(log N)",
)
def zcount(session: Session, argv: Argv) -> Reply:
    """Answer the number of members with scores between two bounds."""
    return _count(session, argv, by_score)


@command(
    "ZLEXCOUNT",
    arity=4,
    flags=Flag.READONLY | Flag.FAST,
    keys=key(1, Access.READ),
    group="sorted-set",
    syntax="key min max",
    cost="O(log N)",
)
def zlexcount(session: Session, argv: Argv) -> Reply:
    """Answer the number of members with names between two bounds; meant for sets whose scores are all equal."""
    return _count(session, argv, by_name)


def _remove(session: Session, argv: Argv, by: Callable[[bytes, bytes], Bounds]) -> Reply:
    bounds = by(argv[2], argv[3])
    zset = session.db.find(argv[1], SortedSet)
    if zset is None:
        return 0
    if zset.disorder > LONG:
        return sort_first(session, zset, lambda: _remove(session, argv, by))
    db, name = session.db, argv[1]
    start, stop = bounds(zset)
    if stop - start == len(zset):
        db.delete(name)
        return stop - start

    def commit(rest: SortedSet) -> int:
        if stop > start:
            db.replace(name, rest)
        return stop - start

    if is_long_removal(stop - start, len(zset)):
        return session.aside(len(zset), lambda: zset.without_span(start, stop), commit)
    zset.remove_span(start, stop)
    return commit(zset)


_REMOVE_COST = "O(log N) and O(1) a member removed"


@command(
    "ZREMRANGEBYRANK",
    arity=4,
    flags=Flag.WRITE,
    keys=key(1, Access.WRITE, Effect.DELETE),
    group="sorted-set",
    syntax="key start stop",
    cost=_REMOVE_COST,
    check_words=lambda session, argv: by_rank(argv[2], argv[3]),
)
def zremrangebyrank(session: Session, argv: Argv) -> Reply:
    """Remove the members between two ranks, both included, and answer how many there were."""
    return _remove(session, argv, by_rank)


@command(
    "ZREMRANGEBYSCORE",
    arity=4,
    flags=Flag.WRITE,
    keys=key(1, Access.WRITE, Effect.DELETE),
    group="sorted-set",
    syntax="key min max",
    cost=_REMOVE_COST,
    check_words=lambda session, argv: by_score(argv[2], argv[3]),
)
def zremrangebyscore(session: Session, argv: Argv) -> Reply:
    """Remove the members with scores between two bounds, and answer how many there were."""
    return _remove(session, argv, by_score)


@command(
    "ZREMRANGEBYLEX",
    arity=4,
    flags=Flag.WRITE,
    keys=key(1, Access.WRITE, Effect.DELETE),
    group="sorted-set",
    syntax="key min max",
    cost=_REMOVE_COST,
    check_words=lambda session, argv: by_name(argv[2], argv[3]),
)
def zremrangebylex(session: Session, argv: Argv) -> Reply:
    """Remove the members with names between two bounds, and answer how many there were."""
    return _remove(session, argv, by_name)
