"""Filters that make a batch query read less, and those that are left to Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from pyspark.errors import PySparkException
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
    Not,
    StringContains,
    StringStartsWith,
)
from tests.support.spark.world import World

from penstock.spark.filters import Wanted, narrow

OFFSET, TIME, STREAM, TAG = ("offset",), ("time",), ("stream",), ("tag",)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ([GreaterThan(OFFSET, 10), LessThan(OFFSET, 20)], Wanted(first=11, end=20)),
        ([GreaterThanOrEqual(OFFSET, 10), LessThanOrEqual(OFFSET, 20), GreaterThan(OFFSET, 2)],
            Wanted(first=10, end=21)),
        ([EqualTo(OFFSET, 7), IsNotNull(OFFSET), IsNotNull(TIME), IsNotNull(STREAM)], Wanted(first=7, end=8)),
        ([EqualNullSafe(OFFSET, 7), GreaterThan(OFFSET, 9)], Wanted(first=10, end=8)),
        ([EqualTo(STREAM, "a")], Wanted(frozenset("a"))),
        ([In(STREAM, ("a", "b", None)), In(STREAM, ("b", "c"))], Wanted(frozenset("b"))),
        ([In(TAG, ("a", b"b", None)), EqualTo(TAG, bytearray(b"b"))], Wanted(tags=frozenset({b"b"}))),
        ([StringStartsWith(TAG, "\u00e9"), StringStartsWith(TAG, "")],
            Wanted(prefixes=frozenset({"\u00e9".encode(), b""}))),
    ],
)  # fmt: skip
def test_offsets_streams_and_tags_are_filtered_by_the_reader_alone(given: list[Filter], wanted: Wanted) -> None:
    assert narrow(given) == (wanted, [])


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (In(OFFSET, (9, 3, None)), Wanted(first=3, end=10)),
        (GreaterThan(TIME, datetime(1970, 1, 1, 0, 0, 1, 999, tzinfo=UTC)), Wanted(since=1000)),
        (GreaterThanOrEqual(TIME, datetime(1970, 1, 1, 1, 0, 1, tzinfo=timezone(timedelta(hours=1)))),
            Wanted(since=1000)),
        (EqualTo(TIME, 1234), Wanted(since=1234)),
        (GreaterThan(TIME, datetime(1960, 1, 1, tzinfo=UTC)), Wanted(since=0)),
        (LessThan(TIME, 1234), Wanted()),
        (EqualNullSafe(TAG, None), Wanted()),
        (IsNotNull(TAG), Wanted()),
        (StringContains(TAG, "a"), Wanted()),
        (Not(EqualTo(OFFSET, 1)), Wanted()),
        (EqualTo(("field", "offset"), 1), Wanted()),
    ],
)  # fmt: skip
def test_what_the_reader_cannot_do_exactly_stays_with_spark(given: Filter, wanted: Wanted) -> None:
    assert narrow([given]) == (wanted, [given])


def test_times_narrow_to_the_latest_lower_bound() -> None:
    assert narrow([GreaterThan(TIME, 5), GreaterThan(TIME, 9), GreaterThan(TIME, 7)])[0].since == 9


def counts(frame: Any) -> tuple[int, int]:
    """The rows of a query, and the messages that its scan read for them."""
    rows = len(frame.collect())
    scan = frame._jdf.queryExecution().executedPlan().collectLeaves().head()
    return rows, scan.metrics().apply("numOutputRows").value()


def test_a_query_reads_only_what_its_filters_leave(world: World) -> None:
    world.write("a", *(f"{number}" for number in range(10)))
    world.write("b", *(f"{number}" for number in range(10)))
    world.write("c", "no JSON", '{"n": 1}')

    def under(filters: str) -> tuple[int, int]:
        return counts(world.read(stream="a,b", pushFilters=True).where(filters))

    with pytest.raises(PySparkException, match="Set it to true to enable filter pushdown"):
        under("offset = 1")
    world.spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        assert under("stream = 'a' AND offset BETWEEN 8 AND 9") == (2, 2)
        assert under("offset IN (2, 5)") == (4, 8)
        assert under("time > '2100-01-01'") == (0, 0)
        assert under("time > '2020-01-01' AND time < '2021-01-01' AND offset < 4") == (0, 6)
        assert under("tag = '1'") == (2, 2)
        assert under("tag IN ('1', '7', 'x') AND offset > 5") == (2, 2)
        assert under("tag = X'31' AND stream = 'b'") == (1, 1)
        assert under("tag = 'x'") == (0, 0)
        text = world.read(stream="a,b", pushFilters=True, text=True)
        assert counts(text.where("tag LIKE '1%' AND stream = 'a'")) == (1, 1)
        fields = world.read("tag string, n int", stream="c", pushFilters=True)
        assert [row.n for row in fields.where("tag = '{'").collect()] == [1], "a bad entry of another tag is in the way"
        for is_pushed, rows in ((False, 20), (True, 6)):
            frame = world.read(stream="a,b", pushFilters=is_pushed)
            assert frame.where("offset > 7").count() == 6
            assert frame.count() == rows, (
                "Spark is mended if this is 20: then filters can be pushed without being asked for"
            )
    finally:
        world.spark.conf.unset("spark.sql.python.filterPushdown.enabled")
