"""`penstock init` writes only where there is nothing. That its project runs: tests/spark/test_run.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.spark.project import load


def test_a_folder_that_is_not_empty_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    ran = CliRunner().invoke(app, ["init", str(tmp_path)])
    assert ran.exit_code == 1
    assert "not an empty folder" in ran.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    assert CliRunner().invoke(app, ["init", str(tmp_path / "file")]).exit_code == 1
    below = CliRunner().invoke(app, ["init", str(tmp_path / "file" / "project")])
    assert below.exit_code == 1
    assert "cannot write" in below.stderr


def test_a_new_folder_gets_a_whole_project(tmp_path: Path) -> None:
    ran = CliRunner().invoke(app, ["init", str(tmp_path / "a" / "project")])
    assert ran.exit_code == 0, ran.stderr
    names = {path.name for path in (tmp_path / "a" / "project").rglob("*")}
    assert names >= {"spark-pipeline.yml", "clicks.py", "pages.sql", "produce.py", "README.md", "server"}
    assert "__pycache__" not in names


@pytest.mark.parametrize("name", ["pay", 'my "own" für: #1', "2024"])
def test_a_project_has_the_name_of_its_folder(tmp_path: Path, name: str) -> None:
    assert CliRunner().invoke(app, ["init", str(tmp_path / name)]).exit_code == 0
    assert load(tmp_path / name).spec.name == name
