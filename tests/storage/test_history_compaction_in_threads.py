"""Compaction of files of history: a thread reads them, and other clients go on meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from tests.support.storage.history import SMALL, connected, files, history, started, until
from tests.support.storage.slow_reads import SlowReads

from penstock import Server

COUNT = 12_000
TAGS = 100
"""Tags of the stream, which its last node has all of: so much is left of the nodes before it, which is nothing."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with started(tmp_path) as server:
        yield server


def fill(client: redis.Redis, *keys: str) -> None:
    """Most of each stream is in files."""
    for key in keys:
        for at in range(0, COUNT, 1000):
            words = [word for n in range(at, at + 1000) for word in (b"%d" % (n % TAGS), b"%d " % n * 12)]
            client.execute_command("TWRITE", key, "ENTRIES", *words)
    until(lambda: all(history(client, key)["length"] >= COUNT - 5000 for key in keys))
    until(lambda: client.info("persistence")["stream_memory_held"] <= SMALL)
    until(lambda: not client.info("persistence")["history_write_in_progress"])


def length(client: redis.Redis, key: str) -> int:
    info = client.execute_command("TINFO", key)
    pairs = info.items() if isinstance(info, dict) else zip(info[::2], info[1::2], strict=True)
    return int(dict(pairs)[b"length"])


def compact(client: redis.Redis, *keys: str) -> None:
    for key in keys:
        client.execute_command("TRETAIN", key, "COMPACT", "yes")


def test_others_go_on_while_compaction_waits_for_files(server: Server, disk: SlowReads) -> None:
    with connected(server) as client:
        fill(client, "s")
        compact(client, "s")
        until(lambda: disk.threads)
        assert client.ping()
        assert length(client, "s") == COUNT
        disk.open.set()
        until(lambda: length(client, "s") == TAGS)
        rows = client.execute_command("TREAD", "s", 1, COUNT)
        assert [row[0] for row in rows if row is not None] == [*range(COUNT - TAGS + 1, COUNT + 1)]
        client.execute_command("TWRITE", "s", "5", "x")
    assert not disk.on_the_loop


def test_streams_take_turns(server: Server, disk: SlowReads) -> None:
    disk.open.set()
    with connected(server) as client:
        fill(client, "a", "b", "c")
        compact(client, "a", "b", "c")
        for key in ("a", "b", "c"):
            until(lambda key=key: length(client, key) == TAGS)
    assert not disk.on_the_loop


@pytest.mark.parametrize("how", ["delete", "stop", "evict", "copy"])
def test_a_stream_that_changes_while_a_thread_reads_holds_up_no_other(
    server: Server, disk: SlowReads, how: str
) -> None:
    with connected(server) as client:
        fill(client, "a", "b")
        compact(client, "a")
        until(lambda: disk.threads)
        if how == "delete":
            client.delete("a")
        elif how == "stop":
            client.execute_command("TRETAIN", "a", "COMPACT", "no")
        elif how == "evict":
            client.execute_command("TEVICT", "a", 5500)
        else:
            client.copy("a", "c")
        compact(client, "b")
        disk.open.set()
        until(lambda: length(client, "b") == TAGS)
        if how in ("evict", "copy"):
            until(lambda: length(client, "a") == TAGS)
        if how == "copy":
            until(lambda: length(client, "c") == TAGS)
        if how == "stop":
            assert length(client, "a") == COUNT
    assert not disk.on_the_loop


def test_a_stream_with_a_lost_file_holds_up_no_other(server: Server, tmp_path: Path) -> None:
    with connected(server) as client:
        fill(client, "a")
        before = files(tmp_path)
        fill(client, "b")
        lost = min(before & files(tmp_path), key=lambda name: int(name.split("-")[0]))
        (tmp_path / "history" / lost).unlink()
        compact(client, "a", "b")
        until(lambda: length(client, "b") == TAGS)
        assert length(client, "a") == COUNT
        assert client.execute_command("TEVICT", "a", int(lost.split("-")[1]))
        until(lambda: length(client, "a") == TAGS)
