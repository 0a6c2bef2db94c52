"""Spark's Python workers take the PySpark that is installed, not a zip of its sources."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from penstock.spark.worker_python import use_worker_python, worker_python


def path_of(python: str, given: str) -> list[str]:
    words = [python, "-c", "import os, sys; print(os.environ['PYTHONPATH'], *sys.argv[1:], sep='\\n')", "a b", "$c"]
    return subprocess.run(words, env={"PYTHONPATH": given}, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )


def test_workers_import_the_installed_pyspark(spark: SparkSession) -> None:
    def where(_: object) -> str:
        import pyspark.worker

        return str(pyspark.worker.__file__)

    (found,) = spark.sparkContext.parallelize([0], 1).map(where).collect()
    assert Path(found).parent == Path(pyspark.__file__).parent


def test_processes_that_plan_start_as_those_of_tasks_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(variable, sys.executable)
    use_worker_python()
    assert os.environ["PYSPARK_PYTHON"] == os.environ["PYSPARK_DRIVER_PYTHON"] == worker_python() != sys.executable


def test_only_the_zips_leave_the_path() -> None:
    given = "/spark/python/lib/pyspark.zip:/spark/python/lib/py4j-0.10.9.9-src.zip:/my code:/spark/jars/core.jar"
    assert path_of(worker_python(), given) == ["/my code:/spark/jars/core.jar", "a b", "$c", ""]


def test_another_spark_keeps_its_own_zip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert worker_python() == sys.executable


def test_without_a_cache_workers_start_as_they_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert worker_python() == sys.executable
    assert "will start slowly" in caplog.text
