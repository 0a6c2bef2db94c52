"""A disk that syncs slowly: while a snapshot or a new base of the log is brought to its place, clients are answered."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.storage.history import connected, until

from penstock import Server

LOOP = "penstock-server"


class SlowSyncs:
    """Holds up every sync of a thread, but for those of the loop, which would wait for ever; knows who came."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.threads: list[str] = []
        sync = os.fsync

        def slow(descriptor: int) -> None:
            name = threading.current_thread().name
            self.threads.append(name)
            if name != LOOP:
                assert self.open.wait(60)
            sync(descriptor)

        monkeypatch.setattr(os, "fsync", slow)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowSyncs]:
    disk = SlowSyncs(monkeypatch)
    disk.open.set()
    yield disk
    disk.open.set()


def started(folder: Path) -> Server:
    return Server(dir=str(folder), appendonly=True, hz=100)


@pytest.mark.parametrize("work", ["rdb_bgsave", "aof_rewrite"])
def test_clients_are_answered_while_what_a_child_wrote_is_installed(tmp_path: Path, disk: SlowSyncs, work: str) -> None:
    with started(tmp_path) as server, connected(server) as client:
        client.set("a", "1")
        disk.open.clear()
        disk.threads.clear()
        (client.bgsave if work == "rdb_bgsave" else client.bgrewriteaof)()
        until(lambda: {*disk.threads} - {LOOP} or not client.info("persistence")[f"{work}_in_progress"])
        assert client.info("persistence")[f"{work}_in_progress"], "the file is not in its place yet"
        client.set("b", "2")
        assert client.get("b") == b"2"
        disk.open.set()
        until(lambda: not client.info("persistence")[f"{work}_in_progress"])
        assert client.info("persistence")["rdb_last_bgsave_status" if work == "rdb_bgsave" else "aof_rewrites"] in (
            "ok", 1,
        )  # fmt: skip
        client.set("c", "3")
    with started(tmp_path) as server, connected(server) as client:
        assert client.mget("a", "b", "c") == [b"1", b"2", b"3"]


@pytest.mark.parametrize("end", ["stop", "turn off"])
def test_what_is_being_installed_is_finished_first(tmp_path: Path, disk: SlowSyncs, end: str) -> None:
    with started(tmp_path) as server, connected(server) as client:
        client.set("a", "1")
        disk.open.clear()
        disk.threads.clear()
        client.bgrewriteaof()
        until(lambda: {*disk.threads} - {LOOP})
        client.set("b", "2")
        threading.Timer(0.01, disk.open.set).start()
        if end == "turn off":
            client.config_set("appendonly", "no")
            assert client.info("persistence")["aof_rewrites"] == 1
            client.config_set("appendonly", "yes")
        client.set("c", "3")
    with started(tmp_path) as server, connected(server) as client:
        assert client.mget("a", "b", "c") == [b"1", b"2", b"3"]
