"""MONITOR, on ours and on a real Redis."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from tests.support.raw_client import RawClient

from penstock import Server
from penstock.protocol.resp import pack

LINE = re.compile(rb"\d{10}\.\d{6} \[(\d+) (127\.0\.0\.1:\d+|lua)\] (.*)\Z", re.DOTALL)


@pytest.fixture
def client(peer: str) -> Iterator[RawClient]:
    with RawClient(port_of(peer)) as client:
        yield client


@pytest.fixture
def monitor(peer: str) -> Iterator[RawClient]:
    with RawClient(port_of(peer)) as client:
        assert client.ask("MONITOR") == b"OK"
        yield client


def port_of(peer: str) -> int:
    return int(peer.rpartition(":")[2].partition("/")[0])


def shown(monitor: RawClient) -> tuple[bytes, bytes, bytes]:
    """Database, origin and words of the next line."""
    match = LINE.match(monitor.read())
    assert match is not None
    return match[1], match[2], match[3]


def test_a_command_is_shown_with_its_time_database_and_client(monitor: RawClient, client: RawClient) -> None:
    client.ask("SELECT 3")
    client.ask("set a 1")
    origin = b"127.0.0.1:%d" % client.socket.getsockname()[1]
    assert shown(monitor)[2] == b'"SELECT" "3"'
    assert shown(monitor) == (b"3", origin, b'"set" "a" "1"')
    client.ask("FLUSHDB")


def test_bytes_are_escaped(monitor: RawClient, client: RawClient) -> None:
    client.send(pack(b"ECHO", b'a"b\\c\r\n\t\x00\xff\x07\x08~'))
    client.read()
    assert shown(monitor)[2] == rb'"ECHO" "a\"b\\c\r\n\t\x00\xff\a\b~"'


@pytest.mark.since("7.0")
def test_secrets_and_administration_are_not_shown(monitor: RawClient, client: RawClient) -> None:
    client.ask("ACL SETUSER monitored on >hush +@all ~*")
    client.ask("CONFIG SET requirepass hush")
    client.ask("AUTH hush")
    client.ask("AUTH monitored hush")
    client.ask("HELLO 3 AUTH monitored hush SETNAME x")
    client.send(pack(b"CONFIG", b"SET", b"requirepass", b""))
    client.read()
    client.ask("ACL DELUSER monitored")
    lines = [shown(monitor)[2] for _ in range(3)]
    assert lines == [
        b'"AUTH" "(redacted)"',
        b'"AUTH" "(redacted)" "(redacted)"',
        b'"HELLO" "3" "AUTH" "(redacted)" "(redacted)" "SETNAME" "x"',
    ]


WRAPPED = {
    "LAZY CONFIG SET requirepass hush": b'"LAZY" "CONFIG" "SET" "(redacted)" "(redacted)"',
    "LAZY auth hush": b'"LAZY" "auth" "(redacted)"',
    "ONCE me 1 1 AUTH default hush": b'"ONCE" "me" "1" "1" "AUTH" "(redacted)" "(redacted)"',
    "ONCE me 1 1 ACL SETUSER tess >hush": b'"ONCE" "me" "1" "1" "ACL" "SETUSER" "(redacted)" "(redacted)"',
    "ONCE me 1 1 HELLO 2 AUTH default hush": b'"ONCE" "me" "1" "1" "HELLO" "2" "AUTH" "(redacted)" "(redacted)"',
    "LAZY ONCE me 1 1 LAZY AUTH hush": b'"LAZY" "ONCE" "me" "1" "1" "LAZY" "AUTH" "(redacted)"',
    "COMMAND GETKEYS AUTH hush": b'"COMMAND" "GETKEYS" "AUTH" "(redacted)"',
    "LAZY SET a b": b'"LAZY" "SET" "a" "b"',
}


@pytest.mark.parametrize("in_transaction", [False, True])
def test_secrets_inside_other_commands_are_shown_neither_by_monitor_nor_by_the_slow_log(in_transaction: bool) -> None:
    with (
        Server(slowlog_log_slower_than=0, slowlog_max_len=1000) as server,
        RawClient(server.port) as monitor,
        RawClient(server.port) as client,
    ):
        assert monitor.ask("MONITOR") == b"OK"
        for line, expected in WRAPPED.items():
            if in_transaction:
                assert [client.ask("MULTI"), client.ask(line), client.ask("EXEC") is not None] == [
                    b"OK",
                    b"QUEUED",
                    True,
                ]
                assert shown(monitor)[2] == b'"MULTI"'
            else:
                client.ask(line)
            assert shown(monitor)[2] == expected
            if in_transaction:
                assert shown(monitor)[2] == b'"EXEC"'
        client.send(pack(b"EVAL", b"return redis.pcall('AUTH', 'hu' .. 'sh')", b"0"))
        client.read()
        assert b"hush" not in shown(monitor)[2]
        client.ask("ACL DRYRUN default AUTH hush")
        rows = client.ask("SLOWLOG GET -1")
        assert len(rows) > len(WRAPPED) and b"hush" not in repr(rows).encode()


def test_an_internal_error_is_logged_without_secrets(caplog: pytest.LogCaptureFixture) -> None:
    with Server() as server, RawClient(server.port) as client:
        server.call(lambda app: setattr(app.engine.acl, "log_in", None))
        assert "internal error" in str(client.ask("AUTH default hush"))
    assert "'NoneType' object is not callable" in caplog.text
    assert "hush" not in caplog.text


def test_a_transaction_is_shown_as_it_runs(monitor: RawClient, client: RawClient) -> None:
    for words in ("MULTI", "INCR n", "EXEC"):
        client.ask(words)
    assert [shown(monitor)[2] for _ in range(3)] == [b'"MULTI"', b'"INCR" "n"', b'"EXEC"']
    client.ask("DEL n")


def test_commands_of_scripts_are_marked(monitor: RawClient, client: RawClient) -> None:
    client.send(pack(b"EVAL", b"return redis.call('get', 'a')", b"0"))
    client.read()
    assert shown(monitor)[2].startswith(b'"EVAL"'), "a script comes before what it calls"
    assert shown(monitor)[1:] == (b"lua", b'"get" "a"')


def test_a_blocked_command_is_shown_once(monitor: RawClient, client: RawClient, peer: str) -> None:
    client.command("BLPOP", "queue", "0")
    assert shown(monitor)[2] == b'"BLPOP" "queue" "0"'
    with RawClient(port_of(peer)) as other:
        other.ask("RPUSH queue x")
        assert client.read() == [b"queue", b"x"]
        other.ask("PING")
    assert [shown(monitor)[2] for _ in range(2)] == [b'"RPUSH" "queue" "x"', b'"PING"']


@pytest.mark.since("7.0")
def test_a_client_that_monitors_cannot_use_the_data(monitor: RawClient) -> None:
    for words in ("GET a", "SET a 1", "DBSIZE", "PUBLISH a b", "EVAL return 0", "FLUSHALL"):
        assert str(monitor.ask(words)) == "ERR Replica can't interact with the keyspace"
    assert monitor.ask("RESET") == b"RESET"
    assert monitor.ask("GET a") is None


def test_reset_ends_it(monitor: RawClient, client: RawClient) -> None:
    assert monitor.ask("RESET") == b"RESET"
    client.ask("PING unseen")
    assert monitor.ask("PING seen") == b"seen"


def test_the_fast_path_comes_back_when_the_last_monitor_leaves() -> None:
    with Server() as server, RawClient(server.port) as client:
        with RawClient(server.port) as one, RawClient(server.port) as other:
            assert one.ask("MONITOR") == other.ask("MONITOR") == b"OK"
            assert server.call(lambda app: app.engine.fast) == {}
            other.ask("RESET")
            assert server.call(lambda app: app.engine.fast) == {}
        while server.call(lambda app: len(app.connections)) > 1:
            client.ask("PING")
        assert server.call(lambda app: b"GET" in app.engine.fast)


def test_the_slow_log_takes_commands_that_are_nested_however_deep() -> None:
    with Server(slowlog_log_slower_than=0) as server, RawClient(server.port) as client:
        client.send(pack(*[b"LAZY"] * 5000, b"AUTH", b"hush"))
        assert "cannot be nested" in str(client.read())
        assert client.ask("PING") == b"PONG"
