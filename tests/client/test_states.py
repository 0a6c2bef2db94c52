"""Every exception says how far its command came, also those that are redis-py's and those of Python."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.asyncio.sentinel import Sentinel as AioSentinel
from redis.sentinel import Sentinel
from tests.support.client.clients import Connect

from penstock import Client, State, aio
from penstock.testing.redis import RedisServer, find_redis, free_port


def state_of(function: Any, *arguments: Any) -> State:
    with pytest.raises(Exception) as failure:
        function(*arguments)
    return State(failure.value.state)  # type: ignore[attr-defined]


def test_what_was_refused_here_was_not_sent(client: Any) -> None:
    assert state_of(client.set, "a", object()) is State.QUEUED
    assert state_of(client.execute_command, "MULTI") is State.QUEUED
    assert state_of(client.execute_command, "SUBSCRIBE", "a") is State.QUEUED
    assert state_of(client.execute_many, [()]) is State.QUEUED


def test_what_the_server_refused_was_replied(client: Any) -> None:
    client.set("a", "text")
    assert state_of(client.incr, "a") is State.REPLIED
    with client.pipeline() as pipe:
        pipe.watch("a")
        client.set("a", 1)
        pipe.multi()
        pipe.set("a", 2)
        assert state_of(pipe.execute) is State.REPLIED  # WatchError: EXEC was answered, and ran nothing


def test_a_reply_that_redis_py_cannot_read_was_replied_and_is_the_loss_of_its_command_alone(client: Any) -> None:
    client.set_response_callback("ECHO", lambda reply, **options: int(reply))
    assert state_of(client.echo, "text") is State.REPLIED
    pipe = client.pipeline()
    results = pipe.set("a", 1).echo("text").incr("a").execute(raise_on_error=False)
    assert results[0] is True and isinstance(results[1], ValueError) and results[2] == 2
    pipe.set("a", 1).echo("text").incr("a")
    assert state_of(pipe.execute) is State.REPLIED and client.get("a") == b"2"


def test_a_changed_password_is_an_error_at_once_and_nothing_is_sent(connect: Connect) -> None:
    with RedisServer(requirepass="one") as server, redis.Redis(port=server.port, password="one") as admin:
        client = connect(f"redis://:one@127.0.0.1:{server.port}")
        client.set("a", 1)
        admin.config_set("requirepass", "two")
        admin.client_kill_filter(_type="normal", skipme=True)
        with pytest.raises(redis.AuthenticationError) as failure:
            client.incr("a")
        assert failure.value.state is State.QUEUED  # type: ignore[attr-defined]
        assert admin.get("a") == b"1"


# -- Sentinel, which redis-py's connections ask for the master
# ------------------------------------------------------------


@pytest.fixture
def sentinel(tmp_path: Path) -> Iterator[int]:
    port, file = free_port(), tmp_path / "sentinel.conf"
    file.write_text(f"port {port}\nbind 127.0.0.1\ndir {tmp_path}\n")
    command = [find_redis().path, str(file), "--sentinel"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with redis.Redis(port=port) as client:
        for _ in range(200):
            try:
                client.ping()
                break
            except redis.ConnectionError:
                time.sleep(0.05)
    yield port
    process.terminate()
    process.wait(20)


def test_a_client_follows_the_master_that_sentinel_names(sentinel: int) -> None:
    with RedisServer() as first, RedisServer() as second, redis.Redis(port=sentinel) as control:
        control.execute_command("SENTINEL", "MONITOR", "main", "127.0.0.1", first.port, 1)
        asked = Sentinel([("127.0.0.1", sentinel)])
        client = asked.master_for("main", redis_class=Client)
        with asked.sentinels[0], client, redis.Redis(port=first.port) as plain:
            client.set("who", "first")
            assert client.get("who") == plain.get("who") == b"first"
            control.execute_command("SENTINEL", "REMOVE", "main")
            control.execute_command("SENTINEL", "MONITOR", "main", "127.0.0.1", second.port, 1)
            plain.client_kill_filter(_type="normal", skipme=True)
            assert client.get("who") is None and client.counters.reconnects == 1


def test_so_does_one_of_asyncio(sentinel: int) -> None:
    async def main(port: int) -> None:
        asked = AioSentinel([("127.0.0.1", sentinel)])
        async with asked.master_for("main", redis_class=aio.Client) as client:
            assert await client.set("who", "me") and await client.get("who") == b"me"
            assert (await client.info("server"))["tcp_port"] == port
        await asked.sentinels[0].aclose()

    with RedisServer() as server, redis.Redis(port=sentinel) as control:
        control.execute_command("SENTINEL", "MONITOR", "main", "127.0.0.1", server.port, 1)
        asyncio.run(main(server.port))
