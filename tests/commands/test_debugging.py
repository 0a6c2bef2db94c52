"""DEBUG, on ours and on a real Redis where it allows it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import redis

from penstock import Server, commands
from penstock.engine.config import Config
from penstock.engine.dispatch import Engine
from penstock.engine.session import Session
from penstock.engine.spec import REGISTRY
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


def test_sleep_stops_everybody(d: redis.Redis) -> None:
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
    [("yes", False, True), ("no", True, False), ("local", True, True), ("local", False, False), (None, True, True), (None, False, False)],
)  # fmt: skip
def test_the_directive_says_who_may(setting: str | None, is_local: bool, allowed: bool) -> None:
    """Unless told otherwise, clients on this machine."""
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
