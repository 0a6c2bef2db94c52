"""Lag, rate and size of what a query reads."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from tests.support.spark.world import World

from penstock.spark.metrics import MetricsListener, StreamMetrics, stream_metrics


def test_a_batch_has_rows_bytes_a_rate_and_a_lag_by_stream(world: World) -> None:
    world.write("a", *("x" * 100 for _ in range(30)))
    world.write("b", "y")
    reported: list[list[StreamMetrics]] = []
    is_over = threading.Event()

    def report(query: str, metrics: list[StreamMetrics]) -> None:
        reported.append(metrics)
        if sum(each.lag for each in metrics) == 0:
            is_over.set()

    listener = MetricsListener(report)
    world.spark.streams.addListener(listener)
    try:
        frame = world.follow(stream="a,b", maxRowsPerTrigger=20).select("entry")
        progress = world.run(frame, stream="out")
        assert is_over.wait(60), reported
    finally:
        world.spark.streams.removeListener(listener)
    assert reported == [stream_metrics(each) for each in progress if each["numInputRows"]]
    assert json.loads(progress[0].sources[0].latestOffset)["penstock:metrics"]["b"]["rows"] == 1, "Spark shows it"
    first, last = reported
    assert sum(each.rows for each in first) == 20
    assert sum(each.lag for each in first) == 11
    a = next(each for each in first if each.stream == "a")
    assert 100 * a.rows <= a.bytes <= 200 * a.rows
    assert a.rows_per_second > 0
    assert sum(each.rows for each in last) == 11


REPORTED = {"s": 8, "penstock:metrics": {"s": {"rows": 4, "bytes": 400, "lag": 3}}}


@pytest.mark.parametrize("latest", [REPORTED, json.dumps(REPORTED)], ids=["classic", "connect"])
def test_metrics_are_found_in_what_spark_and_spark_connect_show(latest: Any) -> None:
    others = [{"latestOffset": each} for each in ("an offset of another source", "7", 7, None)]
    progress = {"batchDuration": 2000, "sources": [*others, {"latestOffset": latest}]}
    assert stream_metrics(progress) == [StreamMetrics("s", 4, 2.0, 400, 3)]
