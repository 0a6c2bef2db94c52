"""Hostile or broken clients: each ends, at most, its own connection.

While one misbehaves another asks all the time, and every answer must come promptly; nothing may be logged as an
internal error, and no exception may reach the event loop.
"""

from __future__ import annotations

import gc
import logging
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

from penstock import Server
from penstock.protocol.errors import ReplyError
from penstock.protocol.resp import RawPieces, pack
from penstock.server.app import App
from penstock.server.connection import Connection

PROMPT = 2.0
"""Seconds of CPU time that this process, with the server in it, may use while a client waits for an answer."""


class Bystander:
    """Asks all the time, in a thread, and remembers what the slowest answer took."""

    def __init__(self, port: int) -> None:
        self._client = RawClient(port, timeout=30)
        self._stop = threading.Event()
        self.slowest = 0.0
        self.answers = 0
        self._thread = threading.Thread(target=self._ask)

    def _ask(self) -> None:
        while not self._stop.is_set():
            started = time.process_time()
            if self._client.ask("INCR bystander") != self.answers + 1:
                return
            self.answers += 1
            self.slowest = max(self.slowest, time.process_time() - started)
            time.sleep(0.001)

    def __enter__(self) -> Bystander:
        self._client.ask("DEL bystander")
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()
        answered = self._client.ask("INCR bystander")
        self._client.close()
        assert answered == self.answers + 1
        assert self.answers > 0 and self.slowest < PROMPT


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(client_output_buffer_limit="normal 64mb 0 0", client_query_buffer_limit=8 << 20) as server:
        yield server


@pytest.fixture
def hostile(server: Server, caplog: pytest.LogCaptureFixture) -> Iterator[RawClient]:
    """A client to misbehave with, beside a bystander."""
    unhandled: list[dict[str, object]] = []
    server.call(lambda app: app.loop.set_exception_handler(lambda loop, context: unhandled.append(context)))
    caplog.set_level(logging.DEBUG, "penstock")
    with Bystander(server.port), RawClient(server.port) as client:
        yield client
    assert not unhandled
    assert not [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]


def send_what_goes(client: RawClient, data: bytes) -> None:
    """The server may close before it has read everything."""
    with suppress(ConnectionError):
        client.send(data)


def reset(client: RawClient) -> None:
    """End the connection with a reset instead of in order."""
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def nobody_waits(server: Server) -> bool:
    """Whether all blocked clients are gone, soon."""
    deadline = time.monotonic() + 60
    while server.call(lambda app: app.engine.blocking.count):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@pytest.mark.parametrize("seed", range(10))
def test_random_bytes(hostile: RawClient, server: Server, seed: int) -> None:
    generator = random.Random(seed)
    for lead in (b"", b"*1\r\n", b"*2\r\n$4\r\nECHO\r\n", pack(b"PING")):
        with RawClient(server.port) as client:
            for _ in range(20):
                send_what_goes(client, lead + generator.randbytes(generator.randrange(2000)))


@pytest.mark.parametrize(
    "data",
    [
        b"*99999999999\r\n", b"*1000001\r\n", b"*1\r\n$99999999999\r\n", b"*1\r\n$-7\r\n", b"*1\r\n*9999999\r\n",
        b"*1\r\n~99999999\r\n", b"*1\r\n>99999999\r\n", b"*1\r\n|99999999\r\n", b"*1\r\n%1\r\n*0\r\n*0\r\n",
        b"*1\r\n:1\r\n", b"*1\r\n*1\r\n$1\r\na\r\n", b"*1\r\n" * 100_000, b"*2\r\n" * 100_000, b"x" * 100_000,
        b'SET a "b\r\n', b"*a\r\n", b"POST / HTTP/1.1\r\n\r\nSET a 1\r\n",
    ],
    ids=lambda data: repr(data[:20]),
)  # fmt: skip
@pytest.mark.parametrize("lead", [b"", pack(b"PING")], ids=["first", "later"])
@pytest.mark.parametrize("halves", [False, True], ids=["whole", "cut"])
def test_broken_frames_are_refused(hostile: RawClient, data: bytes, lead: bytes, halves: bool) -> None:
    if lead:
        hostile.send(lead)
        assert hostile.read() == b"PONG"
    if halves:
        send_what_goes(hostile, data[:7])
        time.sleep(0.01)
        data = data[7:]
    send_what_goes(hostile, data)
    if data.endswith(b"999999999\r\n") and (lead or halves):
        # Behind the first chunk a giant length may wait for its bytes: then the query buffer limit ends it.
        send_what_goes(hostile, b"x" * (9 << 20))
    answered = b""
    with suppress(ConnectionError):
        while chunk := hostile.socket.recv(1 << 16):
            answered += chunk
    assert answered == b"" or b"-ERR" in answered


