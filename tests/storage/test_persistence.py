"""Durability seen by a client: snapshots, restarts, a disk that is full, the commands about all that."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
import redis
from tests.support.commands.stream_world import ipc
from tests.support.forked_program import ROOT, ForkedProgram
from tests.support.raw_client import RawClient
from tests.support.server_process import Process
from tests.support.storage.running import info, running, turn_the_loop
from tests.support.waiting import wait_until

from penstock import Server
from penstock.engine.config import Config
from penstock.engine.dispatch import Engine
from penstock.protocol.resp import pack
from penstock.server.app import App
from penstock.storage import batches, blocks, loading, persistence, saves
from penstock.storage.batches import Batch
from penstock.storage.files import StorageError
from penstock.storage.folder_lock import FolderInUse, FolderLock
from penstock.storage.persistence import Persistence
from penstock.storage.writer import LogFile
from penstock.testing.redis import free_port


def test_a_background_snapshot_is_there_after_a_restart(tmp_path: Path) -> None:
    with running(tmp_path) as (server, client):
        client.set("a", 1)
        client.set("short", 1, px=1)
        client.rpush("l", 1, 2)
        before = client.lastsave()
        assert client.bgsave()
        wait_until(lambda: info(server)["rdb_saves"] == 1)
        assert client.lastsave() >= before
        assert info(server)["rdb_changes_since_last_save"] <= 1  # the short one may have expired since
        client.set("lost", 1)
    with running(tmp_path) as (_, client):
        assert client.get("a") == b"1"
        assert client.lrange("l", 0, -1) == [b"1", b"2"]
        assert sorted(client.keys()) == [b"a", b"l"]


def test_a_snapshot_has_uploads_that_were_not_compressed_yet(tmp_path: Path) -> None:
    upload = ipc(pa.table({"tag": [b"tag"] * 30_000, "entry": [b"entry %d" % n for n in range(30_000)]}))
    with running(tmp_path) as (server, client):
        with client.pipeline() as pipe:  # in one turn of the loop
            pipe.execute_command("TWRITE", "k", "FORMAT", "ARROW", upload)
            pipe.execute_command("BGSAVE").execute()
        wait_until(lambda: info(server)["rdb_saves"] == 1)
        whole = client.execute_command("TREAD", "k", 1, 30_000)
        assert len(whole) == 30_000
    with running(tmp_path) as (_, client):
        assert client.execute_command("TREAD", "k", 1, 30_000) == whole


def test_save_rules_take_snapshots_and_the_last_one_comes_at_the_end(tmp_path: Path) -> None:
    with running(tmp_path, save="1 2", hz=50) as (server, client):
        client.mset({"a": 1, "b": 2})
        client.set("c", 3)
        wait_until(lambda: info(server)["rdb_saves"] == 1)
        client.set("d", 4)
    with running(tmp_path) as (_, client):
        assert client.get("d") == b"4"


@pytest.mark.parametrize("how", [["FLUSHALL"], ["FLUSHALL", "ASYNC"], ["EVAL", "return redis.call('FLUSHALL')", "0"]])
def test_keys_that_were_flushed_are_in_no_snapshot_that_a_restart_would_load(tmp_path: Path, how: list[str]) -> None:
    with running(tmp_path, save="3600 1") as (server, client):
        client.set("a", 1)
        client.save()
        client.bgsave()
        client.execute_command(*how)
        assert info(server)["rdb_changes_since_last_save"] == 0
        after_kill = tmp_path / "after-kill"
        after_kill.mkdir()
        (after_kill / "dump.pns").write_bytes((tmp_path / "dump.pns").read_bytes())
        server.call(lambda app: app.persistence.tick())
        assert info(server)["rdb_bgsave_in_progress"] == 0, "the child would bring the keys back"
    with running(after_kill) as (_, client):
        assert client.dbsize() == 0


def test_flushall_leaves_the_snapshot_alone_without_save_rules(tmp_path: Path) -> None:
    with running(tmp_path) as (_, client):
        client.set("a", 1)
        client.save()
        client.flushall()
    with running(tmp_path) as (_, client):
        assert client.get("a") == b"1"


def test_flushall_succeeds_if_its_snapshot_cannot_be_written(tmp_path: Path) -> None:
    with running(tmp_path, save="3600 1") as (_, client):
        client.set("a", 1)
        (tmp_path / "dump.pns").mkdir()
        assert client.flushall() and client.dbsize() == 0
        (tmp_path / "dump.pns").rmdir()


def test_a_clock_that_was_set_back_does_not_stop_the_save_rules(tmp_path: Path) -> None:
    with running(tmp_path) as (_, client):
        client.set("a", 1)
        client.save()
    later = time.time() + 1_000_000
    os.utime(tmp_path / "dump.pns", (later, later))
    with running(tmp_path, save="1 1", hz=50) as (server, client):
        client.set("b", 2)
        wait_until(lambda: info(server)["rdb_saves"] == 1)


@pytest.mark.parametrize("policy", ["always", "everysec", "no"])
def test_the_log_survives_a_restart(tmp_path: Path, policy: str) -> None:
    with running(tmp_path, appendonly="yes", appendfsync=policy) as (_, client):
        with client.pipeline(transaction=False) as pipe:
            for number in range(500):
                pipe.set(f"k{number}", number).rpush("l", number).incr("n")
            pipe.execute()
        client.set("timed", 1, ex=1000)
        client.spop("nothing")
    with running(tmp_path, appendonly="yes", appendfsync=policy) as (_, client):
        assert (client.get("n"), client.llen("l"), client.get("k499")) == (b"500", 500, b"499")
        assert 990 < client.ttl("timed") <= 1000


def test_no_reply_of_any_kind_leaves_before_the_sync_under_always(tmp_path: Path) -> None:
    disk = threading.Event()
    with Server(dir=tmp_path, appendonly="yes", appendfsync="always") as server:
        clients = [redis.Connection(port=server.port, protocol=2) for _ in range(3)]
        for connection in clients:
            connection.connect()
        writer, reader, listener = clients
        listener.send_command("SUBSCRIBE", "news")
        listener.read_response()
        server.call(lambda app: setattr(app.persistence.aof.writer, "_sync", lambda descriptor: disk.wait(60)))
        before = server.call(lambda app: app.engine.stats.commands)
        writer.send_command("SET", "a", "1")
        wait_until(lambda: server.call(lambda app: b"a" in app.engine.keyspace[0].data))
        reader.send_command("GET", "a")
        writer.send_command("PUBLISH", "news", "hello")
        wait_until(lambda: server.call(lambda app: app.engine.stats.commands) == before + 3)
        turn_the_loop(server)
        assert not any(connection.can_read(timeout=0.1) for connection in clients), "a reply ran ahead of the disk"
        disk.set()
        assert (writer.read_response(), writer.read_response()) == (b"OK", 1)
        assert reader.read_response() == b"1"
        assert listener.read_response()[-1] == b"hello"
        for connection in clients:
            connection.disconnect()


def test_blocked_clients_and_subscribers_are_served_under_always(tmp_path: Path) -> None:
    with (
        running(tmp_path, appendonly="yes", appendfsync="always") as (server, client),
        redis.Redis.from_url(server.url) as other,
        other.pubsub() as listener,
    ):
        listener.subscribe("news")
        assert listener.get_message(timeout=60)["type"] == "subscribe"
        blocked = redis.Redis.from_url(server.url)
        connection = blocked.connection_pool.get_connection()
        connection.send_command("BLPOP", "q", 10)
        wait_until(lambda: server.call(lambda app: app.engine.blocking.count) == 1)
        client.rpush("q", "x")
        client.publish("news", "hello")
        assert connection.read_response() == [b"q", b"x"]
        assert listener.get_message(timeout=60)["data"] == b"hello"
        blocked.connection_pool.release(connection)
        blocked.close()
    with running(tmp_path, appendonly="yes") as (_, client):
        assert client.exists("q") == 0


def test_shutdown_ends_the_server_with_or_without_a_snapshot(tmp_path: Path) -> None:
    for words, kept in (("NOSAVE", None), ("SAVE", b"SAVE"), ("", b"SAVE")):
        with running(tmp_path) as (_, client):
            client.set("a", words or "default")
            with pytest.raises(redis.ConnectionError):
                client.execute_command("SHUTDOWN", *words.split())
                client.ping()
        with running(tmp_path) as (_, client):
            assert client.get("a") == kept


def test_shutdown_takes_its_words_only_in_combinations_that_make_sense(r: redis.Redis) -> None:
    for words in (["SAVE", "NOSAVE"], ["ABORT", "NOW"], ["LATER"]):
        with pytest.raises(redis.ResponseError, match="syntax error"):
            r.execute_command("SHUTDOWN", *words)


@pytest.mark.since("7.0")
def test_there_is_no_shutdown_to_abort(r: redis.Redis) -> None:
    with pytest.raises(redis.ResponseError, match="No shutdown in progress"):
        r.execute_command("SHUTDOWN", "ABORT")


def test_snapshot_commands_refuse_what_they_do_not_know(r: redis.Redis) -> None:
    with pytest.raises(redis.ResponseError, match="syntax error"):
        r.execute_command("BGSAVE", "NOW")
    assert abs(r.lastsave().timestamp() - time.time()) < 3600


def test_reload_brings_everything_back(tmp_path: Path) -> None:
    with running(tmp_path, appendonly="yes") as (_, client):
        client.set("a", 1, ex=100)
        client.rpush("l", 1, 2, 3)
        assert client.execute_command("DEBUG RELOAD") == b"OK"
        assert (client.get("a"), client.llen("l")) == (b"1", 3)
        assert 90 < client.ttl("a") <= 100
        with pytest.raises(redis.ResponseError, match="only supports the MERGE, NOFLUSH and NOSAVE"):
            client.execute_command("DEBUG", "RELOAD", "X")
        assert client.execute_command("DEBUG LOADAOF") == b"OK"
        assert (client.get("a"), client.llen("l")) == (b"1", 3)


def test_the_log_is_not_reloaded_in_a_transaction_that_it_does_not_have_yet(tmp_path: Path) -> None:
    with running(tmp_path, appendonly="yes") as (_, client):
        with client.pipeline() as pipeline:
            pipeline.incr("a")
            pipeline.execute_command("DEBUG", "LOADAOF")
            pipeline.incr("a")
            first, refused, second = pipeline.execute(raise_on_error=False)
        assert (first, second) == (1, 2) and "cannot run in a transaction" in str(refused)
    with running(tmp_path, appendonly="yes") as (_, client):
        assert client.get("a") == b"2"


def test_a_key_that_expired_before_a_reload_is_gone_from_the_log_too(tmp_path: Path) -> None:
    with running(tmp_path, appendonly="yes") as (_, client):
        client.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", "0")
        client.set("a", "no number", px=1)
        time.sleep(0.01)
        client.execute_command("DEBUG RELOAD")
        assert client.incr("a") == 1
    with running(tmp_path, appendonly="yes") as (_, client):
        assert client.get("a") == b"1"


def test_what_a_reload_brought_back_is_in_the_log(tmp_path: Path) -> None:
    with running(tmp_path, appendonly="yes") as (_, client):
        client.set("a", 1)
        client.save()
        client.delete("a")
        client.execute_command("DEBUG", "RELOAD", "NOSAVE")
    with running(tmp_path, appendonly="yes") as (_, client):
        assert client.get("a") == b"1"


@pytest.mark.parametrize("appendonly", ["no", "yes"])
def test_a_shutdown_while_loading_leaves_the_files_as_they_are(
    tmp_path: Path, appendonly: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "KEYS_A_BLOCK", 1)
    with running(tmp_path, appendonly=appendonly, save="3600 1") as (_, client):
        client.mset({"a": 1, "b": 2, "c": 3})
        client.bgrewriteaof()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    monkeypatch.setattr(loading, "_SLICE", -1.0)  # every block is a slice

    async def load_a_part() -> None:
        config = Config()
        for name, value in {"dir": str(tmp_path), "appendonly": appendonly, "save": "3600 1"}.items():
            config.load(name, value.split())
        engine = Engine(config)
        stopped = asyncio.Event()
        storage = Persistence(engine, asyncio.get_running_loop(), stopped.set)
        start = asyncio.create_task(storage.start(stopped.is_set))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert engine.loading
        storage.shut_down(save=None, force=False)
        await start
        assert engine.loading, "a part of the data must not be served"
        storage.close()

    asyncio.run(load_a_part())
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_second_server_may_not_log_to_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(persistence, "PREDECESSOR_SECONDS", 0.05)
    with running(tmp_path) as (_, other), running(tmp_path, appendonly="yes") as (_, client):
        client.set("a", 1)
        with pytest.raises(FolderInUse, match=rf"in use by process {os.getpid()}\."):
            Server(dir=tmp_path, appendonly="yes").start()
        with pytest.raises(redis.ResponseError, match="in use by process"):
            other.config_set("appendonly", "yes")
        assert other.config_get("appendonly") == {"appendonly": "no"}
        client.bgsave()  # a child has inherited the lock and must not keep it
    with running(tmp_path, appendonly="yes") as (_, client):
        assert client.get("a") == b"1"


def test_a_second_server_may_not_take_snapshots_in_the_same_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(persistence, "PREDECESSOR_SECONDS", 0.05)
    with running(tmp_path, save="3600 1") as (_, client), running(tmp_path) as (_, other):
        client.set("a", 1)
        with pytest.raises(FolderInUse, match=rf"in use by process {os.getpid()}\."):
            Server(dir=tmp_path, save="3600 1").start()
        for words in (["SAVE"], ["BGSAVE"], ["BGREWRITEAOF"]):
            with pytest.raises(redis.ResponseError, match=r"another server: .*in use by process"):
                other.execute_command(*words)
    with running(tmp_path, save="3600 1") as (_, client):
        assert client.get("a") == b"1"


def test_a_server_waits_a_moment_for_its_predecessor_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(persistence, "PREDECESSOR_SECONDS", 60)
    lock = FolderLock(tmp_path)
    lock.take()
    threading.Timer(0.2, lock.release).start()
    with running(tmp_path, appendonly="yes") as (_, client):
        assert not lock.held
        client.set("a", 1)


def test_one_child_at_a_time(tmp_path: Path) -> None:
    with running(tmp_path, appendonly="yes") as (server, client):
        client.mset({f"k{number}": number for number in range(1000)})
        # No tick between the commands: they arrive in one piece.
        with client.pipeline(transaction=False) as pipe:
            pipe.execute_command("BGSAVE").execute_command("BGSAVE").execute_command("SAVE")
            pipe.execute_command("BGREWRITEAOF")
            replies = pipe.execute(raise_on_error=False)
        assert replies[0] is True or b"started" in replies[0]
        assert "Background save already in progress" in str(replies[1])
        assert "Background save already in progress" in str(replies[2])
        wait_until(lambda: info(server)["aof_rewrites"] == 1)
        with client.pipeline(transaction=False) as pipe:
            pipe.execute_command("BGREWRITEAOF").execute_command("BGREWRITEAOF")
            pipe.execute_command("BGSAVE").execute_command("BGSAVE", "SCHEDULE")
            replies = pipe.execute(raise_on_error=False)
        assert "rewriting already in progress" in str(replies[1])
        assert "Another child process is active" in str(replies[2])
        assert not isinstance(replies[3], Exception)
        wait_until(lambda: info(server)["rdb_saves"] == 2)


def test_no_child_sees_half_a_transaction(tmp_path: Path) -> None:
    with running(tmp_path, appendonly="yes") as (server, client):
        for command, field in (("BGREWRITEAOF", "aof_rewrites"), ("BGSAVE", "rdb_saves")):
            with client.pipeline(transaction=True) as unit:
                unit.incr("a").execute_command(command).incr("a")
                unit.execute()
            wait_until(lambda field=field: info(server)[field] == 1)
        assert client.execute_command("DEBUG RELOAD", "NOSAVE") == b"OK"
        assert client.get("a") == b"4", "the snapshot has the first half of the transaction only"
        client.execute_command("DEBUG LOADAOF")
        assert client.get("a") == b"4", "a half of the transaction is in the base and in the increment"


def test_writes_are_refused_while_snapshots_fail(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    with running(tmp_path / "gone", save="3600 1") as (server, client):
        client.set("a", 1)
        (tmp_path / "gone").rmdir()
        with pytest.raises(redis.ResponseError):
            client.save()
        with pytest.raises(redis.ResponseError, match="MISCONF Redis is configured to save RDB snapshots"):
            client.set("a", 2)
        assert client.get("a") == b"1"
        assert info(server)["rdb_last_bgsave_status"] == "err"
        client.config_set("stop-writes-on-bgsave-error", "no")
        assert client.set("a", 3)
        client.config_set("stop-writes-on-bgsave-error", "yes")
        (tmp_path / "gone").mkdir()
        client.save()
        assert client.set("a", 4)


def can_write(client: redis.Redis) -> bool:
    """Whether writes are taken, of which this is one."""
    try:
        return bool(client.set("after", 1))
    except redis.ResponseError:
        return False


@contextmanager
def no_snapshot_fits(folder: Path) -> Iterator[Callable[[], None]]:
    """A full disk, until what is given is called; where none can be mounted, a folder has the name of the snapshot."""
    folder.mkdir()
    with small_disk(folder, 1 << 20):
        if not folder.is_mount():
            (folder / "dump.pns").mkdir()
            yield (folder / "dump.pns").rmdir
            return
        filler = folder / "filler"
        with contextlib.suppress(OSError):
            filler.write_bytes(bytes(2 << 20))
        yield filler.unlink


@pytest.mark.parametrize("command", ["BGSAVE", "SAVE"])
def test_a_snapshot_that_failed_is_tried_again_until_the_disk_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, command: str
) -> None:
    """The rule alone would let an hour pass."""
    monkeypatch.setattr(saves, "RETRY_SECONDS", 0.1)
    monkeypatch.setattr(saves, "RETRY_SHARE", 0)
    with no_snapshot_fits(tmp_path / "data") as mend, running(tmp_path / "data", save="3600 1") as (server, client):
        client.set("a", "x" * 100_000)
        with contextlib.suppress(redis.ResponseError):
            client.execute_command(command)
        wait_until(lambda: info(server)["rdb_saves_consecutive_failures"] >= 3)
        assert (info(server)["rdb_last_bgsave_status"], info(server)["rdb_next_try_sec"]) == ("err", 0)
        assert not can_write(client)
        mend()
        wait_until(lambda: can_write(client))
        after = info(server)
        assert (after["rdb_saves_consecutive_failures"], after["rdb_next_try_sec"], after["rdb_saves"]) == (0, -1, 1)
        assert "the snapshot is tried again in 0 seconds" in caplog.text
        assert "snapshots can be written again" in caplog.text
        server.call(lambda app: app.persistence.tick())
        assert info(server)["rdb_bgsave_in_progress"] == 0, "the rules decide again"


def test_a_child_whose_file_cannot_even_be_removed_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a file system that has become read-only. Each look at the child closed the descriptor of its pipe again,
    which was that of another file by then.
    """
    monkeypatch.setattr(saves, "RETRY_SECONDS", 0.1)
    monkeypatch.setattr(saves, "RETRY_SHARE", 0)
    folder = tmp_path / "data"
    with running(folder, save="3600 1") as (server, client):
        client.set("a", 1)
        folder.rename(tmp_path / "away")
        folder.touch()
        client.bgsave()
        wait_until(lambda: info(server)["rdb_saves_consecutive_failures"] >= 2)
        folder.unlink()
        (tmp_path / "away").rename(folder)
        wait_until(lambda: can_write(client))
    assert "internal error" not in caplog.text


