"""The program `penstock`.

`penstock serve` reads its words itself, as redis-server does, so a server starts without typer, which takes 0.13 s to
import.
"""

from __future__ import annotations

import sys

from penstock.cli import secrets, serve


def start() -> None:
    """Run the subcommand that the command line names."""
    words = sys.argv[1:]
    if words[:1] == ["serve"]:
        secrets.blank(words)
        try:
            sys.exit(serve.run(words[1:]))
        except KeyboardInterrupt:  # before the server listens for signals
            sys.exit(130)
    from penstock.cli.main import app

    app()
