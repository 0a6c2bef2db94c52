"""Clients that are closed, entered again, shared by those who enter them, or left to the collector: as programs for redis-py do it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import redis
from tests.client.conftest import Connect

from penstock import Client, aio
from penstock.client.errors import ClientClosed


def test_a_closed_client_says_so_and_how_to_open_it(connect: Connect, peer: str) -> None:
    client = connect(peer)
    assert client.ping()
    (client.close if isinstance(client, Client) else client.aclose)()
    with pytest.raises(ClientClosed, match="with client:"):
        client.ping()


def test_a_client_may_be_entered_again(peer: str) -> None:
    client = Client.from_url(peer)
    for _ in range(3):
        with client:
            assert client.ping() and client.blpop(["nothing"], timeout=0.01) is None
    assert client.counters.replied == 6 and client.counters.buffered_commands == 0
    with pytest.raises(ClientClosed):
        client.ping()


def test_the_last_thread_to_leave_closes_the_client(peer: str) -> None:
    client = Client.from_url(peer)
    with client:
        inside, leave = threading.Event(), threading.Event()

        def work() -> None:
            with client:
                inside.set()
                leave.wait()

        thread = threading.Thread(target=work)
        thread.start()
        inside.wait()
        with client, client:
            pass
        assert client.ping()
        leave.set()
        thread.join()
        assert client.ping()
    with pytest.raises(ClientClosed):
        client.ping()


def test_so_may_an_asyncio_client_by_one_task_or_many(peer: str) -> None:
    async def work() -> None:
        client = aio.Client.from_url(peer)

        async def enter(pause: float) -> Any:
            async with client as entered:
                await asyncio.sleep(pause)
                return await entered.ping()

        for _ in range(2):
            assert await asyncio.gather(*(enter(number / 1000) for number in range(5))) == [True] * 5
        with pytest.raises(ClientClosed):
            await client.ping()
        assert await (await client).ping()
        await client.aclose()
        assert client.counters.replied == 11

    asyncio.run(work())


def test_a_watch_that_outlives_its_client_does_not_come_back_with_it(peer: str) -> None:
    client = Client.from_url(peer)
    with client, client.pipeline() as pipeline:
        pipeline.watch("a")
        client.close()
        with client:  # nested: what the outer block has was closed, and is opened again
            pipeline.multi()
            pipeline.set("a", 1)
            with pytest.raises(redis.WatchError):
                pipeline.execute()
            assert client.blpop(["nothing"], timeout=0.01) is None


@pytest.mark.parametrize("choice", [True, False])
def test_an_asyncio_client_says_whether_its_connection_is_its_own(peer: str, choice: bool) -> None:
    client = aio.Client.from_url(peer, single_connection_client=choice)
    assert client.single_connection_client is choice and client.client().single_connection_client
