"""HELLO, AUTH, PING, QUIT, RESET, on ours and on a real Redis."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from tests.support.raw_client import RawClient

from penstock import Server
from penstock.protocol.resp import pack


@pytest.fixture
def guarded() -> Iterator[Server]:
    """A server whose default user has a password."""
    with Server(requirepass="sesame") as server:
        yield server


@pytest.fixture
def client(peer: str) -> Iterator[RawClient]:
    """A bare connection to ours, then to a real Redis."""
    with RawClient(int(peer.rpartition(":")[2].partition("/")[0])) as client:
        yield client


def test_ping_answers_pong_or_its_message(client: RawClient) -> None:
    assert client.ask("PING") == b"PONG"
    assert client.ask("PING hi") == b"hi"
    assert client.ask("PING a b") == "ERR wrong number of arguments for 'ping' command"
    assert client.ask("ECHO x") == b"x"


def test_ping_of_a_listening_resp2_client_has_the_form_of_a_message(client: RawClient) -> None:
    client.ask("SUBSCRIBE c")
    assert client.ask("PING") == [b"pong", b""]
    assert client.ask("PING x") == [b"pong", b"x"]


def test_hello_tells_what_the_server_is_and_switches_the_protocol(client: RawClient) -> None:
    reply = client.ask("HELLO")
    fields = dict(zip(reply[::2], reply[1::2], strict=True))
    assert list(fields) == [b"server", b"version", b"proto", b"id", b"mode", b"role", b"modules"]
    assert fields[b"server"] == b"redis" and fields[b"proto"] == 2 and fields[b"role"] == b"master"
    assert client.ask("CLIENT ID") == fields[b"id"]
    assert client.ask("HELLO 3")[b"proto"] == 3
    assert client.ask("HELLO")[b"proto"] == 3
    assert client.ask("HELLO 2 SETNAME me")[5] == 2
    assert client.ask("CLIENT GETNAME") == b"me"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("HELLO 4", "NOPROTO unsupported protocol version"),
        ("HELLO 3 FOO", "ERR Syntax error in HELLO option 'FOO'"),
        ("HELLO 2 AUTH x", "ERR Syntax error in HELLO option 'AUTH'"),
        ("HELLO 2 SETNAME", "ERR Syntax error in HELLO option 'SETNAME'"),
        ("HELLO 2 SETNAME é", "ERR Client names cannot contain spaces, newlines or special characters."),
        ("HELLO 3 AUTH nobody x", "WRONGPASS invalid username-password pair or user is disabled."),
        ("HELLO 3 AUTH nobody x SETNAME me", "WRONGPASS invalid username-password pair or user is disabled."),
        ("AUTH a b c", "ERR syntax error"),
        ("AUTH", "ERR wrong number of arguments for 'auth' command"),
    ],
)
def test_a_refused_greeting_changes_nothing(client: RawClient, words: str, error: str) -> None:
    before = client.ask("HELLO")
    assert client.ask(words) == error
    assert client.ask("HELLO") == before
    assert client.ask("CLIENT GETNAME") is None


def test_a_password_is_refused_if_none_is_set(client: RawClient) -> None:
    assert client.ask("AUTH x").startswith("ERR AUTH <password> called without any password configured")
    assert client.ask("AUTH default x") == b"OK"  # a user without a password takes any


@pytest.mark.since("7.0")
def test_hello_wants_a_number(client: RawClient) -> None:
    assert client.ask("HELLO x") == "ERR Protocol version is not an integer or out of range"


def test_quit_answers_and_closes(client: RawClient) -> None:
    assert client.ask("QUIT") == b"OK"
    assert client.is_closed()


def test_commands_behind_quit_do_not_run(client: RawClient, r: redis.Redis) -> None:
    client.send(pack(b"QUIT") + pack(b"SET", b"after-quit", b"1"))
    assert client.read() == b"OK"
    assert client.is_closed()
    assert r.exists("after-quit") == 0


def test_reset_makes_the_connection_new(client: RawClient) -> None:
    for words in ("SELECT 3", "CLIENT SETNAME me", "WATCH k", "MULTI"):
        assert client.ask(words) == b"OK"
    assert client.ask("RESET") == b"RESET"
    assert client.ask("CLIENT GETNAME") is None
    assert b" db=0 " in client.ask("CLIENT INFO")
    assert client.ask("EXEC") == "ERR EXEC without MULTI"


def test_reset_ends_a_subscription(client: RawClient) -> None:
    client.ask("SUBSCRIBE c")
    assert client.ask("RESET") == b"RESET"
    assert client.ask("PING") == b"PONG"


def test_a_password_is_asked_for(guarded: Server) -> None:
    with RawClient(guarded.port) as client:
        for words in ("GET k", "PING", "NONSENSE"):
            assert client.ask(words).split()[0] in ("NOAUTH", "ERR")
        assert client.ask("HELLO 3").startswith("NOAUTH HELLO must be called with the client already authenticated, ")
        assert client.ask("AUTH wrong").startswith("WRONGPASS ")
        assert client.ask("AUTH sesame") == b"OK"
        assert client.ask("AUTH default wrong").startswith("WRONGPASS ")
        assert client.ask("PING") == b"PONG"  # a failed login leaves the old one
    with RawClient(guarded.port) as client:
        assert client.ask("HELLO 3 AUTH default sesame SETNAME me")[b"proto"] == 3
        assert client.ask("CLIENT GETNAME") == b"me"
    with redis.Redis(port=guarded.port, password="sesame", protocol=3) as other:
        assert other.ping()


def test_reset_logs_out_where_a_password_is_needed(guarded: Server) -> None:
    with RawClient(guarded.port) as client:
        assert client.ask("AUTH sesame") == b"OK"
        assert client.ask("RESET") == b"RESET"
        assert client.ask("GET k").startswith("NOAUTH ")
