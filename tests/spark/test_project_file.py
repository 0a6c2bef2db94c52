"""The first look at a project, before Spark is imported, finds what Spark's own code finds, or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.spark.projects import SPEC, project

from penstock.spark.project import load
from penstock.spark.project_file import ProjectFile, peek

SOURCES = Path(__file__).parents[2] / "src" / "penstock"


@pytest.mark.parametrize("folder", [SOURCES / "demo" / "project", SOURCES / "cli" / "template"])
def test_what_it_finds_is_what_spark_finds(folder: Path) -> None:
    found, project = peek(folder), load(folder)
    assert found == ProjectFile(project.folder, project.spec.name, dict(project.spec.configuration))
    assert found.state == project.state


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("spark-pipeline.yml", "name: [\n"),
        ("spark-pipeline.yml", "- name\n"),
        ("spark-pipeline.yml", SPEC.replace("name: test", "name: 1")),
        ("spark-pipeline.yml", SPEC.replace("libraries", "library")),
        ("spark-pipeline.yml", SPEC + "configuration:\n  spark.sql.shuffle.partitions: 2\n"),
        ("spark-pipeline.yml", SPEC + "configuration: [a]\n"),
        ("spark-pipeline.yaml", SPEC),
        ("flows/0.py", "def :\n"),
    ],
)
def test_what_is_not_in_order_is_left_to_spark(tmp_path: Path, name: str, text: str) -> None:
    folder = project(tmp_path, "")
    assert peek(folder) is not None
    (folder / name).write_text(text)
    assert peek(folder) is None


def test_a_folder_that_spark_cannot_use_is_left_to_spark(tmp_path: Path) -> None:
    assert peek(project(tmp_path / "a{b}", "")) is None
