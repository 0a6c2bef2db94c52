"""What programs for redis-py do with a cluster: scripts that they have registered, nodes as they name them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis
from redis.cluster import ClusterNode
from tests.support.client.cluster.clients import Connect, Proxied

import penstock
from penstock import aio
from penstock.client.errors import NotEncodable
from penstock.testing.cluster import RedisCluster

COUNT = "return redis.call('INCRBY', KEYS[1], ARGV[1])"


@pytest.mark.parametrize("transaction", [False, True])
def test_a_registered_script_runs_in_a_pipeline_though_no_node_knows_it(
    cluster: RedisCluster, transaction: bool
) -> None:
    with penstock.Cluster(startup_nodes=cluster.addresses) as client:
        count = client.register_script(COUNT)
        client.script_flush()
        with client.pipeline(transaction=transaction) as pipe:
            count(keys=["{t}a"], args=[2], client=pipe)
            pipe.get("{t}a")
            assert pipe.execute() == [2, b"2"]
        assert count(keys=["{t}a"], args=[3]) == 5  # by its digest, after it was loaded


def test_a_script_that_its_node_keeps_forgetting_runs_all_the_same(
    proxied: Proxied, cluster: RedisCluster, connect_through: Connect
) -> None:
    """As when the master dies between SCRIPT LOAD and EVALSHA: NOSCRIPT is not for the caller."""
    node = cluster.masters[0]
    key = next(cluster.keys_on(node))
    client = connect_through()
    client.script_flush()
    proxied.before(node).cut_before_forwarding(command=b"EVALSHA")
    for nth in (2, 3):
        proxied.before(node).replace_reply(b"-NOSCRIPT No matching script.\r\n", command=b"EVALSHA", nth=nth)
    count = client.register_script(COUNT)
    assert (client.do(lambda: count([key], [2])) if hasattr(client, "do") else count([key], [2])) == 2


def test_so_it_does_in_a_pipeline_of_asyncio_whose_calls_may_be_awaited(cluster: RedisCluster) -> None:
    async def main() -> None:
        async with aio.Cluster(startup_nodes=cluster.addresses) as client:
            count = client.register_script(COUNT)
            await client.script_flush()
            async with client.pipeline() as pipe:
                assert await count(keys=["{t}a"], args=[2], client=pipe) is pipe
                assert await pipe.get("{t}a") is pipe
                assert await pipe.execute() == [2, b"2"]
            assert await count(keys=["{t}a"], args=[3]) == 5

    asyncio.run(main())


@pytest.mark.parametrize(
    "name", [lambda host, port: f"{host}:{port}", ClusterNode, lambda host, port: (host, str(port))]
)
def test_a_node_to_start_from_may_be_named_as_people_do(cluster: RedisCluster, make: Connect, name: Any) -> None:
    client = make(startup_nodes=[name(*cluster.nodes[0].address)])
    assert client.set("k", "v") is True


@pytest.mark.parametrize("nonsense", ["7000", "host:", 7000, ("host",), ("host", "port"), None])
def test_an_invalid_address_is_refused(nonsense: Any) -> None:
    with pytest.raises(ValueError, match="is no address of a node"):
        penstock.Cluster(startup_nodes=[nonsense])


def test_incomplete_pairs_are_refused_also_if_they_would_be_split(connect: Connect) -> None:
    client = connect(split=True)
    with pytest.raises(NotEncodable, match="MSET needs a value for each key"):
        client.execute_command("MSET", "a", 1, "b")
    assert client.mset({"a": 1, "b": 2}) is True and client.mget("b", "a") == [b"2", b"1"]


def test_replies_are_read_however_a_command_is_spelled(client: Any) -> None:
    assert client.execute_command("set", "k", 1) is True
    assert isinstance(client.execute_command("Info", "server"), dict)
    with client.pipeline() as pipe:
        assert pipe.execute_command("set", "k", 2).execute_command("config get", "maxmemory").execute() == [
            True,
            {"maxmemory": "0"},
        ]


def test_a_transaction_that_is_disturbed_waits_as_it_is_told_and_says_that_nothing_ran(client: Any) -> None:
    with client.pipeline(transaction=True) as pipe:
        pipe.watch("{t}n")
        client.set("{t}n", 1)
        pipe.multi()
        with pytest.raises(redis.WatchError) as changed:
            pipe.incr("{t}n").incr("{t}n").execute()
    assert changed.value.states == [penstock.State.REPLIED] * 2  # type: ignore[attr-defined]


def test_a_transaction_takes_the_arguments_of_redis_py(cluster: RedisCluster) -> None:
    with penstock.Cluster(startup_nodes=cluster.addresses) as client:
        turns: list[int] = []

        def body(pipe: Any) -> str:
            turns.append(len(turns))
            if len(turns) == 1:
                client.set("{t}n", 5)
            pipe.multi()
            pipe.incr("{t}n")
            return "value"

        assert client.transaction(body, "{t}n", value_from_callable=True, watch_delay=0.001) == "value"
        assert turns == [0, 1] and client.get("{t}n") == b"6"
