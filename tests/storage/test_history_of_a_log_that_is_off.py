"""Files of history that a log on disk needs stay while the log is off."""

from __future__ import annotations

from pathlib import Path

import redis
from tests.support.storage.history import (
    all_of,
    connected,
    files,
    fill,
    history,
    started,
    until,
    write,
)

SNAPSHOTS = {"appendonly": False, "save": "3600 1"}


def rewrite(client: redis.Redis) -> None:
    count = client.info("persistence")["aof_rewrites"]
    client.bgrewriteaof()
    until(lambda: client.info("persistence")["aof_rewrites"] > count)


def fill_and_rewrite(folder: Path, entries: list[bytes]) -> set[str]:
    with started(folder) as server, connected(server) as client:
        fill(client, entries)
        rewrite(client)
        client.config_set("appendonly", "no")
        return files(folder)


def test_a_start_without_the_log_removes_no_file_that_the_log_refers_to(tmp_path: Path, entries: list[bytes]) -> None:
    needed = fill_and_rewrite(tmp_path, entries)
    with started(tmp_path, **SNAPSHOTS) as server, connected(server) as client:
        assert not client.exists("s")
        write(client, [entry[::-1] for entry in entries], "other")
        until(lambda: history(client, "other")["files"] > 0)
        client.delete("other")
        until(lambda: files(tmp_path) == needed)
    (tmp_path / "dump.pns").unlink()  # it is newer than the log
    with started(tmp_path) as server, connected(server) as client:
        assert all_of(client) == entries


def test_a_log_that_is_turned_off_can_be_read_as_it_was(tmp_path: Path, entries: list[bytes]) -> None:
    with started(tmp_path) as server, connected(server) as client:
        fill(client, entries)
        rewrite(client)
        needed = files(tmp_path)
        client.config_set("appendonly", "no")
        client.delete("s")
        until(lambda: not client.info("persistence")["history_files"])
        until(lambda: client.info("persistence")["history_files_to_remove"] == len(needed))
    with started(tmp_path) as server, connected(server) as client:
        assert all_of(client) == entries


def test_the_files_go_when_another_log_replaces_that_one(tmp_path: Path, entries: list[bytes]) -> None:
    fill_and_rewrite(tmp_path, entries)
    with started(tmp_path, **SNAPSHOTS) as server, connected(server) as client:
        assert files(tmp_path)
        client.config_set("appendonly", "yes")
        until(lambda: not files(tmp_path))
