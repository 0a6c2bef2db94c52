"""A reply in pieces leaves whole and in its place, however the client reads, and holds nobody else up."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.raw_client import RawClient

from penstock import Server
from penstock.protocol.resp import RawPieces, in_pieces
from penstock.server.app import App
from penstock.server.connection import POUR, Connection

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
