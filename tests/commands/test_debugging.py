"""DEBUG, on ours and on a real Redis where it allows it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import redis
from tests.support.raw_client import RawClient

from penstock import Server, commands
from penstock.engine.config import Config
from penstock.engine.declarations import REGISTRY
from penstock.engine.directives import DIRECTIVES
from penstock.engine.dispatch import Engine
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError
from penstock.testing.redis import RedisServer, find_redis

commands.load()


@pytest.fixture(params=["penstock", "redis"])
def d(request: pytest.FixtureRequest) -> Iterator[redis.Redis]:
    """A client that may use DEBUG (a real Redis 7 must be told so)."""
    allow = {"enable_debug_command": "yes"} if find_redis().version >= (7, 0) else {}
    server = Server() if request.param == "penstock" else RedisServer(**allow)
    with server, redis.Redis.from_url(server.url) as client:
        yield client


def test_sleep_stops_all_clients(d: redis.Redis) -> None:
    """Others see a hole in the server's time, as long as the sleep."""
    times: list[float] = []

    def look() -> None:
        seconds, microseconds = d.time()
        times.append(seconds + microseconds / 1e6)

    look()
    sleeper = threading.Thread(target=lambda: d.execute_command("DEBUG", "SLEEP", "0.2"))
    sleeper.start()
    while sleeper.is_alive():
        look()
    look()
    assert max(after - before for before, after in pairwise(times)) >= 0.199


def test_object_tells_how_a_value_is_kept(d: redis.Redis) -> None:
    d.set("n", 12)
    shown = d.debug_object("n")
    assert shown["encoding"] == "int"
    assert shown["refcount"] >= 1
    assert shown["serializedlength"] > 0
    with pytest.raises(redis.ResponseError, match="no such key"):
        d.debug_object("none")


def test_active_expiry_can_be_turned_off_and_on(d: redis.Redis) -> None:
    assert d.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", "0") == b"OK"
    d.set("k", 1, px=1)
    time.sleep(0.35)
    assert d.dbsize() == 1, "nobody looked at it"
    d.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", "1")
    deadline = time.monotonic() + 60
    while d.dbsize():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("setting", "is_local", "allowed"),
    [("yes", False, True), ("no", True, False), ("local", True, True), ("local", False, False), (None, True, True),
        (None, False, False)],
)  # fmt: skip
def test_the_directive_says_who_may(setting: str | None, is_local: bool, allowed: bool) -> None:
    """By default, clients on this machine."""
    config = Config()
    if setting is not None:
        config.load("enable-debug-command", [setting])
    session = Session(Engine(config))
    session.is_local = is_local
    for command in REGISTRY.by_name[b"DEBUG"].subcommands.values():
        argv = [*command.name.encode().split(), *[b"0"] * (command.low - 2)]
        try:
            session.engine.execute(session, argv)
            refused = False
        except ReplyError as error:
            refused = "DEBUG command not allowed" in str(error)
        assert refused is not (allowed or command.name == "DEBUG HELP"), command.name