def test_without_save_rules_a_snapshot_that_failed_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saves, "RETRY_SECONDS", 0)
    with running(tmp_path, save="") as (server, client):
        (tmp_path / "dump.pns").mkdir()
        client.bgsave()
        wait_until(lambda: info(server)["rdb_last_bgsave_status"] == "err")
        assert can_write(client)
        server.call(lambda app: app.persistence.tick())
        assert info(server)["rdb_bgsave_in_progress"] == 0
        assert (info(server)["rdb_saves_consecutive_failures"], info(server)["rdb_next_try_sec"]) == (1, -1)


@pytest.mark.parametrize("policy", ["always", "everysec"])
@pytest.mark.parametrize("deleted", ["appendonlydir", "*"])
def test_a_log_that_was_deleted_under_the_server_is_written_anew(tmp_path: Path, policy: str, deleted: str) -> None:
    """Writes went to a file without a name, and a kill lost them all."""
    server = Process(tmp_path, free_port(), options=f"--appendfsync {policy}")
    try:
        with redis.Redis(port=server.port, retry=None) as client:
            assert client.set("before", 1) and client.sadd("s", *range(1000))
            for path in tmp_path.glob(deleted):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            wait_until(lambda: client.info("persistence")["aof_rewrites"] == 1)
            assert client.info("persistence")["aof_last_write_status"] == "ok"
            assert client.set("after", 1)
    finally:
        server.kill()
    again = Process(tmp_path, server.port, options=f"--appendfsync {policy}")
    try:
        with redis.Redis(port=again.port) as client:
            assert client.mget("before", "after") == [b"1", b"1"]
            assert client.scard("s") == 1000
    finally:
        again.kill()


