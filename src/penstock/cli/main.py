"""`penstock`: the names of the subcommands. Each is in the module that is named with it.

Only the module of the subcommand that is called is imported: `penstock serve` starts without what draws tables.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from penstock import __version__
from penstock.cli import secrets, serve
from penstock.cli.remote_server import Lost

MODULES = {
    "check": "check", "bench": "bench", "demo": "demo", "tail": "streams", "write": "streams",
    "streams": "streams", "run": "run", "init": "init", "letters": "dead_letters",
    "schema": "schemas", "worker": "worker", "history": "history", "console": "console",
    "metrics": "metrics", "shard": "shards",
}  # fmt: skip
"""The module in this package that registers a subcommand, in the order in which help lists them after `serve`."""

INSTEAD = {"agent": "`penstock serve --etcd URL --shard NAME --node NAME` starts the agent of a node, and its server"}
"""What to use in place of a subcommand that might be looked for and does not exist."""


class Subcommands(TyperGroup):
    """The subcommands; each is built when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return ["serve", *MODULES]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        is_known = cmd_name in self.list_commands(ctx)
        for name in (cmd_name,) if is_known else MODULES:  # all of them, to suggest one for a wrong name
            if name not in self.commands:
                part = typer.Typer(rich_markup_mode=None)
                import_module(f"penstock.cli.{MODULES[name]}").register(part)
                self.commands.update(typer.main.get_group(part).commands)
        return self.commands.get(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in INSTEAD:
            ctx.fail(f"There is no command '{args[0]}': {INSTEAD[args[0]]}.")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Lost as lost:
            lost.end()
        except KeyboardInterrupt:  # typer would say "Aborted" and end with 1
            raise typer.Exit(130) from None


app = typer.Typer(
    name="penstock",
    cls=Subcommands,
    help="An event log that speaks the Redis protocol, and the tools around it.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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


@app.command(
    "serve",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
    help="Run a server. Takes a file of directives and any directive as --name value.",
)
def run_server(context: typer.Context) -> None:
    sys.exit(serve.run(list(context.args)))


if __name__ == "__main__":
    app()
