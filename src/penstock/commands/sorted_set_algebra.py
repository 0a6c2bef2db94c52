"""Unions, intersections and differences of sorted sets; plain sets take part as if every score were 1.

Sums of floats depend on the order of adding, so the smallest set comes first here as it does in Redis, and sets of
one size keep the order of the arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import filterfalse, islice

from penstock.commands.sorted_set_ranges import store
from penstock.engine.arguments import to_at_least, to_double, to_integer
from penstock.engine.session import Session
from penstock.engine.spec import Access, Argv, Flag, Reply, command, counted_keys, key
from penstock.protocol.errors import ReplyError, WrongType, syntax_error
from penstock.protocol.resp import Pairs
from penstock.types.set import Set
from penstock.types.zset import SortedSet

Scores = dict[bytes, float]
Aggregate = Callable[[float, float], float]


def _sum(one: float, other: float) -> float:
    total = one + other
    return 0.0 if math.isnan(total) else total  # inf and -inf cancel out


_AGGREGATES: dict[bytes, Aggregate] = {b"SUM": _sum, b"MIN": min, b"MAX": max}


@dataclass(slots=True)
class Operands:
    """The sets a command names, and how to put scores together."""

    sets: list[Mapping[bytes, float]]
    weights: list[float]
    aggregate: Aggregate = _sum
    with_scores: bool = False

    def by_size(self) -> list[tuple[Mapping[bytes, float], float]]:
        """(scores, weight), the smallest set first."""
        return sorted(zip(self.sets, self.weights, strict=True), key=lambda operand: len(operand[0]))


def _sources(session: Session, argv: Argv, count_at: int) -> list[Mapping[bytes, float]]:
    """The scores at `numkeys key [key ...]`; what does not exist is empty."""
    number = to_integer(argv[count_at])
    if number < 1:
        raise ReplyError(f"at least 1 input key is needed for '{argv[0].decode().lower()}' command")
    if number >= len(argv) - count_at:
        raise syntax_error()
    return [_scores(session, name) for name in argv[count_at + 1 : count_at + 1 + number]]


def _scores(session: Session, name: bytes) -> Mapping[bytes, float]:
    value = session.db.get(name)
    if type(value) is SortedSet:
        return value.scores
    if isinstance(value, Set):
        return dict.fromkeys(value, 1.0)
    if value is None:
        return {}
    raise WrongType


def _operands(session: Session, argv: Argv, count_at: int, weighted: bool, storing: bool) -> Operands:
    """`numkeys key [key ...] [WEIGHTS weight ...] [AGGREGATE how] [WITHSCORES]`, as far as the command has them."""
    sets = _sources(session, argv, count_at)
    operands = Operands(sets, [1.0] * len(sets))
    options = iter(argv[count_at + 1 + len(sets) :])
    for option in options:
        word = option.upper()
        if word == b"WEIGHTS" and weighted:
            weights = list(islice(options, len(sets)))
            if len(weights) < len(sets):
                raise syntax_error()
            operands.weights = [to_double(raw, _bad_weight) for raw in weights]
        elif word == b"AGGREGATE" and weighted:
            how = _AGGREGATES.get(next(options, b"").upper())
            if how is None:
                raise syntax_error()
            operands.aggregate = how
        elif word == b"WITHSCORES" and not storing:
            operands.with_scores = True
        else:
            raise syntax_error()
    return operands


def _bad_weight() -> ReplyError:
    return ReplyError("weight value is not a float")


# -- the operations -------------------------------------------------------------------------------------------


def _weighted(score: float, weight: float) -> float:
    product = score * weight
    return 0.0 if math.isnan(product) else product  # inf * 0


def _union(operands: Operands) -> Scores:
    aggregate = operands.aggregate
    result: Scores = {}
    for scores, weight in operands.by_size():
        for member, score in scores.items():
            value = _weighted(score, weight)
            result[member] = aggregate(result[member], value) if member in result else value
    return result


def _intersection(operands: Operands) -> Scores:
    aggregate = operands.aggregate
    (smallest, first_weight), *others = operands.by_size()
    result: Scores = {}
    for member in _common([smallest, *(scores for scores, _ in others)]):
        value = _weighted(smallest[member], first_weight)
        for scores, weight in others:
            value = aggregate(value, scores[member] * weight)  # a product of inf and 0 spoils the sum, as in Redis
        result[member] = value
    return result


def _common(sets: list[Mapping[bytes, float]]) -> Iterator[bytes]:
    """The members of the first set that all others have, one by one."""
    members = iter(sets[0])
    for scores in sets[1:]:
        members = filter(scores.__contains__, members)
    return members


def _difference(operands: Operands) -> Scores:
    first, *others = operands.sets
    members = iter(first)
    for scores in others:
        members = filterfalse(scores.__contains__, members)
    return {member: first[member] for member in members}


def _answer(scores: Scores, with_scores: bool) -> Reply:
    zset = SortedSet(scores)
    rows = zset.rows(0, len(zset))
    return Pairs([(member, score) for score, member in rows]) if with_scores else [member for _, member in rows]


def _store(session: Session, argv: Argv, scores: Scores) -> int:
    # Adding zero turns minus zero into zero, see SortedSet.put.
    store(session, argv[1], {member: score + 0.0 for member, score in scores.items()})
    return len(scores)


# -- the commands ---------------------------------------------------------------------------------------------

_READ = Flag.READONLY | Flag.MOVABLEKEYS
_STORE = Flag.WRITE | Flag.DENYOOM | Flag.MOVABLEKEYS
_STORE_KEYS = key(1, Access.WRITE) + counted_keys(2, Access.READ)
_WEIGHTS = "numkeys key [key ...] [WEIGHTS weight [weight ...]] [AGGREGATE <SUM | MIN | MAX>]"


@command(
    "ZUNION", arity=-3, flags=_READ, keys=counted_keys(1, Access.READ), group="sorted-set",
    syntax=f"{_WEIGHTS} [WITHSCORES]", cost="O(N) with N members of all sets, and O(M log M) to sort the result",
)  # fmt: skip
def zunion(session: Session, argv: Argv) -> Reply:
    """Answer the members of any of the sets; scores are multiplied by weights and added, or as AGGREGATE says."""
    operands = _operands(session, argv, 1, weighted=True, storing=False)
    return _answer(_union(operands), operands.with_scores)


@command(
    "ZINTER", arity=-3, flags=_READ, keys=counted_keys(1, Access.READ), group="sorted-set",
    syntax=f"{_WEIGHTS} [WITHSCORES]", cost="O(N*K) with K sets and N members in the smallest",
)  # fmt: skip
def zinter(session: Session, argv: Argv) -> Reply:
    """Answer the members of all of the sets; scores are multiplied by weights and added, or as AGGREGATE says."""
    operands = _operands(session, argv, 1, weighted=True, storing=False)
    return _answer(_intersection(operands), operands.with_scores)


@command(
    "ZDIFF", arity=-3, flags=_READ, keys=counted_keys(1, Access.READ), group="sorted-set",
    syntax="numkeys key [key ...] [WITHSCORES]", cost="O(N*K) with K sets and N members in the first",
)  # fmt: skip
def zdiff(session: Session, argv: Argv) -> Reply:
    """Answer the members of the first set that are in none of the others."""
    operands = _operands(session, argv, 1, weighted=False, storing=False)
    return _answer(_difference(operands), operands.with_scores)


@command(
    "ZUNIONSTORE", arity=-4, flags=_STORE, keys=_STORE_KEYS, group="sorted-set", syntax=f"destination {_WEIGHTS}",
    cost="O(N) with N members of all sets",
)  # fmt: skip
def zunionstore(session: Session, argv: Argv) -> Reply:
    """Store at destination what ZUNION answers, replacing what it held, and answer the number of members."""
    return _store(session, argv, _union(_operands(session, argv, 2, weighted=True, storing=True)))


@command(
    "ZINTERSTORE", arity=-4, flags=_STORE, keys=_STORE_KEYS, group="sorted-set", syntax=f"destination {_WEIGHTS}",
    cost="O(N*K) with K sets and N members in the smallest",
)  # fmt: skip
def zinterstore(session: Session, argv: Argv) -> Reply:
    """Store at destination what ZINTER answers, replacing what it held, and answer the number of members."""
    return _store(session, argv, _intersection(_operands(session, argv, 2, weighted=True, storing=True)))


@command(
    "ZDIFFSTORE", arity=-4, flags=_STORE, keys=_STORE_KEYS, group="sorted-set",
    syntax="destination numkeys key [key ...]", cost="O(N*K) with K sets and N members in the first",
)  # fmt: skip
def zdiffstore(session: Session, argv: Argv) -> Reply:
    """Store at destination what ZDIFF answers, replacing what it held, and answer the number of members."""
    return _store(session, argv, _difference(_operands(session, argv, 2, weighted=False, storing=True)))


@command(
    "ZINTERCARD", arity=-3, flags=_READ, keys=counted_keys(1, Access.READ), group="sorted-set",
    syntax="numkeys key [key ...] [LIMIT limit]", cost="O(N*K) with K sets and N members in the smallest",
)  # fmt: skip
def zintercard(session: Session, argv: Argv) -> Reply:
    """Answer the number of members that all of the sets have, counting no further than a limit other than 0."""
    sets = sorted(_sources(session, argv, 1), key=len)
    limit = 0
    options = iter(argv[2 + len(sets) :])
    for option in options:
        if option.upper() != b"LIMIT" or (raw := next(options, None)) is None:
            raise syntax_error()
        limit = to_at_least(0, raw, "LIMIT can't be negative")
    return sum(1 for _ in islice(_common(sets), limit or None))
