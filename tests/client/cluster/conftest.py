"""`connect(**options)` makes a client of the real cluster, sync and then asyncio, and closes it when the test ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.client.cluster.clients import MAKERS, Connect, Proxied

from penstock.testing.cluster import RedisCluster


@pytest.fixture(params=list(MAKERS))
def make(request: pytest.FixtureRequest) -> Iterator[Connect]:
    made: list[Any] = []

    def maker(**options: Any) -> Any:
        made.append(MAKERS[request.param](**options))
        return made[-1]

    yield maker
    for client in made:
        client.close()


@pytest.fixture
def connect(make: Connect, cluster: RedisCluster) -> Connect:
    return lambda **options: make(startup_nodes=cluster.addresses, **options)


@pytest.fixture
def client(connect: Connect) -> Any:
    return connect()


@pytest.fixture(scope="module")
def all_proxies(shared_cluster: RedisCluster) -> Iterator[Proxied]:
    proxied = Proxied(shared_cluster)
    yield proxied
    proxied.close()


@pytest.fixture
def proxied(all_proxies: Proxied, cluster: RedisCluster) -> Iterator[Proxied]:
    """The real cluster with a fault proxy before each node, none of them armed."""
    all_proxies.clear()
    yield all_proxies
    all_proxies.clear()


@pytest.fixture
def connect_through(make: Connect, proxied: Proxied) -> Connect:
    """Make a client whose every connection goes through a proxy."""
    return lambda **options: make(startup_nodes=proxied.addresses, address_remap=proxied.remap, **options)
