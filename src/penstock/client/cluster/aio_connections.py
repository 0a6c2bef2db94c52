"""Connections to the nodes of a cluster for asyncio, and the exchange of many batches over them at once.

What sync_connections.py is for threads. redis-py opens each connection with streams; batches are written to all of them
before the first reply is awaited. A connection whose exchange is cancelled is closed: replies are still on their way to
it. A batch that is alone, and small, goes over the connection that all tasks share (shared_connection.py): what they
call in one turn of the loop travels together.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from functools import partial
from typing import Any

import redis
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from penstock.client.cluster.call_bounds import CallBounds
from penstock.client.cluster.driver_requests import Exchange, NodeBatch, Outcome, Rules
from penstock.client.cluster.pool import READ_SIZE, WRITE_SIZE, Key, NodePool, connection_arguments
from penstock.client.cluster.replies import NodeReplyReader
from penstock.client.cluster.shared_connection import (
    as_batch,
    closed,
    core_maker,
    goes_shared,
    may_share,
    no_answer,
    too_many,
)
from penstock.client.cluster.slot_map import Address
from penstock.client.drivers.aio import AioConnection
from penstock.client.drivers.connecting import as_lost, connection_maker
from penstock.client.errors import NotSent


class AioNodeConnection:
    """One connection to one node, in one event loop."""

    __slots__ = ("__weakref__", "_redis_connection", "loop", "reader", "replies", "writer")

    def __init__(self, redis_connection: Any) -> None:
        self._redis_connection = redis_connection
        self.replies = NodeReplyReader(redis_connection.encoder)
        self.loop = asyncio.get_running_loop()

    async def open(self) -> None:
        await self._redis_connection.connect()
        self.reader: asyncio.StreamReader = self._redis_connection._reader
        self.writer: asyncio.StreamWriter = self._redis_connection._writer

    def whose(self) -> str:
        """See pool.OwnConnection."""
        return "" if self.loop is asyncio.get_running_loop() else "what was watched is gone with its event loop"

    def is_usable(self) -> bool:
        """Whether the node has not closed it while it lay idle."""
        return self.loop is asyncio.get_running_loop() and not self.reader.at_eof() and not self.writer.is_closing()

    def close(self) -> None:
        """At once, without a farewell."""
        if not self.loop.is_closed():
            self._redis_connection._close()

    async def aclose(self) -> None:
        """Until the transport is closed, which takes TLS a few turns of the loop."""
        if self.loop is asyncio.get_running_loop():
            with contextlib.suppress(OSError, TimeoutError, redis.RedisError):
                async with asyncio.timeout(1.0):
                    await self._redis_connection.disconnect()
        else:
            self.close()


class _InFlight:
    """A batch on its way. It is given to the transport bit by bit: what was not given is sure not to have been sent."""

    __slots__ = ("_data", "_given", "batch", "connection", "outcome")

    def __init__(self, batch: NodeBatch, connection: AioNodeConnection) -> None:
        self.batch = batch
        self.connection = connection
        self.outcome = Outcome([])
        self._data = batch.joined()
        self._given = 0
        self._give()

    def _give(self) -> None:
        chunk = self._data[self._given : self._given + WRITE_SIZE]
        self._given += len(chunk)
        self.connection.writer.write(chunk)

    async def _give_rest(self) -> None:
        with contextlib.suppress(OSError):  # the reading task gets the error, too
            while self._given < len(self._data):
                await self.connection.writer.drain()
                self._give()

    async def finish(self, silence: float | None, at: float | None) -> None:
        """All replies, or why there are no more; `at` is when the call's time is up, by the loop's clock."""
        if self._given == len(self._data):
            await self._read(silence, at)
            return
        writing = asyncio.ensure_future(self._give_rest())
        try:
            await self._read(silence, at)
        finally:
            writing.cancel()
            await asyncio.wait([writing])

    async def _read(self, silence: float | None, at: float | None) -> None:
        batch, connection, replies = self.batch, self.connection, self.outcome.replies
        seconds = None if silence is None or batch.patience is None else silence + batch.patience
        time = connection.loop.time
        try:
            while len(replies) < len(batch.pieces):
                silent_at = None if seconds is None else time() + seconds
                async with asyncio.timeout_at(min((end for end in (silent_at, at) if end is not None), default=None)):
                    data = await connection.reader.read(READ_SIZE)
                if not data:
                    raise redis.ConnectionError("the node closed the connection")
                connection.replies.take(data, replies, batch)
        except TimeoutError:
            self._fail(no_answer(batch.address, at is not None and time() >= at, seconds))
        except (OSError, redis.RedisError) as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Note the error, and how many bytes were sent: those that the transport passed to the system.

        For a lost transport this is unknown, so all bytes count as sent.
        """
        transport = self.connection.writer.transport
        accepted = self._given - (0 if transport.is_closing() else transport.get_write_buffer_size())
        self.outcome = Outcome(self.outcome.replies, error, accepted, is_written=accepted == len(self._data))


