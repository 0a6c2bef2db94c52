"""What one client may cost the others."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.raw_client import Closed, RawClient
from tests.support.waiting import wait_until

from penstock import Server
from penstock.engine.access.users import User
from penstock.engine.directives import DIRECTIVES
from penstock.protocol.resp import pack
from penstock.server.app import App
from penstock.server.limits import is_exposed
from penstock.testing.redis import free_port


def test_one_client_too_many_gets_an_error_and_is_closed() -> None:
    with Server(maxclients=2) as server, RawClient(server.port) as one, RawClient(server.port) as two:
        assert one.ask("PING") == two.ask("PING") == b"PONG"
        with RawClient(server.port) as three:
            assert str(three.read()) == "ERR max number of clients reached"
            assert three.is_closed()
        assert server.call(lambda app: app.engine.stats.rejected_connections) == 1
        assert one.ask("CLIENT LIST").count(b"\n") == 2
        two.close()
        wait_until(lambda: server.call(lambda app: len(app.connections)) == 1)
        with RawClient(server.port) as another:
            assert another.ask("PING") == b"PONG"


def test_maxclients_can_change_while_running() -> None:
    with Server() as server, RawClient(server.port) as client:
        assert client.ask("CONFIG SET maxclients 1") == b"OK"
        with RawClient(server.port) as another:
            assert another.is_closed()


@contextlib.contextmanager
def server_with_descriptors(folder: Path, soft: int, hard: int, maxclients: int) -> Iterator[tuple[int, Path]]:
    """The port and the log file of a server in a process that may open only so many files."""
    port, log = free_port(), folder / "server.log"
    words = [
        "serve",
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--dir",
        str(folder),
        "--maxclients",
        str(maxclients),
        "--save",
        "3600 1",
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock", *words], stdout=output, stderr=output,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard)),
        )  # fmt: skip
    try:
        wait_until(lambda: b"Ready to accept" in log.read_bytes() or process.poll() is not None)
        yield port, log
    finally:
        process.terminate()
        process.wait(60)


def test_as_many_idle_clients_as_fit_leave_descriptors_for_a_snapshot(tmp_path: Path) -> None:
    with (
        server_with_descriptors(tmp_path, 128, 128, maxclients=10_000) as (port, log),
        contextlib.ExitStack() as clients,
    ):
        client = clients.enter_context(RawClient(port))
        fitting = int(client.ask("CONFIG GET maxclients")[1])
        assert 32 < fitting < 128 - 32
        assert f"maxclients is {fitting} instead of 10000" in log.read_text()
        for _ in range(fitting - 1):
            clients.enter_context(RawClient(port))
        for _ in range(40):  # more than are kept back
            with RawClient(port) as too_many:
                assert str(too_many.read()) == "ERR max number of clients reached"
        assert client.ask("SET k v") == b"OK"
        assert client.ask("BGSAVE") == b"Background saving started"
        wait_until(lambda: b"rdb_bgsave_in_progress:0" in client.ask("INFO persistence"))
        assert b"rdb_last_bgsave_status:ok" in client.ask("INFO persistence")
        assert client.ask("SET k w") == b"OK"
        refused = client.ask("CONFIG SET maxclients 1000")
        assert refused.endswith(
            f"The operating system is not able to handle the specified number of clients, try with {fitting}"
        )
        assert client.ask("CONFIG SET maxclients 10") == client.ask(f"CONFIG SET maxclients {fitting}") == b"OK"


def test_the_limit_of_open_files_is_raised_for_maxclients(tmp_path: Path) -> None:
    with (
        server_with_descriptors(tmp_path, 128, 400, maxclients=200) as (port, log),
        RawClient(port) as client,
    ):
        assert client.ask("CONFIG GET maxclients") == [b"maxclients", b"200"]
        assert "Increased the limit of open files from 128 to" in log.read_text()
        assert client.ask("CONFIG SET maxclients 300") == b"OK"
        assert "is not able to handle" in client.ask("CONFIG SET maxclients 4000")
        assert client.ask("CONFIG GET maxclients") == [b"maxclients", b"300"]


def test_a_limit_that_leaves_no_client_refuses_to_start(tmp_path: Path) -> None:
    with server_with_descriptors(tmp_path, 40, 40, maxclients=100) as (_, log):
        assert "leaves none for clients: increase 'ulimit -n'" in log.read_text()


def test_setting_the_clock_makes_no_client_idle() -> None:
    def as_if_set(app: App, milliseconds: int) -> None:
        """What a sweep finds when the clock was set forward by so much since the last one."""
        wall, now = app.limits._times
        app.limits._times = (wall - milliseconds, now)
        for session in app.engine.sessions.values():
            session.created -= milliseconds
            session.last_active -= milliseconds
        app.limits._next_sweep = 0.0
        app.limits.sweep()

    with Server(timeout=60) as server, RawClient(server.port) as client:
        assert client.ask("PING") == b"PONG"
        for milliseconds in (1_000_000, -1_000_000):
            server.call(lambda app, milliseconds=milliseconds: as_if_set(app, milliseconds))
            shown = dict(field.split(b"=", 1) for field in client.ask("CLIENT LIST").split() if b"=" in field)
            assert int(shown[b"age"]) in range(10) and int(shown[b"idle"]) in range(10)


def test_a_client_that_was_active_since_the_clock_was_set_back_is_not_idle() -> None:
    def set_back(app: App) -> None:
        """An hour, just before the last command."""
        wall, now = app.limits._times
        app.limits._times = (wall + 3_600_000, now)
        app.limits._next_sweep = 0.0
        app.limits.sweep()

    with Server(timeout=60) as server, RawClient(server.port) as client:
        assert client.ask("PING") == b"PONG"
        server.call(set_back)
        assert client.ask("PING") == b"PONG"


def test_idle_clients_are_closed_but_not_those_that_wait_for_something() -> None:
    def set_timeout(app: App, seconds: str) -> None:
        app.engine.config.change([(DIRECTIVES["timeout"], seconds)])

    with Server() as server:
        idle, blocked, listener, monitor, replica = (RawClient(server.port) for _ in range(5))
        assert replica.ask("REPLCONF capa penstock") == b"OK"  # `repl-timeout` is what holds for it
        assert idle.ask("PING") == b"PONG"
        blocked.command("BLPOP", "k", "0")
        listener.ask("SUBSCRIBE c")
        monitor.ask("MONITOR")
        wait_until(lambda: server.call(lambda app: app.engine.blocking.count) == 1)
        server.call(lambda app: set_timeout(app, "1"))
        assert idle.is_closed()
        server.call(lambda app: set_timeout(app, "0"))  # requests from now on may take longer
        with RawClient(server.port) as client:
            assert client.ask("PUBLISH c hello") == 1
            assert client.ask("RPUSH k x") == 1
        assert blocked.read() == [b"k", b"x"]
        assert listener.read() == [b"message", b"c", b"hello"]
        assert replica.ask("PING") == b"PONG"
        for client in (idle, blocked, listener, monitor, replica):
            client.close()


def test_keep_alive_is_asked_of_the_kernel() -> None:
    with Server(tcp_keepalive=60) as server, RawClient(server.port) as client:
        client.ask("PING")

        def option(app: object) -> int:
            (connection,) = app.connections  # type: ignore[attr-defined]
            sock = connection.transport.get_extra_info("socket")
            return int(sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))

        assert server.call(option) == 1


# -- reading too slowly ---------------------------------------------------------------------------------------


def test_only_the_subscriber_that_does_not_read_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "penstock.server")
    with Server(client_output_buffer_limit="pubsub 1mb 0 0") as server, RawClient(server.port) as client:
        deaf, fine = RawClient(server.port), RawClient(server.port)
        deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.ask("SUBSCRIBE c")
        fine.ask("SUBSCRIBE d")
        message = "x" * 100_000
        published = 0
        while client.ask(f"PUBLISH c {message}") == 1:
            published += 1
            assert published < 1000, "it was never closed"
        assert client.ask("PUBLISH d hello") == 1
        assert fine.read() == [b"message", b"d", b"hello"]
        assert "client-output-buffer-limit pubsub" in caplog.text
        deaf.close()
        fine.close()


def test_a_soft_limit_closes_after_its_seconds() -> None:
    with Server(client_output_buffer_limit="pubsub 0 200kb 1") as server, RawClient(server.port) as client:
        deaf = RawClient(server.port)
        deaf.ask("SUBSCRIBE c")
        started = time.monotonic()
        message = "x" * 1_000_000
        assert client.ask(f"PUBLISH c {message}") == 1
        for _ in range(11):  # more than the kernel takes
            client.ask(f"PUBLISH c {message}")
        wait_until(lambda: client.ask("PUBSUB NUMSUB c") == [b"c", 0])
        assert time.monotonic() - started >= 1
        deaf.close()


def test_a_client_that_asks_and_does_not_read_is_not_served_into_memory() -> None:
    with Server() as server, RawClient(server.port) as client:
        client.send(pack(b"SET", b"big", b"x" * 1_000_000))
        assert client.read() == b"OK"
        deaf = RawClient(server.port)
        for _ in range(20_000):  # 18 MB that ask for 40 GB
            deaf.send(pack(b"GETRANGE", b"big", b"0", b"100000") * 20)
        assert client.ask("PING") == b"PONG"

        def held(app: App) -> int:
            return max(sum(connection.buffered()) for connection in app.connections)

        assert server.call(held) < 40_000_000  # twice what it sent
        deaf.socket.settimeout(10)
        assert len(deaf.read()) == 100_001  # reading goes on where it was
        deaf.close()


def bytes_until_closed(client: RawClient) -> int:
    """How much the server sends before it closes the connection."""
    received = 0
    with contextlib.suppress(ConnectionResetError):
        while data := client.socket.recv(1 << 16):
            received += len(data)
    return received


@pytest.mark.parametrize("line", ["HRANDFIELD h -999999999", "SRANDMEMBER s -999999999", "ZRANDMEMBER z -999999999"])
def test_the_limit_ends_a_reply_that_is_still_being_made(line: str) -> None:
    limit = 1_000_000
    with Server(client_output_buffer_limit=f"normal {limit} 0 0") as server, RawClient(server.port) as client:
        for words in ("HSET h field value", "SADD s member", "ZADD z 1 member"):
            client.ask(words)
        client.command(*line.split())
        assert limit // 2 < bytes_until_closed(client) <= limit
        with RawClient(server.port) as another:
            assert another.ask("PING") == b"PONG"


@pytest.mark.parametrize("size", [900_000, 1_100_000])
def test_the_limit_ends_what_the_kernel_would_have_taken(size: int) -> None:
    with Server(client_output_buffer_limit="normal 1000000 0 0") as server, RawClient(server.port) as client:
        client.ask(f"SET k {'x' * size}")
        client.command("GET", "k")
        if size < 1_000_000:
            assert len(client.read()) == size
        else:
            assert bytes_until_closed(client) == 0


class StuckDisk:
    """Syncs nothing until it is told to."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def sync(self, descriptor: int) -> None:
        assert self.go.wait(60)
        os.fdatasync(descriptor)

    def hold_up(self, server: Server, client: RawClient) -> None:
        """Have every reply wait, from the client's next write on."""
        server.call(lambda app: setattr(app.persistence.aof.writer, "_sync", self.sync))
        client.command("SET", "a", "1")
        wait_until(lambda: server.call(lambda app: app.engine.commit.pending))


