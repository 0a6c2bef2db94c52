"""Without `select.poll`, which eventlet takes away, both clients with blocking calls do the same."""

from __future__ import annotations

import select
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import penstock
from penstock import Client, Server
from penstock.client.drivers.polling import POLLIN, POLLNVAL, POLLOUT, SelectPoll, new_poll
from penstock.testing.cluster import RedisCluster
from penstock.testing.proxy import FaultProxy

MAKERS: list[Any] = [SelectPoll, select.poll]


@pytest.fixture
def no_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(select, "poll")


@pytest.mark.parametrize("make", MAKERS)
def test_both_kinds_of_poll_say_the_same(make: Any) -> None:
    poll, (one, other) = make(), socket.socketpair()
    number = one.fileno()
    poll.register(one, POLLIN)
    assert poll.poll(0) == []
    poll.modify(one, POLLIN | POLLOUT)
    assert poll.poll(0) == [(number, POLLOUT)]
    other.send(b"x")
    assert poll.poll(None) == [(number, POLLIN | POLLOUT)]
    poll.modify(number, POLLIN)
    assert poll.poll(1000) == [(number, POLLIN)]
    other.close()
    one.close()
    assert poll.poll(0) == [(number, POLLNVAL)]
    poll.unregister(number)
    assert poll.poll(0) == []


def test_a_client_works_without_poll(no_poll: None, ours: Server) -> None:
    assert isinstance(new_poll(), SelectPoll)
    with FaultProxy(("127.0.0.1", ours.port)) as proxy, Client.from_url(proxy.url, backoff_base=0.001) as client:
        client.flushall()
        with ThreadPoolExecutor(8) as pool:
            assert sorted(pool.map(lambda _: client.incr("a"), range(200))) == list(range(1, 201))
        client.set("large", b"x" * 5_000_000)  # more than a socket takes at once
        assert client.strlen("large") == 5_000_000 and len(client.get("large")) == 5_000_000
        proxy.cut_after_execution()
        assert client.get("a") == b"200" and client.counters.reconnects == 1
        assert client.blpop("nothing", 0.01) is None


def test_a_cluster_client_works_without_poll(cluster: RedisCluster, no_poll: None) -> None:
    with penstock.Cluster(startup_nodes=cluster.addresses) as client:
        assert client.execute_many([("SET", f"k{number}", number) for number in range(500)]) == [b"OK"] * 500
        assert client.get("k7") == b"7"