def test_a_client_of_another_machine_may_not_and_one_of_a_unix_socket_may(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with (
        Server(unixsocket=path, enable_protected_configs="local") as server,
        redis.Redis.from_url(server.url) as client,
    ):
        with redis.Redis(unix_socket_path=str(path)) as beside:
            assert beside.execute_command("DEBUG", "SLEEP", "0") == b"OK"
            assert beside.config_set("dir", str(tmp_path))
        assert client.execute_command("DEBUG", "SLEEP", "0") == b"OK"
        server.call(lambda app: [setattr(each, "is_local", False) for each in app.engine.sessions.values()])
        with pytest.raises(redis.ResponseError, match="DEBUG command not allowed"):
            client.execute_command("DEBUG", "SLEEP", "0")
        with pytest.raises(redis.ResponseError, match="can't set protected config"):
            client.config_set("dir", str(tmp_path))


# -- for test suites ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def both() -> Iterator[dict[str, int]]:
    """Ports of ours and, if it is new enough, of a real Redis; both allow DEBUG."""
    with Server(databases=16) as ours:
        if find_redis().version < (7, 0):
            yield {"ours": ours.port}
            return
        with RedisServer(enable_debug_command="yes") as theirs:
            yield {"ours": ours.port, "theirs": theirs.port}


def answers(port: int, *lines: str) -> list[bytes]:
    """The reply to each line, byte for byte; an ECHO after it marks where it ends."""
    found = []
    with RawClient(port) as client:
        for line in lines:
            client.send(line.encode() + b"\r\nECHO the-end\r\n")
            data = b""
            while not data.endswith(b"$7\r\nthe-end\r\n"):
                data += client.socket.recv(1 << 16)
            found.append(data.removesuffix(b"$7\r\nthe-end\r\n"))
    return found


TYPES = [
    "string", "integer", "double", "bignum", "null", "array", "set", "map", "attrib", "push", "verbatim", "true",
    "false", "nonsense",
]  # fmt: skip


@pytest.mark.parametrize("protocol", [2, 3])
def test_protocol_answers_one_of_each_type(both: dict[str, int], protocol: int) -> None:
    lines = [f"HELLO {protocol}", *(f"DEBUG PROTOCOL {name}" for name in TYPES)]
    seen = {name: answers(port, *lines)[1:] for name, port in both.items()}
    ours = dict(zip(TYPES, seen["ours"], strict=True))
    assert seen.get("theirs", seen["ours"]) == seen["ours"]
    first = {name: reply[:1] for name, reply in ours.items()}
    if protocol == 3:
        assert "".join(mark.decode() for mark in first.values()) == "$:,(_*~%|>=##-"
    else:
        assert "".join(mark.decode() for mark in first.values()) == "$:$$$***$-$::-"
    assert ours["true"] != ours["false"] and ours["nonsense"].startswith(b"-ERR Wrong protocol type name.")


@pytest.mark.parametrize("protocol", [2, 3])
def test_scripts_see_one_of_each_type_while_they_may_debug(both: dict[str, int], protocol: int) -> None:
    names = [name for name in TYPES if name not in ("push", "nonsense")]
    calls = [
        f'EVAL "redis.setresp({version}) return {value}" 0'
        for version in (2, 3)
        for name in names
        for value in (f"redis.call('debug', 'protocol', '{name}')", f"type(redis.call('debug', 'protocol', '{name}'))")
    ]
    switch = "DEBUG SET-DISABLE-DENY-SCRIPTS"
    lines = [f"HELLO {protocol}", f"{switch} 1", *calls, f"{switch} 0", calls[0]]
    seen = {name: answers(port, *lines)[1:] for name, port in both.items()}
    assert not any(reply.startswith(b"-") for reply in seen["ours"][:-1])
    assert b"not allowed from script" in seen["ours"][-1]
    assert seen.get("theirs", seen["ours"]) == seen["ours"]


def test_a_sleep_inside_a_script_does_not_move_its_clock(both: dict[str, int]) -> None:
    source = "redis.call('set', 'k', 1, 'px', 1) redis.call('debug', 'sleep', 0.01) return redis.call('exists', 'k')"
    for port in both.values():
        switch = "DEBUG SET-DISABLE-DENY-SCRIPTS"
        _, exists, _, later = answers(port, f"{switch} 1", f'EVAL "{source}" 0', f"{switch} 0", "EXISTS k")
        assert (exists, later) == (b":1\r\n", b":0\r\n")


@pytest.mark.parametrize(
    "line",
    [
        "DEBUG QUICKLIST-PACKED-THRESHOLD 100b", "DEBUG QUICKLIST-PACKED-THRESHOLD 0",
        "DEBUG QUICKLIST-PACKED-THRESHOLD 5gb", "DEBUG QUICKLIST-PACKED-THRESHOLD x",
        "DEBUG REPLYBUFFER PEAK-RESET-TIME 100", "DEBUG REPLYBUFFER PEAK-RESET-TIME NEVER",
        "DEBUG REPLYBUFFER PEAK-RESET-TIME x", "DEBUG REPLYBUFFER RESIZING 0", 'DEBUG ERROR "CODE some words"',
        'DEBUG ERROR "a\\r\\nb"', "DEBUG LOG hello", "DEBUG DIGEST-VALUE", "DEBUG DIGEST-VALUE none none",
        "FUNCTION FLUSH", "FUNCTION FLUSH ASYNC", "FUNCTION FLUSH x", "FUNCTION LIST",
    ],
)  # fmt: skip
def test_what_suites_set_is_accepted_as_redis_accepts_it(both: dict[str, int], line: str) -> None:
    seen = {name: answers(port, line) for name, port in both.items()}
    assert seen.get("theirs", seen["ours"]) == seen["ours"]
    assert seen["ours"][0][:1] in b"+-*"


FILL = [
    "SET s text", "SET n 12", "APPEND a some", "APPEND a thing", "RPUSH l a b c 1", "SADD e x y z", "SADD i 3 1 2",
    "HSET h f 1 g 2 k 3", "ZADD z 1 a 2.5 b -inf c 1e17 d", "XADD x 1-1 f 1 g 2", "XADD x 2-0 f 3",
    "SET t 1 PX 100000000", "SELECT 3", "SET s text", "SELECT 0",
]  # fmt: skip


def test_the_digest_is_the_one_of_redis(both: dict[str, int]) -> None:
    keys = "s n a l e i h z x t none"
    ask = ["FLUSHALL", "DEBUG DIGEST", *FILL, "DEBUG DIGEST", f"DEBUG DIGEST-VALUE {keys}", "FLUSHALL"]
    seen = {name: answers(port, *ask) for name, port in both.items()}
    ours = seen["ours"]
    assert ours[1] == b"+" + b"0" * 40 + b"\r\n"
    assert ours[-3] != ours[1]
    assert seen.get("theirs", ours) == ours
    digests = ours[-2].split(b"\r\n")[1:-1]
    assert len(digests) == len(keys.split()) and len(set(digests)) == len(digests)


CHANGES = [
    "SET s other", "DEL n", "RENAME a a2", "RPUSH l c", "LSET l 0 x", "LINSERT l BEFORE b z", "SADD e more", "SREM e x",
    "HSET h f 2", "HDEL h f", "ZADD z 3 a", "ZREM z a", "XADD x 3-0 f 3", "XDEL x 1-1", "EXPIRE s 1000", "PERSIST t",
    "MOVE s 5", "SWAPDB 0 4", "TWRITE w tag entry", "TREAD w 1 1 GROUP g RETRY 100000 200000", "TACK w g 1",
    "TGROUP SET w g 1", "TGROUP DEL w g", "TRETAIN w COUNT 5", "TEVICT w 1", "TSTAGE w t ENTRIES a b",
    "TCOMMIT w p 1 t", "FLUSHDB",
]  # fmt: skip


def test_the_digest_changes_with_every_change_and_only_then(tmp_path: Path) -> None:
    """Also not by a restart, nor by writing the same in another order."""
    with Server(dir=tmp_path, appendonly="yes") as server, RawClient(server.port) as client:

        def digest() -> bytes:
            reply = client.ask("DEBUG DIGEST")
            assert isinstance(reply, bytes)
            return reply

        for line in (*FILL, "TWRITE w tag first"):
            client.ask(line)
        seen = [digest()]
        for line in CHANGES:
            client.ask(line)
            seen.append(digest())
            assert seen[-1] != seen[-2], line
            client.ask("DEBUG LOADAOF")
            assert digest() == seen[-1], line
        client.ask("FLUSHALL")
        for line in reversed([line for line in FILL if not line.startswith(("SELECT", "XADD", "APPEND"))]):
            client.ask(line)
        first = digest()
        client.ask("FLUSHALL")
        for line in [line for line in FILL if not line.startswith(("SELECT", "XADD", "APPEND"))]:
            client.ask(line)
        assert digest() == first


def test_directives_of_redis_without_effect_can_be_set_and_are_told(both: dict[str, int]) -> None:
    named = [
        name for name, directive in DIRECTIVES.items() if directive.help.startswith("Accepted, and without effect")
    ]
    assert len(named) > 15
    with redis.Redis(port=both["ours"]) as client:
        for name in named:
            before = client.config_get(name)
            assert before
            if DIRECTIVES[name].mutable:
                assert client.config_set(name, before[name])
            assert client.config_get(name) == before
    if "theirs" in both:
        with redis.Redis(port=both["theirs"]) as client:
            assert client.config_get(*named).keys() == set(named), "they are Redis's names"