def test_a_client_whose_replies_wait_for_the_disk_is_not_served_into_memory(tmp_path: Path) -> None:
    disk = StuckDisk()
    value = b"x" * 50_000
    with (
        Server(dir=tmp_path, appendonly="yes", appendfsync="always") as server,
        RawClient(server.port) as reader,
        RawClient(server.port) as writer,
    ):
        assert reader.ask(f"SET k {value.decode()}") == b"OK"
        disk.hold_up(server, writer)
        before = server.call(lambda app: app.engine.stats.commands)
        reader.send(pack(b"GET", b"k") * 500 + pack(b"ECHO", b"last"))
        wait_until(lambda: server.call(lambda app: any(each._owed for each in app.connections)))
        ran = server.call(lambda app: app.engine.stats.commands) - before
        assert ran < 20, f"{ran} replies of {len(value)} bytes wait in memory"
        disk.go.set()
        for _ in range(500):
            assert reader.read() == value
        assert reader.read() == b"last"
        assert writer.read() == b"OK"


def test_a_subscriber_whose_messages_wait_for_the_disk_has_the_limit_of_others(tmp_path: Path) -> None:
    disk = StuckDisk()
    with (
        Server(
            dir=tmp_path, appendonly="yes", appendfsync="always", client_output_buffer_limit="pubsub 1mb 0 0"
        ) as server,
        RawClient(server.port) as listener,
        RawClient(server.port) as client,
    ):
        listener.ask("SUBSCRIBE c")
        disk.hold_up(server, client)
        for _ in range(30):
            client.command("PUBLISH", "c", b"x" * 50_000)
        wait_until(lambda: server.call(lambda app: len(app.connections)) == 1)
        disk.go.set()
        assert client.read() == b"OK"
        assert {client.read() for _ in range(30)} <= {0, 1}
        assert listener.is_closed()


