"""Runs projects in one Spark session, one after the other, as it is told: python -m tests.support.spark.runs FOLDER

A line in, a line out, both JSON. `{"folder": ..., "refresh": [...]}` runs a project (the other words are those of
Selection), and the answer is what became of it: `ran` or the kind of error, what was found, and the rows of each flow
that was ever said to have ended well. `{"count": "table"}` is answered with how many rows the table has.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from penstock.spark.options import URL_VARIABLE
from penstock.spark.problems import Problem, RunFailed
from penstock.spark.progress import Progress
from penstock.spark.project import load
from penstock.spark.runner import Runner
from penstock.spark.selection import Selection
from penstock.spark.session import Session
from penstock.spark.starting import StartingSpark

SETTINGS = {"spark.master": "local[2]"}


def run(session: Session, folder: str, **selection: Any) -> tuple[str, list[str], dict[str, int]]:
    completed: dict[str, int] = {}

    def changed() -> None:
        completed.update({flow.name: flow.rows for flow in progress.flows() if flow.state == "COMPLETED"})

    with Progress(session, os.environ[URL_VARIABLE], changed) as progress:
        try:
            Runner(load(Path(folder)), session, progress).run(Selection(**selection))
        except (Problem, RunFailed) as error:
            return type(error).__name__, [str(each) for each in error.findings], completed
        changed()
        return "ran", [], completed


def count(session: Session, table: str) -> int:
    session.classic.catalog.refreshTable(table)  # which files there are is remembered
    return session.classic.table(table).count()


def main(folder: str) -> None:
    with Session(StartingSpark(Path(folder), "runs", SETTINGS)) as session:
        for line in sys.stdin:
            words = json.loads(line)
            answer = count(session, words["count"]) if "count" in words else run(session, **words)
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
