"""Unions, intersections and differences of sorted sets: the arguments. types/scores.py computes the results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from penstock.commands.sorted_set_ranges import rows_in_steps, store
from penstock.engine.arguments import to_at_least, to_double, to_integer
from penstock.engine.concurrency.long_work import LONG
from penstock.engine.declarations import (
    Access,
    Argv,
    CheckWords,
    Effect,
    Flag,
    Growth,
    Reply,
    command,
    counted_keys,
    key,
)
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError, WrongType, syntax_error
from penstock.protocol.resp import Pairs
from penstock.types import scores
from penstock.types.kernels import finish
from penstock.types.scores import Aggregate, Operand, Scores
from penstock.types.set import Set
from penstock.types.zset import SortedSet, most_bytes

_AGGREGATES: dict[bytes, Aggregate] = {b"SUM": scores.add, b"MIN": min, b"MAX": max}
_NONE = SortedSet()  # what a missing key reads as; never changed


@dataclass(slots=True)
class Request:
    """The sets that a command names, and how their scores are combined."""

    operands: list[Operand]
    aggregate: Aggregate = scores.add
    with_scores: bool = False

    def union(self) -> Scores:
        return scores.union(self.operands, self.aggregate)

    def intersection(self) -> Scores:
        return scores.intersection(self.operands, self.aggregate)

    def difference(self) -> Scores:
        return scores.difference(self.operands)

    @property
    def work(self) -> int:
        return sum(map(len, self.operands))

    @property
    def work_of_intersection(self) -> int:
        return min(map(len, self.operands)) * len(self.operands)


def _names(argv: Argv, count_at: int) -> list[bytes]:
    """The keys of `numkeys key [key ...]`."""
    number = to_integer(argv[count_at])
    if number < 1:
        raise ReplyError(f"at least 1 input key is needed for '{argv[0].decode().lower()}' command")
    if number >= len(argv) - count_at:
        raise syntax_error()
    return argv[count_at + 1 : count_at + 1 + number]


def _sources(session: Session, argv: Argv, count_at: int) -> list[Operand]:
    """The sets at these keys; a missing key is an empty set."""
    return [_operand(session, name) for name in _names(argv, count_at)]


def _operand(session: Session, name: bytes) -> Operand:
    value = session.db.get(name)
    if value is None:
        return Operand(_NONE)
    if type(value) is SortedSet or type(value) is Set:
        return Operand(value)
    raise WrongType


def _parse(session: Session, argv: Argv, count_at: int, weighted: bool, storing: bool) -> Request:
    """`numkeys key [key ...] [WEIGHTS weight ...] [AGGREGATE how] [WITHSCORES]`, as far as the command has them."""
    return _with_options(_sources(session, argv, count_at), argv, count_at, weighted, storing)


def _check_store(weighted: bool) -> CheckWords:
    """Checks the words of a command that stores, before it looks at any key."""

    def check(session: Session, argv: Argv) -> None:
        _with_options([Operand(_NONE)] * len(_names(argv, 2)), argv, 2, weighted, storing=True)

    return check


def _with_options(operands: list[Operand], argv: Argv, count_at: int, weighted: bool, storing: bool) -> Request:
    request = Request(operands)
    options = iter(argv[count_at + 1 + len(operands) :])
    for option in options:
        word = option.upper()
        if word == b"WEIGHTS" and weighted:
            weights = list(islice(options, len(operands)))
            if len(weights) < len(operands):
                raise syntax_error()
            numbers = [to_double(raw, _bad_weight) for raw in weights]
            request.operands = [Operand(one.value, weight) for one, weight in zip(operands, numbers, strict=True)]
        elif word == b"AGGREGATE" and weighted:
            how = _AGGREGATES.get(next(options, b"").upper())
            if how is None:
                raise syntax_error()
            request.aggregate = how
        elif word == b"WITHSCORES" and not storing:
            request.with_scores = True
        else:
            raise syntax_error()
    return request


def _bad_weight() -> ReplyError:
    return ReplyError("weight value is not a float")


def _answer(session: Session, work: int, compute: Callable[[], Scores], with_scores: bool) -> Reply:
    """The members and scores that `compute` gives, in order."""
    if work > LONG:
        protocol = session.protocol

        def encode() -> Reply:
            zset = SortedSet(compute())
            return finish(rows_in_steps(zset, lambda _: (0, len(zset)), False, with_scores, protocol))

        return session.aside(work, encode)
    zset = SortedSet(compute())
    rows = zset.rows(0, len(zset))
    return Pairs([(member, score) for score, member in rows]) if with_scores else [member for _, member in rows]


def _store(session: Session, name: bytes, work: int, compute: Callable[[], Scores]) -> Reply:
    """Store what `compute` gives at a key."""

    def make() -> SortedSet:
        # Adding zero turns minus zero into zero, see SortedSet.put.
        return SortedSet({member: score + 0.0 for member, score in compute().items()})

    return (
        store(session, name, make()) if work <= LONG else session.aside(work, make, lambda z: store(session, name, z))
    )


def _growth(most: Callable[[Iterator[int]], int]) -> Growth:
    """How much memory a store takes whose result has at most so many members, given the sizes of its sets."""

    def growth(session: Session, argv: Argv) -> int:
        return most_bytes(most(map(len, _sources(session, argv, 2))))

    return growth


# -- the commands ---------------------------------------------------------------------------------------------

_READ = Flag.READONLY | Flag.MOVABLEKEYS
_STORE = Flag.WRITE | Flag.DENYOOM | Flag.MOVABLEKEYS
_STORE_KEYS = key(1, Access.WRITE, Effect.OVERWRITE) + counted_keys(2, Access.READ)
_WEIGHTS = "numkeys key [key ...] [WEIGHTS weight [weight ...]] [AGGREGATE <SUM | MIN | MAX>]"


@command(
    "ZUNION",
    arity=-3,
    flags=_READ,
    keys=counted_keys(1, Access.READ),
    group="sorted-set",
    syntax=f"{_WEIGHTS} [WITHSCORES]",
    cost="O(N) with N members of all sets, and O(M log M) to sort the result",
)
def zunion(session: Session, argv: Argv) -> Reply:
    """Answer the members of any of the sets; scores are multiplied by weights and added, or as AGGREGATE says."""
    request = _parse(session, argv, 1, weighted=True, storing=False)
    return _answer(session, request.work, request.union, request.with_scores)


@command(
    "ZINTER",
    arity=-3,
    flags=_READ,
    keys=counted_keys(1, Access.READ),
    group="sorted-set",
    syntax=f"{_WEIGHTS} [WITHSCORES]",
    cost="O(N*K) with K sets and N members in the smallest",
)
def zinter(session: Session, argv: Argv) -> Reply:
    """Answer the members of all of the sets; scores are multiplied by weights and added, or as AGGREGATE says."""
    request = _parse(session, argv, 1, weighted=True, storing=False)
    return _answer(session, request.work_of_intersection, request.intersection, request.with_scores)


@command(
    "ZDIFF",
    arity=-3,
    flags=_READ,
    keys=counted_keys(1, Access.READ),
    group="sorted-set",
    syntax="numkeys key [key ...] [WITHSCORES]",
    cost="O(N*K) with K sets and N members in the first",
)
def zdiff(session: Session, argv: Argv) -> Reply:
    """Answer the members of the first set that are in none of the others."""
    request = _parse(session, argv, 1, weighted=False, storing=False)
    return _answer(session, request.work, request.difference, request.with_scores)


@command(
    "ZUNIONSTORE",
    arity=-4,
    flags=_STORE,
    keys=_STORE_KEYS,
    group="sorted-set",
    syntax=f"destination {_WEIGHTS}",
    cost="O(N) with N members of all sets",
    grows=_growth(sum),
    check_words=_check_store(weighted=True),
)
def zunionstore(session: Session, argv: Argv) -> Reply:
    """Store at destination what ZUNION answers, replacing what it held, and answer the number of members."""
    request = _parse(session, argv, 2, weighted=True, storing=True)
    return _store(session, argv[1], request.work, request.union)


@command(
    "ZINTERSTORE",
    arity=-4,
    flags=_STORE,
    keys=_STORE_KEYS,
    group="sorted-set",
    syntax=f"destination {_WEIGHTS}",
    cost="O(N*K) with K sets and N members in the smallest",
    grows=_growth(min),
    check_words=_check_store(weighted=True),
)
def zinterstore(session: Session, argv: Argv) -> Reply:
    """Store at destination what ZINTER answers, replacing what it held, and answer the number of members."""
    request = _parse(session, argv, 2, weighted=True, storing=True)
    return _store(session, argv[1], request.work_of_intersection, request.intersection)


@command(
    "ZDIFFSTORE",
    arity=-4,
    flags=_STORE,
    keys=_STORE_KEYS,
    group="sorted-set",
    syntax="destination numkeys key [key ...]",
    cost="O(N*K) with K sets and N members in the first",
    grows=_growth(next),
    check_words=_check_store(weighted=False),
)
def zdiffstore(session: Session, argv: Argv) -> Reply:
    """Store at destination what ZDIFF answers, replacing what it held, and answer the number of members."""
    request = _parse(session, argv, 2, weighted=False, storing=True)
    return _store(session, argv[1], request.work, request.difference)


@command(
    "ZINTERCARD",
    arity=-3,
    flags=_READ,
    keys=counted_keys(1, Access.READ),
    group="sorted-set",
    syntax="numkeys key [key ...] [LIMIT limit]",
    cost="O(N*K) with K sets and N members in the smallest",
)
def zintercard(session: Session, argv: Argv) -> Reply:
    """Answer the number of members that all of the sets have, counting no further than a limit other than 0."""
    operands = _sources(session, argv, 1)
    limit = 0
    options = iter(argv[2 + len(operands) :])
    for option in options:
        if option.upper() != b"LIMIT" or (raw := next(options, None)) is None:
            raise syntax_error()
        limit = to_at_least(0, raw, "LIMIT can't be negative")
    work = Request(operands).work_of_intersection
    if work <= LONG:
        return scores.count_common(operands, limit)
    return session.aside(work, lambda: scores.count_common(operands, limit))
