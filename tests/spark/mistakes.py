"""Runs projects one after the other in one Spark session, and prints what is said of each: python -m tests.spark.mistakes FOLDER ..."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from penstock import Server
from penstock.spark.problems import Problem, RunFailed
from penstock.spark.progress import Progress
from penstock.spark.project import load
from penstock.spark.runner import Runner, Selection
from penstock.spark.session import Session


def main(folders: list[Path]) -> None:
    told: dict[str, list[str]] = {}
    with Server() as server:
        os.environ["PENSTOCK_URL"] = server.url
        with Session(folders[0] / ".penstock", "mistakes", {"spark.master": "local[2]"}) as session:
            for folder in folders:
                with Progress(session, server.url) as progress:
                    try:
                        Runner(load(folder), session, progress).run(Selection())
                        told[folder.name] = ["ran"]
                    except (Problem, RunFailed) as error:
                        told[folder.name] = [type(error).__name__, *map(str, error.findings)]
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main([Path(folder) for folder in sys.argv[1:]])
