"""penstock.Client: redis.Redis on our core.

    import penstock
    client = penstock.Client.from_url("redis://localhost", delivery="at-most-once")

A client is one logical connection: all threads that share it share one socket, and their commands run in the order of
their calls. What would hold that socket up or change what it is (blocking commands, WATCH) is given one of its own
for as long as it needs it. Pub/sub and MONITOR are redis-py's, on connections of its pool.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Self, Unpack, cast

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from penstock.client.api.calls import answer, call
from penstock.client.api.options import ClientOptions, UrlOptions
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
from penstock.client.api.scripts import RegisteredScript
from penstock.client.api.shared import ClientBase, shown_with_arguments_of, take_options
from penstock.client.api.shortcuts import Shortcuts
from penstock.client.api.streams import StreamCommands
from penstock.client.api.tables import Span, Words, read_tables, table_of, table_read
from penstock.client.api.urls import sync_pool
from penstock.client.consumer.follow import Follow, FollowedBatch, FollowOptions, follow
from penstock.client.consumer.options import ConsumerOptions, ConsumerSettings
from penstock.client.consumer.sync import Consumer, send
from penstock.client.drivers.connecting import connection_maker
from penstock.client.drivers.socket_io import ClientSocket
from penstock.client.drivers.sync import Reentered, SyncConnection
from penstock.client.engine.batch import Batch
from penstock.client.engine.replies import CLOGGED
from penstock.client.producer.options import ProducerOptions, ProducerSettings
from penstock.client.producer.sync import Producer


class Client(ClientBase[SyncConnection], StreamCommands, Shortcuts, redis.Redis):
    """A Redis client that knows what happened to every command; docs/client.md has the whole story.

    Takes all arguments of redis.Redis, and: `delivery` (a Delivery or its name), `replay_filter`, `command_timeout`
    (seconds, reconnecting included), `max_buffered_commands`, `max_buffered_bytes`, `when_full` ("block" or "raise"),
    `backoff_base` and `backoff_cap` (seconds between attempts to reconnect), `on_reconnect` and `on_replay` (called
    with the event).
    """

    @shown_with_arguments_of(redis.Redis.__init__)
    def __init__(self, *args: Any, **given: Unpack[ClientOptions]) -> None:
        kwargs = cast(dict[str, Any], given)
        options = take_options(kwargs)
        is_shared = not kwargs.pop("single_connection_client", False)
        super().__init__(*args, **kwargs)
        self._set_up(options, is_shared)
        self._entered: list[None] = []  # a member for each `with` block that is being run

    @classmethod
    def from_url(cls, url: str, **given: Unpack[UrlOptions]) -> Self:  # type: ignore[override]
        """A client for a URL; our options may also stand in its query: `redis://host/0?delivery=at-most-once`.

        `penstock://a,b,c/orders` names the servers of a shard: the client finds the one that leads (api/urls.py).
        """
        kwargs = cast(dict[str, Any], given)
        options = take_options(kwargs, "single_connection_client")
        client = cls(connection_pool=sync_pool(url, **kwargs), **options)
        client.auto_close_connection_pool = True
        return client

    _driver = ClientSocket

    def _new_connection(self) -> SyncConnection:
        make, handoff = connection_maker(self.connection_pool, Retry(NoBackoff(), 0)), self._handoff
        return SyncConnection(self._make_core, lambda: handoff.take() or make(), self._listeners.tell)

    def execute_command(self, *args: Any, **options: Any) -> Any:
        if args[0] == "HIMPORT SET":  # what redis-py sends for it depends on its own connection
            return super().execute_command(*args, **options)
        batch = call(args, options, self._is_shared)
        self.run(batch)
        return answer(batch, options, self.response_callbacks)

    def execute_many(self, commands: Sequence[Sequence[Any]], raise_on_error: bool = True) -> list[Any]:
        """Run ready commands, such as `(b"SET", key, value)`, in one go: the replies as the server gave them, in order.

        Faster than a pipeline, whose methods and conversions of replies it leaves out. Commands that are `Encoded` need
        no packing.
        """
        if not commands:
            return []
        with told_of_all(len(commands)):
            batch = bulk_batch(commands)
            with refusal_of(batch, raise_on_error):
                self.run(batch)
            return bulk_results(batch, raise_on_error)

    def run(self, batch: Batch) -> None:
        """Have a batch finished, on a connection that suits it."""
        shared = self._connection
        large = self._contact.large and self._contact.was_large(batch.commands)
        is_alone = large or batch.blocks or shared.core.reader.is_clogged or len(batch.data) >= CLOGGED
        if not (is_alone and self.steps_aside(batch)):  # it does not hold the connection up for others, nor they it
            try:
                shared.run(batch)
                return
            except Reentered:
                pass
        with self.own_connection() as connection:
            connection.run(batch)

    def register_script(self, script: str | bytes) -> RegisteredScript:  # type: ignore[override]
        """A script to be called, with its keys and arguments, here or in a pipeline."""
        return RegisteredScript(self, script)

    def consumer(self, key: Key, group: Key, **terms: Unpack[ConsumerOptions]) -> Consumer:
        """A member of a group that acknowledges what it has done; ConsumerSettings has the arguments."""
        return Consumer(self, ConsumerSettings(key, group, **terms))

    def follow(self, key: Key, start: int | str = 1, **terms: Unpack[FollowOptions]) -> Iterator[FollowedBatch]:
        """A stream in batches, from an offset that you keep in a transaction of your own.

        consumer.follow.Follow has the arguments. Like a consumer it waits for a server that does not answer.
        """
        return follow(self.consumer_client(), send, Follow(key, start, **terms))

    def producer(self, key: Key, **terms: Unpack[ProducerOptions]) -> Producer:
        """Gathers messages of many threads into few writes, each of them exactly once; ProducerSettings has the
        arguments.
        """
        return Producer(self, ProducerSettings(key, **terms))

    def read_tables(self, key: Any, first: int | str = 1, last: int | None = None, **terms: Any) -> Iterator[Any]:
        """The messages of a stream, in order, as pyarrow Tables: the next one is being read while you work on the last.

        As those of `read_arrow`, up to the offset `last`, or to the end of the stream. `count` (100,000) and
        `max_bytes` bound a table; `block_ms` waits for more at the end of the stream, 0 for ever. The iteration may be
        left at any time.
        """
        return read_tables(self._read_table, Span(key, first, last, **terms))

    def _read_table(self, words: Words) -> Any:
        batch = table_read(words)
        self.run(batch)
        return table_of(batch, self.response_callbacks)

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> Pipeline:
        return Pipeline(self, transaction, shard_hint)

    def __enter__(self) -> Self:
        self._entered.append(None)
        self._reopen()
        return self

    def __exit__(self, *exc: object) -> None:
        """The last of the threads that have entered closes the client."""
        self._entered.pop()
        if not self._entered:
            self.close()

    def close(self) -> None:
        """End all connections. Commands that have no reply fail; so do later ones, until `with client:`
        opens it again.
        """
        if hasattr(self, "_connection"):  # not if the constructor failed
            for worker in list(self._workers):
                worker.close()
            leave = None if self.auto_close_connection_pool else self._handoff.leave
            for connection in self._connections():
                connection.close(leave)
        super().close()


class Pipeline(PipelineBase, StreamCommands, Shortcuts, redis.client.Pipeline):
    """redis-py's pipeline, written in one go and finished by the core."""

    def __init__(self, client: Client, transaction: bool, shard_hint: Any) -> None:
        super().__init__(client.connection_pool, client.response_callbacks, transaction, shard_hint)
        self._client = client
        self.is_transaction = transaction
        self._own: AbstractContextManager[SyncConnection] | None = (
            None  # while watching, the hold on a connection of our own
        )
        self._connection: SyncConnection | None = None

    def __enter__(self) -> Self:
        return self

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        stack = self.command_stack
        if not stack and not self.watching:
            return []
        try:
            with told_of_all(len(stack)), self.as_watch_error():
                if self.scripts:
                    self.load_scripts()  # type: ignore[no-untyped-call]
                batch = batch_of(
                    stack, self.is_transaction or self.explicit_transaction, self._client.decoding is not None
                )
                with refusal_of(batch, raise_on_error or self.watching):
                    (self._connection or self._client).run(batch)
                self.unwatched_by(batch)
                return results_of(batch, stack, self.response_callbacks, raise_on_error, self)
        finally:
            self.reset()

    def immediate_execute_command(self, *args: Any, **options: Any) -> Any:
        if args[0] != "WATCH" and not self.watching:
            return self._client.execute_command(*args, **options)
        if self._connection is None:
            self._own = self._client.own_connection()
            self._connection = self._own.__enter__()
        batch = call(args, options, is_shared=False)
        with self.as_watch_error():
            self._connection.run(batch)
            return self.watched_answer(batch, options)

    def reset(self) -> None:  # type: ignore[override]
        connection, own, was_watching = self._connection, self._own, self.start_over()
        if connection is None or own is None:
            return
        try:
            if was_watching:
                connection.run(call(("UNWATCH",), {}, is_shared=False))
        except redis.RedisError:
            pass  # the WATCH went with its connection
        finally:
            own.__exit__(None, None, None)
