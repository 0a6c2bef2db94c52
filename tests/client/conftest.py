"""`connect(url, **options)` makes a client, sync and then asyncio, and closes it when the test ends."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from tests.support.client.clients import MAKERS, Connect

from penstock import Server
from penstock.client.drivers import sync as sync_driver
from penstock.testing.proxy import FaultProxy


@pytest.fixture(params=list(MAKERS))
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    made: list[Any] = []

    def make(url: str, **options: Any) -> Any:
        made.append(MAKERS[request.param](url, **options))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.fixture
def client(connect: Connect, peer: str) -> Any:
    """A client of an empty server: ours and a real Redis, sync and asyncio."""
    made = connect(peer)
    made.flushall()
    return made


@pytest.fixture
def proxy(ours: Server) -> Iterator[FaultProxy]:
    """A proxy before our server."""
    with FaultProxy(("127.0.0.1", ours.port)) as made:
        yield made


@pytest.fixture
def peer_proxy(peer: str) -> Iterator[FaultProxy]:
    """A proxy before our server, and then one before a real Redis."""
    with FaultProxy(("127.0.0.1", int(peer.rpartition(":")[2].split("/")[0]))) as made:
        yield made


@pytest.fixture
def witness(ours: Server) -> Iterator[redis.Redis]:
    """A client that does not go through the proxy."""
    with redis.Redis.from_url(ours.url) as plain:
        plain.flushall()
        yield plain


@pytest.fixture
def no_patrol(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A thread that waits never looks after itself."""
    monkeypatch.setattr(sync_driver, "PATROL", 600.0)
    gc.disable()  # the end of an earlier client is not what is to be interrupted
    yield
    gc.enable()
    gc.collect()
