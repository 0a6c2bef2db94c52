"""Tests of pipelines: a pytest fixture that feeds a project rows, runs its flows, and shows what came out.

    from penstock.testing.pipeline import pipeline, spark_session

    def test_slow_clicks_are_reported(pipeline):
        project = pipeline("clicks")
        project.feed("clicks", {"page": "/", "ms": 1900})
        project.run()
        assert project.stream("slow_clicks") == [{"page": "/", "ms": 1900}]

One Spark and one server are started for all tests of a process, which takes seconds. Each test has a copy of the
project, and finds the server and the catalog empty: nothing of a test is seen by another, and the project's own data
are not touched.

Rejected: a Spark for each test. It would be cleaner by a little, and slower by far.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from penstock import Server
from penstock.spark.options import URL_VARIABLE
from penstock.spark.pipeline_session import PipelineSession
from penstock.spark.progress import Progress
from penstock.spark.project import load
from penstock.spark.project_file import STATE
from penstock.spark.runner import Runner
from penstock.spark.selection import Selection
from penstock.spark.sql_files import short
from penstock.spark.starting import StartingSpark

SETTINGS = {"spark.master": "local[2]", "spark.sql.session.timeZone": "UTC"}


class PipelineProject:
    """A project under test. `client` is for everything that the methods here do not cover."""

    def __init__(self, folder: Path, session: PipelineSession) -> None:
        self.url = os.environ[URL_VARIABLE]
        self.client: Any = redis.Redis.from_url(self.url)
        self.client.flushall()
        self._project = load(folder)
        self._session = session

    def feed(self, stream: str, *rows: Any, tag: str = "") -> None:
        """Append messages to a stream: bytes and text as they are, everything else as JSON."""
        entries = [row if isinstance(row, (str, bytes)) else json.dumps(row) for row in rows]
        words = [word for entry in entries for word in (tag, entry)]
        self.client.execute_command("TWRITE", stream, "ENTRIES", *words)

    def run(self, *, full_refresh_all: bool = False) -> dict[str, int]:
        """Run the project to the end of its input, as `penstock run` does; answers the rows that each flow has read.

        Raises Problem or RunFailed of penstock.spark.problems.
        """
        with Progress(self._session, self.url) as progress:
            Runner(self._project, self._session, progress).run(Selection(full_refresh_all=full_refresh_all))
            return {flow.name: flow.rows for flow in progress.flows()}

    def table(self, name: str, *columns: str) -> list[dict[str, Any]]:
        """The rows of a table, sorted by their values, with all columns or only some:
        rows have no order of their own.
        """
        frame = self._session.spark.table(name)
        rows = (frame.select(*columns) if columns else frame).toArrow().to_pylist()
        return sorted(rows, key=lambda row: [(value is not None, str(type(value)), value) for value in row.values()])

    def stream(self, name: str) -> list[Any]:
        """The entries of a stream, parsed if they are JSON."""
        return [_parsed(message[2]) for message in self.client.execute_command("TREAD", name, 1, 1_000_000)]

    def close(self) -> None:
        for table in self._session.spark.catalog.listTables():
            if not table.isTemporary:
                self._session.spark.sql(f"DROP TABLE IF EXISTS `{short(table.name)}`")
        self.client.close()


def _parsed(entry: bytes) -> Any:
    try:
        return json.loads(entry)
    except ValueError:
        return entry


@pytest.fixture(scope="session")
def spark_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PipelineSession]:
    """Spark for all tests of this process, and a server, whose address Spark's processes inherit."""
    with Server() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv(URL_VARIABLE, server.url)
        with PipelineSession(StartingSpark(tmp_path_factory.mktemp("spark"), "tests", SETTINGS)) as session:
            yield session


@pytest.fixture
def pipeline(spark_session: PipelineSession, tmp_path: Path) -> Iterator[Callable[[str | Path], PipelineProject]]:
    """Call it with the folder of a project."""
    with contextlib.ExitStack() as stack:

        def open_project(folder: str | Path) -> PipelineProject:
            ignored = shutil.ignore_patterns(STATE, "__pycache__")
            copy = shutil.copytree(folder, tmp_path / Path(folder).resolve().name, ignore=ignored)
            (copy / STATE).mkdir()
            return stack.enter_context(contextlib.closing(PipelineProject(copy, spark_session)))

        yield open_project
