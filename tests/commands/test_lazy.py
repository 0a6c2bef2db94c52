"""LAZY as a client sees it, and what of it is on disk."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import redis
from tests.support.everything_long import everything_long
from tests.support.raw_client import RawClient
from tests.support.server_process import Process
from tests.support.storage.running import info, running, turn_the_loop
from tests.support.waiting import wait_until

from penstock import Server
from penstock.server.app import App
from penstock.testing.redis import free_port

NEVER = {"lazy_queue_enabled": 0, "lazy_max_age": 0}  # only commands that are needed run
ENQUEUED = b"LAZY-ENQUEUED"


@pytest.fixture(params=["loop", "threads"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with (
        everything_long() if request.param == "threads" else nullcontext(),
        Server(**NEVER, worker_threshold=1) as server,
    ):
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url, protocol=2) as client:
        yield client


def lazily(client: redis.Redis, line: str) -> None:
    assert client.execute_command("LAZY", *line.split()) == ENQUEUED


def queued(client: redis.Redis) -> int:
    return int(client.info("lazy")["lazy_queued"])


def test_an_idle_server_does_the_work_by_itself(ours: Server) -> None:
    with redis.Redis.from_url(ours.url) as client:
        client.sadd("a", 1, 2)
        lazily(client, "SUNIONSTORE r a")
        wait_until(lambda: ours.call(lambda app: b"r" in app.engine.keyspace[0].data))


def test_status_and_info_tell_the_same_and_run_nothing(client: redis.Redis) -> None:
    lazily(client, "SADD a x")
    reply = client.execute_command("LAZY", "status")
    status = dict(zip(reply[::2], reply[1::2], strict=True)) if isinstance(reply, list) else reply
    assert (status[b"queued"], status[b"enqueued"], status[b"enabled"]) == (1, 1, 0)
    shown = client.info("lazy")
    assert {f"lazy_{name.decode()}" for name in status} == shown.keys()
    assert shown["lazy_queued"] == 1
    client.config_resetstat()
    assert client.info("lazy")["lazy_enqueued"] == 0 and queued(client) == 1


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("GET a", "'get' may not be LAZY: it only reads"),
        ("PUBLISH a b", "'publish' may not be LAZY: it changes no key"),
        ("EXPIRE a 1", "'expire' may not be LAZY: it depends on the clock"),
        ("SET a b EX 1", "'set' may not be LAZY: it depends on the clock, with EX"),
        ("BLPOP a 0", "'blpop' may not be LAZY: it may wait"),
        ("SPOP a", "'spop' may not be LAZY: it has a random outcome"),
        ("EVAL s 0", "'eval' may not be LAZY: it touches keys that are not known"),
        ("SORT a BY w_* STORE b", "'sort' may not be LAZY: it looks at keys that depend on the elements"),
        ("FLUSHALL", "'flushall' may not be LAZY: it names no key"),
        ("CONFIG SET a b", "'config|set' may not be LAZY: it is an operator's command"),
        ("EXEC", "'exec' may not be LAZY: it belongs to the connection"),
        ("LAZY SET a b", "'lazy' may not be LAZY: it cannot be nested"),
        ("SADD a", "wrong number of arguments for 'sadd' command"),
        ("NOSUCH a", "unknown command 'NOSUCH'"),
    ],
)
def test_what_may_not_be_lazy_is_refused_by_name_and_reason(client: redis.Redis, line: str, error: str) -> None:
    with pytest.raises(redis.ResponseError, match=error.replace("|", r"\|")):
        client.execute_command("LAZY", *line.split())
    assert queued(client) == 0


def test_nesting_however_deep_is_refused(client: redis.Redis) -> None:
    with pytest.raises(redis.ResponseError, match="cannot be nested"):
        client.execute_command(*["LAZY"] * 5000, "SET", "a", "b")
    client.acl_setuser("ada", enabled=True, nopass=True, commands=["+lazy", "+set"], keys=["a"])
    client.execute_command("AUTH", "ada", "")
    with pytest.raises(redis.ResponseError, match="cannot be nested"):
        client.execute_command(*["LAZY"] * 5000, "SET", "a", "b")


def test_its_keys_are_known_to_those_who_ask(server: Server) -> None:
    asked = "COMMAND GETKEYSANDFLAGS LAZY SUNIONSTORE r a b"
    with RawClient(server.port) as raw:
        rows = raw.ask(asked)
    assert sorted((row[0], row[1][0]) for row in rows) == [(b"a", b"RO"), (b"b", b"RO"), (b"r", b"OW")]


def test_permission_is_asked_for_the_command_and_its_keys_when_it_is_enqueued(client: redis.Redis) -> None:
    client.acl_setuser("ada", enabled=True, nopass=True, commands=["+lazy", "+sadd", "+ping"], keys=["mine:*"])
    client.execute_command("AUTH", "ada", "")
    with pytest.raises(redis.exceptions.NoPermissionError, match="'srem' command"):
        client.execute_command("LAZY", "SREM", "mine:a", "x")
    with pytest.raises(redis.exceptions.NoPermissionError, match="keys"):
        client.execute_command("LAZY", "SADD", "yours", "x")
    lazily(client, "SADD mine:a x")
    client.execute_command("AUTH", "default", "")
    client.acl_setuser("ada", enabled=False)
    assert client.scard("mine:a") == 1, "whoever was allowed then is not asked again"


def test_a_user_without_the_permission_for_lazy_gets_an_error(client: redis.Redis) -> None:
    client.acl_setuser("bob", enabled=True, nopass=True, commands=["+sadd"], keys=["*"])
    client.execute_command("AUTH", "bob", "")
    with pytest.raises(redis.exceptions.NoPermissionError, match="'lazy' command"):
        client.execute_command("LAZY", "SADD", "a", "x")


def test_the_inner_loop_does_not_pass_the_queue_by(server: Server, client: redis.Redis) -> None:
    """In one batch and from another connection, which takes the fast path when nothing is queued."""
    with client.pipeline(transaction=False) as pipe:
        pipe.set("a", 1).execute_command("LAZY", "SET", "a", 2).get("a").set("b", 1)
        pipe.execute_command("LAZY", "APPEND", "b", 2).execute_command("LAZY", "APPEND", "b", 3)
        assert pipe.execute() == [True, ENQUEUED, b"2", True, ENQUEUED, ENQUEUED]
    with redis.Redis.from_url(server.url) as other:
        assert other.get("b") == b"123"


def test_a_client_that_waits_is_served_at_once(server: Server, client: redis.Redis) -> None:
    with redis.Redis.from_url(server.url) as other:
        answers: list[object] = []
        waiting = threading.Thread(target=lambda: answers.append(other.blpop("a", timeout=20)))
        waiting.start()
        wait_until(lambda: client.info("clients")["blocked_clients"] == 1)
        lazily(client, "RPUSH a x")
        waiting.join()
        assert answers == [(b"a", b"x")]


def test_silent_clients_may_be_lazy(client: redis.Redis) -> None:
    connection = client.connection_pool.get_connection()
    connection.send_command("CLIENT", "REPLY", "OFF")
    connection.send_command("LAZY", "SADD", "a", "x")
    connection.send_command("CLIENT", "REPLY", "ON")
    assert connection.read_response() == b"OK"
    client.connection_pool.release(connection)
    assert client.scard("a") == 1


# -- on disk --------------------------------------------------------------------------------------------------


def test_kill_9_loses_no_command_that_was_queued(tmp_path: Path) -> None:
    port = free_port()
    server = Process(tmp_path, port)
    with redis.Redis(port=port) as client:
        client.config_set("lazy-queue-enabled", 0)
        client.config_set("save", "")
        client.sadd("a", 1, 2, 3)
        client.set("text", "x")
        lazily(client, "SUNIONSTORE r a")
        lazily(client, "SADD text y")  # which will fail, now and when it is replayed
        lazily(client, "SREM a 1")
        assert queued(client) == 3
    server.kill()
    server = Process(tmp_path, port)
    with redis.Redis(port=port) as client:
        assert (client.scard("r"), client.scard("a"), client.get("text")) == (3, 2, b"x")
    server.kill()


def test_a_bug_that_a_queued_command_met_does_not_keep_the_log_from_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from penstock.engine.declarations import REGISTRY

    def broken(*_: object) -> None:
        raise ZeroDivisionError("of ours")

    monkeypatch.setattr(REGISTRY.by_name[b"LREM"], "handler", broken)
    with running(tmp_path, appendonly="yes", **NEVER) as (_, client):
        lazily(client, "LREM a 0 x")
        client.set("b", 1)
    with running(tmp_path, appendonly="yes") as (_, client):
        assert client.get("b") == b"1"
    assert "1 commands failed when replayed" in caplog.text


def test_the_answer_waits_for_the_disk_under_always(tmp_path: Path) -> None:
    disk = threading.Event()
    with Server(dir=tmp_path, appendonly="yes", appendfsync="always", **NEVER) as server:
        connection = redis.Connection(port=server.port, protocol=2)
        connection.connect()
        server.call(lambda app: setattr(app.persistence.aof.writer, "_sync", lambda descriptor: disk.wait(60)))
        connection.send_command("LAZY", "SADD", "a", "x")
        wait_until(lambda: server.call(lambda app: app.engine.lazy.pending))
        turn_the_loop(server)
        assert not connection.can_read(timeout=0.1), "a reply ran ahead of the disk"
        disk.set()
        assert connection.read_response() == ENQUEUED
        connection.disconnect()


@pytest.mark.parametrize("word", ["BGSAVE", "SAVE"])
def test_a_snapshot_has_everything_that_was_queued(tmp_path: Path, word: str) -> None:
    with running(tmp_path, **NEVER) as (server, client):
        lazily(client, "SADD a x")
        client.execute_command(word)
        assert queued(client) == 0
        wait_until(lambda: info(server)["rdb_saves"] == 1)
    with running(tmp_path) as (_, client):
        assert client.smembers("a") == {b"x"}


def test_a_rewritten_log_has_everything_that_was_queued_once(tmp_path: Path) -> None:
    with running(tmp_path, appendonly="yes", **NEVER) as (server, client):
        lazily(client, "RPUSH a x")
        client.bgrewriteaof()
        wait_until(lambda: info(server)["aof_rewrites"] == 1)
        lazily(client, "RPUSH a y")
    with running(tmp_path, appendonly="yes") as (_, client):
        assert client.lrange("a", 0, -1) == [b"x", b"y"]


def test_a_log_that_is_turned_on_while_commands_are_queued_has_them_once(tmp_path: Path) -> None:
    with running(tmp_path, hz=100, **NEVER) as (server, client):
        lazily(client, "RPUSH a x")
        client.config_set("appendonly", "yes")
        lazily(client, "RPUSH a y")
        wait_until(lambda: info(server)["aof_rewrites"] == 1)
        lazily(client, "RPUSH a z")
    with running(tmp_path, appendonly="yes") as (_, client):
        assert client.lrange("a", 0, -1) == [b"x", b"y", b"z"]


def test_the_last_snapshot_has_everything_that_was_queued(tmp_path: Path) -> None:
    with running(tmp_path, save="3600 1", **NEVER) as (_, client):
        lazily(client, "SADD a x")
    with running(tmp_path) as (_, client):
        assert client.smembers("a") == {b"x"}
        lazily(client, "SADD a y")
        client.shutdown(save=True)
    with running(tmp_path) as (_, client):
        assert client.smembers("a") == {b"x", b"y"}


@pytest.mark.parametrize("words", ["RELOAD", "RELOAD NOSAVE", "LOADAOF"])
def test_reloading_runs_nothing_twice(tmp_path: Path, words: str) -> None:
    with running(tmp_path, appendonly="yes", **NEVER) as (_, client):
        client.save()
        lazily(client, "RPUSH a x")
        client.execute_command("DEBUG", *words.split())
        assert client.lrange("a", 0, -1) == ([] if "NOSAVE" in words else [b"x"])


def test_writes_that_the_disk_refuses_are_refused_lazily_too(client: redis.Redis, server: Server) -> None:
    def refuse(app: App) -> None:
        app.engine.write_error = "the disk is full"
        app.engine.require_gates("disk", True)

    server.call(refuse)
    with pytest.raises(redis.ResponseError, match="MISCONF"):
        client.execute_command("LAZY", "SADD", "a", "x")
    assert isinstance(client.execute_command("LAZY", "STATUS"), list | dict)
    server.call(lambda app: setattr(app.engine, "write_error", None))
