"""What `penstock run` shows: a table that stays in place on a terminal, a line for each flow that ends everywhere else."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from penstock.spark.progress import FlowProgress, Progress

_STYLES = {"COMPLETED": "green", "FAILED": "red", "RUNNING": "cyan"}


class Display:
    """Shows a Progress while it is entered. `changed` is called whenever there is news, from any thread."""

    def __init__(self, console: Console, quiet: bool) -> None:
        self._console = console
        self._quiet = quiet  # flows that found nothing new are not worth a line
        self._progress: Progress | None = None
        self._live: Live | None = None
        self._told: set[str] = set()

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
        if self._progress is None or self._console.is_terminal:
            return
        for flow in self._progress.flows():
            if flow.state == "QUEUED":
                self._told.discard(flow.name)
            elif flow.state in ("COMPLETED", "FAILED") and flow.name not in self._told:
                self._told.add(flow.name)
                if flow.rows or not self._quiet:
                    self._console.print(f"{flow.name}: {_words(flow)}", highlight=False, markup=False)

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
