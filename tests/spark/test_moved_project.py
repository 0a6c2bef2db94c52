"""Projects that were moved or copied. A copy that runs for real: test_run.py."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.support.spark.projects import entries, project

from penstock import Server
from penstock.spark.identity import renew_identities
from penstock.spark.moved_project import FolderIdentity, _moved, _take_stray_tables
from penstock.spark.project import Project, load
from penstock.spark.stream_connection import GUARD


@pytest.fixture
def client() -> Iterator[Any]:
    with Server() as server, redis.Redis.from_url(server.url) as client:
        yield client


def url_of(client: Any) -> str:
    return f"redis://127.0.0.1:{client.connection_pool.connection_kwargs['port']}"


def checkpoint(folder: Path, query: str, begun: int, done: int) -> Path:
    for kind, last in (("offsets", begun), ("commits", done)):
        (folder / kind).mkdir(parents=True)
        for number in range(last + 1):
            (folder / kind / str(number)).write_text("v1\n{}")
    (folder / "metadata").write_text(json.dumps({"id": query}))
    (folder / ".metadata.crc").write_text("of the old content")
    return folder


def commit(client: Any, query: str, batch: int, *rows: str) -> None:
    """What a sink does with a batch."""
    token = f"{query}/{uuid.uuid4()}"
    client.execute_command("TSTAGE", "out", token, "ENTRIES", *(word for row in rows for word in ("", row)))
    client.execute_command("TCOMMIT", "out", query, batch, token)


def copied(client: Any, folder: Path, begun: int, done: int) -> str:
    """The id of a query after its checkpoint was copied."""
    renew_identities([checkpoint(folder, "original", begun, done)], url_of(client))
    assert not (folder / ".metadata.crc").exists()
    return str(json.loads((folder / "metadata").read_text())["id"])


def test_original_and_copy_both_write_their_batches_of_one_number(tmp_path: Path, client: Any) -> None:
    commit(client, "original", 0, "a")
    copy = copied(client, tmp_path, begun=0, done=0)
    commit(client, "original", 1, "b of the original")
    commit(client, copy, 1, "b of the copy")
    assert entries(client, "out") == [b"a", b"b of the original", b"b of the copy"]


@pytest.mark.parametrize("later", [0, 1])
def test_a_batch_that_was_committed_when_the_copy_was_made_is_there_once(
    tmp_path: Path, client: Any, later: int
) -> None:
    for batch in range(2 + later):
        commit(client, "original", batch, f"row {batch}")
    copy = copied(client, tmp_path, begun=1, done=0)
    commit(client, copy, 1, "row 1")
    assert entries(client, "out").count(b"row 1") == 1
    commit(client, copy, 2, "of the copy")
    assert entries(client, "out")[-1] == b"of the copy"


def test_a_batch_that_was_begun_and_not_committed_when_the_copy_was_made_is_written(
    tmp_path: Path, client: Any
) -> None:
    commit(client, "original", 0, "a")
    copy = copied(client, tmp_path, begun=1, done=0)
    commit(client, copy, 1, "b")
    assert entries(client, "out") == [b"a", b"b"]


@pytest.mark.parametrize(("counted", "known"), [(None, None), (0, None), (1, b"1"), (2, b"1")])
def test_a_batch_that_was_counted_when_the_copy_was_made_counts_once(
    tmp_path: Path, client: Any, counted: int | None, known: bytes | None
) -> None:
    if counted is not None:
        client.set(GUARD + "original", counted)
    copy = copied(client, tmp_path, begun=1, done=0)
    assert client.get(GUARD + copy) == known


def test_only_a_folder_that_was_moved_is_taken_for_the_same(tmp_path: Path) -> None:
    def at(folder: Path) -> Project:
        found = load(folder)
        found.state.mkdir(exist_ok=True)
        return found

    first = at(project(tmp_path / "first", "CREATE MATERIALIZED VIEW v AS SELECT 1 AS n"))
    FolderIdentity.now(first).record(first)
    shutil.copytree(first.folder, tmp_path / "backup")
    second = at(first.folder.rename(tmp_path / "second"))
    before = FolderIdentity.recorded(second)
    assert before is not None
    assert before.folder == str(tmp_path / "first")
    assert not FolderIdentity.now(second).is_copy_of(before)
    third = at((tmp_path / "backup").rename(tmp_path / "first"))  # a copy in the place of the original
    assert FolderIdentity.now(third).is_copy_of(before)
    assert not FolderIdentity("/mount", device=2, inode=5).is_copy_of(FolderIdentity("/mount", device=1, inode=5))
    assert FolderIdentity("/new", device=1, inode=5).is_copy_of(FolderIdentity("/old")), "a project of version 0.1"


def test_tables_that_went_to_the_former_folder_are_taken_back(tmp_path: Path) -> None:
    moved = load(project(tmp_path / "moved", "CREATE MATERIALIZED VIEW v AS SELECT 1 AS n"))
    for folder, number in ((moved.folder, 0), (tmp_path / "old", 1)):
        table = folder / ".penstock" / "warehouse" / "t"
        (table / "_spark_metadata").mkdir(parents=True)
        (table / "_spark_metadata" / str(number)).write_text(f"batch {number}")
        (table / f"part-{number}").write_text(f"rows {number}")
    _take_stray_tables(tmp_path / "old", moved)
    table = moved.state / "warehouse" / "t"
    assert sorted(file.read_text() for file in table.rglob("*") if file.is_file()) == [
        "batch 0", "batch 1", "rows 0", "rows 1",
    ]  # fmt: skip
    other = load(project(tmp_path / "other", "CREATE MATERIALIZED VIEW v AS SELECT 1 AS n"))
    _take_stray_tables(moved.folder, other)
    assert not (other.state / "warehouse").exists(), "they are the tables of a project"


def test_paths_are_moved_once_also_into_a_folder_of_the_old_one() -> None:
    log = 'v1\n{"path":"file:///a/my%20b/.penstock/x","size":1}\n{"path":"file:///a/my%20bc/x"}'
    folders = [("/a/my%20b", "/a/my%20b/c"), ("/a/my b", "/a/my b/c")]
    moved = _moved(log, folders)
    assert moved == 'v1\n{"path":"file:///a/my%20b/c/.penstock/x","size":1}\n{"path":"file:///a/my%20bc/x"}'
    assert _moved(moved, folders) == moved
    assert _moved("file:/a/my b/.penstock/warehouse", folders) == "file:/a/my b/c/.penstock/warehouse"
