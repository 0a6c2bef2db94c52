"""A project with a metastore of Hive, as the first versions made them: it is kept, and moved with its project."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import redis
from tests.support.spark.projects import project, write

from penstock import Server

TABLE = """
@dp.table
def copied():
    return spark.readStream.format("penstock").option("stream", "in").load()


@dp.materialized_view
def counted():
    return spark.read.table("copied").groupBy("tag").count()
"""


def run(folder: Path, url: str) -> str:
    words = [sys.executable, "-m", "penstock", "run", str(folder), "--url", url]
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.timeout(900)
def test_a_project_with_a_metastore_can_be_moved(tmp_path: Path) -> None:
    folder = project(tmp_path / "one", TABLE)
    with Server() as server, redis.Redis.from_url(server.url) as client:
        write(client, 0)
        spec = folder / "spark-pipeline.yml"
        plain = spec.read_text()
        spec.write_text(plain + "configuration:\n  spark.sql.catalogImplementation: hive\n")
        assert "copied: completed, 100 rows" in run(folder, server.url)
        assert (folder / ".penstock" / "metastore").is_dir()
        spec.write_text(plain)
        assert not (folder / ".penstock" / "catalog.json").exists()
        moved = folder.rename(tmp_path / "moved")
        write(client, 100)
        assert "copied: completed, 100 rows" in run(moved, server.url)
        assert not folder.exists(), "a table was written to the folder in which the project was"
