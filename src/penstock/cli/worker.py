"""`penstock worker`: processes that call a function with every message of a stream, and what looks after them.

The parent imports nothing of the user's. It starts processes (worker_process.py), starts one again that died, passes on
a request to stop, and shows what they report: as a line on a terminal, and by HTTP if asked to.

Exit codes: 0, asked to stop, and all messages at hand were finished or given back; 1, the server refuses, or processes
had to be killed; 2, the handler cannot be loaded or the command line is wrong.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import typer

from penstock.cli.remote_server import URL
from penstock.cli.worker_fleet import Fleet
from penstock.cli.worker_report import Report, serve_report
from penstock.protocol.address import without_secrets

_PAUSE = 0.1
_OTHERS_FOLDERS = ("venv", "site-packages", "node_modules", "__pycache__")
"""Folders whose files --reload does not watch."""


def register(app: typer.Typer) -> None:
    app.command("worker")(worker)


def worker(
    handler: str = typer.Argument(..., metavar="MODULE:FUNCTION", help="Called with each message; may be async."),
    stream: str = typer.Option(..., "--stream", help="The stream to read."),
    group: str = typer.Option(..., "--group", help="The group whose work is shared."),
    url: str = URL,
    processes: int = typer.Option(1, "--processes", min=1, help="How many processes."),
    workers: int = typer.Option(1, "--workers", min=1, help="How many threads, or tasks, in each process."),
    start: str = typer.Option("0", "--start", help="Where a new group begins: an offset, 0 or '$'."),
    batch: int = typer.Option(0, "--batch", min=0, help="Call the function with lists of up to so many messages."),
    batch_ms: int = typer.Option(0, "--batch-ms", min=0, help="How long to wait for a batch to be full."),
    table: bool = typer.Option(False, "--table", help="With --batch: a pyarrow Table instead of a list."),
    ordered: bool = typer.Option(False, "--ordered", help="Process the messages of a tag in order; for --processes 1."),
    retry_ms: int = typer.Option(30_000, "--retry-ms", min=1, help="When others get the messages of a dead process."),
    retry_delay_ms: int = typer.Option(1000, "--retry-delay-ms", min=0, help="How long a failed message waits."),
    max_attempts: int = typer.Option(None, "--max-attempts", min=1, help="Give a message up after so many attempts."),
    dead_letter: str = typer.Option(None, "--dead-letter", help="The stream for messages that are given up."),
    release: bool = typer.Option(
        False, "--release", help="Give the messages of a process back as soon as its connection ends."
    ),
    grace_ms: int = typer.Option(20_000, "--grace-ms", min=0, help="How long functions may go on after SIGTERM."),
    health_port: int = typer.Option(
        0, "--health-port", min=0, max=65535, help="Serve /health and /metrics on this port of 127.0.0.1; 0: do not."
    ),
    health_host: str = typer.Option("127.0.0.1", "--health-host", help="The address for --health-port."),
    reload: bool = typer.Option(False, "--reload", help="Start again when a .py file below this folder changes."),
) -> None:
    """Call a function with every message of a stream, in several processes, until Ctrl-C or SIGTERM."""
    if ":" not in handler:
        _fail(2, f"'{handler}' names no function; it looks like package.module:function")
    if table and not batch:
        _fail(2, "--table needs --batch, the most messages to call the function with")
    if batch_ms and not batch:
        _fail(2, "--batch-ms needs --batch, the most messages to call the function with")
    if dead_letter is not None and max_attempts is None:
        _fail(2, "--dead-letter needs --max-attempts: without it no message is ever given up")
    if ordered and processes > 1:
        _fail(2, f"--ordered keeps the order within one process, and --processes is {processes}: use --processes 1")
    terms = {
        "start": start if start == "$" else _offset(start),
        "retry_ms": retry_ms,
        "retry_delay_ms": retry_delay_ms,
        "max_attempts": max_attempts,
        "dead_letter": dead_letter,
        "grace_ms": grace_ms,
        "release": release,
        "ordered_by": "tag" if ordered else None,
    }
    how = {"workers": workers, "batch": batch, "batch_ms": batch_ms, "table": table}
    spec = {"handler": handler, "url": url, "stream": stream, "group": group, "terms": terms, "how": how}
    if (
        reload
    ):  # compiled files are told apart by whole seconds and sizes: a quick change would be taken for the old one
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    fleet = Fleet(spec, processes, grace_ms / 1000, _say, waits_for_change=reload)
    many = "1 process" if processes == 1 else f"{processes} processes"
    _say(f"{handler}: {many} for '{stream}' in group '{group}' of {without_secrets(url)}")
    with contextlib.ExitStack() as around:
        around.enter_context(_asked_to_stop(fleet))
        try:
            address = around.enter_context(serve_report(fleet.report, health_host, health_port))
        except OSError as error:
            _fail(2, f"cannot serve --health-port {health_port} on {health_host}: {error}")
        if address:
            _say(f"health and metrics at {address}")
        code = _look_after(fleet, Path.cwd() if reload else None)
    raise typer.Exit(code)


def _offset(word: str) -> int:
    if not word.isdecimal():
        _fail(2, f"--start {word}: it is an offset, 0 for the first message there is, or $ for new ones")
    return int(word)


def _look_after(fleet: Fleet, folder: Path | None) -> int:
    line = _Line(sys.stderr.isatty())
    seen = _changed_at(folder)
    next_look = time.monotonic() + 0.5
    try:
        fleet.start()
        while fleet.tend():
            line.show(fleet.report())
            if folder is not None and time.monotonic() >= next_look:
                next_look = time.monotonic() + 0.5
                if (now := _changed_at(folder)) != seen:
                    seen = now
                    _say("a file changed: starting again")
                    fleet.restart()
            time.sleep(_PAUSE)
    finally:
        fleet.kill()
        line.end()
    report = fleet.report()
    _say(f"stopped: {report.done:,} messages done, {report.failed:,} failures, {report.restarts:,} restarts")
    return fleet.code


def _changed_at(folder: Path | None) -> dict[str, int]:
    """The time of the last change of each .py file."""
    if folder is None:
        return {}
    found: dict[str, int] = {}
    for place, folders, files in os.walk(folder):  # which passes over folders that were just deleted
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _OTHERS_FOLDERS]
        for name in files:
            if name.endswith(".py") and not name.startswith("."):
                path = Path(place, name)
                with contextlib.suppress(OSError):  # it was just deleted
                    found[str(path)] = path.stat().st_mtime_ns
    return found


@contextlib.contextmanager
def _asked_to_stop(fleet: Fleet) -> Iterator[None]:
    """The first signal asks the processes to stop, the second kills them."""

    def ask(number: int, frame: Any) -> None:
        fleet.asked += 1  # and no more: a process may be half started at this moment

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Line:
    """Shows the work of the processes on one line of a terminal."""

    def __init__(self, is_terminal: bool) -> None:
        self._is_terminal = is_terminal
        self._done, self._at = 0, time.monotonic()
        self._rate = 0.0

    def show(self, report: Report) -> None:
        now = time.monotonic()
        if not self._is_terminal or now - self._at < 0.5:
            return
        self._rate = (report.done - self._done) / (now - self._at)
        self._done, self._at = report.done, now
        away = ", the server does not answer" if report.is_waiting else ""
        text = (
            f"{report.alive} processes, {report.done:,} done ({self._rate:,.0f}/s), {report.held:,} held, "
            f"{report.failed:,} failures{away}"
        )
        print(f"\r\x1b[2K{text}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._is_terminal:
            print(file=sys.stderr, flush=True)


def _say(text: str) -> None:
    start = "\r\x1b[2K" if sys.stderr.isatty() else ""
    print(f"{start}penstock worker: {text}", file=sys.stderr, flush=True)


def _fail(code: int, text: str) -> NoReturn:
    _say(text)
    raise typer.Exit(code)
