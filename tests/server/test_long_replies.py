"""A reply in pieces is sent whole and in its place, however the client reads, and delays no other client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.raw_client import RawClient

from penstock import Server
from penstock.protocol.resp import RawPieces, in_pieces, pack
from penstock.server.app import App
from penstock.server.connection import Connection
from penstock.server.replies import POUR

ELEMENTS = [b"%09d" % number for number in range(32 * POUR // 15)]  # more than any socket takes at once


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as started:
        yield started


@pytest.fixture
def client(server: Server) -> Iterator[RawClient]:
    with RawClient(server.port) as connected:
        assert connected.ask("PING") == b"PONG"
        yield connected


def _send(server: Server, *pieces: RawPieces | bytes) -> None:
    """Send to the one client, as a command that was run aside does."""

    def send(app: App) -> None:
        (connection,) = app.connections
        for piece in pieces:
            connection.send(piece)

    server.call(send)


def _many() -> RawPieces:
    return in_pieces(list, len(ELEMENTS), ELEMENTS, 2)


def test_a_long_reply_arrives_whole(server: Server, client: RawClient) -> None:
    _send(server, _many())
    assert client.read() == ELEMENTS
    assert client.ask("PING") == b"PONG"


def test_what_is_sent_or_asked_later_comes_behind_it(server: Server, client: RawClient) -> None:
    _send(server, b":1\r\n", _many(), b":2\r\n")
    client.command("ECHO", "behind")
    client.command("GET", "none")
    _send(server, b":3\r\n")
    assert [client.read() for _ in range(3)] == [1, ELEMENTS, 2]
    assert {client.read(), client.read(), client.read()} == {3, b"behind", None}


def test_a_client_that_does_not_read_runs_nothing_more(server: Server, client: RawClient) -> None:
    _send(server, _many())
    client.command("SET", "marker", "1")
    with RawClient(server.port) as other:
        for _ in range(20):
            assert other.ask("GET marker") is None
        assert client.read() == ELEMENTS
        assert client.read() == b"OK"
        assert other.ask("GET marker") == b"1"
        other.ask("DEL marker")


def test_the_connection_closes_behind_it(server: Server, client: RawClient) -> None:
    _send(server, _many())

    def close(app: App) -> None:
        for connection in list(app.connections):
            connection.close(after_reply=True)

    server.call(close)
    assert client.read() == ELEMENTS
    assert client.is_closed()


def test_what_waits_is_counted_and_forgotten_with_the_client(server: Server, client: RawClient) -> None:
    _send(server, _many())

    def connection_of(app: App) -> Connection:
        (connection,) = app.connections
        return connection

    connection = server.call(connection_of)
    assert connection.buffered()[1] > POUR
    server.call(lambda app: connection.close(after_reply=False))
    assert client.is_closed()
    server.call(lambda app: None)  # its end has been seen to before this runs
    assert connection not in server.app.connections


MOST = (1 << 63) - 1


@pytest.mark.parametrize(
    ("words", "head"),
    [
        (f"SRANDMEMBER s -{MOST}", b"*%d\r\n" % MOST),
        (f"HRANDFIELD h -{MOST}", b"*%d\r\n" % MOST),
        (f"ZRANDMEMBER z -{MOST}", b"*%d\r\n" % MOST),
        (f"HRANDFIELD h -{MOST // 2} WITHVALUES", b"*%d\r\n" % (MOST - 1)),
        (f"ZRANDMEMBER z -{MOST // 2} WITHSCORES", b"*%d\r\n" % (MOST - 1)),
    ],
)
def test_a_reply_without_end_is_made_as_it_is_read(server: Server, client: RawClient, words: str, head: bytes) -> None:
    for line in ("SADD s 1", "HSET h 1 1", "ZADD z 1 1"):
        client.ask(line)
    client.command(*words.split())
    client.command("SET", "marker", "1")
    received = b""
    while len(received) < 8 * POUR:
        received += client.socket.recv(1 << 20)
    assert received.startswith(head)
    assert not received[len(head) :].replace(b"$1\r\n1\r\n", b"")[7:], "nothing but draws, the last one maybe cut"
    with RawClient(server.port) as other:
        assert other.ask("GET marker") is None
        client.close()
        assert other.ask("DEL s h z") == 3


def test_draws_come_behind_what_was_asked_before_and_before_what_is_asked_later(client: RawClient) -> None:
    client.ask("SADD s a b")
    client.command("ECHO", "before")
    client.command("SRANDMEMBER", "s", "-100000")
    client.command("ECHO", "behind")
    assert client.read() == b"before"
    drawn = client.read()
    assert len(drawn) == 100_000 and set(drawn) == {b"a", b"b"}
    assert client.read() == b"behind"
    client.ask("DEL s")


def test_draws_wait_for_the_disk_as_every_reply_does(tmp_path: Path) -> None:
    with Server(dir=tmp_path, appendonly="yes", appendfsync="always") as server, RawClient(server.port) as client:
        client.send(pack(b"SADD", b"s", b"a") + pack(b"SRANDMEMBER", b"s", b"-5000") + pack(b"SADD", b"s", b"b"))
        assert [client.read(), client.read(), client.read()] == [1, [b"a"] * 5000, 1]


def test_draws_in_a_transaction_and_in_a_script_are_ordinary_replies(client: RawClient) -> None:
    client.ask("SADD s a")
    for line in ("MULTI", "SRANDMEMBER s -3000", "SREM s a"):
        client.ask(line)
    assert client.ask("EXEC") == [[b"a"] * 3000, 1]
    client.ask("HSET h f v")
    client.command("EVAL", "return redis.call('HRANDFIELD', KEYS[1], -3000, 'WITHVALUES')", "1", "h")
    assert client.read() == [b"f", b"v"] * 3000
    client.ask("DEL h")