def test_a_command_larger_than_the_query_buffer_limit_ends_its_connection() -> None:
    with Server(client_query_buffer_limit=1 << 20) as server, RawClient(server.port) as other:
        with RawClient(server.port) as client, pytest.raises((Closed, ConnectionError)):
            client.send(b"*2\r\n$4\r\nECHO\r\n$50000000\r\n")
            for _ in range(100):
                client.send(b"x" * 100_000)
            client.read()
            client.read()
        assert other.ask("PING") == b"PONG"


def test_much_input_in_small_commands_is_no_large_command() -> None:
    """Chunks that always end inside a command must not add up to the query buffer limit."""
    with Server(client_query_buffer_limit=1 << 20) as server, RawClient(server.port) as client:
        ping = pack(b"ECHO", b"x" * 1000)
        data = ping * 3000
        for start in range(0, len(data), 65_000):
            client.send(data[start : start + 65_000])
            for _ in range((min(start + 65_000, len(data)) // len(ping)) - start // len(ping)):
                assert client.read() == b"x" * 1000


# -- before logging in ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"*11\r\n", "ERR Protocol error: unauthenticated multibulk length"),
        (b"*2\r\n$4\r\nAUTH\r\n$16385\r\n", "ERR Protocol error: unauthenticated bulk length"),
        (b"*9999999999\r\n", "ERR Protocol error: invalid multibulk length"),
        (b"*1\r\n$9999999999\r\n", "ERR Protocol error: invalid bulk length"),
    ],
)
def test_strangers_may_send_only_small_commands(data: bytes, error: str) -> None:
    with Server(requirepass="sesame") as server, RawClient(server.port) as client:
        client.send(data)
        assert str(client.read()) == error
        assert client.is_closed()


def test_the_narrow_limits_end_with_the_login() -> None:
    with Server(requirepass="sesame") as server, RawClient(server.port) as client:
        assert client.ask("AUTH sesame") == b"OK"
        big = b"x" * 100_000
        client.send(pack(b"SET", b"k", big) + pack(b"MGET", *[b"k"] * 20))
        assert client.read() == b"OK"
        assert client.read() == [big] * 20


@pytest.mark.parametrize(
    ("password", "host", "exposed"),
    [
        (False, "192.0.2.7", True), (False, "2001:db8::1", True), (False, "127.0.0.1", False), (False, "::1", False),
        (False, "fe80::1%eth0", True), (False, "", False), (True, "192.0.2.7", False),
    ],
)  # fmt: skip
def test_protected_mode_is_about_strangers_without_a_password(password: bool, host: str, exposed: bool) -> None:
    user = User("default")
    user.apply(b"on")
    user.apply(b">pw" if password else b"nopass")
    assert is_exposed(user, host) is exposed
