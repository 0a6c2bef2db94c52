"""Sorted sets: members ordered by score, then by name.

The scores are a dict, which is always up to date. The order, a SortedList of (score, member), is made by the first
command that needs it. Writes then update it; but when a sixteenth of the set was written without an ordered read, it is
dropped, and the next ordered read makes it again. So sets that are only written and read by member never pay for an
order, sets that are read in order pay for each write, and no set pays much more than twice the necessary cost: at about
a sixteenth, updating the order has cost as much as making it.

Measured with 100,000 members, in microseconds: a new member 0.4 and a new score 0.5 without an order; with one 3 and 4
to 8, whatever the load factor of the SortedList; 0.5 a member to make the order, which is noticeable for a million
members. So it is made in steps, and `disorder` tells in advance that an ordered read has to make it, so that others can
be served between the steps.

Rejected: recording writes and sorting them in at the next read. Writes are then always fast, but a command that reads a
busy set of a million members waits for all recorded writes, 10 microseconds each.

Invariant: `_order` is None, or it holds exactly the rows of `scores`.
"""

from __future__ import annotations

import math
import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from operator import itemgetter
from typing import Any, Self

from sortedcontainers import SortedList

from penstock.freeing import GIANT, dispose
from penstock.types.kernels import Steps, chunks, finish, sort_in_steps
from penstock.types.packing import AN_OBJECT, CorruptValue, packed_doubles, packed_pieces, total_length, unpacked_chunks
from penstock.types.registry import value_type

SMALL = 128  # members up to which Redis keeps a set in its packed encoding, and looks at every name
LOAD = SortedList.DEFAULT_LOAD_FACTOR  # rows in a list of a SortedList
Row = tuple[float, bytes]  # (score, member): rows compare as the order does
Span = tuple[int, int]  # ranks from, and up to but not including


def most_bytes(members: int) -> int:
    """How many bytes a new sorted set of so many members takes, without their names: scores and a dict."""
    return 128 * members


