"""What a project is, and what is refused before anything runs. Mistakes that only Spark can see: test_runs.py."""

from __future__ import annotations

import io
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.cli.run_display import Display
from penstock.spark.problems import Finding, Place, Problem, RunFailed, finding, shorten
from penstock.spark.progress import FlowProgress, Progress
from penstock.spark.project import load
from penstock.spark.sql_files import statements

SPEC = "name: test\nstorage: .penstock/storage\nlibraries:\n  - glob:\n      include: flows/**\n"


def project(folder: Path, spec: str = SPEC, **files: str) -> Path:
    (folder / "flows").mkdir(parents=True)
    (folder / "spark-pipeline.yml").write_text(spec)
    for name, text in files.items():
        (folder / "flows" / name.replace("_", ".")).write_text(text)
    return folder


def problem(folder: Path) -> str:
    with pytest.raises(Problem) as found:
        load(folder)
    return str(found.value)


def test_storage_is_relative_to_the_project(tmp_path: Path) -> None:
    assert load(project(tmp_path, a_sql="")).storage == tmp_path / ".penstock" / "storage"
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.replace(".penstock/storage", "s3a://bucket/here"))
    assert load(tmp_path).storage == "s3a://bucket/here"


@pytest.mark.parametrize("name", ["a,b", "a;b", "logs [1]", "{a}", "a*", "why?", "a\\b"])
def test_a_path_that_spark_would_take_for_something_else_is_refused(tmp_path: Path, name: str) -> None:
    said = f"the path of {tmp_path / name} has "
    assert problem(project(tmp_path / name, a_sql="")).startswith(said)
    made = CliRunner().invoke(app, ["init", str(tmp_path / name / "new")])
    assert (made.exit_code, (tmp_path / name / "new").exists()) == (1, False)
    assert "give the folder another name" in made.stderr


def test_what_to_do_next_can_be_copied(tmp_path: Path) -> None:
    made = CliRunner().invoke(app, ["init", str(tmp_path / "my clicks")])
    assert f"\n    penstock run '{tmp_path}/my clicks'\n" in made.stdout


def test_a_folder_without_a_project_is_told_how_to_get_one(tmp_path: Path) -> None:
    assert "penstock init" in problem(tmp_path)


def test_a_specification_that_is_wrong_is_named_with_its_line(tmp_path: Path) -> None:
    file = project(tmp_path, "name: [test\nstorage: x\n") / "spark-pipeline.yml"
    assert problem(tmp_path).startswith(f"{file}:2: not YAML: ")
    for text, word in {
        SPEC + "libary: 1\n": "libary",
        "name: test\n": "storage",
        "name: a\nstorage: b\nlibraries: [1]\n": "needs name",
        SPEC: "nothing to run",
    }.items():
        file.write_text(text)
        assert problem(tmp_path).startswith(f"{file}: ")
        assert word in problem(tmp_path)


def test_a_syntax_error_is_seen_without_spark(tmp_path: Path) -> None:
    project(tmp_path, a_py="import os\n\ndef flow()\n    return 1\n")
    assert problem(tmp_path) == f"{tmp_path}/flows/a.py:3: syntax error: expected ':'"


def test_run_ends_with_2_if_the_project_is_wrong(tmp_path: Path) -> None:
    ran = CliRunner().invoke(app, ["run", str(tmp_path)])
    assert (ran.exit_code, ran.stdout) == (2, "")
    assert "there is no spark-pipeline.yml" in ran.stderr


@pytest.mark.parametrize("options", [["--continuous", "--dry"], ["--full-refresh-all", "--refresh", "a"]])
def test_options_that_exclude_each_other_are_refused(tmp_path: Path, options: list[str]) -> None:
    ran = CliRunner().invoke(app, ["run", str(tmp_path), *options])
    assert ran.exit_code == 2
    assert "exclude" in ran.stderr


def test_tables_are_named_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("penstock.cli.run._run", lambda project, url, selection, *rest: asked.append(selection))
    folder = project(tmp_path, a_sql="")
    ran = CliRunner().invoke(app, ["run", str(folder), "--refresh", "a", "--refresh", "b", "--full-refresh", "c"])
    assert ran.exit_code == 0, ran.stderr
    assert [(each.refresh, each.full_refresh, each.full_refresh_all) for each in asked] == [(["a", "b"], ["c"], False)]


def test_what_sql_files_declare_is_found_with_its_line() -> None:
    text = """-- CREATE FLOW not_this AS INSERT INTO x SELECT 1;
CREATE STREAMING TABLE a USING orc COMMENT 'it''s; fine' AS
SELECT * FROM STREAM raw;  /* ; */

create or refresh streaming table lake.`b c` (n INT);
CREATE FLOW f
AS INSERT INTO lake.`b c` BY NAME SELECT 1;
CREATE MATERIALIZED VIEW v AS SELECT count(*) FROM a;
"""
    found = [
        (each.line, each.begins, each.flow, each.target, each.streaming_table, each.format) for each in statements(text)
    ]
    assert found == [
        (2, 1, "a", "a", True, "orc"), (5, 3, None, "lake.b c", True, None), (6, 5, "f", "lake.b c", False, None),
        (8, 7, "v", "v", False, None),
    ]  # fmt: skip


