"""`with penstock.Server(...)`: a server inside a Python process."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import redis

import penstock
from penstock.engine.config import ConfigError


def test_it_gives_a_url_and_ends_with_the_block() -> None:
    before = set(threading.enumerate())
    with penstock.Server() as server:
        client = redis.Redis.from_url(server.url)
        assert client.set("a", 1)
        url = server.url
    with pytest.raises(redis.ConnectionError):
        redis.Redis.from_url(url).ping()
    assert set(threading.enumerate()) <= before


def test_several_live_side_by_side() -> None:
    with penstock.Server() as one, penstock.Server() as other:
        redis.Redis.from_url(one.url).set("a", 1)
        assert redis.Redis.from_url(other.url).get("a") is None


def test_streams_of_servers_side_by_side_are_kept_as_their_own_server_says(tmp_path: Path) -> None:
    def cold_nodes(client: redis.Redis, key: str) -> tuple[int, int]:
        info = client.execute_command("TINFO", key)
        facts = dict(zip(info[::2], info[1::2], strict=True)) if isinstance(info, list) else info
        return int(facts[b"nodes-hot"]), int(facts[b"nodes-cold"])

    def fill(client: redis.Redis, key: str) -> None:
        pipe = client.pipeline(transaction=False)
        for number in range(4000):
            pipe.execute_command("TWRITE", key, "tag", b"%d" % number * 20)
        pipe.execute()

    stays = {"stream_hot_nodes": 100, "stream_compression": "none", "stream_compression_backlog": 0}
    cools = {"stream_hot_nodes": 1, "stream_compression": "lz4", "stream_compression_backlog": 0}
    with (
        penstock.Server(dir=tmp_path, **cools) as first,
        penstock.Server(**stays) as second,
        redis.Redis.from_url(first.url) as one,
        redis.Redis.from_url(second.url) as other,
    ):
        fill(one, "s")
        fill(other, "s")
        assert cold_nodes(one, "s") == (1, 3)
        assert cold_nodes(other, "s") == (4, 0)
        assert one.memory_usage("s") < other.memory_usage("s")
        # A value that comes from the other server is kept as its new server says.
        one.restore("moved", 0, other.dump("s"))
        assert cold_nodes(one, "moved") == (1, 3)
        # So are copies, a setting changed later, and what is loaded from a file.
        one.copy("s", "copy")
        assert cold_nodes(one, "copy") == (1, 3)
        other.config_set("stream-hot-nodes", 2)
        one.execute_command("DEBUG", "RELOAD")
        fill(one, "s")
        fill(other, "new")
        assert cold_nodes(one, "s") == (1, 7)
        assert cold_nodes(other, "new") == (2, 2)


def test_directives_are_keyword_arguments(tmp_path: Path) -> None:
    folder = tmp_path / "a folder with spaces"
    folder.mkdir()
    with penstock.Server(dir=folder, appendonly=True, requirepass="secret") as server:
        client = redis.Redis.from_url(server.url, password="secret")
        assert client.config_get("appendonly") == {"appendonly": "yes"}
        client.set("kept", 1)
    with penstock.Server(dir=folder, appendonly=True) as server:
        assert redis.Redis.from_url(server.url).get("kept") == b"1"


def test_a_wrong_directive_is_an_error_that_names_it() -> None:
    with pytest.raises(ConfigError, match=r"penstock.Server: unknown directive 'prot'"):
        penstock.Server(prot=1)


def test_an_error_at_start_is_raised_where_it_was_started() -> None:
    with penstock.Server() as server, pytest.raises(OSError, match="Address already in use"):
        penstock.Server(port=server.port).start()


def test_a_server_starts_only_once() -> None:
    with penstock.Server() as server, pytest.raises(RuntimeError, match="started already"):
        server.start()


def test_an_error_in_one_periodic_duty_stops_none_of_the_others(caplog: pytest.LogCaptureFixture) -> None:
    with penstock.Server(hz=100) as server, redis.Redis.from_url(server.url) as client:
        behind = server.call(lambda app: app.limits._behind)
        server.call(lambda app: setattr(app.limits, "_behind", None))  # a bug
        client.set("short", 1, px=1)
        deadline = time.monotonic() + 60
        while server.call(lambda app: len(app.engine.keyspace[0].data)):
            assert time.monotonic() < deadline, "active expiry stopped"
        server.call(lambda app: setattr(app.limits, "_behind", behind))
    assert "internal error in the periodic work" in caplog.text
