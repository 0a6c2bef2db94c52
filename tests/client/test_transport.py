"""Transports: TLS, unix sockets, Sentinel's pools, and payloads larger than any buffer in both directions at once."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.support.client.clients import Connect
from tests.support.tls import Authority, tls_server

from penstock import Client, Server
from penstock.testing.redis import RedisServer

BIG = b"x" * 3_000_000


def use_hard(client: Any) -> None:
    """Large and small at once, from several threads."""
    wrong: list[Any] = []

    def work(number: int) -> None:
        value = BIG[: 400_000 * number + 1]
        for _ in range(3):
            client.set(f"k{number}", value)
            if client.get(f"k{number}") != value:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pipe = client.pipeline(transaction=False)
    for _ in range(20):
        pipe.set("big", BIG)
        pipe.get("big")
    assert pipe.execute() == [True, BIG] * 20
    assert not wrong and client.counters.reconnects == 0 and client.counters.buffered_commands == 0


def test_payloads_larger_than_any_buffer(client: Any) -> None:
    use_hard(client)


def test_over_tls(connect: Connect, tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    with tls_server(authority, tls_auth_clients="no") as server:
        client = connect(f"rediss://localhost:{server.app.tls_port}/0?ssl_ca_certs={authority.file}")
        use_hard(client)
        client.close()


def test_over_a_unix_socket(connect: Connect, tmp_path: Path) -> None:
    path = tmp_path / "redis.sock"
    with RedisServer(unixsocket=str(path)):
        client = connect(f"unix://{path}?db=3")
        assert client.set("a", 1) and client.get("a") == b"1"
        assert client.client_info()["db"] == 3


def test_a_pool_made_by_others_is_respected(ours: Server) -> None:
    with redis.ConnectionPool.from_url(ours.url, client_name="pooled", decode_responses=True) as pool:
        with Client(connection_pool=pool) as client:
            assert client.client_getname() == "pooled" and client.echo("x") == "x"
        assert pool.get_connection().can_read() is False  # closing the client has not closed it


def test_a_client_side_cache_is_refused(ours: Server) -> None:
    from redis.cache import CacheConfig

    with pytest.raises(redis.RedisError, match="client-side cache"):
        Client(port=ours.port, protocol=3, cache_config=CacheConfig())
