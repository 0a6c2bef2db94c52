"""Clients that send much before they read, and clients that never read: nothing stalls, and memory is bounded."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from tests.support.raw_client import Closed, RawClient

from penstock import Server
from penstock.protocol.resp import pack
from penstock.server.app import App
from penstock.server.chunks import BLOCK, SMALL, Chunks
from penstock.server.connection import MAX_WAITING, Connection
from penstock.server.limits import Limits

MB = 1 << 20


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as started:
        yield started


@pytest.fixture
def client(server: Server) -> Iterator[RawClient]:
    """A client with small buffers in the kernel, so that little is hidden there."""
    with narrow(server.port) as connected:
        assert connected.ask("FLUSHALL") == b"OK"
        yield connected


def narrow(port: int) -> RawClient:
    client = RawClient(port)
    client.socket.close()
    client.socket = socket.socket()
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        client.socket.setsockopt(socket.SOL_SOCKET, option, 1 << 16)
    client.socket.settimeout(60)
    client.socket.connect(("127.0.0.1", port))
    return client


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that another thread does."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.001)


def held(server: Server, name: bytes) -> tuple[int, int]:
    """What the server holds of a client: input and replies."""

    def look(app: App) -> tuple[int, int]:
        found = [each.buffered() for each in app.connections if each.session.name == name]
        return found[0] if found else (0, 0)

    return server.call(look)


# -- everything is sent first -----------------------------------------------------------------------------------


def test_much_is_sent_and_answered_before_anything_is_read(client: RawClient) -> None:
    values = [b"%06d" % number + b"x" * 20_000 for number in range(1000)]
    client.send(b"".join(pack(b"SET", b"k", value, b"GET") for value in values))
    assert [client.read() for _ in values] == [None, *values[:-1]]
    assert client.ask("GET k") == values[-1]


def test_a_long_pipeline_of_small_commands_with_larger_replies(client: RawClient) -> None:
    client.send(pack(b"SET", b"k", b"x" * 500))
    assert client.read() == b"OK"
    count = 200_000
    client.send(pack(b"GET", b"k") * count + pack(b"ECHO", b"end"))
    assert all(client.read() == b"x" * 500 for _ in range(count))
    assert client.read() == b"end"


def test_small_replies_to_much_input_run_on_while_nothing_is_read(client: RawClient, server: Server) -> None:
    """The last command has its effect though not one reply was read, as in Redis."""
    client.send(pack(b"INCR", b"n") * 500_000)
    with RawClient(server.port) as other:
        while int(other.ask("GET n") or 0) < 100_000:
            pass
    assert [client.read() for _ in range(500_000)] == list(range(1, 500_001))


@pytest.mark.parametrize("command", [b"SRANDMEMBER s -400000", b"SMEMBERS large"])
def test_a_long_reply_before_much_input(client: RawClient, command: bytes) -> None:
    client.send(pack(b"SADD", b"s", b"x" * 40))
    client.send(pack(b"SADD", b"large", *(b"%040d" % number for number in range(400_000))))
    assert [client.read(), client.read()] == [1, 400_000]
    values = [b"%05d" % number + b"x" * 9_000 for number in range(800)]
    client.send(pack(*command.split()) + b"".join(pack(b"SET", b"k", value, b"GET") for value in values))
    assert len(client.read()) == 400_000
    assert [client.read() for _ in values] == [None, *values[:-1]]


def test_a_transaction_with_giant_replies(client: RawClient) -> None:
    client.send(pack(b"SET", b"k", b"x" * MB))
    assert client.read() == b"OK"
    transaction = pack(b"MULTI") + pack(b"GET", b"k") * 10 + pack(b"EXEC")
    behind = b"".join(pack(b"ECHO", b"%05d" % number + b"y" * 9_000) for number in range(500))
    client.send(transaction + behind)
    assert [client.read() for _ in range(11)] == [b"OK", *[b"QUEUED"] * 10]
    assert client.read() == [b"x" * MB] * 10
    assert [client.read()[:5] for _ in range(500)] == [b"%05d" % number for number in range(500)]


def test_replies_that_wait_for_the_disk(tmp_path: object) -> None:
    with Server(dir=tmp_path, appendonly="yes", appendfsync="always") as server, narrow(server.port) as client:
        values = [b"%06d" % number + b"x" * 20_000 for number in range(400)]
        client.send(b"".join(pack(b"SET", b"k", value, b"GET") for value in values))
        assert [client.read() for _ in values] == [None, *values[:-1]]


def test_a_blocked_command_in_the_middle(client: RawClient, server: Server) -> None:
    echoes = b"".join(pack(b"ECHO", b"%05d" % number + b"x" * 9_000) for number in range(500))
    sender = threading.Thread(target=client.send, args=(echoes + pack(b"BLPOP", b"l", b"0") + echoes,))
    sender.start()
    with RawClient(server.port) as other:
        assert other.ask("RPUSH l v") == 1
    sender.join()
    first = [client.read()[:5] for _ in range(500)]
    assert client.read() == [b"l", b"v"]
    assert first == [client.read()[:5] for _ in range(500)] == [b"%05d" % number for number in range(500)]


def test_what_waited_runs_a_chunk_at_a_time(client: RawClient, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other clients have their turn before all commands of one that was far behind have run."""
    client.ask("CLIENT SETNAME behind")
    client.send(pack(b"SET", b"k", b"x" * 2000))
    assert client.read() == b"OK"
    count = 300_000
    ran: list[int] = []
    run = Connection.run

    def counted(connection: Connection) -> None:
        run(connection)
        ran.append(connection.ran)

    monkeypatch.setattr(Connection, "run", counted)
    client.send(pack(b"GET", b"k") * 4000 + pack(b"INCR", b"n") * count)
    assert held(server, b"behind")[0] > MAX_WAITING
    assert {client.read() for _ in range(4000)} == {b"x" * 2000}
    assert [client.read() for _ in range(count)] == list(range(1, count + 1))
    assert sum(ran) > count // 2 and max(ran) < count // 10