def test_a_log_that_another_file_took_the_place_of_is_written_anew(tmp_path: Path) -> None:
    """As by an editor, or by a copy that is brought back."""
    server = Process(tmp_path, free_port(), options="--appendfsync everysec")
    try:
        with redis.Redis(port=server.port, retry=None) as client:
            client.set("before", 1)
            (log,) = (tmp_path / "appendonlydir").glob("*.incr.aof")
            copy = Path(shutil.copy(log, tmp_path / "copy"))
            copy.replace(log)
            wait_until(lambda: client.info("persistence")["aof_rewrites"] == 1)
            client.set("after", 1)
    finally:
        server.kill()
    again = Process(tmp_path, server.port)
    try:
        with redis.Redis(port=again.port) as client:
            assert client.mget("before", "after") == [b"1", b"1"]
    finally:
        again.kill()


def test_a_deleted_log_is_found_though_its_thread_is_always_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, works = threading.Event(), threading.Event()
    append = LogFile.append

    def later(file: LogFile, batch: Batch, sync: Callable[[int], None] | None) -> None:
        waits.set()
        assert works.wait(60)
        append(file, batch, sync)

    monkeypatch.setattr(LogFile, "append", later)
    with Server(dir=str(tmp_path), appendonly=True, appendfsync="always") as server:
        try:
            with RawClient(server.port) as first, RawClient(server.port) as second:
                first.command("SET", "k", "1")
                assert waits.wait(60)
                (log,) = (tmp_path / "appendonlydir").glob("*.incr.aof")
                log.unlink()
                second.command("SET", "k", "2")
                wait_until(lambda: server.call(lambda app: bool(app.persistence.aof.writer._pieces)))  # type: ignore[union-attr]
                works.set()
                assert first.read() == b"OK", "it was on its way already"
                assert "the file of the log was deleted" in str(second.read())
                wait_until(lambda: second.ask("SET k 3") == b"OK")
        finally:
            works.set()
    with Server(dir=str(tmp_path), appendonly=True) as server, RawClient(server.port) as client:
        assert client.ask("GET k") == b"3"


