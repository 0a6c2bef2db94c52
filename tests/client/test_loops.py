"""The asyncio client from one event loop to the next."""

from __future__ import annotations

import asyncio
import gc

import pytest

from penstock import Server, aio


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_watches_and_blocking_commands_move_from_loop_to_loop_too(peer: str) -> None:
    """They have connections of their own, which ended with the first loop."""
    client = aio.Client.from_url(peer)

    async def main() -> list[int]:
        await client.set("n", 1)
        async with client.pipeline() as pipe:
            await pipe.watch("n")
            pipe.multi()
            pipe.incr("n")
            counted: list[int] = await pipe.execute()
        assert await client.blpop("nothing", 0.01) is None
        return counted

    assert asyncio.run(main()) == asyncio.run(main()) == [2]
    asyncio.run(client.aclose())
    gc.collect()  # asyncio itself complains of a loop that ended with its transport open: here, not in another test


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_level_may_be_changed_between_two_loops(ours: Server) -> None:
    client = aio.Client.from_url(ours.url)

    async def count() -> int:
        return int(await client.incr("n"))

    asyncio.run(client.set("n", 0))
    client.delivery = "exactly-once"
    assert asyncio.run(count()) == 1
    client.replay_filter = lambda command: True
    client.delivery = "at-most-once"
    assert asyncio.run(count()) == 2
    asyncio.run(client.aclose())
    gc.collect()
