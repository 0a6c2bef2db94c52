"""Runs of projects, and the messages about their mistakes: one after the other, in one Spark session of one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.support.docs import DOCS, blocks
from tests.support.spark.projects import HEAD, entries, project, write

from penstock import Server

pytestmark = pytest.mark.timeout(900)


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
        kind, (finding,), completed = self._ask(folder=str(folder), **selection)
        assert not completed, "a flow that failed was said to be completed"
        assert "\n" not in finding
        assert len(finding) < 500
        return kind, finding

    def stay(self, folder: Path, rows: dict[str, int]) -> Any:
        """Start flows that stay, until they have read so many rows."""
        return self._ask(stay=str(folder), rows=rows)

    def missing(self) -> list[str]:
        """The streams that the last run did not find."""
        return list(self._ask(missing=None))

    def count(self, table: str) -> int:
        return int(self._ask(count=table))


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    with Server() as server, redis.Redis.from_url(server.url) as client:
        words = [sys.executable, "-m", "tests.support.spark.runs", str(tmp_path_factory.mktemp("runs"))]
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
    "an unknown table": (
        a_table("t", "spark.read.table('nowhere')", "materialized_view"),
        "Problem",
        "0.py:7: [TABLE_OR_VIEW_NOT_FOUND] The table or view `spark_catalog`.`default`.`nowhere` cannot be found.",
    ),
    "an unknown option": (
        a_table("t", read("option('strem', 'x')")),
        "Problem",
        "0.py:7: format('penstock') has no option 'strem'; did you mean stream?",
    ),
    "no option": (a_table("t", read("option('text', 'true')")), "Problem", "0.py:7: name what to read"),
    "no stream": (
        a_table("t", read("option('stream', 'nope')", "read"), "materialized_view"),
        "RunFailed",
        "0.py:7: there is no stream 'nope' at redis://",
    ),
    "no server": (
        a_table("t", read(UNREACHABLE)),
        "RunFailed",
        "0.py:7: no answer from the server at redis://127.0.0.1:1 for 0.3 seconds",
    ),
    "a division": (
        a_table("t", "spark.range(3).selectExpr('1 / (id - 1) AS x')", "materialized_view"),
        "RunFailed",
        "0.py:7: [DIVIDE_BY_ZERO] Division by zero.",
    ),
    "a target": (
        a_table("t", read("option('stream', 'x')"))
        + a_table("f", read("option('stream', 'x')"), "append_flow(target='T')"),
        "RunFailed",
        "0.py:10: Unsupported destination",
    ),
    "a table twice": (
        a_table("t", "spark.range(1)", "materialized_view") * 2,
        "Problem",
        "0.py:10: there is a table t already, in ",
    ),
    "a column in SQL": (
        "CREATE MATERIALIZED VIEW a AS SELECT 1 AS n;\n\nCREATE MATERIALIZED VIEW b AS\nSELECT m FROM a;\n",
        "Problem",
        "0.sql:4: [UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable, or function parameter with name `m`",
    ),
    "a word in SQL": (
        "CREATE MATERIALIZED VIEW a AS SELECT 1 AS n; -- one; and another:\n\n"
        "CREATE MATERIALIZED VIEW b AS\nSELEKT 1;\n",
        "Problem",
        "0.sql:4: [PARSE_SYNTAX_ERROR] Syntax error at or near 'SELEKT'",
    ),
}


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


def test_a_setting_that_a_running_spark_cannot_change_does_no_harm(tmp_path: Path, runs: Runs) -> None:
    folder = project(tmp_path, a_table("set", read("option('stream', 'in')")))
    with (folder / "spark-pipeline.yml").open("a") as spec:
        spec.write("configuration:\n  spark.log.level: WARN\n  spark.sql.shuffle.partitions: '2'\n")
    write(runs.client, 0)
    assert runs.run(folder) == {"set": 100}


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


def test_streams_that_stay_are_started_without_a_run_before_and_runs_continue_them(tmp_path: Path, runs: Runs) -> None:
    folder = project(tmp_path, a_table("stays", read("option('stream', 'in,in2')")), PASSED_ON)
    write(runs.client, 0)
    assert runs.stay(folder, {"stays": 100, "pass_on": 100}) == ["ran", [], {}]
    write(runs.client, 100)
    assert runs.run(folder) == {"stays": 100, "pass_on": 100}
    assert runs.missing() == ["in2"]
    assert entries(runs.client, "out") == entries(runs.client, "in")
    assert runs.count("stays") == 200


def test_a_project_with_a_view_is_run_before_its_streams_stay(tmp_path: Path, runs: Runs) -> None:
    view = a_table("counted", "spark.read.table('viewed')", "materialized_view")
    folder = project(tmp_path, a_table("viewed", read("option('stream', 'in')")), view)
    write(runs.client, 0)
    assert runs.stay(folder, {"viewed": 100, "counted": 0}) == ["ran", [], {"viewed": 100, "counted": 0}]
    assert runs.count("counted") == 100


def test_a_stream_that_was_deleted_between_two_runs_is_told_at_its_flow_and_full_refresh_helps(
    tmp_path: Path, runs: Runs
) -> None:
    folder = project(tmp_path, a_table("lost", read("option('stream', 'in')")))
    write(runs.client, 0)
    runs.run(folder)
    runs.client.delete("in")
    runs.client.execute_command("TWRITE", "in", "tag", "new")
    kind, line = runs.mistake(folder)
    assert kind == "RunFailed"
    assert "0.py:7: stream in was read up to offset 100, and the stream ends at 1: it was deleted and " in line
    assert line.endswith("(`penstock run DIR --full-refresh TABLE` starts the flow of a table anew.)")
    assert runs.run(folder, full_refresh=["lost"]) == {"lost": 1}
    assert runs.count("lost") == 1


def test_rows_and_failures_of_flows_that_end_between_two_looks_are_told(tmp_path: Path, runs: Runs) -> None:
    folder = project(tmp_path, a_table("short", read("option('stream', 'in')")))
    write(runs.client, 0)
    assert runs.run(folder, every=1000) == {"short": 100}
    runs.client.delete("in")
    runs.client.execute_command("TWRITE", "in", "tag", "new")
    kind, line = runs.mistake(folder, every=1000)
    assert (kind, "it was deleted and " in line) == ("RunFailed", True)


def test_a_mistake_in_streams_that_stay_is_told_as_in_a_run(tmp_path: Path, runs: Runs) -> None:
    folder = project(tmp_path, a_table("wrong", read("option('stream', 'in')") + ".select('nothing')"))
    kind, (line,), _ = runs.stay(folder, {})
    assert (kind, line) == runs.mistake(folder)
    assert "0.py:7: [UNRESOLVED_COLUMN" in line


PASSED_ON = """
dp.create_sink("out", "penstock", {"stream": "out"})

@dp.append_flow(target="out")
def pass_on():
    return spark.readStream.table("stays").select("tag", "entry")
"""
FAILS_TWICE = """
import pathlib
from pyspark.sql.functions import udf

@udf("bigint")
def in_the_end(value):
    attempts = pathlib.Path({file!r})
    before = attempts.read_text() if attempts.exists() else ""
    attempts.write_text(before + ".")
    if len(before) < 2:
        raise OSError("not yet")
    return value

@dp.materialized_view
def patient():
    return spark.range(1, numPartitions=1).select(in_the_end("id").alias("id"))
"""


def test_a_failure_that_may_pass_is_followed_by_another_run(runs: Runs, tmp_path: Path) -> None:
    attempts = tmp_path / "attempts"
    runs.run(project(tmp_path, FAILS_TWICE.format(file=str(attempts))))
    assert runs.count("patient") == 1
    assert attempts.read_text() == "..."
