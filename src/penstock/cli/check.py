"""`penstock check`: checks the files on disk and lists what they hold."""

from __future__ import annotations

from pathlib import Path

import typer


def register(app: typer.Typer) -> None:
    app.command("check")(check)


def check(
    path: Path = typer.Argument(
        ..., help="The server's folder; or a snapshot, a manifest, a log file, a file of history."
    ),
    fix: bool = typer.Option(
        False,
        "--fix",
        help="Cut a damaged log after its last whole entry, and give up messages of history that are lost; .bak copies "
        "are kept.",
    ),
) -> None:
    """Inspect snapshots, append-only logs and files of history; repair them.

    A log that was cut off in the middle of an entry is repaired with --fix. If a file of history is missing or damaged,
    --fix gives up the messages in it that cannot be read, and says which offsets they had. The folder's data is loaded
    for that, as at the start of a server.
    """
    from penstock.storage.check import run_check

    report = run_check(path, fix)
    typer.echo(str(report))
    raise typer.Exit(report.exit_code)