def test_a_folder_that_is_away_for_a_while_is_no_reason_to_refuse_writes(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with running(folder, appendonly="yes") as (server, client):
        client.set("a", 1)
        folder.rename(tmp_path / "away")
        server.call(lambda app: app.persistence.tick())
        assert client.set("a", 2)
        (tmp_path / "away").rename(folder)
        assert info(server)["aof_rewrites"] == 0
    with running(folder, appendonly="yes") as (_, client):
        assert client.get("a") == b"2"


def test_nothing_is_saved_while_a_part_of_the_data_is_loaded(tmp_path: Path) -> None:
    """A replica that copies its leader loads in slices, between which the periodic work runs."""
    with running(tmp_path, save="", appendonly="yes") as (server, client):
        client.set("a", 1)

        def load(app: App) -> tuple[object, object]:
            app.persistence.loader.set_loading(True)
            app.persistence.start_save(now=False)
            app.persistence.start_rewrite(now=False)
            app.persistence.tick()
            fields = app.persistence.info()
            app.persistence.loader.set_loading(False)
            return fields["rdb_bgsave_in_progress"], fields["aof_rewrite_in_progress"]

        assert server.call(load) == (0, 0)
        wait_until(lambda: (info(server)["rdb_saves"], info(server)["aof_rewrites"]) == (1, 1))


def test_a_damaged_snapshot_refuses_to_start(tmp_path: Path) -> None:
    (tmp_path / "dump.pns").write_bytes(b"PENSTOCK" + bytes(40))
    with pytest.raises(StorageError, match=r"dump\.pns"):
        Server(dir=tmp_path).start()


@contextmanager
def process(folder: Path, policy: str, appendonly: str = "yes") -> Iterator[tuple[int, redis.Redis]]:
    """A server in a process of its own, so that it can have a file size limit: a disk that is full."""
    words = [sys.executable, "-m", "tests.support.storage.serve_until_input_ends", str(folder), policy, appendonly]
    with ForkedProgram(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
        assert child.stdin is not None and child.stdout is not None
        with redis.Redis(port=int(child.stdout.readline())) as client:
            yield child.pid, client
        child.stdin.close()


@pytest.mark.parametrize("policy", ["always", "everysec", "no"])
def test_a_full_disk_refuses_writes_serves_reads_and_recovers(tmp_path: Path, policy: str) -> None:
    value = b"x" * 1000
    with process(tmp_path, policy) as (pid, client):
        client.set("before", 1)
        size = next(tmp_path.glob("appendonlydir/*.incr.aof")).stat().st_size
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size + 10_000, resource.RLIM_INFINITY))
        acknowledged = []
        with pytest.raises(redis.ResponseError, match="MISCONF Errors writing to the AOF file: File too large"):
            for number in range(100):
                client.set(f"k{number}", value)
                acknowledged.append(f"k{number}")
        assert len(acknowledged) == 9, "the one that did not fit was not acknowledged"
        assert client.get("before") == b"1"
        assert client.get("k0") == value
        with pytest.raises(redis.ResponseError, match="MISCONF"):
            client.set("more", 1)
        with pytest.raises(redis.ResponseError, match="Errors trying to SHUTDOWN"):
            client.execute_command("SHUTDOWN", "NOSAVE")
        file = next(tmp_path.glob("appendonlydir/*.incr.aof"))
        assert len(list(batches.read(file))) == 10, "the half-written batch was not cut off"
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        wait_until(lambda: can_write(client))
        in_memory = sorted(client.keys())
    with process(tmp_path, policy) as (_, client):
        assert sorted(client.keys()) == in_memory
        assert all(client.get(key) == value for key in acknowledged)


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Callable[[int], None]]:
    """A file system of so many bytes at a folder, in memory; where none can be mounted, no file of a process that is
    named may have more.
    """
    words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(words, capture_output=True, check=False).returncode:
        yield lambda pid: resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY)) and None
        return
    try:
        yield lambda pid: None
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize("policy", ["always", "everysec", "no"])
@pytest.mark.parametrize("at_once", [1, 7])
def test_what_was_acknowledged_before_the_disk_was_full_survives_a_kill(
    tmp_path: Path, policy: str, at_once: int
) -> None:
    folder, acknowledged, value = tmp_path / "small", [], b"x" * 5000
    folder.mkdir()
    with small_disk(folder, 1 << 20) as limit:
        server = Process(folder, free_port(), options=f"--appendfsync {policy} --auto-aof-rewrite-percentage 0")
        limit(server.process.pid)
        try:
            with redis.Redis(port=server.port, retry=None) as client, redis.Redis(port=server.port) as reader:
                reader.config_set("save", "")  # a snapshot would take a part of the disk if this lasts a second
                for number in range(0, 1000, at_once):
                    with client.pipeline(transaction=False) as pipe:
                        names = [f"k{n}" for n in range(number, number + at_once)]
                        for name in names:
                            pipe.set(name, value)
                        try:
                            replies = pipe.execute(raise_on_error=False)
                        except redis.ConnectionError:
                            break
                    acknowledged += [name for name, reply in zip(names, replies, strict=True) if reply is True]
                    if replies[-1] is not True:
                        break
                assert 100 < len(acknowledged) < 220, "the disk was full"
                assert reader.get("k0") == value, "reads go on"
                with pytest.raises(
                    redis.ResponseError, match=r"MISCONF Errors writing to the AOF file: (No space|File too)"
                ):
                    reader.set("more", 1)
        finally:
            server.kill()
        (folder / "server.log").unlink()
        shutil.copytree(folder, tmp_path / "large")
    server = Process(tmp_path / "large", free_port())
    try:
        with redis.Redis(port=server.port) as client:
            assert [name for name in acknowledged if client.get(name) != value] == []
    finally:
        server.kill()


