"""Runs statements of SQL in the session of a project: python -m tests.support.spark.statements FOLDER

A line in, a line out, both JSON: a statement is answered with its rows, or with a text if it failed. `null` checks that
the catalog is kept.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException

from penstock.spark.catalog_file import CatalogNotKept
from penstock.spark.pipeline_session import PipelineSession
from penstock.spark.starting import StartingSpark


def answer(session: PipelineSession, statement: str | None) -> Any:
    try:
        if statement is None:
            session.check_catalog()
            return []
        return [list(row) for row in session.spark.sql(statement).collect()]
    except (PySparkException, CatalogNotKept) as error:
        return str(error)


def main(folder: str) -> None:
    with PipelineSession(StartingSpark(Path(folder), "statements", {"spark.master": "local[2]"})) as session:
        for line in sys.stdin:
            sys.stdout.write(json.dumps(answer(session, json.loads(line)), default=str) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