def test_announced_arguments_take_no_memory_before_they_come(hostile: RawClient, server: Server) -> None:
    def used(app: App) -> int:
        app.engine.memory.measure()
        return app.engine.memory.used_memory

    before = server.call(used)
    clients = [RawClient(server.port) for _ in range(200)]
    for client in clients:
        client.send(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$500000000\r\nx")
    deadline = time.monotonic() + 60
    while server.call(lambda app: sum(each.buffered()[0] > 0 for each in app.connections)) < len(clients):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert server.call(used) - before < 100 << 20  # half a megabyte each
    for client in clients:
        client.close()


def test_half_commands_stay_half(hostile: RawClient, server: Server) -> None:
    whole = pack(b"SET", b"half", b"x" * 100)
    clients = [RawClient(server.port) for _ in range(len(whole) - 1)]
    for size, client in enumerate(clients, 1):
        client.send(whole[:size])
    assert hostile.ask("EXISTS half") == 0
    for client in clients:
        client.close()
    assert hostile.ask("EXISTS half") == 0


def test_a_slow_loris_delays_no_other_client(hostile: RawClient, server: Server) -> None:
    loris = [RawClient(server.port) for _ in range(50)]
    for byte in pack(b"ECHO", b"slow"):
        for client in loris:
            client.send(bytes([byte]))
    assert [client.read() for client in loris] == [b"slow"] * 50
    for client in loris:
        client.close()


def test_disconnects_in_the_middle_of_a_command_and_of_a_reply(hostile: RawClient, server: Server) -> None:
    hostile.send(pack(b"SET", b"big", b"x" * 1_000_000))
    assert hostile.read() == b"OK"
    for number in range(60):
        with RawClient(server.port) as client:
            client.send(pack(b"GET", b"big") * 5 + b"*3\r\n$3\r\nSET\r\n$3\r\nbi")
            if number % 2:
                reset(client)
    assert len(hostile.ask("GET big")) == 1_000_000


def test_a_blocked_client_that_disconnects_takes_nothing(hostile: RawClient, server: Server) -> None:
    before = server.call(lambda app: app.engine.stats.connections)
    for _ in range(20):
        with RawClient(server.port) as client:
            client.send(pack(b"BLPOP", b"wanted", b"0") + pack(b"PING") * 10)
    while server.call(lambda app: app.engine.stats.connections) < before + 20:
        hostile.ask("PING")
    assert nobody_waits(server)
    assert hostile.ask("RPUSH wanted x") == 1
    assert hostile.ask("LPOP wanted") == b"x"


def test_one_that_never_reads_its_replies(hostile: RawClient, server: Server) -> None:
    hostile.send(pack(b"SET", b"big", b"x" * 100_000))
    assert hostile.read() == b"OK"
    deaf = RawClient(server.port)
    deaf.socket.settimeout(0.2)
    with suppress(TimeoutError, ConnectionError):
        for _ in range(2000):
            deaf.send(pack(b"GET", b"big") * 50)
    unsent = server.call(lambda app: [connection.buffered()[1] for connection in app.connections])
    assert max(unsent, default=0) <= 64 << 20  # or it was closed
    deaf.close()


@pytest.mark.parametrize("command", [b"GET", b"GETRANGE"])
def test_one_chunk_that_asks_for_gigabytes(command: bytes, hostile: RawClient, server: Server) -> None:
    """A reply a thousand times its request: the chunk stops running when its client takes no more."""
    hostile.send(pack(b"SET", b"big", b"x" * (4 << 20)))
    assert hostile.read() == b"OK"
    with RawClient(server.port) as greedy:
        argv = (command, b"big") if command == b"GET" else (command, b"big", b"0", b"-1")
        greedy.send(pack(*argv) * 1000)
        assert hostile.ask("PING") == b"PONG"
        unsent = server.call(lambda app: max(connection.buffered()[1] for connection in app.connections))
        assert unsent < 32 << 20
        for _ in range(20):
            assert len(greedy.read()) == 4 << 20


def test_a_blocked_client_that_sends_on_is_no_longer_read(hostile: RawClient, server: Server) -> None:
    blocked = RawClient(server.port)
    blocked.socket.settimeout(0.3)
    blocked.command("BLPOP", "never", "0")
    with pytest.raises(TimeoutError):
        for _ in range(2000):
            blocked.send(pack(b"ECHO", b"x" * 1000) * 100)
    waiting = server.call(lambda app: max(connection.buffered()[0] for connection in app.connections))
    assert waiting < 4 << 20
    reset(blocked)
    assert nobody_waits(server)


def test_that_one_whose_socket_is_not_read_went_away_is_noticed(hostile: RawClient, server: Server) -> None:
    with RawClient(server.port) as blocked:
        blocked.command("BLPOP", "never", "0")
        blocked.send(pack(b"ECHO", b"x" * 1000) * 1100)
        while not server.call(lambda app: app.limits.unread):
            hostile.ask("PING")
    assert nobody_waits(server)


def test_many_connections_that_say_nothing(hostile: RawClient, server: Server) -> None:
    silent = [RawClient(server.port) for _ in range(300)]
    assert hostile.ask("PING") == b"PONG"
    for client in silent:
        client.close()
    deadline = time.monotonic() + 60
    while server.call(lambda app: len(app.connections)) > 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.call(lambda app: len(app.engine.sessions)) <= 2


def test_arguments_that_no_command_expects(hostile: RawClient) -> None:
    for argv in (
        [b""],
        [b"\x16\x03\x01\x02"],
        [b"\x00"],
        [b"get"],
        [b"GET", b""],
        [b"x" * 100_000],
        [b"SET"] * 1000,
        [b"PING", b"\xff" * 10],
    ):
        hostile.send(pack(*argv))
        hostile.read()
    assert hostile.ask("PING") == b"PONG"


@pytest.mark.parametrize(
    "lines",
    [
        ["CONFIG SET maxmemory 1", "SET other 1"],
        ["LPUSH text a"],
        ["BLPOP text 0"],
        ["EVAL x 0 text"],
        ["MULTI", "LPUSH text a", "EXEC"],
        ["ONCE me 1 1 LPUSH text a"],
        ["ACL SETUSER default resetkeys", "SET other 1"],
    ],
)
def test_the_arguments_of_a_refused_command_are_freed_without_the_collector(lines: list[str]) -> None:
    def kept(_: App) -> int:
        """Counted between two commands, in the loop's thread."""
        return sum(isinstance(each, ReplyError) for each in gc.get_objects())

    with Server() as server, RawClient(server.port) as client:
        client.ask("SET text 1")
        gc.collect()
        gc.disable()
        try:
            before = server.call(kept)
            replies = [client.ask(line) for line in lines]
            refusal = repr(replies[-1])
            assert any(word in refusal for word in ("OOM", "WRONGTYPE", "ERR", "NOPERM"))
            assert server.call(kept) == before
        finally:
            gc.enable()


def test_what_comes_for_a_client_that_is_gone_is_forgotten(ours: Server) -> None:
    """Its replies may have waited for the disk, with those of others that must not be lost with them."""

    def find(app: App) -> Connection:
        (connection,) = (each for each in app.connections if each.session.name == b"victim")
        return connection

    def answer(app: App) -> bool:
        if connection in app.connections:
            return False
        connection._write(b"+held\r\n")
        connection.send(b"+late\r\n")
        connection.flush()
        connection.send(RawPieces([memoryview(b"+long\r\n")]))
        connection.flush()
        return True

    with RawClient(ours.port) as client:
        client.ask("CLIENT SETNAME victim")
        connection = ours.call(find)
    while not ours.call(answer):
        time.sleep(0.001)


def test_a_client_that_is_gone_before_its_reply_delays_no_other(tmp_path: Path) -> None:
    """Under `always` replies wait for the disk. A reply that its client does not take must not delay the others."""
    with Server(dir=tmp_path, appendonly="yes", appendfsync="always") as server:
        patient = RawClient(server.port)
        for number in range(50):
            hasty = socket.create_connection(("127.0.0.1", server.port))
            hasty.sendall(b"SET hasty %d\r\n" % number)
            hasty.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # its end is there at once
            hasty.close()
            assert patient.ask("INCR patient") == number + 1
        patient.close()


def test_nothing_behind_quit_runs_when_it_was_sent_while_the_client_was_blocked() -> None:
    with Server() as server, RawClient(server.port) as blocked, RawClient(server.port) as other:
        blocked.send(b"BLPOP l 0\r\nQUIT\r\n")
        wait_until(lambda: server.call(lambda app: any(each.waiter for each in app.engine.sessions.values())))
        blocked.send(b"SET k v\r\n")
        wait_until(lambda: server.call(lambda app: any(each._incoming for each in app.connections)))
        other.ask("RPUSH l 1")
        assert blocked.read() == [b"l", b"1"]
        assert blocked.read() == b"OK"
        assert blocked.is_closed()
        assert other.ask("EXISTS k") == 0