def test_only_clients_whose_changes_the_disk_refuses_lose_their_connections(tmp_path: Path) -> None:
    with process(tmp_path, "everysec") as (pid, client):
        client.set("before", 1)
        port = client.connection_pool.connection_kwargs["port"]
        with contextlib.ExitStack() as stack:
            links = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 30)) for _ in range(2)]
            writing, listening = [stack.enter_context(link.makefile("rb")) for link in links]
            links[1].sendall(pack(b"SUBSCRIBE", b"c"))
            assert [listening.readline() for _ in range(6)][-1] == b":1\r\n"
            size = next(tmp_path.glob("appendonlydir/*.incr.aof")).stat().st_size
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
            links[0].sendall(pack(b"SET", b"a", b"1") + pack(b"PUBLISH", b"c", b"m") + pack(b"GET", b"before"))
            assert writing.read(1) == b"", "one of its replies would acknowledge a change"
            assert [listening.readline() for _ in range(7)][-1] == b"m\r\n", "its message came in the same turn"
            links[1].sendall(pack(b"PING"))
            assert b"pong" in [listening.readline() for _ in range(3)][-1].lower()
        assert client.get("a") == b"1"
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@pytest.mark.parametrize("policy", ["always", "everysec", "no"])
@pytest.mark.parametrize(
    "line",
    [
        "ONCEBEGIN other",
        "ONCE me 2 2 INCR n",
        "TWRITE s PRODUCER p 1 ENTRIES tag entry",
        "TCOMMIT s q 1 token",
        "EVAL return(redis.call('TWRITE',KEYS[1],'PRODUCER','p','1','ENTRIES','tag','entry')) 1 s",
    ],
)
def test_a_repeat_is_not_acknowledged_if_the_disk_refuses_the_change_that_it_repeats(
    tmp_path: Path, policy: str, line: str
) -> None:
    with process(tmp_path, policy) as (pid, client):
        for before in ("ONCEBEGIN me", "TWRITE s tag first", "TSTAGE s token ENTRIES tag entry"):
            client.execute_command(*before.split())
        port = client.connection_pool.connection_kwargs["port"]
        with contextlib.ExitStack() as stack:
            links = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 30)) for _ in range(2)]
            replies = [stack.enter_context(link.makefile("rb")) for link in links]
            for link, reply in zip(links, replies, strict=True):
                link.sendall(pack(b"PING"))
                assert reply.readline() == b"+PONG\r\n"
            size = next(tmp_path.glob("appendonlydir/*.incr.aof")).stat().st_size
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
            os.kill(pid, signal.SIGSTOP)
            stopped = psutil.Process(pid)  # so both come in one turn of the loop
            wait_until(lambda: stopped.status() == psutil.STATUS_STOPPED)
            for link in links:
                link.sendall(pack(*line.encode().split()))
            os.kill(pid, signal.SIGCONT)
            refusal = b"-MISCONF Errors writing to the AOF file: File too large\r\n"
            assert [reply.readline() for reply in replies] == [refusal, refusal]
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@pytest.mark.parametrize("how", ["blocked", "postponed", "thread"])
def test_a_client_that_waited_gets_no_reply_to_a_change_that_the_disk_refuses(tmp_path: Path, how: str) -> None:
    with process(tmp_path, "everysec") as (pid, client):
        client.rpush("list", 1)
        client.sadd("set", *range(50_000))
        port = client.connection_pool.connection_kwargs["port"]
        words = {"blocked": (b"BLPOP", b"none", b"0"), "postponed": (b"RPUSH", b"list", b"2"),
                 "thread": (b"SUNIONSTORE", b"copy", b"set", b"set")}[how]  # fmt: skip
        with socket.create_connection(("127.0.0.1", port), 30) as link, link.makefile("rb") as replies:
            size = next(tmp_path.glob("appendonlydir/*.incr.aof")).stat().st_size
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
            if how == "postponed":
                client.execute_command("CLIENT", "PAUSE", 100_000, "WRITE")
            link.sendall(pack(*words))
            if how == "blocked":
                wait_until(lambda: client.info("clients")["blocked_clients"] == 1)
                with pytest.raises(redis.ResponseError, match="MISCONF"):
                    client.rpush("none", "x")
            elif how == "postponed":
                wait_until(lambda: [each for each in client.client_list() if each["cmd"] == "rpush"])
                client.execute_command("CLIENT", "UNPAUSE")
            assert replies.readline() == b"-MISCONF Errors writing to the AOF file: File too large\r\n"
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@pytest.mark.parametrize("policy", ["always", "everysec"])
@pytest.mark.parametrize(
    "line", ["SHUTDOWN", "BGREWRITEAOF", "CONFIG SET appendfsync always", "CONFIG SET appendonly no", "REPLICAOF ::1 1"]
)
def test_a_command_that_finds_the_disk_full_acknowledges_nothing_before_it(
    tmp_path: Path, policy: str, line: str
) -> None:
    with process(tmp_path, policy) as (pid, client):
        client.set("before", 1)
        port = client.connection_pool.connection_kwargs["port"]
        size = next(tmp_path.glob("appendonlydir/*.incr.aof")).stat().st_size
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        with socket.create_connection(("127.0.0.1", port), 30) as link, link.makefile("rb") as replies:
            link.sendall(pack(b"SET", b"a", b"1") + pack(*line.encode().split()))
            assert replies.readline()[:9] in (b"", b"-MISCONF ")
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@pytest.mark.parametrize(
    "line",
    [
        "GETDEL value",  # a reply of three pieces
        "LPOP short 2000",  # of many
        "LPOP wide 2500",  # so large that a reply to a read would leave in parts
        "LPOP long 15000",  # that is made in slices
        "SPOP set 3000",
    ],
)
@pytest.mark.parametrize("way", ["fast", "whole"])
def test_one_command_whose_large_reply_the_disk_refuses_gets_an_error(tmp_path: Path, line: str, way: str) -> None:
    with process(tmp_path, "everysec") as (pid, client), contextlib.ExitStack() as stack:
        if way == "whole":
            stack.enter_context(client.monitor())
        client.set("value", b"x" * 100_000)
        client.rpush("short", *range(3000))
        client.rpush("wide", *[b"x" * 4000] * 3000)
        client.rpush("long", *range(20_000))
        client.sadd("set", *range(5000))
        port = client.connection_pool.connection_kwargs["port"]
        size = next(tmp_path.glob("appendonlydir/*.incr.aof")).stat().st_size
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        with socket.create_connection(("127.0.0.1", port), 30) as link, link.makefile("rb") as replies:
            link.sendall(pack(*line.encode().split()))
            assert replies.readline() == b"-MISCONF Errors writing to the AOF file: File too large\r\n"
            link.sendall(pack(b"PING"))
            assert replies.readline() == b"+PONG\r\n"
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@pytest.mark.parametrize("earlier", ["a wait", "a message"])
def test_one_command_gets_an_error_whatever_the_connection_got_before(tmp_path: Path, earlier: str) -> None:
    with process(tmp_path, "everysec") as (pid, client):
        client.set("before", 1)
        port = client.connection_pool.connection_kwargs["port"]
        with socket.create_connection(("127.0.0.1", port), 30) as link, link.makefile("rb") as replies:
            if earlier == "a wait":
                link.sendall(pack(b"BLPOP", b"none", b"0.01"))
                assert replies.readline() == b"*-1\r\n"
            else:
                link.sendall(pack(b"HELLO", b"3") + pack(b"SUBSCRIBE", b"c") + pack(b"PING"))
                while replies.readline() != b"+PONG\r\n":
                    pass
                client.publish("c", "m")
                assert [replies.readline() for _ in range(7)][::2] == [b">3\r\n", b"message\r\n", b"c\r\n", b"m\r\n"]
            size = next(tmp_path.glob("appendonlydir/*.incr.aof")).stat().st_size
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
            link.sendall(pack(b"SET", b"a", b"1"))
            assert replies.readline() == b"-MISCONF Errors writing to the AOF file: File too large\r\n"
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def test_a_refused_change_behind_a_large_reply_shifts_no_replies(tmp_path: Path) -> None:
    with process(tmp_path, "everysec") as (pid, client):
        client.set("value", b"x" * 8000)
        port = client.connection_pool.connection_kwargs["port"]
        size = next(tmp_path.glob("appendonlydir/*.incr.aof")).stat().st_size
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        with socket.create_connection(("127.0.0.1", port), 30) as link, link.makefile("rb") as replies:
            large = pack(b"EVAL", b"return string.rep('x', 300000)", b"0")  # it leaves before the next one runs
            link.sendall(large + pack(b"SET", b"a", b"1") + pack(b"GET", b"value") * 60)
            assert replies.readline() == b"$300000\r\n"
            assert len(replies.read(300_002)) == 300_002
            assert replies.read(1) == b"", "several commands came after it"
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def test_a_message_before_a_reply_that_the_disk_refuses_stays_a_message(tmp_path: Path) -> None:
    with process(tmp_path, "always") as (pid, client):
        client.set("before", 1)
        port = client.connection_pool.connection_kwargs["port"]
        with socket.create_connection(("127.0.0.1", port), 30) as link, link.makefile("rb") as replies:
            link.sendall(pack(b"HELLO", b"3") + pack(b"SUBSCRIBE", b"c") + pack(b"PING"))
            while replies.readline() != b"+PONG\r\n":
                pass
            size = next(tmp_path.glob("appendonlydir/*.incr.aof")).stat().st_size
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
            link.sendall(pack(b"MULTI") + pack(b"SET", b"k", b"v") + pack(b"PUBLISH", b"c", b"m") + pack(b"EXEC"))
            assert [replies.readline() for _ in range(3)] == [b"+OK\r\n", b"+QUEUED\r\n", b"+QUEUED\r\n"]
            assert [replies.readline() for _ in range(7)][::2] == [b">3\r\n", b"message\r\n", b"c\r\n", b"m\r\n"]
            assert replies.readline() == b"-MISCONF Errors writing to the AOF file: File too large\r\n"
            link.sendall(pack(b"PING"))
            assert replies.readline() == b"+PONG\r\n"
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def test_a_log_that_cannot_be_begun_is_off_again_and_can_be_turned_on_later(tmp_path: Path) -> None:
    with process(tmp_path, "always", appendonly="no") as (pid, client):
        client.set("large", b"".join(number.to_bytes(8) for number in range(20_000)))
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
        with pytest.raises(redis.ResponseError, match=r"'appendonly'.*the log could not be begun: .*File too large"):
            client.config_set("appendonly", "yes")
        assert client.config_get("appendonly") == {"appendonly": "no"}
        assert client.info("persistence")["aof_enabled"] == 0
        assert not list(tmp_path.glob("appendonlydir/*")), "files were left behind"
        assert client.set("a", 1)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert client.config_set("appendonly", "yes")
    with process(tmp_path, "always") as (_, client):
        assert client.get("a") == b"1"


