"""`penstock bench`: measures the table of docs/speed.md on this machine."""

from __future__ import annotations

import json
import statistics
import sys
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from penstock.bench.run import Result


def register(app: typer.Typer) -> None:
    app.command("bench")(bench)


def bench(
    rows: list[str] = typer.Argument(
        None, help="Rows by name, family ('spark') or pattern ('set.*'); all of them without any."
    ),
    as_json: bool = typer.Option(False, "--json", help="One JSON object a row instead of the table."),
    rounds: int = typer.Option(None, min=1, help="Rounds a row; each gives a ratio. Default: 3, fewer for slow rows."),
    scale: float = typer.Option(
        1.0, min=0.001, help="Share of the usual number of requests, for a quick look; 2.5 for 5 GB of history."
    ),
    show_rows: bool = typer.Option(False, "--list", help="List the rows and exit."),
) -> None:
    """Compare with a real redis-server and with redis-py.

    Ours and the peer run one after the other in every round, under the same load; the ratio is printed.
    """
    from penstock.bench.rows import ROWS
    from penstock.bench.run import choose, run
    from penstock.testing.redis import find_redis

    if show_rows:
        for row in ROWS.values():
            typer.echo(f"{row.name:18} {row.what}")
        return
    try:
        chosen = choose(rows or [])
    except LookupError as error:
        typer.echo(f"penstock bench: no row matches '{error.args[0]}'; `penstock bench --list` shows them", err=True)
        raise typer.Exit(2) from None
    try:
        find_redis()
    except FileNotFoundError as error:
        typer.echo(f"penstock bench: {error}", err=True)
        raise typer.Exit(1) from None
    console = Console(stderr=as_json)
    results: list[Result] = []
    with console.status("starting") as status:
        for result in run(chosen, rounds, scale, lambda text: status.update(text)):
            results.append(result)
            if as_json:
                sys.stdout.write(json.dumps(result.as_dict()) + "\n")
                sys.stdout.flush()
            elif not console.is_terminal:
                console.print(f"{result.row.name}: {result.ratio:.2f}x", highlight=False)
    if not as_json:
        _print_table(results, console.width)
    for result in results:
        if result.row.report is not None:
            typer.echo(f"\n{result.row.what}\n{result.row.report()}", err=as_json)


def _print_table(results: list[Result], width: int) -> None:
    from penstock.bench.load import generator
    from penstock.testing.redis import find_redis

    peer = find_redis()
    version = ".".join(map(str, peer.version))
    table = Table(title=f"Penstock against redis-server {version}; load: {generator()}; median of rounds (least-most)")
    for heading in ("row", "work", "ours", "peer", "ratio", "spread", "target", ""):
        is_text = heading in ("row", "work", "")
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=heading != "work")
    for result in results:
        row = result.row
        table.add_row(
            row.name, row.what, _figure(result.ours), f"{_figure(result.peer)} {row.unit}",
            f"{result.ratio:.2f}x", f"{min(result.ratios):.2f}-{max(result.ratios):.2f}",
            row.goal or "-", "" if not row.goal else "reached" if result.reached else "MISSED",
        )  # fmt: skip
    Console(width=max(width, 150)).print(table)


def _figure(rounds: list[float]) -> str:
    """The median, with its significant digits."""
    median = statistics.median(rounds)
    return f"{median:,.0f}" if median >= 100 else f"{median:.1f}"
