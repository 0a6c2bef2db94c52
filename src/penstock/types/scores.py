"""Unions, intersections and differences of sorted sets; in plain sets every score is 1.

Sums of floats depend on the order of adding, so the smallest set comes first, as in Redis, and sets of one size keep
their order.

The functions work in chunks and read nothing but their arguments, for the reason given in kernels.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import filterfalse, repeat
from typing import Any

from penstock.types.kernels import CHUNK, chunks
from penstock.types.set import Set
from penstock.types.zset import SortedSet

Scores = dict[bytes, float]
Aggregate = Callable[[float, float], float]


def add(one: float, other: float) -> float:
    """The sum of two scores; infinities of both signs cancel out."""
    total = one + other
    return 0.0 if math.isnan(total) else total


def _weighted(score: float, weight: float) -> float:
    product = score * weight
    return 0.0 if math.isnan(product) else product  # inf * 0


@dataclass(frozen=True, slots=True)
class Operand:
    """A set and what its scores are multiplied by."""

    value: SortedSet | Set
    weight: float = 1.0

    def __len__(self) -> int:
        return len(self.value)

    @property
    def members(self) -> Any:
        """A collection that can be tested for a member and gives all of them, in any order."""
        return self.value.scores if isinstance(self.value, SortedSet) else self.value

    def items(self) -> Iterable[tuple[bytes, float]]:
        """Members and their scores."""
        return self.value.scores.items() if isinstance(self.value, SortedSet) else zip(self.value, repeat(1.0))

    def score(self) -> Callable[[bytes], float]:
        """From a member to its score."""
        return self.value.scores.__getitem__ if isinstance(self.value, SortedSet) else lambda member: 1.0


def union(operands: Iterable[Operand], aggregate: Aggregate = add) -> Scores:
    """The members of any of the sets."""
    result: Scores = {}
    for operand in sorted(operands, key=len):
        weight = operand.weight
        for member, score in operand.items():
            value = _weighted(score, weight)
            result[member] = aggregate(result[member], value) if member in result else value
    return result


def intersection(operands: Iterable[Operand], aggregate: Aggregate = add, size: int = CHUNK) -> Scores:
    """The members that all of the sets have."""
    smallest, *others = sorted(operands, key=len)
    first_score, first_weight = smallest.score(), smallest.weight
    rest = [(other.score(), other.weight) for other in others]
    result: Scores = {}
    for part in _common([smallest, *others], size):
        for member in part:
            value = _weighted(first_score(member), first_weight)
            for score, weight in rest:
                value = aggregate(value, score(member) * weight)  # a product of inf and 0 spoils the sum, as in Redis
            result[member] = value
    return result


def count_common(operands: Iterable[Operand], limit: int = 0, size: int = CHUNK) -> int:
    """How many members all of the sets have; counting stops at a limit other than 0."""
    count = 0
    for part in _common(sorted(operands, key=len), size):
        count += len(part)
        if 0 < limit <= count:
            return limit
    return count


def difference(operands: Iterable[Operand], size: int = CHUNK) -> Scores:
    """The members of the first set that none of the others has, with the scores they have there."""
    first, *others = operands
    score = first.score()
    result: Scores = {}
    for chunk in chunks(first.members, size):
        part: Iterable[bytes] = chunk
        for other in others:
            part = filterfalse(other.members.__contains__, part)
        for member in part:
            result[member] = score(member)
    return result


def _common(operands: list[Operand], size: int) -> Iterator[list[bytes]]:
    """The members that all have, in the order of the first."""
    first, *others = operands
    for part in chunks(first.members, size):
        for other in others:
            part = list(filter(other.members.__contains__, part))
        yield part
