"""Connections to the nodes of a cluster for asyncio, and the exchange of many batches over them at once.

What links.py is for threads. redis-py opens each connection with streams; batches are written to all of them before the first
reply is awaited. A link whose exchange is cancelled is closed: replies are still on their way to it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import redis
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from penstock.client.cluster.effects import Batch, Outcome, Then
from penstock.client.cluster.idle import IdleLinks
from penstock.client.cluster.links import READ_SIZE, connection_arguments, make_reader, take_replies
from penstock.client.cluster.slot_map import Address, shown
from penstock.client.errors import ClientClosed


class Link:
    """One connection to one node, in one event loop."""

    __slots__ = ("_connection", "loop", "parser", "reader", "writer")

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.reader: asyncio.StreamReader = connection._reader
        self.writer: asyncio.StreamWriter = connection._writer
        self.parser = make_reader(connection.encoder)
        self.loop = asyncio.get_running_loop()

    @classmethod
    async def open(cls, connection: Any, from_replica: bool) -> Link:
        await connection.connect()
        if from_replica:
            await connection.send_command("READONLY")
            await connection.read_response()
        return cls(connection)

    def is_usable(self) -> bool:
        """Whether the node has not closed it while it lay idle."""
        return self.loop is asyncio.get_running_loop() and not self.reader.at_eof() and not self.writer.is_closing()

    def close(self) -> None:
        """At once, without a farewell."""
        if not self.loop.is_closed():
            self._connection._close()

    async def aclose(self) -> None:
        """Until the transport is closed, which takes TLS a few turns of the loop."""
        if self.loop is asyncio.get_running_loop():
            with contextlib.suppress(OSError, TimeoutError, redis.RedisError):
                async with asyncio.timeout(1.0):
                    await self._connection.disconnect()
        else:
            self.close()


class _Flight:
    """A batch on its way."""

    __slots__ = ("batch", "link", "outcome", "size")

    def __init__(self, batch: Batch, link: Link) -> None:
        self.batch = batch
        self.link = link
        self.outcome = Outcome([])
        data = batch.pieces[0] if len(batch.pieces) == 1 else b"".join(batch.pieces)
        self.size = len(data)
        link.writer.write(data)

    async def read(self, silence: float | None) -> None:
        """All replies, or why there are no more."""
        batch, link, replies = self.batch, self.link, self.outcome.replies
        seconds = None if silence is None or batch.patience is None else silence + batch.patience
        try:
            while len(replies) < len(batch.pieces):
                async with asyncio.timeout(seconds):
                    data = await link.reader.read(READ_SIZE)
                if not data:
                    raise redis.ConnectionError("the node closed the connection")
                link.parser.feed(data)
                take_replies(link.parser, replies, batch)
        except TimeoutError:
            self._fail(redis.TimeoutError(f"{shown(batch.address)} was silent for {seconds} s"))
        except (OSError, redis.RedisError) as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """What the transport has not given to the system was not sent; of a lost one nobody knows, so all counts as sent."""
        transport = self.link.writer.transport
        unsent = 0 if transport.is_closing() else transport.get_write_buffer_size()
        self.outcome = Outcome(self.outcome.replies, error, self.size - unsent, is_written=not unsent)


class Links(IdleLinks[Link]):
    """Connections by node; `exchange` is the one thing to do with them. All in the loop's thread, so nothing is locked."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        super().__init__()
        self._arguments = {**connection_arguments(arguments), "retry": Retry(NoBackoff(), 0)}
        self._silence: float | None = self._arguments.get("socket_timeout", 5.0)
        self._clients: dict[Address, redis.asyncio.Redis] = {}

    def client(self, address: Address) -> redis.asyncio.Redis:
        """A redis-py client of one node, for what concerns one node."""
        client = self._clients.get(address)
        if client is None:
            client = self._clients[address] = redis.asyncio.Redis(host=address[0], port=address[1], **self._arguments)
        return client

    async def exchange(self, batches: Sequence[Batch], then: Then | None = None) -> list[Outcome]:
        """Write every batch, then read replies, from whichever node has some."""
        if self._closed:
            raise ClientClosed("the client was closed")
        roads: dict[tuple[Address, bool], asyncio.Lock] = defaultdict(asyncio.Lock)

        async def fly(batch: Batch) -> Outcome:
            async with roads[batch.address, batch.from_replica]:
                outcome = await self._fly(batch)
            if then is not None:
                await _all(fly, then(batch, outcome))
            return outcome

        return await _all(fly, batches)

    async def _fly(self, batch: Batch) -> Outcome:
        link = await self._take(batch)
        if isinstance(link, Outcome):
            return link
        try:
            flight = _Flight(batch, link)
            await flight.read(self._silence)
        except BaseException:  # cancelled: replies are still on their way to it
            link.close()
            raise
        self.give_back(batch, flight.outcome, link)
        return flight.outcome

    async def close(self) -> None:
        self._closed = True
        idle = [link for links in self._idle.values() for link in links]
        self._idle = {}
        await asyncio.gather(*(link.aclose() for link in idle))
        for client in self._clients.values():
            await client.aclose()
        await asyncio.sleep(0)  # transports close in the loop's next turn

    async def _take(self, batch: Batch) -> Link | Outcome:
        if (lane := batch.lane) is not None and lane.link is not None:
            held: Link = lane.link
            if lane.address == batch.address:
                return held
            lane.link = None
            held.close()
        idle = self._idle.get((batch.address, batch.from_replica))
        while idle:
            link = idle.pop()
            if link.is_usable():
                return link
            link.close()
        connection = self.client(batch.address).connection_pool.make_connection()  # type: ignore[no-untyped-call]
        try:
            return await Link.open(connection, batch.from_replica)
        except (OSError, redis.RedisError) as error:
            with contextlib.suppress(OSError, redis.RedisError):
                await connection.disconnect(nowait=True)
            return Outcome([], error, connected=False)


async def _all(fly: Callable[[Batch], Awaitable[Outcome]], batches: Sequence[Batch]) -> list[Outcome]:
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
