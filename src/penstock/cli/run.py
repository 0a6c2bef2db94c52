"""`penstock run`: a declarative pipeline on Spark, with a server of its own if none is named.

Exit codes: 0, the run ended, or a continuous one was asked to stop; 1, the server or Spark is not available, or a run
began and failed; 2, the project or the command line is wrong, and nothing was run; 130, stopped before the end.

A continuous run that is asked to stop (Ctrl-C, SIGTERM) stops its flows one after the other, and ends with 0. Asked a
second time, or when running once, it stops at once. In both cases the next run continues the streams where they were,
exactly once; a table that was being recomputed is recomputed by the next run.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer
from rich.console import Console

from penstock.cli.console_beside import console_beside, is_installed
from penstock.cli.remote_server import RemoteServer
from penstock.cli.run_display import Display
from penstock.extras import install

if TYPE_CHECKING:
    from penstock.spark.project_file import ProjectFile
    from penstock.spark.selection import Selection

RUN_FAILED, WRONG, STOPPED = 1, 2, 130
TRIGGER, VIEWS = 1.0, 60.0


def register(app: typer.Typer) -> None:
    app.command("run")(run)


def run(
    folder: Path = typer.Argument(..., metavar="DIR", help="The project: spark-pipeline.yml and its transformations."),
    url: str = typer.Option(
        None, "--url", envvar="PENSTOCK_URL", help="The server. Without it one runs inside, its data in DIR/.penstock."
    ),
    port: int = typer.Option(0, "--port", min=0, max=65535, help="The port of the server inside; 0: any that is free."),
    continuous: bool = typer.Option(False, "--continuous", help="Run until Ctrl-C or SIGTERM."),
    trigger: float = typer.Option(
        None,
        "--trigger",
        min=0,
        show_default=str(TRIGGER),
        help="With --continuous: seconds from the start of a flow's batch to the next.",
    ),
    views: float = typer.Option(
        None,
        "--views",
        min=0,
        show_default=str(VIEWS),
        help="With --continuous: seconds from one recomputation of materialized views to the next.",
    ),
    full_refresh: list[str] = typer.Option(
        [], "--full-refresh", help="Empty this table and fill it anew; may be repeated."
    ),
    full_refresh_all: bool = typer.Option(False, "--full-refresh-all", help="Empty all tables and fill them anew."),
    refresh: list[str] = typer.Option([], "--refresh", help="Update only this table; may be repeated."),
    dry: bool = typer.Option(False, "--dry", help="Check the project without running it."),
    console: bool = typer.Option(
        False, "--console", help="Show the server and the flows in a browser, at the address that is printed."
    ),
) -> None:
    """Run a Spark Declarative Pipelines project.

    Its files reach the server with format("penstock") and need not name it.
    """
    if importlib.util.find_spec("pyspark") is None:
        _fail(WRONG, f"Spark is not installed; {install('spark')}")
    if full_refresh_all and (full_refresh or refresh):
        _fail(WRONG, "--full-refresh-all excludes --full-refresh and --refresh")
    if console and not is_installed():
        _fail(WRONG, f"the console is not installed; {install('console')}")
    if continuous and dry:
        _fail(WRONG, "--continuous and --dry exclude each other")
    for name, value in (("--trigger", trigger), ("--views", views)):
        if value is not None and not continuous:
            _fail(WRONG, f"{name} is for --continuous: without it each flow runs once")
    pace = TRIGGER if trigger is None else trigger, VIEWS if views is None else views
    from penstock.spark.java import NoJava
    from penstock.spark.problems import Problem, RunFailed
    from penstock.spark.project_file import STATE
    from penstock.spark.py4j_logging import py4j_silenced
    from penstock.spark.selection import Selection
    from penstock.spark.starting import SparkDidNotStart

    selection = Selection(full_refresh, full_refresh_all, refresh, dry)
    stop = _Stop()
    try:
        file = _project_file(folder)
        with _only_one(file), stop, py4j_silenced(), _server(file, url, port) as named, _console(file, named, console):
            _run(file, named, selection, stop if continuous else None, *pace)
    except Problem as problem:
        _fail(WRONG, *problem.findings)
    except RunFailed as failure:
        _fail(RUN_FAILED, *failure.findings, f"Spark's log: {folder.resolve() / STATE / 'spark.log'}")
    except (NoJava, SparkDidNotStart, OSError) as error:
        _fail(RUN_FAILED, error)
    except KeyboardInterrupt:
        _fail(STOPPED, "stopped; the next run goes on where this one was")


def _fail(code: int, *lines: object) -> NoReturn:
    for line in lines:
        print(f"penstock run: {line}", file=sys.stderr, flush=True)
    raise typer.Exit(code)


class _Stop:
    """Handles signals that ask to stop: with an exception, and while flows run that can be stopped, the first one with
    a flag. What comes before that may take minutes, and none of it needs an end.
    """

    def __init__(self) -> None:
        self.asked = threading.Event()
        self._patient = False

    def be_patient(self) -> None:
        self._patient = True

    def __enter__(self) -> None:
        self._before = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: object) -> None:
        if not self._patient or self.asked.is_set():
            raise KeyboardInterrupt
        self.asked.set()
        print("penstock run: stopping the flows; once more to stop at once", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _only_one(project: ProjectFile) -> Iterator[None]:
    """Lock the project: two runs at a time would write to the same tables."""
    try:
        project.state.mkdir(exist_ok=True)
        opened = (project.state / "lock").open("w")
    except OSError as error:
        _fail(
            RUN_FAILED,
            f"{project.state} cannot be written ({error.strerror}), and a run keeps its tables there: make the folder "
            "writable, or copy the project to one that is",
        )
    with opened as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _fail(WRONG, f"another `penstock run` is running {project.folder}")
        yield


@contextlib.contextmanager
def _server(project: ProjectFile, url: str | None, port: int) -> Iterator[str]:
    """The named server, if it answers; otherwise one in this process, with its data from the last time."""
    if url is not None:
        RemoteServer(url, "run").check()
        yield url
        return
    from penstock import Server
    from penstock.storage.files import StorageError

    data = project.state / "server"
    data.mkdir(exist_ok=True)
    directives: dict[str, object] = {"dir": data, "appendonly": True} | ({"port": port} if port else {})
    try:
        server = Server(**directives).start()
    except (OSError, StorageError) as error:
        _fail(RUN_FAILED, f"the server inside cannot start: {error}")
    try:
        yield server.url
    finally:
        server.stop()


def _console(project: ProjectFile, url: str, wanted: bool) -> contextlib.AbstractContextManager[None]:
    if not wanted:
        return contextlib.nullcontext()
    return console_beside(url, project.state / "console", lambda line: print(line, flush=True))


def _project_file(folder: Path) -> ProjectFile:
    """Read the settings that Spark needs before it starts; Problem if the project is wrong."""
    from penstock.spark.project_file import ProjectFile, peek

    if (file := peek(folder)) is not None:
        return file
    from penstock.spark.project import load

    project = load(folder)
    return ProjectFile(project.folder, project.spec.name, dict(project.spec.configuration))


def _run(file: ProjectFile, url: str, selection: Selection, stop: _Stop | None, trigger: float, views: float) -> None:
    from penstock.spark.options import URL_VARIABLE
    from penstock.spark.starting import StartingSpark, signals_held

    os.environ[URL_VARIABLE] = url  # before the JVM starts, so that all its processes inherit it
    started = time.monotonic()
    display = Display(Console(), continuous=stop is not None)
    name = file.name
    display.tell(f"{name}: server {RemoteServer(url, 'run').place}, starting Spark")
    with contextlib.ExitStack() as stack:
        with signals_held():
            starting = stack.enter_context(StartingSpark(file.state, name, file.configuration, stays=stop is not None))
            # Imported while Java starts: it takes this process two seconds.
            from penstock.spark.continuous import Pace, run_until
            from penstock.spark.moved_project import adapt_to_folder
            from penstock.spark.pipeline_session import PipelineSession
            from penstock.spark.progress import Progress
            from penstock.spark.project import load
            from penstock.spark.run_report import RunReport
            from penstock.spark.runner import Runner

        project = load(file.folder)
        with (
            RunReport(url, name, file.folder) as report,
            PipelineSession(starting) as session,
            Progress(session, url, display.changed) as progress,
            display.show(progress),
        ):
            report.show(progress)
            if said := adapt_to_folder(project, session, url):
                display.tell(f"{name}: {said}")
            runner = Runner(project, session, progress, display.tell)
            if stop is None:
                runner.run(selection)
            else:
                pace = Pace(trigger, views)
                run_until(stop.asked, stop.be_patient, runner, session, progress, selection, pace, display.tell)
    what = "the project is valid" if selection.dry else "stopped" if stop else "done"
    display.tell(f"{name}: {what}, {time.monotonic() - started:.0f} s")
