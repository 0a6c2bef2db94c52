"""A disk that syncs slowly: clients are answered while a rewrite begins, and while what a child wrote is installed."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.support.storage.history import connected, until

from penstock import Server

LOOP, LOG, INSTALLING = "penstock-server", "penstock-log", "penstock-install"


class SlowSyncs:
    """Holds up the syncs of a thread; knows which threads came."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.slow = ""  # the name of the thread
        self.open = threading.Event()
        self.threads: list[str] = []
        sync = os.fsync

        def slow(descriptor: int) -> None:
            name = threading.current_thread().name
            self.threads.append(name)
            if name == self.slow:
                assert self.open.wait(60)
            sync(descriptor)

        monkeypatch.setattr(os, "fsync", slow)

    def hold(self, thread: str) -> None:
        self.threads.clear()
        self.slow = thread

    @property
    def holds(self) -> bool:
        """The thread has come."""
        return self.slow in self.threads


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowSyncs]:
    disk = SlowSyncs(monkeypatch)
    yield disk
    disk.open.set()


def started(folder: Path, **directives: str) -> Server:
    return Server(dir=str(folder), appendonly=True, hz=100, **directives)


@pytest.mark.parametrize("work", ["rdb_bgsave", "aof_rewrite"])
def test_clients_are_answered_while_what_a_child_wrote_is_installed(tmp_path: Path, disk: SlowSyncs, work: str) -> None:
    with started(tmp_path) as server, connected(server) as client:
        client.set("a", "1")
        disk.hold(INSTALLING)
        (client.bgsave if work == "rdb_bgsave" else client.bgrewriteaof)()
        until(lambda: disk.holds or not client.info("persistence")[f"{work}_in_progress"])
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
        disk.hold(INSTALLING)
        client.bgrewriteaof()
        until(lambda: disk.holds)
        client.set("b", "2")
        threading.Timer(0.01, disk.open.set).start()
        if end == "turn off":
            client.config_set("appendonly", "no")
            assert client.info("persistence")["aof_rewrites"] == 1
            client.config_set("appendonly", "yes")
        client.set("c", "3")
    with started(tmp_path) as server, connected(server) as client:
        assert client.mget("a", "b", "c") == [b"1", b"2", b"3"]


@pytest.mark.parametrize("policy", ["always", "everysec", "no"])
def test_clients_are_answered_while_the_next_increment_is_made(tmp_path: Path, disk: SlowSyncs, policy: str) -> None:
    with started(tmp_path, appendfsync=policy) as server, connected(server) as client, connected(server) as writer:
        client.set("a", "1")
        disk.hold(LOG)
        client.bgrewriteaof()
        until(lambda: disk.holds)
        assert client.ping()
        assert client.get("a") == b"1"
        assert client.info("persistence")["aof_rewrite_in_progress"]
        with ThreadPoolExecutor() as pool:
            written = pool.submit(writer.set, "b", "2")
            until(lambda: server.call(lambda app: b"b" in app.engine.keyspace[0].data))
            assert not written.done(), "it is in no file that a restart would read"
            disk.open.set()
            assert written.result(60)
        until(lambda: not client.info("persistence")["aof_rewrite_in_progress"])
        assert client.info("persistence")["aof_rewrites"] == 1
        client.set("c", "3")
    assert LOOP not in disk.threads[: disk.threads.index(INSTALLING)]
    with started(tmp_path) as server, connected(server) as client:
        assert client.mget("a", "b", "c") == [b"1", b"2", b"3"]


@pytest.mark.parametrize("policy", ["always", "everysec"])
def test_a_rewrite_that_gets_no_increment_fails_and_the_log_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    sync = os.fsync

    def refuse(descriptor: int) -> None:
        if threading.current_thread().name == LOG:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(descriptor)

    with started(tmp_path, appendfsync=policy) as server, connected(server) as client:
        client.set("a", "1")
        monkeypatch.setattr(os, "fsync", refuse)
        client.bgrewriteaof()
        client.set("b", "2")
        until(lambda: client.info("persistence")["aof_last_bgrewrite_status"] == "err")
        assert not client.info("persistence")["aof_rewrite_in_progress"]
        client.set("c", "3")
        monkeypatch.setattr(os, "fsync", sync)
        client.bgrewriteaof()
        client.set("d", "4")
        until(lambda: client.info("persistence")["aof_rewrites"] == 1)
        client.set("e", "5")
    with started(tmp_path) as server, connected(server) as client:
        assert client.mget("a", "b", "c", "d", "e") == [b"1", b"2", b"3", b"4", b"5"]
