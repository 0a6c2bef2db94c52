"""Runs projects in one Spark session, one after the other, as it is told: python -m tests.support.spark.runs FOLDER

A line in, a line out, both JSON. `{"folder": ..., "refresh": [...]}` runs a project (the other words are those of
Selection; with `"every": 1000` the run is looked at so rarely), and the answer is what became of it: `ran` or the
kind of error, what was found, and the rows of each flow that was ever said to have ended well. `{"stay": folder,
"rows": {...}}` starts its flows as `penstock run --continuous` does, until each has read so many rows; the answer has
the rows that were read before they started. `{"count": "table"}` is answered with how many rows the table has, and
`{"missing": null}` with the streams that the last run did not find.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from penstock.spark import progress as progress_module
from penstock.spark.continuous import LiveFlows, Pace
from penstock.spark.options import URL_VARIABLE
from penstock.spark.pipeline_session import PipelineSession
from penstock.spark.problems import Problem, RunFailed
from penstock.spark.progress import EVERY, Progress
from penstock.spark.project import load
from penstock.spark.runner import Runner
from penstock.spark.selection import Selection
from penstock.spark.starting import StartingSpark

SETTINGS = {"spark.master": "local[2]"}


missing: list[str] = []


def run(
    session: PipelineSession, folder: str, every: float = EVERY, **selection: Any
) -> tuple[str, list[str], dict[str, int]]:
    completed: dict[str, int] = {}
    progress_module.EVERY = every

    def changed() -> None:
        completed.update({flow.name: flow.rows for flow in progress.flows() if flow.state == "COMPLETED"})

    with Progress(session, os.environ[URL_VARIABLE], changed) as progress:
        try:
            Runner(load(Path(folder)), session, progress).run(Selection(**selection))
        except (Problem, RunFailed) as error:
            return type(error).__name__, [str(each) for each in error.findings], completed
        changed()
        missing[:] = [stream for flow in progress.flows() for stream in flow.missing]
        return "ran", [], completed


def stay(session: PipelineSession, folder: str, rows: dict[str, int]) -> tuple[str, list[str], dict[str, int]]:
    with Progress(session, os.environ[URL_VARIABLE]) as progress:
        runner = Runner(load(Path(folder)), session, progress)
        try:
            runner.begin(Selection())
            before = {flow.name: flow.rows for flow in progress.flows()}
            with LiveFlows(runner, session, progress, Pace(trigger=0.1, views=1000), lambda text: None) as flows:
                while any(flow.rows < rows[flow.name] for flow in progress.flows()):
                    flows.look()
                    time.sleep(0.1)
        except (Problem, RunFailed) as error:
            return type(error).__name__, [str(each) for each in error.findings], {}
    return "ran", [], before


def count(session: PipelineSession, table: str) -> int:
    session.classic.catalog.refreshTable(table)  # which files there are is remembered
    return session.classic.table(table).count()


def main(folder: str) -> None:
    with PipelineSession(StartingSpark(Path(folder), "runs", SETTINGS)) as session:
        for line in sys.stdin:
            words = json.loads(line)
            if "count" in words:
                answer: Any = count(session, words["count"])
            elif "missing" in words:
                answer = missing
            elif "stay" in words:
                answer = stay(session, words["stay"], words["rows"])
            else:
                answer = run(session, **words)
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
