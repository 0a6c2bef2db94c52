"""`penstock console`: the server in a browser."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import NoReturn

import typer

from penstock.cli.console_beside import PORT, is_installed
from penstock.cli.remote_server import DEFAULT_URL, RemoteServer
from penstock.extras import install


def register(app: typer.Typer) -> None:
    app.command("console")(console)


def console(
    url: str = typer.Option(
        DEFAULT_URL,
        "--url",
        envvar="PENSTOCK_URL",
        help="The server. A user and password in it are for the graphs alone; browsers log in with their own.",
    ),
    port: int = typer.Option(PORT, "--port", min=0, max=65535, help="The port for browsers; 0: any that is free."),
    host: str = typer.Option("127.0.0.1", "--host", help="The address for browsers."),
    name: list[str] = typer.Option(
        [], "--name", help="Another name under which browsers reach the console; may be repeated."
    ),
    mask: list[str] = typer.Option(
        [], "--mask", help="Hide fields of JSON payloads by name, or all payloads with '*'; may be repeated."
    ),
    folder: Path = typer.Option(
        None, "--dir", help="Where the history of graphs and the log of actions are kept.", show_default=False
    ),
    with_parent: bool = typer.Option(False, "--with-parent", hidden=True, help="End when standard input ends."),
) -> None:
    """Show the server in a browser: streams, groups, messages, clients, keys and pipelines.

    Browsers log in with the server's users, and may do what these may do.
    """
    if not is_installed():
        _fail(f"the console is not installed; {install('console')}")
    from penstock.console.masking import Mask
    from penstock.console.options import Options, default_folder
    from penstock.console.serve import PortTaken, serve

    server = RemoteServer(url, "console")  # ends the program if the URL is none; the server itself may start later
    options = Options(url, folder or default_folder(), host, port, tuple(name), Mask.of(mask))

    def tell(address: str) -> None:
        print(f"The console of {options.place} is at {address}", flush=True)
        threading.Thread(target=server.warn, daemon=True).start()

    if with_parent:
        threading.Thread(target=_end_with_input, daemon=True).start()
    try:
        serve(options, tell)
    except PortTaken as error:
        _fail(error)
    except OSError as error:
        _fail(f"{options.folder} cannot be used: {error}; --dir names another folder")
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _end_with_input() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


def _fail(text: object) -> NoReturn:
    print(f"penstock console: {text}", file=sys.stderr, flush=True)
    raise typer.Exit(1)
