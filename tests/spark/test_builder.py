"""`penstock.spark.builder` sets what a session needs in order to find the format."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest
from pyspark import SparkContext

import penstock.spark


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "python3 of the path")
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "")
    monkeypatch.setenv("JAVA_HOME", os.environ["JAVA_HOME"])


def test_spark_asks_the_python_that_runs_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    builder = penstock.spark.builder("clicks").config("spark.ui.enabled", "false")
    assert os.environ["PYSPARK_PYTHON"] == os.environ["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert builder._options["spark.app.name"] == "clicks"
    assert "spark.ui.enabled" not in penstock.spark.builder("orders")._options, "a builder of its own"


def test_a_session_that_runs_already_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", SimpleNamespace())
    with pytest.warns(
        UserWarning, match="Spark is running already, so what penstock.spark.builder sets comes too late"
    ):
        penstock.spark.builder("clicks")