@value_type("zset", tag=4, collection=True, item_cost=176)
class SortedSet:
    """Members with a score each.

    >>> podium = SortedSet({b"ann": 3.0, b"bob": 1.0, b"cat": 3.0})
    >>> podium.rows(0, 2), podium.rank(b"cat")
    ([(1.0, b'bob'), (3.0, b'ann')], 2)
    """

    __slots__ = ("_order", "_unseen", "scores")

    def __init__(self, scores: dict[bytes, float] | None = None) -> None:
        self.scores: dict[bytes, float] = {} if scores is None else scores  # changed only by the methods here
        self._order: Any = None  # SortedList[Row], or None
        self._unseen = 0  # writes since the last ordered read

    def __len__(self) -> int:
        return len(self.scores)

    def __contains__(self, member: object) -> bool:
        return member in self.scores

    def __iter__(self) -> Iterator[bytes]:
        """Members in order."""
        return (member for _, member in self._ordered())

    # -- changing ---------------------------------------------------------------------------------------------

    def put(self, member: bytes, score: float) -> float | None:
        """Set the score of a member, adding it if it is new; answer the old score, None if it is new.

        O(1) without an order, O(log N) with one.
        """
        scores = self.scores
        old = scores.get(member)
        if old != score:
            score += 0.0  # minus zero becomes zero, as in Redis's packed encoding
            scores[member] = score
            if self._order is not None:
                self._reorder(member, old, score)
        return old

    def remove(self, member: bytes) -> bool:
        """Remove a member; whether it existed. O(1) without an order, O(log N) with one."""
        old = self.scores.pop(member, None)
        if old is not None and self._order is not None:
            self._reorder(member, old, None)
        return old is not None

    def _reorder(self, member: bytes, old: float | None, new: float | None) -> None:
        """Update the order after one write, or drop it."""
        self._unseen += 1
        if self._unseen > 64 + len(self.scores) // 16:
            self._forget_order()
            return
        if old is not None:
            self._order.remove((old, member))
        if new is not None:
            self._order.add((new, member))

    def remove_span(self, start: int, stop: int) -> int:
        """Remove the members with ranks from `start` up to `stop`; answer how many. O(log N) and O(1) a member."""
        order = self._ordered()
        scores = self.scores
        stop = min(stop, len(order))
        if start >= stop:
            return 0
        for _, member in order.islice(start, stop):
            del scores[member]
        _cut(order, start, stop)
        return stop - start

    def without_span(self, start: int, stop: int) -> SortedSet:
        """A sorted set of the members that `remove_span` leaves, with an order; made in
        chunks, so a thread may do it.
        """
        order = self._ordered()
        rest = SortedSet()
        for rows in chunks(chain(order.islice(0, start), order.islice(stop))):
            rest.scores.update((member, score) for score, member in rows)
        rest._order = _of_lists(chunks(chain(order.islice(0, start), order.islice(stop)), LOAD))
        _make_index(rest._order)
        return rest

    def pop(self, count: int, from_end: bool = False) -> list[Row]:
        """Remove and return up to `count` rows with the lowest scores, or with the highest, the highest first."""
        size = len(self.scores)
        count = min(count, size)
        if count == 1:
            rows: list[Row] = [self._ordered().pop(-1 if from_end else 0)]
            del self.scores[rows[0][1]]
            return rows
        start, stop = (size - count, size) if from_end else (0, count)
        rows = self.rows(start, stop, from_end)
        self.remove_span(start, stop)
        return rows

    # -- reading in order -------------------------------------------------------------------------------------

    @property
    def disorder(self) -> int:
        """How many members the next ordered read has to sort first: all of them, or none."""
        return len(self.scores) if self._order is None else 0

    def _ordered(self) -> Any:
        """The order, for a command that reads it. If two threads make it at the same time, the results are equal."""
        self._unseen = 0
        order = self._order
        if order is None:
            finish(self.put_in_order())
            order = self._order
        return order

    def put_in_order(self) -> Steps[None]:
        """Do now what the next ordered read would do first; the set must not change during that."""
        order = yield from _sorted_list(self.scores)
        _make_index(order)
        if self._order is None:
            self._order = order  # assigned last, because another thread may use it at once
        elif len(order) > GIANT:  # another client's read has made the same order meanwhile
            dispose(order._lists)

    def build_index(self) -> None:
        """Prepare the set so that reading changes nothing but the attribute that holds the finished order.

        Call it before a thread reads the set, which others may read on the loop at the same time: a SortedList builds
        its index in steps at its first access by position, and another thread would read wrong positions in between.
        """
        if self._order is not None:
            _make_index(self._order)

    def _forget_order(self) -> None:
        order, self._order = self._order, None
        if order is not None and len(order) > GIANT:
            dispose(order._lists)

    def rows(self, start: int, stop: int, backwards: bool = False) -> list[Row]:
        """(score, member) of the ranks from `start` up to `stop`. O(log N) and O(1) a row."""
        found: list[Row] = self._ordered()[start:stop]
        if backwards:
            found.reverse()
        return found

    def walk(self, start: int, stop: int, backwards: bool = False) -> Iterator[Row]:
        """The rows of `rows` one by one; the set must not change during that."""
        rows: Iterator[Row] = self._ordered().islice(start, stop, backwards)
        return rows

    def rank(self, member: bytes) -> int | None:
        """How many members come before this one. O(log N)."""
        score = self.scores.get(member)
        return None if score is None else int(self._ordered().bisect_left((score, member)))

    def score_span(self, low: float, high: float, above: bool = False, below: bool = False) -> Span:
        """The ranks of the scores from `low` to `high`; `above` and `below` exclude the bound itself. O(log N)."""
        order = self._ordered()
        start = _after(order, low) if above else order.bisect_left((low,))
        stop = order.bisect_left((high,)) if below else _after(order, high)
        return start, max(start, stop)

    def name_span(self, low: bytes | None, high: bytes | None, above: bool = False, below: bool = False) -> Span:
        """The ranks of the names from `low` to `high`, None for no bound. O(log N).

        Names are ordered only among equal scores. With several scores a set of up to SMALL members gives those from
        the first name that `low` includes up to one that `high` excludes, as in Redis. A larger set is searched as if
        its names were in order. So is Redis's, whose answer then depends on chance.
        """
        order = self._ordered()
        if not order:
            return 0, 0
        if order[0][0] != order[-1][0]:
            return _first_run(order, low, high, above, below)
        start, stop = 0, len(order)
        if low is not None:
            row = (order[0][0], low)
            start = order.bisect_right(row) if above else order.bisect_left(row)
        if high is not None:
            row = (order[-1][0], high)
            stop = order.bisect_left(row) if below else order.bisect_right(row)
        return start, max(start, stop)

    # -- for storage and tests --------------------------------------------------------------------------------

    def __del__(self) -> None:
        if len(self.scores) > GIANT:
            dispose(self.scores)
            self._forget_order()

    def dump(self) -> bytes:
        return b"".join(self.dump_pieces())

    def dump_pieces(self) -> list[bytes]:
        return packed_pieces(self.scores, first=packed_doubles(self.scores.values()))

    @classmethod
    def load(cls, data: bytes) -> Self:
        parts = unpacked_chunks(data)
        packed, *first = next(parts, [b""])
        scores: dict[bytes, float] = {}
        at = 0
        for members in chain([first], parts):
            if at + 8 * len(members) > len(packed):
                raise CorruptValue("a sorted set with members and scores of different numbers")
            numbers = struct.unpack_from(f"<{len(members)}d", packed, at)
            scores.update(zip(members, numbers, strict=True))
            at += 8 * len(members)
            if 8 * len(scores) != at or any(map(math.isnan, numbers)):
                raise CorruptValue("a sorted set with a member twice, or without a score")
        if at != len(packed):
            raise CorruptValue("a sorted set with members and scores of different numbers")
        return cls(scores)

    def size(self) -> int:
        members = len(self.scores)
        ordered = 64 * members if self._order is not None else 0  # a pair, and its place in the list
        return self.scores.__sizeof__() + total_length(self.scores) + (AN_OBJECT + 32) * members + ordered + 96

    def check(self) -> None:
        assert all(type(member) is bytes and type(score) is float for member, score in self.scores.items()), self.scores
        assert not any(math.isnan(score) or str(score) == "-0.0" for score in self.scores.values()), self.scores
        if self._order is not None:
            self._order._check()
            rows = sorted((score, member) for member, score in self.scores.items())
            assert list(map(repr, self._order)) == list(map(repr, rows)), (self._order, self.scores)  # -0.0 == 0.0


