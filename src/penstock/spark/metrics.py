"""Lag, rate and size of what a streaming query reads, by stream.

Spark 4.3 takes no metrics from a source that is written in Python: its class for such sources does not implement
ReportsSourceMetrics, so `sources[].metrics` of a progress stays empty. It shows what the source reports as its latest
offset, and there the metrics are (source.py). Sizes are estimates, from what the server says about the stream.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from penstock.spark.ranges import METRICS

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )


@dataclass(frozen=True, slots=True)
class StreamMetrics:
    """The figures of one stream in a batch."""

    stream: str
    rows: int
    rows_per_second: float
    bytes: int
    """About how large these messages are, uncompressed."""
    lag: int
    """Messages that were in the stream and not read, when the batch began."""


def stream_metrics(progress: StreamingQueryProgress | dict[str, Any]) -> list[StreamMetrics]:
    """The metrics of a batch by stream, of all sources that are streams."""
    told = json.loads(progress.json) if hasattr(progress, "json") else progress
    seconds = max(told.get("batchDuration") or 0, 1) / 1000
    return [
        StreamMetrics(stream, each["rows"], each["rows"] / seconds, each["bytes"], each["lag"])
        for source in told["sources"]
        for stream, each in _reported(source.get("latestOffset")).items()
    ]


def _reported(latest: Any) -> dict[str, Any]:
    """The metrics in what a source reported, as an object or, through Spark Connect, as JSON in a string."""
    if isinstance(latest, str):
        try:
            latest = json.loads(latest)
        except ValueError:  # of another source
            return {}
    return latest.get(METRICS, {}) if isinstance(latest, dict) else {}


class MetricsListener(StreamingQueryListener):
    """Calls `report(name or id of the query, metrics)` after each batch.

    spark.streams.addListener(MetricsListener(report))
    """

    def __init__(self, report: Callable[[str, list[StreamMetrics]], None]) -> None:
        self._report = report

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        if found := stream_metrics(progress):
            self._report(progress.name or str(progress.id), found)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        pass
