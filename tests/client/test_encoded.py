"""Commands that come encoded work as their words would, for a server, a cluster, ONCE and error messages."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
import redis

import penstock
from penstock import Server
from penstock.client.engine.encoding import Encoded
from penstock.protocol.resp import pack
from penstock.protocol.slots import key_slot
from penstock.testing.cluster import RedisCluster
from penstock.testing.proxy import FaultProxy


def encoded(*commands: tuple[bytes, ...]) -> Encoded:
    return Encoded([pack(*words) for words in commands], array("i", [key_slot(words[1]) for words in commands]))


def increments(count: int) -> Encoded:
    return encoded(*((b"INCR", b"n%d" % number) for number in range(count)))


def test_it_is_a_sequence_of_words() -> None:
    some = encoded((b"SET", b"a", b"1"), (b"GET", b"\r\n"))
    assert (len(some), list(some), list(some[1:])) == (
        2, [(b"SET", b"a", b"1"), (b"GET", b"\r\n")], [(b"GET", b"\r\n")],
    )  # fmt: skip
    assert list(some[1:].slots) == [key_slot(b"\r\n")]


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_a_server_runs_them_and_a_cut_connection_means_what_it_always_means(delivery: str) -> None:
    seen: list[Any] = []
    with Server() as server, FaultProxy(("127.0.0.1", server.port)) as proxy:
        name = b"ONCE" if delivery == "exactly-once" else b"INCR"
        fault = proxy.cut_after_execution(name, nth=100, replies=50)
        with penstock.Client(port=proxy.port, delivery=delivery, on_replay=seen.append) as client:
            some = increments(100)
            replies = client.execute_many(some)
            assert fault.has_fired
            assert [command.name for command in seen[0].commands[:2]] == ["INCR", "INCR"]
            twice = replies.count(2)
            assert twice == (0 if delivery == "exactly-once" else 50), "at least once is as little as it promises"
            assert some[0] == (b"INCR", b"n0"), "ONCE wrote its numbers into a copy"
            with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
                client.execute_many(encoded((b"LPUSH", b"n0", b"x"), (b"GET", b"n1")))


def test_a_cluster_gets_each_where_its_slot_is(cluster: RedisCluster) -> None:
    with penstock.Cluster("127.0.0.1", cluster.masters[0].port) as client:
        client.execute_command("FLUSHALL")
        assert client.execute_many(increments(300)) == [1] * 300
        assert client.execute_command("DBSIZE") == 300
        with pytest.raises(redis.ResponseError, match=r"command 2 \(LPUSH\) of the pipeline: .*WRONGTYPE"):
            client.execute_many(encoded((b"GET", b"n1"), (b"LPUSH", b"n0", b"x")))
        wrong = Encoded([pack(b"GET", b"n5")], [(key_slot(b"n5") + 8192) % 16384])
        assert client.execute_many(wrong) == [b"1"], "a wrong slot is a detour, which the cluster corrects"
