"""`penstock demo`: a click stream through a pipeline on Spark, checked against what was sent.

It runs a server in this process, two producers, and the project in penstock/demo/project, as `penstock run
--continuous` runs it. At the end it looks for every click: once in the table, once in the counts of its minute, and
once in the stream of alerts if it was slow. The exit code is 0 only if all of that holds.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

from penstock.cli.console_beside import console_beside, is_installed
from penstock.cli.run_display import Display
from penstock.extras import install

if TYPE_CHECKING:
    from penstock.demo.clicks import Tally
    from penstock.spark.continuous import LiveFlows
    from penstock.spark.progress import Progress

PRODUCERS = 2
TRIGGER = 0.5
PAUSE = 0.2


def register(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo(
    seconds: float = typer.Option(45, "--seconds", min=1, help="How long the producers write."),
    rate: float = typer.Option(1000, "--rate", min=10, help="Clicks a second, of all producers together."),
    picture: Path = typer.Option(Path("penstock-demo.svg"), "--picture", help="Where the picture goes."),
    keep: Path = typer.Option(
        None, "--keep", metavar="DIR", help="Keep the project and its tables in this new folder."
    ),
) -> None:
    """Send a click stream through a pipeline on Spark.

    Every click is accounted for at the end: the exit code is 0 only if each came out exactly once.
    """
    console = Console(highlight=False)
    if keep is not None and keep.exists():
        console.print(f"penstock demo: {keep} is there already; name a new folder", markup=False)
        raise typer.Exit(2)
    if picture.is_dir() or not os.access(picture.absolute().parent, os.W_OK):  # reported now, not after the demo
        console.print(
            f"penstock demo: --picture {picture}: cannot be written; name a file in a folder that is there",
            markup=False,
        )
        raise typer.Exit(2)
    if importlib.util.find_spec("pyspark") is None:
        console.print(f"penstock demo: Spark is not installed; {install('spark')}", markup=False)
        raise typer.Exit(2)
    from penstock.spark.java import NoJava
    from penstock.spark.problems import Problem, RunFailed
    from penstock.spark.py4j_logging import py4j_silenced
    from penstock.spark.starting import SparkDidNotStart

    try:
        with tempfile.TemporaryDirectory(prefix="penstock-demo-") as temporary, py4j_silenced():
            folder = keep or Path(temporary) / "project"
            with as_file(files("penstock.demo") / "project") as project:
                shutil.copytree(project, folder, ignore=shutil.ignore_patterns("__pycache__"))
            wrong = _demo(console, folder, seconds, rate, picture)
    except (Problem, RunFailed, NoJava, SparkDidNotStart) as error:
        has_log = isinstance(error, RunFailed) and keep is None
        how = "; `penstock demo --keep DIR` keeps Spark's log" if has_log else ""
        console.print(f"penstock demo: {error}{how}", markup=False)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    raise typer.Exit(1 if wrong else 0)


def _demo(console: Console, folder: Path, seconds: float, rate: float, picture: Path) -> int:
    """Run the demo; the number of differences."""
    began = time.monotonic()
    import redis

    from penstock import Server
    from penstock.spark.options import URL_VARIABLE
    from penstock.spark.project_file import peek
    from penstock.spark.starting import StartingSpark, signals_held

    file = peek(folder)
    assert file is not None, "the demo's own project is in order"
    data = file.state / "server"
    data.mkdir(parents=True)
    display = Display(console, continuous=True)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(Server(dir=data, appendonly=True))
        client = stack.enter_context(redis.Redis.from_url(server.url))
        os.environ[URL_VARIABLE] = server.url
        console.print(f"A Penstock server is at {server.url}. Starting Spark ...")
        with signals_held():
            starting = stack.enter_context(StartingSpark(file.state, "demo", file.configuration))
            # Imported while Java starts: it takes this process two seconds.
            from penstock.demo.check import counts, differences
            from penstock.demo.clicks import Tally
            from penstock.demo.picture import draw
            from penstock.spark.continuous import LiveFlows, Pace
            from penstock.spark.pipeline_session import PipelineSession
            from penstock.spark.progress import Progress
            from penstock.spark.project import load
            from penstock.spark.run_report import RunReport
            from penstock.spark.runner import Runner
            from penstock.spark.selection import Selection

        if is_installed():
            stack.enter_context(console_beside(server.url, data.parent / "console", lambda line: console.print(line)))
        project, sent = load(folder), Tally()
        with (
            RunReport(server.url, "demo", folder) as report,
            PipelineSession(starting) as session,
            Progress(session, server.url, display.changed) as progress,
        ):
            report.show(progress)
            runner = Runner(project, session, progress, display.tell)
            runner.begin(Selection())  # it creates the tables, so Spark has started before the first click
            with (
                display.show(progress),
                LiveFlows(runner, session, progress, Pace(TRIGGER, 60), display.tell) as flows,
                _sampling(progress, client) as behind,
            ):
                _flow(console, flows, progress, client, server.url, seconds, rate, sent, began)
            runner.run(Selection())  # the rest; a run that ends continues from the flows' checkpoints
            console.print("Checking every click ...")
            wrong = list(differences(session.spark, client, sent))
            found = counts(session.spark)
    picture.write_text(draw(found, behind), encoding="utf-8")
    _summary(console, sent, found, wrong, picture)
    return len(wrong)


def _flow(
    console: Console,
    flows: LiveFlows,
    progress: Progress,
    client: Any,
    url: str,
    seconds: float,
    rate: float,
    sent: Tally,
    began: float,
) -> None:
    """Producers write while the pipeline reads; then the click that closes the last minute."""
    from penstock.demo.clicks import send_end, send_first, send_hopelessly_late

    start = time.time() // 60 * 60
    send_first(client, start, sent)
    is_told = False
    while not all(flow.rows for flow in progress.flows()):
        flows.look()
        if not is_told and any(flow.rows for flow in progress.flows()):
            is_told = True
            console.print(f"The first click is in the table, {time.monotonic() - began:.1f} s after the demo began.")
        time.sleep(PAUSE)
    console.print(f"{PRODUCERS} producers write {rate:,.0f} clicks a second for {seconds:.0f} s; the pipeline reads.")
    late = 0
    with contextlib.ExitStack() as stack:
        share = rate / PRODUCERS
        producers = [stack.enter_context(_producing(url, number, share, seconds, start)) for number in range(PRODUCERS)]
        while not late or any(producer.process.poll() is None for producer in producers):
            flows.look()
            # A pipeline knows that yesterday's clicks are late only after it has seen today's.
            if not late and any(flow.watermark > "1971" for flow in progress.flows()):
                late = send_hopelessly_late(client, start, sent)
                console.print(f"{late} clicks of yesterday came just now: too late for the counts, not for the table.")
            time.sleep(PAUSE)
        for producer in producers:
            sent.load(producer.tally())
    send_end(client, start, sent)


@dataclass(frozen=True, slots=True)
class _Producer:
    process: subprocess.Popen[bytes]
    told: IO[bytes]  # a file, not a pipe: the tally is longer than a pipe's buffer, and it is read only at the end

    def tally(self) -> str:
        if self.process.wait():
            raise RuntimeError(f"a producer ended with {self.process.returncode}")
        self.told.seek(0)
        return self.told.read().decode()


@contextlib.contextmanager
def _producing(url: str, number: int, rate: float, seconds: float, start: float) -> Iterator[_Producer]:
    words = [sys.executable, "-m", "penstock.demo.clicks", url, str(number), str(rate), str(seconds), str(start)]
    with tempfile.TemporaryFile() as told, subprocess.Popen(words, stdout=told) as process:
        try:
            yield _Producer(process, told)
        finally:
            if process.poll() is None:
                process.kill()


@contextlib.contextmanager
def _sampling(progress: Progress, client: Any) -> Iterator[list[tuple[float, float]]]:
    """Twice a second: how many clicks are written and not yet read. (0, 0) is the start."""
    from penstock.demo.clicks import STREAM

    samples: list[tuple[float, float]] = []
    over = threading.Event()
    began = time.monotonic()

    def sample() -> None:
        while True:
            last = _last(client, STREAM)
            read = max((flow.reached.get(STREAM, 1) for flow in progress.flows()), default=1) - 1
            samples.append((time.monotonic() - began, float(max(last - read, 0))))
            if over.wait(0.5):
                return

    thread = threading.Thread(target=sample, name="penstock-demo-samples")
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()


def _last(client: Any, stream: str) -> int:
    return int(client.execute_command("TREAD", stream, 1, 0, "WITHINFO")[0][1])


def _summary(console: Console, sent: Tally, found: dict[tuple[str, str], int], wrong: list[str], picture: Path) -> None:
    from penstock.demo.clicks import PAGES

    table = Table(title="Clicks a minute, as the pipeline counted them")
    table.add_column("minute")
    for page in PAGES:
        table.add_column(page, justify="right")
    for minute in sorted({minute for minute, _ in found}):
        table.add_row(minute[11:], *(f"{found.get((minute, page), 0):,}" for page in PAGES))
    console.print(table)
    if wrong:
        for difference in wrong[:20]:
            console.print(f"[red]WRONG[/] {difference}")
        console.print(f"[bold red]{len(wrong)} differences between what was sent and what came out.[/]")
    else:
        console.print(
            f"[bold green]All {len(sent.ids):,} clicks are accounted for, each exactly once[/]: in the table clicks, "
            f"{sum(sent.minutes.values()):,} in the counts of their minutes, "
            f"in the stream alerts those that were slow: {len(sent.alerts):,}."
        )
    console.print(f"The picture is in {picture}. Your own project: [bold]penstock init DIR[/]")
