"""Lag, rate and size of what a streaming query reads, by stream.

Spark 4.3 takes no metrics from a source that is written in Python: its class for such sources does not implement
ReportsSourceMetrics, so `sources[].metrics` of a progress stays empty. The offsets are there, and ours are
numbers, so the metrics are computed from them. Sizes are estimates, from what the server says about the stream.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from penstock.spark.link import Link
from penstock.spark.options import parse

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )


@dataclass(frozen=True, slots=True)
class StreamMetrics:
    """What a batch has read of one stream."""

    stream: str
    rows: int
    rows_per_second: float
    bytes: int
    """About how large these messages are, uncompressed."""
    lag: int
    """Messages that were in the stream and not read, when the batch began."""


def stream_metrics(progress: StreamingQueryProgress | dict[str, Any], url: str = "") -> list[StreamMetrics]:
    """The metrics of a batch by stream, of all sources that are streams. The server is the default one unless named."""
    told = json.loads(progress.json) if hasattr(progress, "json") else progress
    seconds = max(told.get("batchDuration") or 0, 1) / 1000
    found = []
    with Link(parse({"url": url} if url else {})) as link:
        for source in told["sources"]:
            start, end, latest = (_places(source, name) for name in ("startOffset", "endOffset", "latestOffset"))
            for stream, place in end.items():
                rows = max(place - start.get(stream, 1), 0)
                size = rows * link.bytes_a_message(stream) if rows else 0
                lag = max(latest.get(stream, place) - place, 0)
                found.append(StreamMetrics(stream, rows, rows / seconds, size, lag))
    return found


def _places(source: dict[str, Any], name: str) -> dict[str, int]:
    """The offsets of a source of ours; empty for other sources, which Spark only describes as Python."""
    places = source.get(name)
    if "PythonMicroBatchStream" not in source["description"] or not isinstance(places, dict):
        return {}
    return {stream: place for stream, place in places.items() if isinstance(place, int)}


class MetricsListener(StreamingQueryListener):
    """Calls `report(name or id of the query, metrics)` after each batch.

    spark.streams.addListener(MetricsListener(report))
    """

    def __init__(self, report: Callable[[str, list[StreamMetrics]], None], url: str = "") -> None:
        self._report = report
        self._url = url

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        if found := stream_metrics(progress, self._url):
            self._report(progress.name or str(progress.id), found)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        pass
