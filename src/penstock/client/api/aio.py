"""penstock.aio.Client: redis.asyncio.Redis on our core; what sync.py is for threads, this is for tasks.

from penstock import aio
async with aio.Client.from_url("redis://localhost") as client:
    await asyncio.gather(*(client.incr("hits") for _ in range(100)))    # one write, one read
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Self, Unpack, cast

import redis
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from penstock.client.api.calls import answer, call
from penstock.client.api.options import AioClientOptions, AioUrlOptions
from penstock.client.api.pipeline import (
    PipelineBase,
    batch_of,
    bulk_batch,
    bulk_results,
    refusal_of,
    results_of,
    told_of_all,
)
from penstock.client.api.reply_types import Key
from penstock.client.api.scripts import AioRegisteredScript
from penstock.client.api.shared import ClientBase, shown_with_arguments_of, take_options
from penstock.client.api.shortcuts import Shortcuts
from penstock.client.api.streams import StreamCommands
from penstock.client.api.tables import Span, Words, aio_read_tables, table_of, table_read
from penstock.client.api.urls import aio_pool
from penstock.client.consumer.aio import AioConsumer, send
from penstock.client.consumer.follow import Follow, FollowedBatch, FollowOptions, aio_follow
from penstock.client.consumer.options import ConsumerOptions, ConsumerSettings
from penstock.client.drivers.aio import AioConnection, ClientProtocol
from penstock.client.drivers.connecting import connection_maker
from penstock.client.engine.batch import Batch
from penstock.client.engine.replies import CLOGGED
from penstock.client.producer.aio import AioProducer
from penstock.client.producer.options import ProducerOptions, ProducerSettings

AWAITED_BYTES = 700
"""What a batch that is awaited costs more than one that a thread waits for: coroutines, and what they keep;
tests/client/test_bounds.py measures it.
"""
AWAITED_MANY_BYTES = 1500
"""The same for one of many commands: those of pipelines and of `execute_many` keep more."""


class Client(ClientBase[AioConnection], StreamCommands, Shortcuts, redis.asyncio.Redis):  # type: ignore[misc]
    """The asyncio client; takes all arguments of redis.asyncio.Redis, and those of penstock.Client."""

    @shown_with_arguments_of(redis.asyncio.Redis.__init__)
    def __init__(self, *args: Any, **given: Unpack[AioClientOptions]) -> None:
        kwargs = cast(dict[str, Any], given)
        options = take_options(kwargs)
        is_shared = not kwargs.pop("single_connection_client", False)
        super().__init__(*args, **kwargs)
        self._set_up(options, is_shared)
        self.single_connection_client = not is_shared

    @classmethod
    def from_url(cls, url: str, **given: Unpack[AioUrlOptions]) -> Self:  # type: ignore[override]
        """A client for a URL; our options may also stand in its query: `redis://host/0?delivery=at-most-once`.

        `penstock://a,b,c/orders` names the servers of a shard: the client finds the one that leads (api/urls.py).
        """
        kwargs = cast(dict[str, Any], given)
        options = take_options(kwargs, "single_connection_client")
        auto_close = kwargs.pop("auto_close_connection_pool", True)
        client = cls(connection_pool=aio_pool(url, **kwargs), **options)
        client.auto_close_connection_pool = auto_close
        return client

    _driver = ClientProtocol

    def _new_connection(self) -> AioConnection:
        make, handoff = connection_maker(self.connection_pool, Retry(NoBackoff(), 0)), self._handoff
        return AioConnection(self._make_core, lambda: handoff.take() or make(), self._listeners.tell)

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        if args[0] == "HIMPORT SET":  # what redis-py sends for it depends on its own connection
            return await super().execute_command(*args, **options)
        batch = call(args, options, self._is_shared)
        await self.run(batch)
        result = answer(batch, options, self.response_callbacks)
        return await result if inspect.isawaitable(result) else result

    async def execute_many(self, commands: Sequence[Sequence[Any]], raise_on_error: bool = True) -> list[Any]:
        """Run ready commands, such as `(b"SET", key, value)`, in one go: the replies as the server gave
        them, in order.
        """
        if not commands:
            return []
        with told_of_all(len(commands)):
            batch = bulk_batch(commands)
            with refusal_of(batch, raise_on_error):
                await self.run(batch)
            return bulk_results(batch, raise_on_error)

    def run(self, batch: Batch) -> Awaitable[None]:
        """Have a batch finished, on a connection that suits it. No coroutine by itself: one less for each call that
        waits.
        """
        shared = self._connection
        large = self._contact.large and self._contact.was_large(batch.commands)
        is_alone = large or batch.blocks or shared.core.reader.is_clogged or len(batch.data) >= CLOGGED
        if is_alone and self.steps_aside(batch):
            return self._run_alone(batch)
        batch.size += AWAITED_BYTES if batch.lengths is None else AWAITED_MANY_BYTES
        return shared.run(batch)

    async def _run_alone(self, batch: Batch) -> None:
        """It may hold the connection up for others."""
        with self.own_connection() as connection:
            await connection.run(batch)

    def register_script(self, script: str | bytes) -> AioRegisteredScript:  # type: ignore[override]
        """A script to be called, with its keys and arguments, here or in a pipeline."""
        return AioRegisteredScript(self, script)

    def consumer(self, key: Key, group: Key, **terms: Unpack[ConsumerOptions]) -> AioConsumer:
        """A member of a group that acknowledges what it has done; ConsumerSettings has the arguments."""
        return AioConsumer(self, ConsumerSettings(key, group, **terms))

    def follow(self, key: Key, start: int | str = 1, **terms: Unpack[FollowOptions]) -> AsyncIterator[FollowedBatch]:
        """A stream in batches, from an offset that you keep in a transaction of your own; see penstock.Client."""
        return aio_follow(self.consumer_client(), send, Follow(key, start, **terms))

    def producer(self, key: Key, **terms: Unpack[ProducerOptions]) -> AioProducer:
        """Gathers messages of many tasks into few writes, each of them exactly once; ProducerSettings has the
        arguments.
        """
        return AioProducer(self, ProducerSettings(key, **terms))

    def read_tables(self, key: Any, first: int | str = 1, last: int | None = None, **terms: Any) -> AsyncIterator[Any]:
        """The messages of a stream, in order, as pyarrow Tables; see penstock.Client."""
        return aio_read_tables(self._read_table, Span(key, first, last, **terms))

    async def _read_table(self, words: Words) -> Any:
        batch = table_read(words)
        await self.run(batch)
        return table_of(batch, self.response_callbacks)

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> Pipeline:
        return Pipeline(self, transaction, shard_hint)

    async def initialize(self) -> Self:
        """Open a closed client again, for `await client` and `async with client`. It connects when
        it must.
        """
        self._reopen()
        return self

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """End all connections. Commands that have no reply fail; so do later ones, until `async with client:` opens it
        again.
        """
        closes_pool = self.auto_close_connection_pool if close_connection_pool is None else close_connection_pool
        for worker in list(self._workers):
            await worker.aclose()
        for connection in self._connections():
            await connection.aclose(None if closes_pool else self._handoff.leave)
        await super().aclose(close_connection_pool)

    def __del__(self, _warn: Any = warnings.warn, _grl: Any = None) -> None:
        if not hasattr(self, "_connection"):
            return  # the constructor failed
        leave = None if self.auto_close_connection_pool else self._handoff.leave
        if sum(connection.abandon(leave) for connection in self._connections()):
            _warn(f"unclosed client {self!r}: use `async with`, or await aclose()", ResourceWarning, source=self)


class Pipeline(PipelineBase, StreamCommands, Shortcuts, redis.asyncio.client.Pipeline):  # type: ignore[misc]
    """redis-py's asyncio pipeline, written in one go and finished by the core."""

    def __init__(self, client: Client, transaction: bool, shard_hint: Any) -> None:
        super().__init__(client.connection_pool, client.response_callbacks, transaction, shard_hint)
        self._client = client
        self._own: AbstractContextManager[AioConnection] | None = (
            None  # while watching, the hold on a connection of our own
        )
        self._connection: AioConnection | None = None

    async def __aenter__(self) -> Self:
        return self

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        stack = self.command_stack
        if not stack and not self.watching:
            return []
        try:
            with told_of_all(len(stack)), self.as_watch_error():
                if self.scripts:
                    await self.load_scripts()  # type: ignore[no-untyped-call]
                batch = batch_of(
                    stack, self.is_transaction or self.explicit_transaction, self._client.decoding is not None
                )
                with refusal_of(batch, raise_on_error or self.watching):
                    await (self._connection or self._client).run(batch)
                self.unwatched_by(batch)
                results = results_of(batch, stack, self.response_callbacks, raise_on_error, self)
            return [await result if inspect.isawaitable(result) else result for result in results]
        finally:
            await self.reset()

    async def immediate_execute_command(self, *args: Any, **options: Any) -> Any:
        if args[0] != "WATCH" and not self.watching:
            return await self._client.execute_command(*args, **options)
        if self._connection is None:
            self._own = self._client.own_connection()
            self._connection = self._own.__enter__()
        batch = call(args, options, is_shared=False)
        with self.as_watch_error():
            await self._connection.run(batch)
            return self.watched_answer(batch, options)

    async def reset(self) -> None:  # type: ignore[override]
        connection, own, was_watching = self._connection, self._own, self.start_over()
        if connection is None or own is None:
            return
        try:
            if was_watching:
                await connection.run(call(("UNWATCH",), {}, is_shared=False))
        except redis.RedisError:
            pass  # the WATCH went with its connection
        finally:
            own.__exit__(None, None, None)
