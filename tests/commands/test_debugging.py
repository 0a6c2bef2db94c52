"""DEBUG, on ours and on a real Redis where it allows it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest
import redis

from penstock import Server, commands
from penstock.engine.config import Config
from penstock.engine.dispatch import Engine
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError
from penstock.protocol.resp import OK
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
    ("setting", "peer_address", "allowed"),
    [
        ("yes", "10.0.0.1:5000", True),
        ("no", "127.0.0.1:5000", False),
        ("local", "127.0.0.1:5000", True),
        ("local", "::1:5000", True),
        ("local", "", True),
        ("local", "10.0.0.1:5000", False),
    ],
)
def test_the_directive_says_who_may(setting: str, peer_address: str, allowed: bool) -> None:
    config = Config()
    config.load("enable-debug-command", [setting])
    session = Session(Engine(config))
    session.peer = peer_address
    if allowed:
        assert session.engine.execute(session, [b"DEBUG", b"SLEEP", b"0"]) is OK
    else:
        with pytest.raises(ReplyError, match="DEBUG command not allowed"):
            session.engine.execute(session, [b"DEBUG", b"SLEEP", b"0"])
