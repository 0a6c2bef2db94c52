"""Clients that are closed, entered again, shared, or left to the garbage collector, as programs for redis-py do it."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from typing import Any

import pytest
import redis
from tests.support.client.clients import Connect

from penstock import Client, aio
from penstock.client.drivers.socket_io import ClientSocket
from penstock.client.errors import ClientClosed
from penstock.testing.proxy import FaultProxy


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


def test_an_asyncio_client_that_is_left_while_it_connects_leaves_nothing_open(
    peer: str, peer_proxy: FaultProxy
) -> None:
    """Otherwise the connection would stay open, without an owner, for as long as the loop runs."""

    async def give_up_connecting() -> None:
        client = aio.Client.from_url(peer_proxy.url, socket_timeout=600)
        waiting = asyncio.ensure_future(client.ping())
        while not peer_proxy.is_holding:
            await asyncio.sleep(0.001)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    async def work(control: redis.Redis) -> None:
        before = len(control.client_list())
        peer_proxy.hold_replies()
        await give_up_connecting()
        gc.collect()
        peer_proxy.release_replies()
        while len(control.client_list()) > before:
            await asyncio.sleep(0.001)

    with redis.Redis.from_url(peer) as control:
        asyncio.run(work(control))


# -- clients of one pool, which programs for redis-py make as they need them ------------------------------------------


def connections(url: str) -> int:
    with redis.Redis.from_url(url) as control:
        return int(control.info("stats")["total_connections_received"])


def test_a_client_leaves_its_connection_to_the_next_of_its_pool(peer: str) -> None:
    pool = redis.ConnectionPool.from_url(peer)
    before = connections(peer)
    for number in range(20):
        client = Client(connection_pool=pool)
        assert client.set("a", number) and client.blpop(["nothing"], timeout=0.01) is None
        if number % 2:
            client.close()
    assert connections(peer) == before + 3  # two of theirs, and the one that counts


def test_a_pool_that_ends_closes_its_connections(peer: str) -> None:
    pool = redis.ConnectionPool.from_url(peer)
    number = Client(connection_pool=pool).client_id()
    pool.disconnect()
    with redis.Redis.from_url(peer) as control:
        while number in (int(other["id"]) for other in control.client_list()):
            time.sleep(0.001)
    assert Client(connection_pool=pool).client_id() > number


def test_so_does_one_of_asyncio_closed_or_not(peer: str) -> None:
    async def work() -> None:
        pool = redis.asyncio.ConnectionPool.from_url(peer)
        before = connections(peer)
        for number in range(20):
            client = aio.Client(connection_pool=pool)
            assert await client.set("a", number) and await client.blpop(["nothing"], timeout=0.01) is None
            if number % 2:
                await client.aclose()
            del client
        assert connections(peer) == before + 3
        await pool.aclose()
        assert (await aio.Client(connection_pool=pool).client_id()) and connections(peer) == before + 5
        await pool.aclose()

    asyncio.run(work())


@pytest.mark.parametrize("is_wanted", [True, False])
def test_a_connection_that_the_server_ended_while_it_was_left_is_forgotten(peer: str, is_wanted: bool) -> None:
    async def work() -> None:
        pool = redis.asyncio.ConnectionPool.from_url(peer)
        client = aio.Client(connection_pool=pool)
        number = await client.client_id()
        await client.aclose()
        (place,) = client._handoff._left
        with redis.Redis.from_url(peer) as control:
            control.client_kill_filter(_id=number)
        while place.connection._writer.transport.get_protocol() is not None:
            await asyncio.sleep(0.001)
        if is_wanted:
            async with aio.Client(connection_pool=pool) as next_one:
                assert await next_one.client_id() > number
        await pool.aclose()

    asyncio.run(work())


def test_a_connection_that_was_changed_or_is_busy_or_lost_is_not_left_to_others(connect: Connect, peer: str) -> None:
    pool = redis.ConnectionPool.from_url(peer)
    changed = Client(connection_pool=pool)
    changed.select(5)
    changed.close()
    watching = Client(connection_pool=pool)
    pipeline = watching.pipeline()
    pipeline.watch("a")
    watching.close()
    busy = Client(connection_pool=pool)

    def wait() -> None:
        with pytest.raises(redis.ConnectionError):
            busy.blpop(["nothing"], 0)

    thread = threading.Thread(target=wait)
    thread.start()
    while busy.counters.sent == 0:
        pass
    busy.close()
    thread.join()
    lost = Client(connection_pool=pool)
    number = lost.client_id()
    lost.close()
    connect(peer).client_kill_filter(_id=number)
    while ClientSocket.is_usable(lost._handoff._left[-1].connection):
        time.sleep(0.001)
    with Client(connection_pool=pool) as client:
        assert client.client_info()["db"] == 0 and client.client_id() > number
        assert client.counters.reconnects == 0 and len(client._handoff._left) == 0


def test_a_connection_that_was_left_is_not_that_of_a_child(peer: str) -> None:
    pool = redis.ConnectionPool.from_url(peer)
    Client(connection_pool=pool).ping()
    child = os.fork()
    if not child:
        status = 1
        try:
            status = int(not Client(connection_pool=pool).set("child", 1))
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    before = connections(peer)
    assert Client(connection_pool=pool).get("child") == b"1"
    assert connections(peer) == before + 1


def test_a_connection_that_was_left_for_long_is_not_used(peer: str) -> None:
    pool = redis.ConnectionPool.from_url(peer, health_check_interval=1e-9)
    first = Client(connection_pool=pool).client_id()
    assert Client(connection_pool=pool).client_id() > first


def test_a_connection_of_a_loop_that_has_ended_is_not_left_to_another(peer: str) -> None:
    pool = redis.asyncio.ConnectionPool.from_url(peer)

    async def work(closes_pool: bool) -> Any:
        client = aio.Client(connection_pool=pool)
        answer = await client.ping()
        await client.aclose(close_connection_pool=closes_pool)
        return answer

    with pytest.warns(ResourceWarning):  # the loop has ended, and what is open in it cannot be closed
        assert asyncio.run(work(False)) and asyncio.run(work(True))
        gc.collect()


def test_a_pool_may_be_disconnected_from_outside_of_the_loop_that_used_it(peer: str) -> None:
    pool = redis.asyncio.ConnectionPool.from_url(peer)

    async def number() -> Any:
        return await aio.Client(connection_pool=pool).client_id()

    async def disconnect() -> None:
        await pool.disconnect()

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    first = asyncio.run_coroutine_threadsafe(number(), loop).result()
    asyncio.run(disconnect())  # in a loop of this thread
    second = asyncio.run_coroutine_threadsafe(number(), loop).result()
    asyncio.run(pool.disconnect())  # in none, until it runs
    third = asyncio.run_coroutine_threadsafe(number(), loop).result()
    assert first < second < third
    asyncio.run_coroutine_threadsafe(disconnect(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
