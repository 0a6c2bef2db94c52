"""Children and threads: when a fork waits, that it cannot hang, what the last snapshot holds."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pyarrow as pa
from tests.support.engine.lock_world import slow_commands
from tests.support.raw_client import RawClient
from tests.support.storage.running import info, running
from tests.support.waiting import wait_until

from penstock import Server
from penstock.engine.concurrency.locks import KeyLock, Kind
from penstock.engine.concurrency.workers import NEVER
from penstock.engine.declarations import REGISTRY, Access, Argv, Flag, Reply, command, key
from penstock.engine.session import Session


def locked(server: Server) -> list[KeyLock]:
    return server.call(lambda app: list(app.engine.keyspace[0].locked.values()))


def test_a_snapshot_waits_for_threads_that_write_and_new_ones_wait_for_it(tmp_path: Path) -> None:
    with slow_commands() as slow, running(tmp_path) as (server, client), RawClient(server.port) as first:
        client.sadd("s", "a")
        first.command("SLOW.STORE", "d", "s")
        assert slow.begun.get(timeout=60) == "store"
        with RawClient(server.port) as second:
            assert second.ask("BGSAVE") == b"Background saving scheduled"
            second.command("SLOW.STORE", "e", "s")
            wait_until(lambda: any(lock.kind is Kind.PENDING for lock in locked(server)))
            assert info(server)["rdb_bgsave_in_progress"] == 0
            slow.go.set()
            assert (first.read(), second.read()) == (1, 1)
        wait_until(lambda: info(server)["rdb_saves"] == 1)
        assert not server.call(lambda app: app.engine.lock_gate.locks.writes_denied)
        saved = (tmp_path / "dump.pns").read_bytes()
    (tmp_path / "dump.pns").write_bytes(saved)
    with running(tmp_path) as (_, client):
        assert client.keys() == [b"s", b"d"], "what was under way is in it, what waited for it is not"


def test_a_rewrite_waits_for_threads_that_write_too(tmp_path: Path) -> None:
    with slow_commands() as slow, running(tmp_path, appendonly="yes") as (server, client):
        client.sadd("s", "a")
        with RawClient(server.port) as writer:
            writer.command("SLOW.STORE", "d", "s")
            assert slow.begun.get(timeout=60) == "store"
            client.execute_command("BGREWRITEAOF")
            assert info(server)["aof_rewrite_scheduled"] == 1
            slow.go.set()
            assert writer.read() == 1
        wait_until(lambda: info(server)["aof_rewrites"] == 1)
    with running(tmp_path, appendonly="yes") as (_, client):
        assert client.smembers("d") == {b"a"}, "its command is unknown here, so it must come from the base"


def test_children_are_forked_and_finish_while_threads_are_busy(tmp_path: Path) -> None:
    """A child has the memory of the fork but not the threads: a lock that one of them held stays held in it."""
    over = threading.Event()
    before = REGISTRY.saved()

    @command("BUSY", arity=2, flags=Flag.READONLY, keys=key(1, Access.READ), group="set")
    def busy(session: Session, argv: Argv) -> Reply:
        """Keep the allocators, the log and Arrow busy."""

        def compute() -> int:
            while not over.is_set():
                {b"%d" % number: bytes(1000) for number in range(1000)}
                pa.array(range(1000)).to_pylist()
                logging.getLogger("penstock.test").info("busy")
            return 1

        return session.aside(1 << 40, compute)

    try:
        with running(tmp_path) as (server, client), RawClient(server.port) as one, RawClient(server.port) as other:
            client.execute_command("TWRITE", "t", *["ENTRIES", "tag", "entry"])
            for raw in (one, other):
                raw.command("BUSY", "s")
            wait_until(lambda: server.call(lambda app: app.engine.workers.load) == (2, 0))
            for number in range(10):
                client.set(f"k{number}", bytes(100_000))
                client.execute_command("BGSAVE")
                wait_until(lambda number=number: info(server)["rdb_saves"] == number + 1)
            over.set()
            assert (one.read(), other.read()) == (1, 1)
    finally:
        over.set()
        REGISTRY.restore(before)


def test_shutdown_waits_for_a_thread_and_saves_what_it_wrote(tmp_path: Path) -> None:
    with slow_commands() as slow, Server(dir=tmp_path) as server, RawClient(server.port) as writer:
        writer.command("SADD", "s", "a")
        writer.command("SLOW.STORE", "d", "s")
        assert slow.begun.get(timeout=60) == "store"
        with RawClient(server.port) as admin:
            admin.command("SHUTDOWN", "SAVE")
            wait_until(lambda: server.call(lambda app: app.engine.workers.threshold) == NEVER)
            slow.go.set()
            assert (writer.read(), writer.read()) == (1, 1)
            assert admin.is_closed()
    with running(tmp_path) as (_, client):
        assert client.smembers("d") == {b"a"}


def test_shutdown_now_gives_up_on_threads(tmp_path: Path) -> None:
    with slow_commands() as slow, Server(dir=tmp_path) as server, RawClient(server.port) as writer:
        writer.command("SADD", "s", "a")
        writer.command("SLOW.STORE", "d", "s")
        assert slow.begun.get(timeout=60) == "store"
        with RawClient(server.port) as admin:
            admin.command("SHUTDOWN", "SAVE", "NOW")
            assert admin.is_closed()
        assert writer.read() == 1
        assert "given up on" in str(writer.read())
    with running(tmp_path) as (_, client):
        assert client.keys() == [b"s"]
