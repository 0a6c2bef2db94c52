"""Concurrent calls of asyncio tasks: one batch a node, each call with its own fate."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Any

import pytest
import redis
from tests.support.client.cluster.clients import Proxied
from tests.support.client.cluster.nodes import connections

from penstock import aio
from penstock.client.errors import OutcomeUnknown
from penstock.protocol.slots import key_slot
from penstock.testing.cluster import RedisCluster


def with_client(cluster: RedisCluster, body: Callable[[aio.Cluster], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with aio.Cluster(**{"startup_nodes": cluster.addresses, **options}) as client:
            await client.ping()
            await body(client)

    asyncio.run(main())


def test_a_thousand_calls_at_once_need_one_connection_a_node(cluster: RedisCluster) -> None:
    async def body(client: aio.Cluster) -> None:
        before = connections(cluster)
        await asyncio.gather(*(client.set(f"key:{number}", number) for number in range(1000)))
        values = await asyncio.gather(*(client.get(f"key:{number}") for number in range(1000)))
        assert [int(value) for value in values] == list(range(1000))
        assert connections(cluster) - before <= 3

    with_client(cluster, body)


def test_calls_on_one_key_run_in_the_order_of_calls(cluster: RedisCluster) -> None:
    async def body(client: aio.Cluster) -> None:
        await asyncio.gather(*(client.rpush("list", number) for number in range(200)))
        assert [int(item) for item in await client.lrange("list", 0, -1)] == list(range(200))

    with_client(cluster, body)


def test_each_call_has_its_own_error_and_its_own_decoding(cluster: RedisCluster) -> None:
    async def body(client: aio.Cluster) -> None:
        await client.set("{t}text", "word")
        results = await asyncio.gather(
            client.get("{t}text"), client.incr("{t}text"), client.set("{t}x", object()), client.dump("{t}text"),  # type: ignore[arg-type]
            client.get("{t}none"), return_exceptions=True,
        )  # fmt: skip
        assert results[0] == "word" and isinstance(results[1], redis.ResponseError)
        assert isinstance(results[2], redis.DataError) and isinstance(results[3], bytes) and results[4] is None

    with_client(cluster, body, decode_responses=True)


@pytest.mark.parametrize("cancelled", [[0], [1], [0, 1], [0, 1, 2]])
def test_a_cancelled_call_leaves_the_others_alone(cluster: RedisCluster, cancelled: list[int]) -> None:
    async def echo(client: aio.Cluster, number: int) -> Any:
        await client.set(f"{{t}}{number}", number)
        return await client.get(f"{{t}}{number}")

    async def body(client: aio.Cluster) -> None:
        for turns in range(4):
            tasks = [asyncio.create_task(echo(client, number)) for number in range(4)]
            for _ in range(turns):
                await asyncio.sleep(0)
            for number in cancelled:
                tasks[number].cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(result == b"%d" % n for n, result in enumerate(results) if n not in cancelled)

    with_client(cluster, body)


def test_each_call_that_lost_its_reply_gets_an_error(proxied: Proxied, cluster: RedisCluster) -> None:
    node, other = cluster.masters[:2]
    keys, calm = list(islice(cluster.keys_on(node), 10)), next(cluster.keys_on(other))

    async def body(client: aio.Cluster) -> None:
        proxied.before(node).cut_after_execution(command=b"INCRBY")
        results = await asyncio.gather(*(client.incr(key) for key in [*keys, calm]), return_exceptions=True)
        assert results[-1] == 1  # another node
        unknown = [result for result in results[:-1] if isinstance(result, OutcomeUnknown)]
        assert unknown and all(result == 1 for result in results[:-1] if not isinstance(result, OutcomeUnknown))
        held = [int(cluster.owner(key_slot(key)).ask("GET", key) or 0) for key in keys]
        assert max(held) == 1  # none of them twice

    with_client(
        cluster, body, startup_nodes=proxied.addresses, address_remap=proxied.remap, delivery="at-most-once"
    )  # fmt: skip
