"""`penstock`: the names of the subcommands. Each is in the module of its name."""

from __future__ import annotations

import sys

import typer

from penstock import __version__
from penstock.cli import bench, check, demo, init, letters, run, secrets, serve, streams

app = typer.Typer(
    name="penstock",
    help="An event log that speaks the Redis protocol, and the tools around it.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
serve.register(app)
check.register(app)
bench.register(app)
demo.register(app)
streams.register(app)
letters.register(app)
run.register(app)
init.register(app)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: bool = typer.Option(
        False, "--version", help="Show the version and exit.", callback=_version, is_eager=True
    ),
) -> None:
    """An event log that speaks the Redis protocol, and the tools around it."""
    secrets.blank(sys.argv[1:])


if __name__ == "__main__":
    app()
