"""Settings that change where a server keeps its data, or whether it keeps any, and history."""

from __future__ import annotations

from pathlib import Path

import pytest
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

KEEPS_NOTHING = {"appendonly": False, "save": ""}


def is_enabled(client: redis.Redis) -> bool:
    return bool(client.info("persistence")["history_enabled"])


def test_save_rules_that_come_later_begin_history(tmp_path: Path, entries: list[bytes]) -> None:
    with started(tmp_path, **KEEPS_NOTHING) as server, connected(server) as client:
        assert not is_enabled(client)
        client.config_set("save", "3600 1000000")
        fill(client, entries)
        client.config_set("save", "100 1000000")
        assert is_enabled(client)
        client.save()
    with started(tmp_path, appendonly=False, save="3600 1000000") as server, connected(server) as client:
        assert history(client)["length"] > 0
        assert all_of(client) == entries


def test_a_server_that_is_told_to_keep_nothing_any_more_goes_on_with_history(
    tmp_path: Path, entries: list[bytes]
) -> None:
    with started(tmp_path, save="") as server, connected(server) as client:
        client.config_set("appendonly", "no")
        assert is_enabled(client)
        fill(client, entries)
        assert history(client)["length"] > 0
        assert all_of(client) == entries


def test_save_rules_for_a_folder_that_another_server_uses_are_refused(tmp_path: Path, entries: list[bytes]) -> None:
    with started(tmp_path, **KEEPS_NOTHING) as server, started(tmp_path) as first:
        with connected(first) as client:
            fill(client, entries)
        with connected(server) as client:
            with pytest.raises(redis.ResponseError, match=r"'save'.*the folder is in use by process"):
                client.config_set("save", "3600 1000000")
            assert client.config_get("save") == {"save": ""}
            assert not is_enabled(client)
        with connected(first) as client:
            assert all_of(client) == entries


def test_a_snapshot_in_another_folder_refers_to_no_files(tmp_path: Path, entries: list[bytes]) -> None:
    other = tmp_path / "other"
    other.mkdir()
    settings = {"appendonly": False, "save": "3600 1000000"}
    with started(tmp_path, enable_protected_configs=True, **settings) as server, connected(server) as client:
        client.config_set("dir", str(other))
        assert not is_enabled(client)
        write(client, entries)
        client.save()
        assert not files(tmp_path)
        client.config_set("dir", str(tmp_path))
        assert is_enabled(client)
        client.execute_command("TWRITE", "s", "", "one more")
        until(lambda: history(client)["length"] > 0)
        with pytest.raises(redis.ResponseError, match="streams have history in"):
            client.config_set("dir", str(other))
    with started(other, **settings) as server, connected(server) as client:
        assert all_of(client) == entries


def test_a_log_of_a_server_with_history_grows_more_before_it_is_rewritten(tmp_path: Path, entries: list[bytes]) -> None:
    """Its base stays small, so that each doubling would fork, for ever."""
    with started(tmp_path, auto_aof_rewrite_percentage=0) as server, connected(server) as client:
        fill(client, entries)
        client.config_set("auto-aof-rewrite-min-size", client.info("persistence")["aof_current_size"] // 2)
        client.config_set("auto-aof-rewrite-percentage", 1)
        server.call(lambda app: app.persistence.tick())
        info = client.info("persistence")
        assert (info["aof_rewrites"], info["aof_rewrite_in_progress"]) == (0, 0)
        client.config_set("auto-aof-rewrite-min-size", client.info("persistence")["aof_current_size"] // 8)
        until(lambda: client.info("persistence")["aof_rewrites"])
