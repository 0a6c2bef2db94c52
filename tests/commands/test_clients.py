"""CLIENT, on ours and on a real Redis."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator

import pytest
import redis
from tests.support.raw_client import RawClient

from penstock import Server
from penstock.protocol.resp import pack


def port_of(peer: str) -> int:
    return int(peer.rpartition(":")[2].partition("/")[0])


@pytest.fixture
def client(peer: str) -> Iterator[RawClient]:
    with RawClient(port_of(peer)) as client:
        yield client


@pytest.fixture
def other(peer: str) -> Iterator[RawClient]:
    with RawClient(port_of(peer)) as client:
        client.ask("PING")  # now the server has seen it
        yield client


def fields(line: bytes) -> dict[str, str]:
    return dict(word.split("=", 1) for word in line.decode().split())


REDIS_FIELDS = [
    "id",
    "addr",
    "laddr",
    "fd",
    "name",
    "age",
    "idle",
    "flags",
    "db",
    "sub",
    "psub",
    "ssub",
    "multi",
    "qbuf",
    "qbuf-free",
    "argv-mem",
    "multi-mem",
    "rbs",
    "rbp",
    "obl",
    "oll",
    "omem",
    "tot-mem",
    "events",
    "cmd",
    "user",
    "redir",
    "resp",
]


@pytest.mark.since("7.0")
def test_a_line_of_client_list_has_redis_fields(client: RawClient) -> None:
    client.ask("CLIENT SETNAME me")
    client.ask("SELECT 2")
    line = fields(client.ask("CLIENT INFO"))
    assert list(line)[: len(REDIS_FIELDS)] == REDIS_FIELDS
    port = client.socket.getsockname()[1]
    expected = {
        "id": str(client.ask("CLIENT ID")), "addr": f"127.0.0.1:{port}", "name": "me", "flags": "N", "db": "2",
        "cmd": "client|info", "user": "default", "resp": "2", "multi": "-1", "sub": "0",
    }  # fmt: skip
    assert {name: line[name] for name in expected} == expected
    assert 0 <= int(line["idle"]) <= int(line["age"]) < 60


def test_flags_tell_what_a_client_does(client: RawClient, other: RawClient) -> None:
    number = other.ask("CLIENT ID")

    def flags() -> str:
        return fields(client.ask(f"CLIENT LIST ID {number}"))["flags"]

    assert flags() == "N"
    other.ask("MULTI")
    assert flags() == "x"
    other.ask("DISCARD")
    other.ask("SUBSCRIBE c")
    assert flags() == "P"
    assert fields(client.ask(f"CLIENT LIST ID {number}"))["sub"] == "1"
    other.ask("RESET")
    assert flags() == "N"


def test_the_list_is_filtered_by_type_and_id(client: RawClient, other: RawClient) -> None:
    other.ask("SUBSCRIBE c")
    mine = client.ask("CLIENT ID")
    assert len(client.ask(f"CLIENT LIST ID {mine} 99999").splitlines()) == 1
    assert client.ask("CLIENT LIST ID 99999") == b""
    listeners = client.ask("CLIENT LIST TYPE pubsub").splitlines()
    assert [fields(line)["sub"] for line in listeners] == ["1"]
    assert client.ask("CLIENT LIST TYPE replica") == b""
    for words, error in (
        ("CLIENT LIST TYPE foo", "ERR Unknown client type 'foo'"),
        ("CLIENT LIST ID x", "ERR Invalid client ID"),
        ("CLIENT LIST foo", "ERR syntax error"),
        ("CLIENT LIST ID", "ERR syntax error"),
    ):
        assert client.ask(words) == error


def test_names_are_printable_and_can_be_taken_away(client: RawClient) -> None:
    assert client.ask("CLIENT GETNAME") is None
    assert client.ask("CLIENT SETNAME me") == b"OK"
    assert client.ask("CLIENT GETNAME") == b"me"
    client.command("CLIENT", "SETNAME", "a b")
    assert "cannot contain spaces" in str(client.read())
    client.command("CLIENT", "SETNAME", "")
    assert client.read() == b"OK"
    assert client.ask("CLIENT GETNAME") is None


def test_old_form_of_kill_ends_the_client_at_an_address(client: RawClient, other: RawClient) -> None:
    address = f"127.0.0.1:{other.socket.getsockname()[1]}"
    assert client.ask(f"CLIENT KILL {address}") == b"OK"
    assert other.is_closed()
    assert client.ask(f"CLIENT KILL {address}") == "ERR No such client"


@pytest.mark.parametrize("form", ["ID {id}", "ADDR {address}", "LADDR {local} TYPE pubsub", "ID {id} USER default"])
def test_kill_takes_filters(client: RawClient, other: RawClient, form: str) -> None:
    number = other.ask("CLIENT ID")
    other.ask("SUBSCRIBE c")
    name, peer = other.socket.getsockname(), other.socket.getpeername()
    words = form.format(id=number, address=f"{name[0]}:{name[1]}", local=f"{peer[0]}:{peer[1]}")
    assert client.ask(f"CLIENT KILL {words}") == 1
    assert other.is_closed()
    assert client.ask("PING") == b"PONG"


def test_a_client_that_kills_itself_gets_its_reply_first(client: RawClient) -> None:
    number = client.ask("CLIENT ID")
    assert client.ask(f"CLIENT KILL ID {number}") == 0  # SKIPME is the default
    assert client.ask(f"CLIENT KILL ID {number} SKIPME no") == 1
    assert client.is_closed()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("CLIENT KILL", "ERR wrong number of arguments for 'client|kill' command"),
        ("CLIENT KILL TYPE foo", "ERR Unknown client type 'foo'"),
        ("CLIENT KILL USER nobody", "ERR No such user 'nobody'"),
        ("CLIENT KILL ID x", "ERR client-id should be greater than 0"),
        ("CLIENT KILL ID 0", "ERR client-id should be greater than 0"),
        ("CLIENT KILL ID 1 SKIPME maybe", "ERR syntax error"),
        ("CLIENT KILL FOO bar", "ERR syntax error"),
        ("CLIENT KILL ID 1 ADDR", "ERR syntax error"),
        ("CLIENT REPLY foo", "ERR syntax error"),
        ("CLIENT NO-EVICT foo", "ERR syntax error"),
        ("CLIENT PAUSE x", "ERR timeout is not an integer or out of range"),
        ("CLIENT PAUSE -1", "ERR timeout is negative"),
        ("CLIENT PAUSE 10 foo", "ERR CLIENT PAUSE mode must be WRITE or ALL"),
        ("CLIENT PAUSE 10 ALL x", "ERR unknown subcommand or wrong number of arguments for 'PAUSE'. Try CLIENT HELP."),
        ("CLIENT UNBLOCK x", "ERR value is not an integer or out of range"),
        ("CLIENT UNBLOCK 1 foo", "ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR"),
        ("CLIENT NOPE", "ERR unknown subcommand 'NOPE'. Try CLIENT HELP."),
        ("CLIENT", "ERR wrong number of arguments for 'client' command"),
    ],
)
@pytest.mark.since("7.0")
def test_wrong_arguments_get_redis_errors(client: RawClient, words: str, error: str) -> None:
    assert client.ask(words) == error


def test_replies_can_be_skipped_and_turned_off(client: RawClient) -> None:
    client.command("CLIENT", "REPLY", "SKIP")
    client.command("PING", "skipped")
    assert client.ask("PING seen") == b"seen"
    client.command("CLIENT", "REPLY", "OFF")
    client.command("SET", "muted", "1")
    client.command("NONSENSE")
    client.command("CLIENT", "REPLY", "SKIP")
    assert client.ask("CLIENT REPLY ON") == b"OK"
    assert client.ask("GET muted") == b"1"
    client.command("CLIENT", "REPLY", "SKIP")
    assert client.ask("CLIENT REPLY ON") == b"OK"
    assert client.ask("PING seen") == b"seen"


def test_a_blocked_client_is_unblocked_as_if_by_time_or_with_an_error(client: RawClient, other: RawClient) -> None:
    number = other.ask("CLIENT ID")
    assert client.ask(f"CLIENT UNBLOCK {number}") == 0
    for how, answer in (("", None), (" TIMEOUT", None), (" ERROR", "UNBLOCKED client unblocked via CLIENT UNBLOCK")):
        other.command("BLPOP", "nothing-here", "0")
        while fields(client.ask(f"CLIENT LIST ID {number}"))["flags"] != "b":
            pass
        assert client.ask(f"CLIENT UNBLOCK {number}{how}") == 1
        reply = other.read()
        assert reply is None if answer is None else str(reply) == answer
    assert b"errorstat_UNBLOCKED:count=" in client.ask("INFO errorstats")


@pytest.mark.since("7.0")
def test_a_pause_holds_writes_and_runs_them_in_order(client: RawClient, other: RawClient) -> None:
    assert client.ask("CLIENT PAUSE 60000 WRITE") == b"OK"
    try:
        other.send(pack(b"APPEND", b"held", b"a") + pack(b"APPEND", b"held", b"b") + pack(b"GET", b"held"))
        while fields(client.ask("CLIENT LIST").splitlines()[-1])["flags"] != "b":
            pass
        assert client.ask("GET held") is None  # reads go on
    finally:
        assert client.ask("CLIENT UNPAUSE") == b"OK"
    assert [other.read() for _ in range(3)] == [1, 2, b"ab"]
    client.ask("DEL held")


@pytest.mark.since("7.0")
@pytest.mark.parametrize("words", ["PUBLISH channel x", "SPUBLISH channel x", "FCALL f 0"])
def test_a_pause_of_writes_holds_what_replicas_would_see(client: RawClient, other: RawClient, words: str) -> None:
    assert client.ask("CLIENT PAUSE 60000 WRITE") == b"OK"
    try:
        other.command(*words.split())
        while fields(client.ask("CLIENT LIST").splitlines()[-1])["flags"] != "b":
            pass
        assert isinstance(client.ask("SCRIPT LOAD return"), bytes), "the cache of scripts is no data"
    finally:
        assert client.ask("CLIENT UNPAUSE") == b"OK"
    other.read()


@pytest.mark.since("7.0")
def test_a_pause_of_everything_ends_by_itself(client: RawClient, other: RawClient) -> None:
    started = time.monotonic()
    assert client.ask("CLIENT PAUSE 150") == b"OK"
    assert other.ask("PING") == b"PONG"
    assert time.monotonic() - started > 0.14, "nobody was held"
    assert client.ask("PING") == b"PONG"


@pytest.mark.since("7.0")
def test_a_pause_is_not_ended_by_the_time_of_an_earlier_one(client: RawClient, other: RawClient) -> None:
    assert client.ask("CLIENT PAUSE 100 WRITE") == client.ask("CLIENT UNPAUSE") == b"OK"
    assert client.ask("CLIENT PAUSE 60000 WRITE") == b"OK"
    other.command("SET", "held", "1")
    time.sleep(0.3)
    assert client.ask("GET held") is None
    assert client.ask("CLIENT UNPAUSE") == b"OK"
    assert other.read() == b"OK"
    client.ask("DEL held")


def test_a_transaction_that_writes_is_held_whole(client: RawClient, other: RawClient) -> None:
    for words in ("MULTI", "SET held 1", "GET held"):
        other.ask(words)
    assert client.ask("CLIENT PAUSE 60000 WRITE") == b"OK"
    number = None
    other.command("EXEC")
    while number is None:
        rows = [fields(line) for line in client.ask("CLIENT LIST").splitlines()]
        number = next((row["id"] for row in rows if "b" in row["flags"]), None)
    assert client.ask("GET held") is None
    assert client.ask("CLIENT UNPAUSE") == b"OK"
    assert other.read() == [b"OK", b"1"]
    client.ask("DEL held")


def test_a_client_that_disconnects_during_a_pause_leaves_nothing_behind(r: redis.Redis, peer: str) -> None:
    with RawClient(port_of(peer)) as admin, RawClient(port_of(peer)) as gone, RawClient(port_of(peer)) as stays:
        assert admin.ask("CLIENT PAUSE 60000 WRITE") == b"OK"
        gone.command("SET", "gone", "1")
        stays.command("SET", "stays", "1")
        while admin.ask("CLIENT LIST").count(b"flags=b") < 2:
            pass
        gone.close()
        while admin.ask("CLIENT LIST").count(b"flags=b") > 1:
            pass
        assert admin.ask("CLIENT UNPAUSE") == b"OK"
        assert stays.read() == b"OK"
        assert admin.ask("EXISTS gone stays") == 1


def test_tracking_is_reported_as_off(client: RawClient) -> None:
    assert client.ask("CLIENT TRACKINGINFO") == [b"flags", [b"off"], b"redirect", -1, b"prefixes", []]
    assert client.ask("CLIENT GETREDIR") == -1
    assert client.ask("CLIENT TRACKING OFF") == b"OK"
    assert client.ask("CLIENT CACHING YES").startswith("ERR CLIENT CACHING can be called only when")


def test_ids_only_grow(peer: str) -> None:
    numbers = []
    for _ in range(3):
        with RawClient(port_of(peer)) as client:
            numbers.append(client.ask("CLIENT ID"))
    assert numbers == sorted(set(numbers))


def test_a_library_tells_its_name(ours: object) -> None:
    with RawClient(ours.port) as client:  # type: ignore[attr-defined]
        assert client.ask("CLIENT SETINFO LIB-NAME penstock") == b"OK"
        assert client.ask("CLIENT SETINFO lib-ver 1.0") == b"OK"
        assert client.ask("CLIENT INFO").strip().endswith(b"lib-name=penstock lib-ver=1.0")
        assert client.ask("CLIENT SETINFO FOO x") == "ERR Unrecognized option 'FOO'"
        client.command("CLIENT", "SETINFO", "LIB-NAME", "a b")
        assert re.search("lib-name cannot contain spaces", str(client.read()))
        assert client.ask("CLIENT TRACKING ON").startswith("ERR client-side caching is not supported")


def test_others_are_served_while_many_are_held(peer: str) -> None:
    """A pause blocks no thread and no turn of the loop: reads of others stay fast, however much is held."""
    with RawClient(port_of(peer)) as admin:
        held = [RawClient(port_of(peer)) for _ in range(20)]
        admin.ask("CLIENT PAUSE 60000 WRITE")
        for number, client in enumerate(held):
            client.command("RPUSH", "order", str(number))
            while admin.ask("CLIENT LIST").count(b"flags=b") <= number:
                pass
        reads = threading.Thread(target=lambda: [admin.ask("GET k") for _ in range(200)])
        reads.start()
        reads.join(timeout=60)
        assert not reads.is_alive()
        admin.ask("CLIENT UNPAUSE")
        assert [client.read() for client in held] == list(range(1, 21))
        assert admin.ask("LRANGE order 0 -1") == [b"%d" % number for number in range(20)]
        admin.ask("DEL order")
        for client in held:
            client.close()


def test_an_expired_key_is_hidden_and_not_deleted_during_a_pause(r: redis.Redis) -> None:
    r.mset({"k": "v", "other": "v"})
    r.config_resetstat()
    with r.pipeline() as pipe:
        pipe.pexpire("k", 1)
        pipe.client_pause(60_000, all=False)
        pipe.execute()
    try:
        while r.exists("k"):
            pass
        assert (r.get("k"), r.type("k"), r.keys()) == (None, b"none", [b"other"])
        assert (r.dbsize(), r.info("stats")["expired_keys"]) == (2, 0)
    finally:
        r.client_unpause()
    assert r.get("k") is None
    assert r.dbsize() == 1


def test_during_a_pause_what_expired_is_neither_drawn_nor_in_the_way(ours: Server) -> None:
    with redis.Redis.from_url(ours.url) as r:
        r.flushall()
        r.execute_command("DEBUG SET-ACTIVE-EXPIRE 0")
        r.rpush("list", "old")
        r.set("number", 7)
        gone = sum(part * unit for part, unit in zip(r.time(), (1000, 0.001), strict=True)) + 20
        for key in ("list", "number"):
            r.pexpireat(key, int(gone))
        while sum(part * unit for part, unit in zip(r.time(), (1000, 0.001), strict=True)) <= gone:
            pass
        assert r.dbsize() == 2  # no command has looked at them yet
        with r.pipeline() as pipe:
            pipe.client_pause(60_000, all=False)
            pipe.randomkey()  # Redis 7.0 does not come back from this
            pipe.rpush("list", "new")
            pipe.incr("number")
            pipe.client_unpause()
            replies = pipe.execute()
        r.execute_command("DEBUG SET-ACTIVE-EXPIRE 1")
        assert replies[1:4] == [None, 1, 1]
        assert (r.lrange("list", 0, -1), r.get("number"), r.ttl("list"), r.ttl("number")) == ([b"new"], b"1", -1, -1)
