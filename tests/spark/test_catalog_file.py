"""The catalog of a project is in a file: tables are there after kill -9, and after the project was moved."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.spark import catalog_file

pytestmark = pytest.mark.timeout(900)


class Statements:
    """A Spark session that runs statements; see statements.py."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, statement: str | None) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(statement) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the session died"
        return json.loads(answer)

    def kill(self) -> None:
        self._process.kill()


@contextlib.contextmanager
def statements(folder: Path) -> Iterator[Statements]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.spark.statements", str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
    ) as process:  # fmt: skip
        yield Statements(process)


TABLES = [
    "CREATE DATABASE other COMMENT 'of a test'",
    "CREATE TABLE other.parted (a INT COMMENT 'of a column', p STRING NOT NULL) USING parquet PARTITIONED BY (p)",
    "INSERT INTO other.parted VALUES (1, 'x'), (2, 'y')",
    "CREATE TABLE bucketed (a INT, B STRING) USING orc CLUSTERED BY (a) SORTED BY (B) INTO 3 BUCKETS "
    "COMMENT 'of a table' TBLPROPERTIES ('k' = 'v')",
    "INSERT INTO bucketed VALUES (1, 'x')",
    "CREATE TABLE inside (a INT) USING json LOCATION '{folder}/files'",
    "INSERT INTO inside VALUES (3)",
    "CREATE TABLE outside (a INT) USING csv OPTIONS (header true) LOCATION '{elsewhere}'",
    "INSERT INTO outside VALUES (4)",
    "CREATE VIEW seen (n) COMMENT 'of a view' AS SELECT a FROM bucketed",
    "CREATE TABLE before (a INT) USING parquet",
    "INSERT INTO before VALUES (5)",
    "ALTER TABLE before RENAME TO after",
    "ALTER TABLE after ADD COLUMN b DECIMAL(10, 2)",
    "CREATE TABLE dropped (a INT) USING parquet",
    "DROP TABLE dropped",
    "CREATE DATABASE gone",
    "CREATE TABLE gone.t (a INT) USING parquet",
    "DROP DATABASE gone CASCADE",
]
QUERIES = [
    "SHOW DATABASES",
    "SHOW TABLES",
    "SHOW TABLES IN other",
    "SELECT * FROM other.parted ORDER BY a",
    "SELECT * FROM bucketed",
    "SELECT * FROM inside",
    "SELECT * FROM outside",
    "SELECT n FROM seen",
    "SELECT * FROM after",
]


def test_tables_are_there_after_kill_9_and_in_another_place(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "my project", tmp_path / "elsewhere"
    with statements(folder) as before:
        for statement in TABLES:
            assert before.run(statement.format(folder=folder, elsewhere=elsewhere)) == []
        found = {query: before.run(query) for query in QUERIES}
        described = before.run("SHOW CREATE TABLE bucketed") + before.run("SHOW CREATE TABLE other.parted")
        assert before.run(None) == []
        before.kill()
    assert [row[1] for row in found["SHOW TABLES"]] == ["after", "bucketed", "inside", "outside", "seen"]
    assert found["SELECT * FROM other.parted ORDER BY a"] == [[1, "x"], [2, "y"]]
    moved = folder.rename(tmp_path / "moved")
    with statements(moved) as after:
        assert {query: after.run(query) for query in QUERIES} == found
        again = after.run("SHOW CREATE TABLE bucketed") + after.run("SHOW CREATE TABLE other.parted")
        assert again == described
        assert after.run("INSERT INTO other.parted VALUES (3, 'z')") == []
        assert after.run("SELECT * FROM other.parted WHERE p = 'z'") == [[3, "z"]]
        assert after.run("DROP TABLE other.parted") == []
        assert not list((moved / "warehouse").glob("*/parted")), "its files were here"
        assert not folder.exists()

        catalog = moved / "catalog.json"
        catalog.unlink()
        catalog.mkdir()
        assert after.run("CREATE TABLE more (a INT) USING parquet") == []
        assert "could not be written, so the next run would not know the tables" in after.run(None)
        catalog.rmdir()
        assert after.run("CREATE TABLE still (a INT) USING parquet") == []
        assert after.run(None) == []
    assert {"more", "still"} <= json.loads(catalog.read_text())["tables"]["default"].keys()


@pytest.mark.parametrize("name", ["spark.hadoop.hive.metastore.uris", "spark.sql.hive.metastore.version"])
def test_a_project_with_a_metastore_of_hive_keeps_it(tmp_path: Path, name: str) -> None:
    implementation = "spark.sql.catalogImplementation"
    assert catalog_file.settings({}, tmp_path / "metastore")[implementation] == "in-memory"
    assert catalog_file.settings({name: "x"}, tmp_path / "metastore")[implementation] == "hive"
    (tmp_path / "metastore").mkdir()
    assert catalog_file.settings({}, tmp_path / "metastore")[implementation] == "hive"
