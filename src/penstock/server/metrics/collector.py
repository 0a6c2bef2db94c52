"""Collects a page of metrics, without holding clients up.

It works in steps of SLICE, between which the loop serves clients. Scrapes that come at the same time share one
collection, and between two there is a pause, so that however many are asked for, they take a small part of the time.

Owned by the loop thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

from penstock.engine.dispatch import Engine
from penstock.server.metrics import own_metrics, server_metrics
from penstock.server.metrics.exposition import Page
from penstock.server.metrics.stream_metrics import StreamMetrics

SLICE = 0.0005
"""Seconds of work before clients are served."""
PAUSE = 0.05
"""Seconds between the end of a collection and the beginning of the next."""


class Collector:
    """See the top of this file."""

    def __init__(self, engine: Engine, connections: Callable[[], int]) -> None:
        self._engine = engine
        self._connections = connections
        self._streams = StreamMetrics(engine)
        self._under_way: dict[bool, asyncio.Task[bytes]] = {}  # by format
        self._ended_at = 0.0  # the last one
        self._count = 0
        self._seconds = 0.0  # that all of them took

    def close(self) -> None:
        for task in self._under_way.values():
            task.cancel()

    async def page(self, open_metrics: bool) -> bytes:
        """The page of the collection under way, or of a new one."""
        task = self._under_way.get(open_metrics)
        if task is None:
            task = self._under_way[open_metrics] = asyncio.create_task(self._collect(open_metrics))
            task.add_done_callback(lambda _: self._under_way.pop(open_metrics, None))
        return await asyncio.shield(task)

    async def _collect(self, open_metrics: bool) -> bytes:
        await asyncio.sleep(max(self._ended_at + PAUSE - time.monotonic(), 0))
        page = Page(open_metrics)
        began = time.perf_counter()
        for _ in self.steps(page):
            worked = time.perf_counter() - began
            if worked > SLICE:
                self._seconds += worked
                await asyncio.sleep(0)
                began = time.perf_counter()
        text = page.text()
        self._seconds += time.perf_counter() - began
        self._count += 1
        self._ended_at = time.monotonic()
        return text

    def steps(self, page: Page) -> Iterator[None]:
        """Write every family."""
        engine = self._engine
        engine.clock.refresh()
        yield from server_metrics.steps(engine, page)
        yield from own_metrics.steps(engine, page)
        yield from self._streams.steps(page)
        page.gauge("penstock_metrics_connections", "Connections of monitoring programs.", self._connections())
        page.counter("penstock_metrics_scrapes_total", "Answers to /metrics before this one.", self._count)
        page.counter("penstock_metrics_scrape_seconds_total", "Time that they took on the loop.", self._seconds)
        yield


def families() -> list[tuple[str, str, str]]:
    """Name, kind and help of every metric there is, for the documentation."""
    page = Page()
    for _ in Collector(Engine(), lambda: 0).steps(page):
        pass
    lines = page.text().decode().splitlines()
    helps = [line.split(" ", 3)[2:] for line in lines if line.startswith("# HELP ")]
    kinds = [line.rpartition(" ")[2] for line in lines if line.startswith("# TYPE ")]
    return [(name, kind, text) for (name, text), kind in zip(helps, kinds, strict=True)]
