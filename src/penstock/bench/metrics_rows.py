"""The rows of metrics: what a scrape a second costs the clients, with few streams and with many.

The figures are processor time: what a scrape adds to it, and requests for a second of it (processor_load.py).
"""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Callable

from penstock.bench.processor_load import fill_streams, requests_per_processor_second
from penstock.bench.row import Measure, Row
from penstock.bench.servers import Running
from penstock.testing.redis import free_port

_EVERY = 1.0
"""Seconds between two scrapes."""
_MANY = 10_000
_HUNDREDTH = 10.0
"""Milliseconds: what a scrape may take of a second."""


def _scraped(measure: Callable[[], float], server: Running) -> float:
    """The figure while a thread scrapes the server."""
    port, over = free_port(), threading.Event()
    with server.client() as client:
        client.config_set("metrics-port", port)

    def scrape() -> None:
        while not over.wait(_EVERY):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                answer.read()

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        return measure()
    finally:
        over.set()
        thread.join()
        with server.client() as client:
            client.config_set("metrics-port", 0)


def _row(name: str, what: str, depth: int, streams: int) -> Row:
    def plain(server: Running, scale: float) -> float:
        fill_streams(server, streams)
        return requests_per_processor_second(server, scale, depth)

    def scraped(server: Running, scale: float) -> float:
        return _scraped(lambda: plain(server, scale), server)

    measure: Measure = scraped
    return Row(f"metrics.{name}", what, "req/CPU s", 0.99, measure, baseline=plain, rounds=7)


def _cost(name: str, what: str, streams: int) -> Row:
    """Milliseconds of processor time that a scrape a second adds to a second of a server without clients."""

    def measure(server: Running, scale: float) -> float:
        fill_streams(server, streams)
        idle = _used(server, scale)
        return _scraped(lambda: _used(server, scale), server) - idle

    return Row(f"metrics.{name}", what, "ms", 1.0, measure, True, baseline=lambda server, scale: _HUNDREDTH)


def _used(server: Running, scale: float) -> float:
    seconds = max(40 * scale, 2)  # a survey of many streams comes once in half a minute
    before = server.processor_time()
    time.sleep(seconds)
    return (server.processor_time() - before) / seconds * 1000


METRICS_ROWS = (
    _cost("cost", "processor time of a scrape a second, beside a hundredth of a second", 0),
    _cost("cost.streams", "the same, with 10,000 streams", _MANY),
    _row("scrape", "GET, depth 50, with a scrape of /metrics a second", 50, 0),
    _row("scrape.1", "GET, depth 1, with a scrape of /metrics a second", 1, 0),
    _row("scrape.streams", "GET, depth 50, with a scrape a second and 10,000 streams", 50, _MANY),
)