def test_of_a_stack_only_the_last_line_is_shown() -> None:
    stack = "[PYTHON_DATA_SOURCE_ERROR] Failed: Traceback (most recent call last):\n  File 'x', line 1, in y\n    z()\n"
    assert shorten(f"{stack}ValueError: no such thing\n\n\tat org.apache.spark") == "ValueError: no such thing"
    assert shorten(f"{stack}penstock.spark.options.OptionError: there is no stream 'x'") == "there is no stream 'x'"


def test_a_finding_says_its_place_first() -> None:
    assert str(Finding("what", Place(Path("a.py"), 3))) == "a.py:3: what"
    assert str(Finding("what")) == "what"


@pytest.mark.parametrize(
    ("said", "lasting"),
    [
        ("[STREAM_FAILED] Query terminated: Python worker failed to connect back. SQLSTATE: XXKST", False),
        (
            "penstock.spark.stream_connection.ServerUnreachable: no answer from the server at redis://127.0.0.1:1 "
            "for 3 seconds",
            False,
        ),
        ("penstock.spark.source.DataLoss: stream in: offsets 1 to 5 cannot be read", True),
        ("penstock.spark.options.OptionError: there is no stream 'nope'", True),
        (
            "[STREAM_FAILED] terminated: [CAST_INVALID_INPUT] The value 'x' cannot be cast. "
            "SQLSTATE: 22018 SQLSTATE: XXKST",
            True,
        ),
    ],
)  # fmt: skip
def test_only_what_another_attempt_cannot_mend_ends_a_continuous_run(said: str, lasting: bool) -> None:
    assert finding(said, None).lasting is lasting
    assert RunFailed(Finding("other"), finding(said, None)).lasting is lasting


def test_a_mistake_inside_a_statement_of_sql_is_at_its_own_line(tmp_path: Path) -> None:
    said = "[UNRESOLVED_COLUMN] A column `m` cannot be resolved. SQLSTATE: 42703; line 5 pos 2;\n'Project ['m]"
    statement = Place(tmp_path / "a.sql", 4, 2)
    assert str(finding(said, statement).place) == f"{tmp_path}/a.sql:6"
    assert finding("no line is named", statement).place == statement
    assert finding(said, Place(tmp_path / "a.py", 4)).place == Place(tmp_path / "a.py", 4)


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_stream_that_does_not_exist_is_told_once_when_its_flow_is_done(is_terminal: bool) -> None:
    out = io.StringIO()
    flows = [FlowProgress("a", "RUNNING", missing=("clikcs",))]
    display = Display(Console(file=out, width=200, force_terminal=is_terminal), continuous=False)
    display.show(cast("Any", SimpleNamespace(flows=lambda: flows)))
    display.changed()
    assert not out.getvalue(), "a stream that is about to be written was called missing"
    flows[0] = FlowProgress("a", "COMPLETED", missing=("clikcs",))
    display.changed()
    display.changed()
    assert out.getvalue().count("a: there is no stream 'clikcs' yet; if that is the right name, write to it\n") == 1


def test_a_flow_runs_on_while_the_views_alone_are_recomputed() -> None:
    progress = Progress(cast("Any", None), "penstock://127.0.0.1:1")
    for flow, state in [("a", "RUNNING"), ("a", "EXCLUDED"), ("b", "EXCLUDED"), ("b", "QUEUED"), ("b", "EXCLUDED")]:
        progress.event(f"spark_catalog.default.{flow}", state)
    assert [(flow.name, flow.state) for flow in progress.flows()] == [("a", "RUNNING"), ("b", "EXCLUDED")]


def test_a_continuous_run_tells_of_rows_with_the_time_and_of_failures_once() -> None:
    out = io.StringIO()
    flows = [FlowProgress("a", "RUNNING", 0)]
    display = Display(Console(file=out, width=200), continuous=True)
    display.show(cast("Any", SimpleNamespace(flows=lambda: flows)))
    for flow in (FlowProgress("a", "RUNNING", 7), FlowProgress("a", "RUNNING", 9), FlowProgress("a", "FAILED", 9)):
        flows[0] = flow
        display.changed()
        display.changed()
    lines = out.getvalue().splitlines()
    assert [line[20:] for line in lines] == ["a: running, 7 rows, 0 a second", "a: failed, 9 rows, 0 a second"]
    assert all(time.strptime(line[:19], "%Y-%m-%d %H:%M:%S") for line in lines)
