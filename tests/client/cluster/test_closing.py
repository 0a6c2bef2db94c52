"""The end of a cluster client, and of an event loop, while something is under way on a connection of its own."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import pytest
from tests.support.client.cluster.clients import Connect

from penstock import State, aio
from penstock.client.cluster.errors import WatchLost
from penstock.client.errors import ClientClosed, OutcomeUnknown
from penstock.testing.cluster import RedisCluster


def test_closing_the_client_ends_calls_that_wait_for_a_node(cluster: RedisCluster, make: Connect) -> None:
    client = make(startup_nodes=cluster.addresses)
    node = cluster.owner(client.keyslot("{t}queue"))
    failures: list[Any] = []

    def wait() -> None:
        try:
            client.blpop("{t}queue", timeout=0)
        except OutcomeUnknown as error:
            failures.append(error)

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    while b"blocked_clients:3" not in node.ask("INFO", "clients"):
        pass
    getattr(client, "close_real", client.close)()
    for thread in threads:
        thread.join()
    assert [failure.state for failure in failures] == [State.WRITTEN] * 3
    assert all("the client was closed" in str(failure) for failure in failures)
    with pytest.raises(ClientClosed):
        client.get("{t}queue")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_is_watched_ends_with_its_event_loop(cluster: RedisCluster) -> None:
    client = aio.Cluster(startup_nodes=cluster.addresses)
    pipe = client.pipeline(transaction=True)

    async def watch() -> None:
        await client.set("{t}n", 1)
        await pipe.watch("{t}n")

    async def execute() -> None:
        pipe.multi()
        await pipe.incr("{t}n").execute()

    asyncio.run(watch())
    with pytest.raises(WatchLost, match="event loop"):
        asyncio.run(execute())
    asyncio.run(client.aclose())
    gc.collect()  # asyncio itself complains of a loop that ended with its transport open: here, not in another test