def test_a_log_can_be_turned_off_when_the_disk_is_full(tmp_path: Path) -> None:
    with process(tmp_path, "everysec") as (pid, client):
        client.set("a", 1)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (200, resource.RLIM_INFINITY))
        with pytest.raises(redis.ResponseError, match="MISCONF"):
            client.set("b", b"x" * 1000)  # it is in memory all the same
        with pytest.raises(redis.ResponseError, match="MISCONF"):
            client.set("c", 1)
        assert client.config_set("appendonly", "no")
        assert client.set("c", 1)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert client.config_set("appendonly", "yes")
        assert len(list(tmp_path.glob("appendonlydir/*"))) == 3, "the files of the old log were not removed"
    with process(tmp_path, "everysec") as (_, client):
        assert sorted(client.keys()) == [b"a", b"b", b"c"]


def test_the_log_is_not_turned_on_inside_a_transaction(tmp_path: Path) -> None:
    with running(tmp_path) as (_, client):
        with client.pipeline(transaction=True) as unit:
            unit.set("a", 1).config_set("appendonly", "yes")
            with pytest.raises(redis.ResponseError, match="waits for the first file of the log"):
                unit.execute()
        assert client.config_get("appendonly") == {"appendonly": "no"}


def test_a_client_that_waits_for_a_log_gets_an_error_if_it_is_turned_off(tmp_path: Path) -> None:
    with running(tmp_path) as (server, client), redis.Redis.from_url(server.url) as other:
        waiting = other.connection_pool.get_connection()
        waiting.send_command("CONFIG", "SET", "appendonly", "yes")
        wait_until(lambda: client.info("clients")["blocked_clients"] or client.info("persistence")["aof_rewrites"])
        client.config_set("appendonly", "no")
        try:
            assert waiting.read_response() == b"OK", "it was quicker"
        except redis.ResponseError as error:
            assert "turned off again" in str(error)
        other.connection_pool.release(waiting)
        assert info(server)["aof_enabled"] == 0


def test_an_embedded_server_that_keeps_nothing_reads_and_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        with Server() as server, redis.Redis.from_url(server.url) as client:
            assert client.dbsize() == 0
            client.set("a", 1)
            client.save()
    assert not list(tmp_path.iterdir())