# -- nothing is ever read ---------------------------------------------------------------------------------------


def send_until_closed(client: RawClient, data: bytes, limit: int) -> bool:
    """Send again and again without reading; whether the server ended it before so many bytes were sent."""
    with suppress(ConnectionError):
        for _ in range(limit // len(data)):
            client.send(data)
        return False
    return True


def test_a_client_that_sends_for_ever_and_never_reads_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    with (
        Server(client_query_buffer_limit=8 * MB) as server,
        RawClient(server.port) as other,
        narrow(server.port) as client,
    ):
        client.ask("CLIENT SETNAME deaf")
        peak = 0
        stop = threading.Event()

        def watch() -> None:
            nonlocal peak
            while not stop.is_set():
                peak = max(peak, sum(held(server, b"deaf")))

        watcher = threading.Thread(target=watch)
        watcher.start()
        with caplog.at_level(logging.WARNING, "penstock"):
            assert send_until_closed(client, pack(b"ECHO", b"x" * 10_000) * 10, 100 * MB)
        stop.set()
        watcher.join()
        assert peak <= 9 * MB
        assert any("it does not read" in record.message for record in caplog.records)
        assert other.ask("PING") == b"PONG"
        assert server.call(lambda app: len(app.connections)) == 1


def test_a_client_that_asks_for_gigabytes_and_never_reads_takes_little_memory(
    server: Server, client: RawClient
) -> None:
    client.ask("CLIENT SETNAME greedy")
    client.send(pack(b"SET", b"k", b"x" * 60_000))
    assert client.read() == b"OK"
    client.send(pack(b"GET", b"k") * 100_000)  # 6 GB of replies
    waiting, unsent = held(server, b"greedy")
    with RawClient(server.port) as other:
        for _ in range(50):
            assert other.ask("PING") == b"PONG"
            waiting, unsent = held(server, b"greedy")
            assert waiting < 4 * MB and unsent < 6 * MB


def test_the_output_limit_still_closes_a_client_that_does_not_read() -> None:
    with Server(client_output_buffer_limit="normal 2mb 0 0") as server, narrow(server.port) as client:
        assert send_until_closed(client, pack(b"ECHO", b"x" * 10_000) * 10, 100 * MB)
        until(lambda: not server.call(lambda app: app.connections))


def test_a_client_that_is_killed_while_it_is_held_back_leaves_nothing(server: Server, client: RawClient) -> None:
    client.ask("CLIENT SETNAME doomed")
    client.socket.settimeout(0.5)
    with suppress(TimeoutError):
        client.send(pack(b"ECHO", b"x" * 100_000) * 50)
    found: list[Connection] = server.call(
        lambda app: [each for each in app.connections if each.session.name == b"doomed"]
    )
    with RawClient(server.port) as other:
        assert other.ask(f"CLIENT KILL ID {found[0].session.id}") == 1
        assert other.ask("PING") == b"PONG"
    client.socket.settimeout(60)
    assert client.is_closed()
    server.call(lambda app: None)
    assert server.call(lambda app: found[0] in app.connections or found[0] in app.limits.unread) is False
    assert found[0]._incoming is None and found[0]._outgoing is None


def test_a_client_that_reads_is_slowed_down_and_one_that_does_not_is_read_on(
    server: Server, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Limits._find_stuck
    monkeypatch.setattr(Limits, "_find_stuck", lambda limits: None)  # the test looks, and nothing else

    def look_twice(app: App) -> list[bool]:
        ((connection, _),) = app.limits.unread.items()
        app.limits.took_replies(connection)
        judged = []
        for _ in range(2):
            look(app.limits)
            judged.append(connection not in app.limits.unread)
        return judged

    value = b"x" * 2_000
    count = 10_000
    client.send(pack(b"SET", b"k", value))
    assert client.read() == b"OK"
    sender = threading.Thread(target=client.send, args=(pack(b"SET", b"k", value, b"GET") * count,))
    sender.start()
    until(lambda: server.call(lambda app: bool(app.limits.unread)))
    assert server.call(look_twice) == [False, True]
    sender.join()
    assert {client.read() for _ in range(count)} == {value}


def test_a_subscriber_that_does_not_read_is_closed_by_its_limit() -> None:
    with (
        Server(client_output_buffer_limit="pubsub 1mb 0 0") as server,
        narrow(server.port) as subscriber,
        RawClient(server.port) as other,
    ):
        assert subscriber.ask("SUBSCRIBE c")
        for _ in range(200):
            other.command("PUBLISH", "c", b"x" * 50_000)
        assert {other.read() for _ in range(200)} <= {0, 1}
        with pytest.raises(Closed):
            while True:
                subscriber.read()


# -- how bytes wait ---------------------------------------------------------------------------------------------


def test_small_chunks_are_joined_and_keep_their_order() -> None:
    chunks = Chunks()
    data = [bytes([number % 251]) * (1 + number % 7) for number in range(100_000)]
    for each in data:
        chunks.add(each)
    chunks.add(b"L" * SMALL)
    chunks.add(b"end")
    assert chunks.size == sum(map(len, data)) + SMALL + 3
    taken = []
    while chunks:
        taken.append(bytes(chunks.take()))  # type: ignore[arg-type]
    assert b"".join(taken) == b"".join(data) + b"L" * SMALL + b"end"
    assert len(taken) < chunks.size + sum(map(len, data)) // BLOCK + 4
    assert chunks.size == 0


def test_the_pure_loop_does_not_stall_either() -> None:
    code = (
        "import socket; from penstock import Server; from penstock.protocol.resp import pack\n"
        "from penstock.server import inner_loop; assert not inner_loop.COMPILED\n"
        "with Server() as server, socket.create_connection(('127.0.0.1', server.port), timeout=60) as client:\n"
        "    data = pack(b'SET', b'k', b'x' * 20000, b'GET') * 1000\n"
        "    client.sendall(data)\n"
        "    size = 999 * (8 + 20002) + 5\n"
        "    got = 0\n"
        "    while got < size: got += len(client.recv(1 << 16))\n"
        "    print('got', got == size)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PENSTOCK_PURE": "1"}, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.stdout.split() == ["got", "True"], done.stderr
