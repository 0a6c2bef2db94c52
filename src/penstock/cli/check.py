"""`penstock check`: checks the files on disk and lists what they hold."""

from __future__ import annotations

from pathlib import Path

import typer


def register(app: typer.Typer) -> None:
    app.command("check")(check)


def check(
    path: Path = typer.Argument(..., help="A snapshot, a log file, a manifest, or the folder that holds them."),
    fix: bool = typer.Option(False, "--fix", help="Cut a damaged log after its last whole entry; a .bak copy is kept."),
) -> None:
    """Inspect a snapshot or an append-only log; repair a log.

    A log that was cut off in the middle of an entry is repaired with --fix.
    """
    from penstock.storage.check import run_check

    report = run_check(path, fix)
    typer.echo(str(report))
    raise typer.Exit(report.exit_code)
