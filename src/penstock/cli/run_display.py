"""The output of `penstock run`: a table that stays in place on a terminal, and lines everywhere else.

A run that ends has a line for each flow that ends. A continuous one has a line for each flow that read something, at
most one in a few seconds, and every line begins with the time.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from penstock.spark.progress import FlowProgress, Progress

_STYLES = {"COMPLETED": "green", "FAILED": "red", "RUNNING": "cyan"}


SECONDS_A_LINE = 5.0


class Display:
    """Shows a Progress. `changed` is called for every update, from any thread."""

    def __init__(self, console: Console, continuous: bool) -> None:
        self._console = console
        self._continuous = continuous  # lines have times, and flows without new rows get no line
        self._progress: Progress | None = None
        self._live: Live | None = None
        self._told: set[str] = set()
        self._missing: dict[tuple[str, str], float] = {}  # flows, and streams that they miss: when to tell
        self._rows: dict[str, tuple[int, float]] = {}  # for a flow that runs: the rows shown so far, and when

    def tell(self, text: str) -> None:
        """Show a line."""
        when = time.strftime("%Y-%m-%d %H:%M:%S ") if self._continuous else ""
        self._console.print(f"{when}{text}", highlight=False, markup=False, soft_wrap=True)

    def show(self, progress: Progress) -> Display:
        self._progress = progress
        return self

    def __enter__(self) -> Display:
        if self._console.is_terminal:
            self._live = Live(console=self._console, get_renderable=self._table, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def changed(self) -> None:
        if self._progress is None:
            return
        for flow in self._progress.flows():
            self._tell_of_missing(flow)
        if self._console.is_terminal:
            return
        for flow in self._progress.flows():
            if flow.state in ("QUEUED", "STARTING"):
                self._told.discard(flow.name)
            elif flow.state in ("COMPLETED", "FAILED"):
                if flow.name not in self._told:
                    self._told.add(flow.name)
                    self._rows[flow.name] = flow.rows, 0.0
                    if flow.rows or not self._continuous:
                        self.tell(f"{flow.name}: {_words(flow)}")
            elif self._continuous:
                self._tell_of_running(flow)

    def _tell_of_missing(self, flow: FlowProgress) -> None:
        """Say that a stream does not exist: its name may be misspelt. One that is about to be written has a moment."""
        for stream in flow.missing:
            when = self._missing.setdefault((flow.name, stream), time.monotonic() + SECONDS_A_LINE)
            if (flow.state == "COMPLETED" and when < math.inf) or time.monotonic() >= when:
                self._missing[flow.name, stream] = math.inf
                self.tell(f"{flow.name}: there is no stream {stream!r} yet; if that is the right name, write to it")

    def _tell_of_running(self, flow: FlowProgress) -> None:
        rows, when = self._rows.get(flow.name, (0, 0.0))
        if flow.rows < rows:  # another run began
            rows = 0
        if flow.rows > rows and time.monotonic() >= when + SECONDS_A_LINE:
            self._rows[flow.name] = flow.rows, time.monotonic()
            self.tell(f"{flow.name}: {_words(replace(flow, rows=flow.rows - rows))}")

    def _table(self) -> Table:
        table = Table()
        for heading in ("flow", "state", "rows", "rows/s", "behind by"):
            table.add_column(heading, justify="left" if heading in ("flow", "state") else "right")
        for flow in self._progress.flows() if self._progress else ():
            style = _STYLES.get(flow.state, "dim")
            rate = f"{flow.rate:,.0f}" if flow.rate else "-"
            behind = f"{flow.lag:,}" if flow.lag is not None else "-"
            table.add_row(escape(flow.name), f"[{style}]{flow.state.lower()}[/]", f"{flow.rows:,}", rate, behind)
        return table


def _words(flow: FlowProgress) -> str:
    words = [flow.state.lower()]
    if flow.rows:
        words.append(f"{flow.rows:,} rows, {flow.rate:,.0f} a second")
    if flow.lag is not None:
        words.append(f"behind by {flow.lag:,}")
    return ", ".join(words)
