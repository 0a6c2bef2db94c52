"""How far each flow is: rows, rows a second, and how many messages of its streams are still to be read.

Spark tells the client of a pipeline only that a flow started or ended. The queries behind the flows are in the JVM,
in the list that all its sessions share; a thread looks there a few times a second. A query leaves the list when it
ends, so each that was seen is held on to until its last numbers are read. The engine has those that ended between two
looks. How long the streams are is asked of the server, not of Spark, which knows it only as of the last batch.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from py4j.protocol import Py4JError

from penstock.spark.options import parse
from penstock.spark.pipeline_session import PipelineSession
from penstock.spark.sql_files import short
from penstock.spark.stream_connection import StreamConnection

EVERY = 0.4  # seconds
OVER = ("COMPLETED", "FAILED")
"""The states of a flow whose query has ended."""


@dataclass(frozen=True, slots=True)
class FlowProgress:
    """The state of a flow. Immutable: replaced when something changes."""

    name: str
    state: str = "QUEUED"
    rows: int = 0
    rate: float = 0.0
    reached: dict[str, int] = field(default_factory=dict)
    """How far it has read each stream: the next offset."""
    watermark: str = ""
    """Of a flow with one: up to when it is sure to have seen everything, as of its last batch."""
    lag: int | None = None
    """Messages in its streams that it has not read; None for a flow that reads no stream."""
    missing: tuple[str, ...] = ()
    """Streams that it is to read and that do not exist."""


class Progress:
    """The flows of a run.

    Events come from the thread that runs, numbers from the one that watches; a lock is around both.
    """

    def __init__(self, session: PipelineSession, url: str, changed: Callable[[], None] = lambda: None) -> None:
        self._session = session
        self._changed = changed
        self._url = url
        self._lock = threading.Lock()
        self._flows: dict[str, FlowProgress] = {}
        self._queries: dict[str, Any] = {}
        self._failed: set[str] = set()  # flows whose last query ended with an error
        self._seen: dict[str, str] = {}  # when the last batch that was counted began, of each query
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="penstock-progress", daemon=True)

    def __enter__(self) -> Progress:
        self._connection = StreamConnection(parse({"url": self._url, "retryTimeout": "1"}))
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()
        self._connection.__exit__()

    def begin_run(self) -> None:
        """Reset states and counts, which belong to one run. How far streams were read is kept."""
        with self._lock:
            self._flows = {name: FlowProgress(name, reached=flow.reached) for name, flow in self._flows.items()}

    def follow(self, queries: Iterable[Any]) -> None:
        """Look at these queries too. One that ends soon after its start may never be seen in the list."""
        with self._lock:
            self._queries |= {query.runId().toString(): query for query in queries}

    def event(self, flow: str, state: str) -> None:
        """Spark reports a new state of a flow."""
        if state in OVER:
            self._look()
            self._measure_lag()
        name = short(flow)
        with self._lock:
            known = self._flows.get(name, FlowProgress(name))
            if state == "EXCLUDED" and known.state != "QUEUED":
                return  # it is left out of a run of the views alone, beside which it goes on
            if state == "COMPLETED" and name in self._failed:
                state = "FAILED"  # Spark calls every query completed that is over
            elif state == "STARTING":
                self._failed.discard(name)
            self._flows[name] = replace(known, state=state)
        self._changed()

    def flows(self) -> list[FlowProgress]:
        with self._lock:
            return list(self._flows.values())

    def _watch(self) -> None:
        while not self._over.wait(EVERY):
            self._look()
            self._measure_lag()
            self._changed()

    def _look(self) -> None:
        """Read the new numbers of every query; none from a JVM that is ending."""
        with self._lock, contextlib.suppress(Py4JError, OSError):
            active = self._session.classic._jsparkSession.sharedState().activeStreamingQueries()
            for key in active.keySet().toArray():
                if (query := active.get(key)) is not None:  # it may have ended since
                    self._queries[query.runId().toString()] = query
            for run, query in list(self._queries.items()):
                ended = not query.isActive()
                for news in reversed(_unseen(query.recentProgress(), self._seen.get(run, ""))):
                    self._count(json.loads(news.json()))
                    self._seen[run] = news.timestamp()
                if ended:
                    if query.exception().isDefined():
                        self._failed.add(short(query.name() or ""))
                    del self._queries[run]

    def _count(self, news: dict[str, Any]) -> None:
        name = short(news["name"] or news["id"])
        flow = self._flows.get(name, FlowProgress(name))
        reached = dict(flow.reached)
        for source in news["sources"]:
            end = source.get("endOffset")
            # Spark does not say which data source it is. The offsets of another one name no stream of our server.
            if "PythonMicroBatchStream" in source["description"] and isinstance(end, dict):
                reached |= {stream: place for stream, place in end.items() if isinstance(place, int)}
        self._flows[name] = replace(
            flow,
            rows=flow.rows + news["numInputRows"],
            rate=news["processedRowsPerSecond"] or flow.rate,
            reached=reached,
            watermark=news.get("eventTime", {}).get("watermark", flow.watermark),
        )

    def _measure_lag(self) -> None:
        with self._lock:
            streams = sorted({stream for flow in self._flows.values() for stream in flow.reached})
        if not streams:
            return
        try:
            bounds = self._connection.bounds(streams)
        except Exception:  # the server is away; the flows themselves say so if it stays away
            return
        with self._lock:
            for name, flow in self._flows.items():
                if flow.reached:
                    behind = [
                        max(there_is.end - flow.reached[stream], 0)
                        for stream in flow.reached
                        if (there_is := bounds.get(stream))
                    ]
                    # A stream that was read and is gone is for the flow itself to report.
                    missing = tuple(
                        stream for stream, place in flow.reached.items() if place == 1 and bounds.get(stream) is None
                    )
                    self._flows[name] = replace(flow, lag=sum(behind), missing=missing)


def _unseen(recent: Any, seen: str) -> list[Any]:
    """The progress of batches that were not seen yet, the last one first. Every look at one is a call to Java.

    By time, not by number: a query that waits reports on a batch without rows, whose number the next batch with rows
    has too.
    """
    unseen = []
    for place in range(len(recent) - 1, -1, -1):
        if recent[place].timestamp() <= seen:
            break
        unseen.append(recent[place])
    return unseen
