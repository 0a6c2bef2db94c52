"""A program that uses Spark Connect.

Batches, foreachBatch, a pandas UDF, transformWithState, a join of streams, and Parquet.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import Server


@pytest.mark.timeout(1200)  # four streaming queries in a Spark of their own
def test_what_users_do_works_through_connect(tmp_path: Path) -> None:
    with Server() as server:
        words = ["-m", "tests.support.spark.connect_program", server.url, str(tmp_path)]
        ran = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert json.loads(ran.stdout.splitlines()[-1]) == {
        "batch": ["1", "2", "3"],
        "files": "penstock.spark.LocalFiles",
        "pandas": [2, 4, 6],
        "foreachBatch": ["1", "2", "3"],
        "metrics": [["in", 3, 0]],
        "transformWithState": [["a", "2"], ["b", "1"]],
        "join": ["aa", "aa", "bb"],
        "parquet": ["1", "2", "3"],
    }
