"""The program `penstock`.

`penstock serve` reads its words itself, as redis-server does, so a server starts without typer, which takes 0.13 s to
import.
"""

from __future__ import annotations

import sys


def start() -> None:
    """Run the subcommand that the command line names. Ctrl-C ends it without a traceback, also while it is imported."""
    try:
        from penstock.cli import secrets, serve

        words = sys.argv[1:]
        if words[:1] == ["serve"]:
            secrets.blank(words)
            sys.exit(serve.run(words[1:]))
        from penstock.cli.main import app

        app()
    except KeyboardInterrupt:
        sys.exit(130)
