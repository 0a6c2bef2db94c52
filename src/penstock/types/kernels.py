"""The slow operations on large values, done in chunks.

A call into C holds the interpreter lock until it returns: `a & b` of two sets with two million members each makes every
other thread wait for a quarter of a second. So no call here works on more than a chunk of elements, and between two
calls another thread can run. The result equals that of the one long call, and takes about twice the time.

The functions read their arguments and nothing else, so they may run in any thread while no other thread changes those.

One step is longer than a chunk: a set or dict that grows moves to a table twice its size, 25 milliseconds at 600,000
members and 45 at 1,250,000. Rejected: results in several smaller sets, because every later look-up would be slower.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import reduce
from itertools import filterfalse, groupby, islice
from operator import sub
from random import choices, random
from typing import Any, Final, TypeVar, cast

from penstock.types.set import Set

T = TypeVar("T")

CHUNK: Final = 512
"""Elements in one call: about 50 microseconds, short beside the time that a thread waits for the interpreter."""
RUN: Final = 4 * CHUNK
"""Elements that are sorted by one call."""
MAX_BUCKETS: Final = 256
"""Parts that a sort divides its input into; larger parts are divided again."""


Steps = Generator[None, None, T]
"""Slow work that stops after every step, of a chunk or two, and gives its result at the end."""


def finish(steps: Steps[T]) -> T:
    """Do all steps that are left, and answer the result."""
    try:
        while True:
            next(steps)
    except StopIteration as end:
        return cast(T, end.value)


def chunks(items: Iterable[T], size: int = CHUNK) -> Iterator[list[T]]:
    """The items in lists of `size`.

    >>> list(chunks("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    rest = iter(items)
    while chunk := list(islice(rest, size)):
        yield chunk


def skip(items: Iterator[Any], count: int, size: int = CHUNK) -> None:
    """Skip so many items."""
    finish(skip_in_steps(items, count, size))


def skip_in_steps(items: Iterator[Any], count: int, size: int = CHUNK) -> Steps[None]:
    while count > 0:
        next(islice(items, min(count, size) - 1, None), None)
        count -= size
        yield


def consume(items: list[T]) -> Iterator[T]:
    """The items, each released after its use, so that a long list is not freed in one call. The list is empty then.

    >>> "".join(consume(["a", "b"]))
    'ab'
    """
    items.reverse()
    while items:
        yield items.pop()


def listed(items: Iterable[T], size: int = CHUNK) -> list[T]:
    """A list of the items.

    >>> listed("abc", 2)
    ['a', 'b', 'c']
    """
    result: list[T] = []
    for chunk in chunks(items, size):
        result += chunk
    return result


# -- chance ---------------------------------------------------------------------------------------------------


def take_sample(items: list[T], count: int) -> Iterator[T]:
    """So many of the items in random order, each removed from the list; it must have as many.

    >>> letters = ["a", "b", "c"]
    >>> taken = list(take_sample(letters, 2))
    >>> sorted(taken + letters)
    ['a', 'b', 'c']
    """
    for _ in range(count):
        place = int(random() * len(items))
        item = items[place]
        last = items.pop()
        if place < len(items):
            items[place] = last
        yield item


def draw(items: Sequence[T], size: int = CHUNK) -> Iterator[T]:
    """Independent draws from the items, without end; the items must not change during that."""
    while True:
        yield from choices(items, k=size)


# -- sets -----------------------------------------------------------------------------------------------------


def union(sets: Sequence[Collection[bytes]], size: int = CHUNK) -> Set:
    """The members of any of the sets."""
    result = Set()
    for members in sets:
        if len(members) <= size:
            result.update(members)
        else:
            for chunk in chunks(members, size):
                result.update(chunk)
    return result


def intersection(sets: Sequence[set[bytes]], size: int = CHUNK) -> Set:
    """The members that all of the sets have; there must be one set."""
    result = Set()
    smallest, *others = sorted(sets, key=len)
    if len(smallest) <= size:
        result.update(smallest.intersection(*others))
    else:
        for chunk in chunks(smallest, size):
            result.update(_common(chunk, others))
    return result


def count_common(sets: Sequence[set[bytes]], limit: int = 0, size: int = CHUNK) -> int:
    """How many members all of the sets have; counting stops at a limit other than 0."""
    smallest, *others = sorted(sets, key=len)
    count = 0
    for chunk in chunks(smallest, size):
        count += len(_common(chunk, others))
        if 0 < limit <= count:
            return limit
    return count


def _common(members: Collection[bytes], others: list[set[bytes]]) -> Collection[bytes]:
    for other in others:
        members = other.intersection(members)  # iterates over the smaller side
    return members


def difference(sets: Sequence[AbstractSet[bytes]], size: int = CHUNK) -> Set:
    """The members of the first set that none of the others has."""
    first, *others = sets
    result = Set()
    if len(first) <= size:
        result.update(reduce(sub, others, first))
    else:
        for chunk in chunks(first, size):
            part: Iterable[bytes] = chunk
            for other in others:
                part = filterfalse(other.__contains__, part)
            result.update(part)
    return result


# -- order ----------------------------------------------------------------------------------------------------


def sort(items: Iterable[T], hint: Callable[[T], Any] | None = None, size: int = RUN) -> Iterator[list[T]]:
    """The items in order, a list at a time; equal ones stay in the order they had.

    >>> [item for part in sort([3, 1, 2, 5, 4], size=2) for item in part]
    [1, 2, 3, 4, 5]
    """
    return filter(None, sort_in_steps(items, hint, size))


def sort_in_steps(items: Iterable[T], hint: Callable[[T], Any] | None = None, size: int = RUN) -> Iterator[list[T]]:
    """The lists of `sort`, and an empty list after each step before the first of them.

    Sorted runs are cut at the same values, chosen from a sample of all, and what lies between two cuts is sorted
    together. That takes hardly more comparisons than one long sort.

    `hint` is a key by which the items are almost in order. Where it is quicker to compare than they are, sorting by it
    first is quicker in all: pairs with a float in front take half the time.
    """
    runs: list[Any] = []
    for chunk in chunks(items, size):
        runs.append(_sort_now(chunk, hint))
        yield []
    if len(runs) < 2:
        yield from runs
        return
    cuts = _cuts(runs, min(len(runs), MAX_BUCKETS), hint)
    yield []
    buckets: list[list[T]] = [[] for _ in range(len(cuts) + 1)]
    total = 0
    for run in consume(runs):
        total += len(run)
        start = 0
        for at, cut in enumerate(cuts):
            stop = bisect_right(run, cut, start)
            buckets[at] += run[start:stop]
            start = stop
        buckets[-1] += run[start:]
        yield []
    buckets.reverse()  # to be released one by one
    while buckets:
        bucket = buckets.pop()
        if len(bucket) <= 2 * size or len(bucket) == total:  # all of it: equal items, which no cut divides
            yield _sort_now(bucket, hint)
        else:
            yield from sort_in_steps(bucket, hint, size)


def _sort_now(items: list[Any], hint: Callable[[Any], Any] | None) -> list[Any]:
    if hint is not None:
        items.sort(key=hint)
    items.sort()
    return items


def _cuts(runs: list[list[Any]], buckets: int, hint: Callable[[Any], Any] | None) -> list[Any]:
    """Different values that divide the runs into about as many parts of about the same size."""
    step = max(len(runs) * len(runs[0]) // (8 * buckets), 1)
    sample = _sort_now([item for run in runs for item in run[step // 2 % len(run) :: step]], hint)
    chosen = sample[:: max(len(sample) // buckets, 1)][1:]
    return [value for value, _ in groupby(chosen)]
