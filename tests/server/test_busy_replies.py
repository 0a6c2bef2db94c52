"""What leaves while a script is busy: at once what shows no data, in the order of each client, and nothing that the log
or the replicas lack.
"""

from __future__ import annotations

import contextlib
import select
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from tests.support.raw_client import RawClient
from tests.support.replication.servers import servers
from tests.support.server_process import Process
from tests.support.waiting import wait_until

from penstock import Server
from penstock.engine.session import Session
from penstock.server.app import App
from penstock.storage.batches import Batch
from penstock.storage.writer import LogFile
from penstock.testing.redis import free_port

BUSY = "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."
ENDLESS = "EVAL while(true)do(type)(1)end 0"


class SlowDisk:
    """Batches reach the file when the test lets them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waits = threading.Event()  # a batch is with the thread
        self.works = threading.Event()
        self.works.set()
        append = LogFile.append

        def later(file: LogFile, batch: Batch, sync: object) -> None:
            self.waits.set()
            assert self.works.wait(60)
            append(file, batch, sync)  # type: ignore[arg-type]

        monkeypatch.setattr(LogFile, "append", later)

    def __enter__(self) -> SlowDisk:
        return self

    def __exit__(self, *exc: object) -> None:
        """The server can stop only then, also if the test failed."""
        self.works.set()

    def stall(self) -> None:
        self.waits.clear()
        self.works.clear()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SlowDisk:
    return SlowDisk(monkeypatch)


@contextlib.contextmanager
def clients(port: int, count: int) -> Iterator[list[RawClient]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(RawClient(port)) for _ in range(count)]


def until_busy(client: RawClient) -> str:
    """Ask until the server says that it is busy; what it says."""
    while (answer := client.ask("PING")) == b"PONG":
        pass
    return str(answer)


def test_busy_and_kill_do_not_wait_for_the_disk(tmp_path: Path, disk: SlowDisk) -> None:
    with (
        Server(dir=str(tmp_path), appendonly=True, appendfsync="always", busy_reply_threshold=20) as server,
        disk,
        clients(server.port, 2) as (writer, busy),
    ):
        disk.stall()
        writer.command("SET", "k", "v")
        assert disk.waits.wait(60)
        busy.command(*ENDLESS.split())
        with RawClient(server.port) as other:
            assert str(other.ask("GET k")) == BUSY
            assert other.ask("SCRIPT KILL") == b"OK"
        disk.works.set()
        assert writer.read() == b"OK"
        assert "Script killed" in str(busy.read())


def test_earlier_replies_of_a_client_come_first_and_leave_when_the_disk_has_them(
    tmp_path: Path, disk: SlowDisk
) -> None:
    with (
        Server(dir=str(tmp_path), appendonly=True, appendfsync="always", busy_reply_threshold=20) as server,
        disk,
        clients(server.port, 3) as (writer, busy, other),
    ):
        disk.stall()
        writer.command("SET", "k", "v")
        assert disk.waits.wait(60)
        busy.command(*ENDLESS.split())
        assert until_busy(other) == BUSY
        writer.command("GET", "k")
        writer.socket.settimeout(0.2)
        with pytest.raises(TimeoutError):
            writer.read()
        writer.socket.settimeout(60)
        disk.works.set()
        assert writer.read() == b"OK", "while the script is still busy"
        assert str(writer.read()) == BUSY
        assert other.ask("SCRIPT KILL") == b"OK"
        assert "Script killed" in str(busy.read())


@pytest.mark.parametrize("policy", ["always", "everysec"])
def test_busy_and_kill_do_not_wait_for_replicas(tmp_path: Path, policy: str) -> None:
    with servers(tmp_path) as world:
        leader = world.start("leader", replica_acks=1, busy_reply_threshold=20, appendfsync=policy)
        port = free_port()
        (tmp_path / "replica").mkdir()
        replica = Process(tmp_path / "replica", port, options=f"--replicaof 127.0.0.1 {leader.server.port}")
        try:
            wait_until(lambda: leader.info()["connected_slaves"] == 1 and _takes_writes(leader.client))
            with clients(leader.server.port, 3) as (writer, busy, other):
                replica.process.send_signal(signal.SIGSTOP)
                writer.command("SET", "k", "v")
                wait_until(lambda: leader.server.call(lambda app: app.engine.commit.pending))  # type: ignore[union-attr]
                busy.command(*ENDLESS.split())
                with RawClient(leader.server.port) as late:
                    assert str(late.ask("GET k")) == BUSY
                replica.process.send_signal(signal.SIGCONT)
                assert writer.read() == b"OK", "while the script is still busy"
                assert other.ask("SCRIPT KILL") == b"OK"
                assert "Script killed" in str(busy.read())
        finally:
            replica.process.send_signal(signal.SIGCONT)
            replica.kill()


def _takes_writes(client: redis.Redis) -> bool:
    with contextlib.suppress(redis.ResponseError):
        return bool(client.set("probe", 1))
    return False


def _rest(client: RawClient) -> bytes:
    """What a client gets until its connection is closed."""
    return b"".join(iter(lambda: client.socket.recv(4096), b""))


def test_what_a_busy_script_publishes_leaves_behind_its_changes(tmp_path: Path) -> None:
    script = "redis.call('set', 'k', 'v') redis.call('publish', 'news', 'k is v') while true do end"
    settings = {"dir": str(tmp_path), "appendonly": True, "busy_reply_threshold": 20}
    with Server(**settings) as server, clients(server.port, 4) as (listener, monitor, busy, other):
        listener.ask("SUBSCRIBE news")
        monitor.ask("MONITOR")
        busy.command("EVAL", script, "0")
        assert until_busy(other) == BUSY
        listener.command("PING")
        other.ask("PING")
        for each in (listener, monitor):
            each.socket.settimeout(0.2)
            with pytest.raises(TimeoutError):
                each.read()
            each.socket.settimeout(60)
        other.command("SHUTDOWN", "NOSAVE")
        assert b"k is v" not in _rest(listener)
    with Server(**settings) as server, RawClient(server.port) as client:
        assert client.ask("EXISTS k") == 0


def test_a_script_that_publishes_without_end_fills_no_memory(tmp_path: Path) -> None:
    """The messages wait in the server until the script is over."""
    script = b"local text = string.rep('x', 1e6) for i = 1, 100 do redis.call('publish', 'news', text) end"

    def publish(app: App) -> int:
        app.engine.execute(Session(app.engine), [b"EVAL", script, b"0"])
        return max(sum(map(len, connection.out)) for connection in app.connections)

    with Server() as server, RawClient(server.port) as listener:
        listener.ask("SUBSCRIBE news")
        assert server.call(publish) <= 33e6, "client-output-buffer-limit pubsub 32mb"
        assert listener.is_closed()


def test_scripts_that_are_busy_one_right_after_the_other_answer_their_clients_in_order() -> None:
    """They run in one turn of the loop: the second one's client was served while the first one was busy."""
    with Server(busy_reply_threshold=20) as server, clients(server.port, 3) as (one, two, other):
        other.ask("CLIENT PAUSE 600000 WRITE")
        for each in (one, two):
            each.command(*ENDLESS.split())
        wait_until(lambda: server.call(lambda app: len(app.engine.pause._held)) == 2)
        other.ask("CLIENT UNPAUSE")
        assert until_busy(other) == BUSY
        assert other.ask("SCRIPT KILL") == b"OK"
        first = _the_one_that_is_answered(one, two)
        second = two if first is one else one
        assert "Script killed" in str(first.read())
        second.command("PING")
        assert until_busy(other) == BUSY
        first.command("PING")
        assert str(first.read()) == BUSY, "its script is over"
        assert other.ask("SCRIPT KILL") == b"OK"
        assert "Script killed" in str(second.read())
        assert second.read() == b"PONG"


def test_a_blocked_client_that_sends_on_while_a_script_is_busy_fills_no_memory() -> None:
    """Its input waits, and its socket is not read when that is too much."""
    with Server(busy_reply_threshold=20) as server, clients(server.port, 3) as (blocked, busy, other):
        blocked.command("BLPOP", "none", "0")
        wait_until(lambda: server.call(lambda app: any(each.waiter for each in app.engine.sessions.values())))
        busy.command(*ENDLESS.split())
        assert until_busy(other) == BUSY
        blocked.socket.settimeout(0.5)
        sent = 0
        with pytest.raises(TimeoutError):
            while sent < 30e6:
                sent += blocked.socket.send(b"x" * 100_000)
        assert other.ask("SCRIPT KILL") == b"OK"


def _the_one_that_is_answered(*candidates: RawClient) -> RawClient:
    (ready, *_), _, _ = select.select([each.socket for each in candidates], [], [], 60)
    return next(each for each in candidates if each.socket is ready)
