"""Both consumers behind one interface, so that one set of tests runs on both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import redis

from penstock import Client, aio
from penstock.client.consumer.counts import Counts

Consume = Callable[..., Counts]
"""The type of the functions below."""


def fill(url: str, count: int, tags: int = 1) -> None:
    """A stream `s` of so many messages and nothing else: the entries are the offsets."""
    with redis.Redis.from_url(url) as plain:
        plain.flushall()
        words = [word for number in range(1, count + 1) for word in (f"t{number % tags}", str(number))]
        plain.execute_command("TWRITE", "s", "ENTRIES", *words)


def with_threads(url: str, body: Callable[[Any, Any], Any], how: dict[str, Any] | None = None, **terms: Any) -> Counts:
    """Run a consumer until its body, which gets the consumer and the message, stops it."""
    with Client.from_url(url) as client:
        consumer = client.consumer("s", "g", **terms)
        consumer.run(lambda message: body(consumer, message), **(how or {}))
        return consumer.counts


def with_tasks(url: str, body: Callable[[Any, Any], Any], how: dict[str, Any] | None = None, **terms: Any) -> Counts:
    """The same with asyncio; a body that blocks does so in a thread."""

    async def main() -> Counts:
        async with aio.Client.from_url(url) as client:
            consumer = client.consumer("s", "g", **terms)

            async def call(message: Any) -> None:
                await asyncio.to_thread(body, consumer, message)

            await consumer.run(call, **(how or {}))
            return consumer.counts

    return asyncio.run(main())


CONSUMERS: dict[str, Consume] = {"threads": with_threads, "tasks": with_tasks}