class AioNodePool(NodePool[AioNodeConnection, AioConnection]):
    """Connections by node; `exchange` is the one thing to do with them. All in the loop's thread."""

    def __init__(self, arguments: Mapping[str, Any], rules: Rules, bounds: CallBounds, encoder: Any) -> None:
        self._arguments = {**connection_arguments(arguments), "retry": Retry(NoBackoff(), 0)}
        super().__init__(rules, bounds, partial(AioConnection, core_maker(self._arguments, encoder)))
        self._silence: float | None = self._arguments.get("socket_timeout", 5.0)
        self._clients: dict[Address, redis.asyncio.Redis] = {}

    def client(self, address: Address) -> redis.asyncio.Redis:
        """A redis-py client of one node, for what concerns one node."""
        client = self._clients.get(address)
        if client is None:
            client = self._clients[address] = redis.asyncio.Redis(host=address[0], port=address[1], **self._arguments)
        return client

    async def exchange(self, wanted: Exchange) -> list[Outcome]:
        """Write every batch, then read replies, from whichever node has some."""
        batches, then, until = wanted.batches, wanted.then, wanted.until
        if len(batches) == 1 and goes_shared(batches[0]):
            outcome = await self._share(batches[0], until)
            if then is not None and (more := then(batches[0], outcome)):
                await self.exchange(Exchange(more, then, until))
            if self._events:
                self.tell()
            return [outcome]
        roads: dict[Key, asyncio.Lock] = defaultdict(asyncio.Lock)

        async def fly(batch: NodeBatch) -> Outcome:
            async with roads[batch.address, batch.from_replica]:
                outcome = await self._fly(batch, until)
            if then is not None:
                await _all(fly, then(batch, outcome))
            return outcome

        outcomes = await _all(fly, batches)
        if self._events:
            self.tell()
        return outcomes

    async def _share(self, batch: NodeBatch, until: float) -> Outcome:
        """Use the shared connection."""
        if (refusal := self.refusal(until)) is not None:
            return refusal
        key = (batch.address, batch.from_replica)
        connection = self._shared.get(key) or self.sharing(key)
        made = as_batch(batch, self.loop_time(until))
        try:
            await connection.run(made)
        except NotSent as error:
            self.refuse(made, error)
        return self.outcome(made, batch.address, until)

    def loop_time(self, until: float) -> float:
        """From the clock of the rules to that of the loop."""
        return asyncio.get_running_loop().time() + until - self.rules.clock()

    async def _fly(self, batch: NodeBatch, until: float) -> Outcome:
        if (refusal := self.refusal(until)) is not None:
            return refusal
        at = None if until == math.inf else self.loop_time(until)
        connection = await self._take(batch, at)
        if connection is None:
            return await self._share(batch, until) if may_share(batch) else too_many(batch, self.rules.max_connections)
        if isinstance(connection, Outcome):
            return connection
        try:
            flight = _InFlight(batch, connection)
            await flight.finish(self._silence, at)
        except BaseException:  # cancelled: replies are still on their way to it
            self.dismiss(batch.address, connection)
            raise
        self.give_back(batch, flight.outcome, connection)
        return flight.outcome

    async def forget_departed(self, known: Container[Address]) -> None:
        """As `forget`, and what was shared."""
        self.forget(known)
        for connection in self.take_departed(known):
            await connection.aclose()
        for address in [address for address in self._clients if address not in known]:
            await self._clients.pop(address).aclose()

    async def close(self) -> None:
        self.is_closed = True
        idle = [connection for connections in self._idle.values() for connection in connections]
        self._idle = {}
        await asyncio.gather(
            *(connection.aclose() for connection in idle),
            *(connection.aclose() for connection in self._shared.values()),
        )
        for held in self.every():  # a call that waits for a reply ends now
            held.close()
        for client in self._clients.values():
            await client.aclose()
        await asyncio.sleep(0)  # transports close in the loop's next turn

    def abandon(self) -> bool:
        """The client is gone, and was not closed: end what is shared. Whether there was something."""
        return bool(sum(connection.abandon() for connection in self._shared.values()))

    async def _take(self, batch: NodeBatch, at: float | None) -> AioNodeConnection | Outcome | None:
        """A connection for a batch alone, or why there is none; None if there are too many already."""
        try:
            if (at_hand := self.at_hand(batch)) is not None:
                return at_hand
        except redis.ConnectionError as lost:
            return Outcome([], lost, connected=False)
        redis_connection = self.make_connection(batch.address, batch.from_replica)
        connection = AioNodeConnection(redis_connection)
        if not self.admit(batch.address, connection):
            return None
        try:
            async with asyncio.timeout_at(at):
                await connection.open()
        except (OSError, redis.RedisError) as error:
            self._open[batch.address].discard(connection)
            self.not_opened(batch.address)
            with contextlib.suppress(OSError, redis.RedisError):
                await redis_connection.disconnect(nowait=True)
            return Outcome([], as_lost(error), connected=False)
        except BaseException:
            self.dismiss(batch.address, connection)
            raise
        self.answers(batch.address)
        if self.is_closed:  # while it waited
            self.dismiss(batch.address, connection)
            return closed()
        return connection

    def make_connection(self, address: Address, from_replica: bool) -> Any:
        pool = self.client(address).connection_pool
        return connection_maker(pool, Retry(NoBackoff(), 0), _read_only if from_replica else None)()


async def _read_only(redis_connection: Any) -> None:
    """Prepare a connection that reads from a replica."""
    await redis_connection.on_connect()
    await redis_connection.send_command("READONLY")
    await redis_connection.read_response()


async def _all(fly: Callable[[NodeBatch], Awaitable[Outcome]], batches: Sequence[NodeBatch]) -> list[Outcome]:
    """All at once; if one fails, none goes on."""
    if len(batches) < 2:
        return [await fly(batch) for batch in batches]
    tasks = [asyncio.ensure_future(fly(batch)) for batch in batches]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
