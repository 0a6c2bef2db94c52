"""How long a message takes from one stream to the next through a Structured Streaming query, and in which steps.

A producer writes at a steady rate, each message with its time of writing; a reader of the next stream waits for
messages and records their arrival. The row compares the median with a batch of Spark as it comes (rate to noop, in a
process of its own). The report has the steps between the two, by Spark's own measurement of its batches (durationMs),
and latencies at several rates, which are drawn as well.
"""

from __future__ import annotations

import contextlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from penstock.bench.drawing import draw
from penstock.bench.servers import Running

RATE = 100
RATES = (10, 100, 1000, 4000)
SECONDS = 10.0
WARM_BATCHES = 10
FILE = Path("bench-latency.svg")
_IN, _OUT = "latency-in", "latency-out"
_PAUSE = 0.005


class Point(NamedTuple):
    """Milliseconds from written to visible, at a rate."""

    rate: int
    p50: float
    p99: float


class Latencies:
    """The measurement. `spark` makes the session when it is first needed."""

    def __init__(self, spark: Callable[[], Any]) -> None:
        self._spark = spark
        self._points: list[Point] = []
        self._steps: dict[str, float] = {}

    def through(self, server: Running, scale: float) -> float:
        """The median latency at 100 messages a second, in ms; the other rates are recorded too."""
        self._points = []
        with self._copying(server) as query:
            for rate in RATES:
                self._points.append(_measure(server, rate, max(SECONDS * scale, 1.0)))
            self._note_steps(query)
        with self._following(server, "noop", {}) as query, _feeding(server, RATE):
            self._steps["stream to noop"] = _batch(query)
        frame = self._spark().readStream.format("rate").option("rowsPerSecond", RATE).load()
        with _started(frame.writeStream.format("noop")) as query:
            self._steps["rate to noop"] = _batch(query)
        return next(point.p50 for point in self._points if point.rate == RATE)

    def alone(self, server: Running, scale: float) -> float:
        """The median batch of Spark as it comes, in ms."""
        self._spark()  # gives this process, and those it starts, all cores
        words = [sys.executable, "-m", "penstock.bench.spark_alone", str(RATE), str(6 * WARM_BATCHES)]
        told = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        self._steps["as it comes"] = float(told.split()[-1])
        return self._steps["as it comes"]

    @contextlib.contextmanager
    def _copying(self, server: Running) -> Iterator[Any]:
        with self._following(server, "penstock", {"url": _url(server), "stream": _OUT}) as query:
            with _feeding(server, RATE):
                _wait_for_batches(query, WARM_BATCHES)
            yield query

    @contextlib.contextmanager
    def _following(self, server: Running, sink: str, options: dict[str, str]) -> Iterator[Any]:
        reader = self._spark().readStream.format("penstock").option("url", _url(server)).option("stream", _IN)
        with _started(reader.load().select("tag", "entry").writeStream.format(sink).options(**options)) as query:
            yield query

    def _note_steps(self, query: Any) -> None:
        self._steps["stream to stream"] = _median(query, "triggerExecution")
        self._steps["plan"] = _median(query, "latestOffset") + _median(query, "getBatch")

    def report(self) -> str:
        """The tables; writes the drawing too."""
        lines = {"p50": [point.p50 for point in self._points], "p99": [point.p99 for point in self._points]}
        rates = [point.rate for point in self._points]
        FILE.write_text(draw("From one stream to the next", "messages a second", "ms", rates, lines), encoding="utf-8")
        alone, read = self._steps["rate to noop"], self._steps["stream to noop"]
        whole, plan = self._steps["stream to stream"], self._steps["plan"]
        told = ["a batch, in ms, by Spark's own account:"]
        told += [
            f"{name:>17} {value:7.0f}"
            for name, value in (
                ("Spark as it comes", self._steps["as it comes"]),
                ("Spark here", alone),
                ("read", read - alone),
                ("write and commit", whole - read),
                ("of it, plan", plan),
            )
        ]
        told.append("from written to visible, in ms:")
        told += [f"{point.rate:>10,}/s   p50 {point.p50:7.0f}   p99 {point.p99:7.0f}" for point in self._points]
        return "\n".join([*told, f"drawn in {FILE}"])


def _url(server: Running) -> str:
    return f"redis://127.0.0.1:{server.port}"


@contextlib.contextmanager
def _started(writer: Any) -> Iterator[Any]:
    folder = tempfile.mkdtemp(prefix="penstock-bench-")
    query = writer.option("checkpointLocation", folder).trigger(processingTime="0 seconds").start()
    try:
        yield query
    finally:
        query.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for_batches(query: Any, number: int) -> None:
    while not query.lastProgress or query.lastProgress["batchId"] < number:
        if query.exception() is not None:
            raise query.exception()
        time.sleep(0.1)


def _batch(query: Any) -> float:
    """The median batch of a query that is warm, in ms."""
    _wait_for_batches(query, 3 * WARM_BATCHES)
    return _median(query, "triggerExecution")


def _median(query: Any, step: str) -> float:
    """Only batches that had rows, without the first ones."""
    found = [each["durationMs"].get(step, 0) for each in query.recentProgress if each["numInputRows"]]
    return float(statistics.median(found[WARM_BATCHES // 2 :] or found or [0]))


@contextlib.contextmanager
def _feeding(server: Running, rate: int) -> Iterator[None]:
    """Messages at a steady rate, each with the time it was written at."""
    over = threading.Event()

    def feed() -> None:
        began, sent = time.monotonic(), 0
        with server.client() as client:
            while not over.wait(_PAUSE):
                due = int((time.monotonic() - began) * rate) - sent
                if due > 0:
                    words = ["", repr(time.time())] * due
                    client.execute_command("TWRITE", _IN, "ENTRIES", *words)
                    sent += due

    thread = threading.Thread(target=feed, name="penstock-bench-feed")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _measure(server: Running, rate: int, seconds: float) -> Point:
    """Latencies of the messages that come within so many seconds."""
    found: list[float] = []
    with server.client() as client, _feeding(server, rate):
        (_, last), *_ = client.execute_command("TREAD", _OUT, 1, 0, "WITHINFO")
        at, end = last + 1, time.monotonic() + seconds
        while time.monotonic() < end or not found:
            messages = client.execute_command("TREAD", _OUT, at, 10_000, "BLOCK", 1000) or []
            now = time.time()
            found += [(now - float(entry)) * 1000 for _, _, entry in messages]
            at = messages[-1][0] + 1 if messages else at
    found.sort()
    return Point(rate, found[len(found) // 2], found[min(int(len(found) * 0.99), len(found) - 1)])
