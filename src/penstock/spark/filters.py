"""Filters of a batch query that make the reader read less.

Offsets and names of streams are exact: Spark need not look at them again. The server finds where a time begins (TSEEK),
but the clock of a server may have been set back, and messages can be written with a time of their own, so later
messages may have earlier times: a lower bound on time says where to begin, and Spark still filters. An upper bound on
time says nothing about where to end.

The server does not filter by tag. The reader does, in Arrow, before it parses entries or hands rows to Spark, so a
message with another tag costs its transfer only. A bad entry of such a message is not noticed.

This is an option, and off unless it is asked for, because of a mistake in Spark 4.3: all queries of one frame share
what was planned for the last one that had filters, so `frame.count()` after `frame.where("offset > 10").count()` leaves
out rows. tests/spark/test_filters.py fails when Spark no longer does that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from penstock.spark.options import LARGEST

T = TypeVar("T")
_NEVER_NULL = ("stream", "offset", "time")


@dataclass(frozen=True, slots=True)
class Wanted:
    """The part of the streams that has to be read."""

    streams: frozenset[str] | None = None
    first: int = 1
    end: int = LARGEST
    since: int | None = None
    """Milliseconds since 1970: messages before the first one of this time are not wanted."""
    tags: frozenset[bytes] | None = None
    prefixes: frozenset[bytes] = frozenset()
    """A tag must begin with all of these."""

    def among(self, streams: Mapping[str, T]) -> dict[str, T]:
        """The streams among these that have to be read."""
        return {name: each for name, each in streams.items() if self.streams is None or name in self.streams}

    def of_tags(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The messages of a batch whose tags are wanted."""
        if self.tags is None and not self.prefixes:
            return batch
        import pyarrow.compute as pc  # slow, and few queries need it

        if self.tags is not None:
            batch = batch.filter(pc.is_in(batch.column("tag"), pa.array(sorted(self.tags), batch.column("tag").type)))
        for prefix in self.prefixes:
            batch = batch.filter(pc.starts_with(batch.column("tag"), prefix))
        return batch

    def narrowed(self, first: int = 1, end: int = LARGEST) -> Wanted:
        return replace(self, first=max(self.first, first), end=min(self.end, end))


def narrow(filters: Sequence[Filter]) -> tuple[Wanted, list[Filter]]:
    """The part to read, and the filters that Spark still has to apply.

    >>> wanted, left = narrow([GreaterThan(("offset",), 10), EqualTo(("tag",), "a"), EqualTo(("page",), "/")])
    >>> wanted.first, wanted.tags, left
    (11, frozenset({b'a'}), [EqualTo(attribute=('page',), value='/')])
    """
    wanted, left = Wanted(), []
    for each in filters:
        wanted, is_exact = _apply(wanted, each)
        if not is_exact:
            left.append(each)
    return wanted, left


def _apply(wanted: Wanted, given: Filter) -> tuple[Wanted, bool]:
    """The part to read with one more filter, and whether the part makes that filter superfluous."""
    match given:
        case IsNotNull((name,)):
            return wanted, name in _NEVER_NULL
        case EqualTo(("stream",), value) | EqualNullSafe(("stream",), value):
            return _among(wanted, [value]), True
        case In(("stream",), values):
            return _among(wanted, values), True
        case EqualTo(("offset",), int(value)) | EqualNullSafe(("offset",), int(value)):
            return wanted.narrowed(value, value + 1), True
        case In(("offset",), values):
            numbers = [value for value in values if value is not None]
            return wanted.narrowed(min(numbers, default=LARGEST), max(numbers, default=0) + 1), False
        case GreaterThan(("offset",), int(value)):
            return wanted.narrowed(first=value + 1), True
        case GreaterThanOrEqual(("offset",), int(value)):
            return wanted.narrowed(first=value), True
        case LessThan(("offset",), int(value)):
            return wanted.narrowed(end=value), True
        case LessThanOrEqual(("offset",), int(value)):
            return wanted.narrowed(end=value + 1), True
        case EqualTo(("tag",), value) | EqualNullSafe(("tag",), value) if value is not None:
            return _tagged(wanted, [value]), True
        case In(("tag",), values):
            return _tagged(wanted, values), True
        case StringStartsWith(("tag",), value):
            return replace(wanted, prefixes=wanted.prefixes | {_bytes(value)}), True
        case EqualTo(("time",), value) | GreaterThan(("time",), value) | GreaterThanOrEqual(("time",), value):
            since = _milliseconds(value)
            return replace(wanted, since=max(since, wanted.since or 0)), False
    return wanted, False


def _among(wanted: Wanted, names: Iterable[str | None]) -> Wanted:
    streams = frozenset(name for name in names if name is not None)
    return replace(wanted, streams=streams if wanted.streams is None else wanted.streams & streams)


def _tagged(wanted: Wanted, tags: Iterable[str | bytes | None]) -> Wanted:
    found = frozenset(_bytes(tag) for tag in tags if tag is not None)
    return replace(wanted, tags=found if wanted.tags is None else wanted.tags & found)


def _bytes(tag: str | bytes) -> bytes:
    """A tag as it was written: a column of text has it as UTF-8."""
    return tag.encode() if isinstance(tag, str) else bytes(tag)


def _milliseconds(value: Any) -> int:
    """A time in whole milliseconds since 1970, rounded down; a column `time bigint` has it as that."""
    if not isinstance(value, datetime):
        return max(int(value), 0)
    moment = value if value.tzinfo is not None else value.astimezone()
    return max((moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1), 0)