def _sorted_list(scores: dict[bytes, float]) -> Steps[Any]:
    """The rows of these scores in order, as a SortedList, whose constructor would sort all of them in one call."""
    lists: list[list[Row]] = []
    rest: list[Row] = []
    for rows in sort_in_steps(zip(scores.values(), scores, strict=True), hint=itemgetter(0)):
        rest += rows
        *full, rest = list(chunks(rest, LOAD)) or [[]]
        lists += full
        yield
    return _of_lists([*lists, rest] if rest else lists)


def _of_lists(lists: Iterable[list[Row]]) -> Any:
    """A SortedList of rows that are sorted already."""
    order = SortedList()
    order._lists = list(lists)
    order._maxes = [part[-1] for part in order._lists]
    order._len = sum(map(len, order._lists))
    return order


def _cut(order: Any, start: int, stop: int) -> None:
    """Remove the rows of these ranks, at least one. SortedList itself removes them one by one."""
    lists, maxes = order._lists, order._maxes
    first, at = order._pos(start)
    last, until = order._pos(stop - 1)
    joined = lists[first][:at] + lists[last][until + 1 :]
    lists[first : last + 1] = [joined] if joined else []
    maxes[first : last + 1] = [joined[-1]] if joined else []
    order._len -= stop - start
    del order._index[:]
    if joined and len(lists) > 1 and len(joined) < order._load >> 1:  # as SortedList does with a short list
        first = max(first, 1)
        lists[first - 1] += lists[first]
        maxes[first - 1] = maxes[first]
        del lists[first], maxes[first]
        order._expand(first - 1)


def _first_run(order: Any, low: bytes | None, high: bytes | None, above: bool, below: bool) -> Span:
    """`name_span` where names are not in order."""

    def over_low(name: bytes) -> bool:
        return low is None or (name > low if above else name >= low)

    def beyond_high(name: bytes) -> bool:
        return high is not None and (name >= high if below else name > high)

    def first(start: int, fits: Callable[[bytes], bool]) -> int:
        """A rank from `start` on whose name fits, the size of the set if there is none."""
        ranks = range(start, len(order))
        if len(order) <= SMALL:
            return next((rank for rank in ranks if fits(order[rank][1])), len(order))
        return start + bisect_left(ranks, True, key=lambda rank: fits(order[rank][1]))

    if not over_low(order[-1][1]) or beyond_high(order[0][1]):
        return 0, 0  # Redis checks the two ends first
    start = first(0, over_low)
    return start, first(start, beyond_high)


def _make_index(order: Any) -> None:
    """Have a SortedList build its index now, if it has none; asking for the last position does that."""
    if order:
        order.__getitem__(len(order) - 1)


def _after(order: Any, score: float) -> int:
    """The rank of the first row with a higher score."""
    return len(order) if score == math.inf else int(order.bisect_left((math.nextafter(score, math.inf),)))
