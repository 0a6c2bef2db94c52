"""Blocking connections to the nodes of a cluster, and the exchange of many batches over them at once.

redis-py makes each connection (TLS, login, HELLO, names), then the socket is ours: not blocking, so that one thread writes to every
node before it reads from any, and still takes replies from a node that would rather be read than write more. A link is
owned by the exchange that took it; idle links lie in lists whose `pop` and `append` are atomic, so threads share them
without a lock.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

import hiredis
import redis
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry

from penstock.client.cluster.effects import Batch, Outcome, Then
from penstock.client.cluster.errors import Moved, decode_errors
from penstock.client.cluster.idle import IdleLinks
from penstock.client.cluster.slot_map import Address, shown
from penstock.client.delivery import State
from penstock.client.errors import ClientClosed

MORE: Final = object()
READ_SIZE = 1 << 16
_WRITE_SIZE = 1 << 18
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def connection_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What redis-py's clients of a node are given: no retries of their own, those are decided here."""
    return {
        **arguments,
        "retry": Retry(NoBackoff(), 0),
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    }


def make_reader(encoder: Any) -> Any:
    """A parser of replies, for a connection with this encoder."""
    arguments: dict[str, Any] = {"encoding": encoder.encoding} if encoder.decode_responses else {}
    return hiredis.Reader(
        protocolError=redis.InvalidResponse, replyError=cast("Callable[[str], Exception]", Moved), errors=encoder.encoding_errors, notEnoughData=MORE, **arguments
    )  # fmt: skip


def take_replies(reader: Any, into: list[Any], batch: Batch) -> None:
    """All whole replies that the parser holds; what nobody asked for (pushes) is passed over.

    A reply that was read whole and cannot be decoded is the loss of its command alone.
    """
    wanted, raw = len(batch.pieces), batch.raw
    while (known := len(into)) < wanted:
        try:
            into.extend(_one(reader, known not in raw) if raw else iter(reader.gets, MORE))
        except redis.InvalidResponse:
            raise
        except Exception as error:
            error.state = State.REPLIED  # type: ignore[attr-defined]
            into.append(error)
            continue
        if len(into) == known:
            return
        kinds = set(map(type, into[known:]))
        if Moved in kinds:
            into[known:] = decode_errors(into[known:])
        if hiredis.PushNotification in kinds:
            into[known:] = [reply for reply in into[known:] if reply.__class__ is not hiredis.PushNotification]
    if len(into) > wanted:
        raise redis.InvalidResponse(f"a reply nobody asked for: {into.pop()!r}")


def _one(reader: Any, decoded: bool) -> list[Any]:
    reply = reader.gets(decoded)
    return [] if reply is MORE else [reply]


class Link:
    """One connection to one node."""

    __slots__ = ("_buffer", "_connection", "is_tls", "reader", "socket")

    def __init__(self, connection: Any, from_replica: bool) -> None:
        connection.connect()
        if from_replica:
            connection.send_command("READONLY")
            connection.read_response()
        self._connection = connection
        self.socket: socket.socket = connection._sock
        self.socket.setblocking(False)
        self.is_tls = isinstance(self.socket, ssl.SSLSocket)
        self.reader = make_reader(connection.encoder)
        self._buffer = bytearray(READ_SIZE)

    def receive(self) -> bool:
        """Feed what there is to the parser; False if there is nothing now. ConnectionError at the end."""
        try:
            size = self.socket.recv_into(self._buffer)
        except _NOT_NOW:
            return False
        if not size:
            raise redis.ConnectionError("the node closed the connection")
        self.reader.feed(self._buffer, 0, size)
        return True

    def is_usable(self) -> bool:
        """Whether the node has not closed it while it lay idle."""
        try:
            return not self.receive() or self.reader.gets().__class__ is hiredis.PushNotification
        except (OSError, redis.RedisError):
            return False

    def close(self) -> None:
        self._connection.disconnect()


class _Flight:
    """A batch on its way."""

    __slots__ = ("_data", "batch", "deadline", "link", "outcome", "sent")

    def __init__(self, batch: Batch, link: Link) -> None:
        self.batch = batch
        self.link = link
        self.outcome = Outcome([])
        self._data = memoryview(batch.pieces[0] if len(batch.pieces) == 1 else b"".join(batch.pieces))
        self.sent = 0
        self.deadline = 0.0

    @property
    def is_written(self) -> bool:
        return self.sent == len(self._data)

    @property
    def is_done(self) -> bool:
        return self.outcome.error is not None or (
            len(self.outcome.replies) == len(self.batch.pieces) and self.is_written
        )

    def write(self) -> None:
        try:
            while not self.is_written:
                self.sent += self.link.socket.send(self._data[self.sent : self.sent + _WRITE_SIZE])
        except _NOT_NOW:
            return
        except OSError as error:
            with contextlib.suppress(OSError, redis.RedisError):  # what was answered before the end counts
                while self.link.receive():
                    take_replies(self.link.reader, self.outcome.replies, self.batch)
            self.fail(error)

    def read(self) -> None:
        try:
            while self.link.receive():
                take_replies(self.link.reader, self.outcome.replies, self.batch)
                if not self.link.is_tls or self.is_done:  # a poll sees only what TLS has not decrypted yet
                    return
        except (OSError, redis.RedisError) as error:
            self.fail(error)

    def fail(self, error: Exception) -> None:
        self.outcome.error = error
        self.outcome.accepted = self.sent
        self.outcome.is_written = self.is_written


class Links(IdleLinks[Link]):
    """Connections by node; `exchange` is the one thing to do with them."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        super().__init__()
        self._arguments = connection_arguments(arguments)
        self._silence: float | None = self._arguments.get("socket_timeout", 5.0)
        self._clients: dict[Address, redis.Redis] = {}
        self._process = os.getpid()

    def client(self, address: Address) -> redis.Redis:
        """A redis-py client of one node, for what concerns one node."""
        client = self._clients.get(address)
        if client is None:
            client = redis.Redis(host=address[0], port=address[1], **self._arguments)
            client = self._clients.setdefault(address, client)
        return client

    def exchange(self, batches: Sequence[Batch], then: Then | None = None) -> list[Outcome]:
        """Write every batch, then read replies, from whichever node has some."""
        if self._closed:
            raise ClientClosed("the client was closed")
        exchange = _Exchange(self, self._silence, then)
        try:
            outcomes = [exchange.start(batch) for batch in batches]
            exchange.finish()
        except BaseException:  # an interrupt: replies are still on their way to these
            exchange.abandon()
            raise
        return outcomes

    def close(self) -> None:
        self._closed = True
        for links in self._idle.values():
            while links:
                links.pop().close()
        for client in self._clients.values():
            client.close()

    def take(self, batch: Batch) -> Link:
        if (lane := batch.lane) is not None and lane.link is not None:
            held: Link = lane.link
            if lane.address == batch.address:
                return held
            lane.link = None
            held.close()
        if self._process != os.getpid():  # forked: the parent's connections are not ours to use
            self._idle, self._clients, self._process = {}, {}, os.getpid()
        idle = self._idle.get((batch.address, batch.from_replica))
        while idle:
            try:
                link = idle.pop()
            except IndexError:  # another thread took the last one
                break
            if link.is_usable():
                return link
            link.close()
        return Link(self.client(batch.address).connection_pool.make_connection(), batch.from_replica)


class _Exchange:
    """Batches on their way, and those that follow them."""

    def __init__(self, links: Links, silence: float | None, then: Then | None) -> None:
        self._links = links
        self._silence = silence
        self._then = then
        self._poll = select.poll()
        self._flights: dict[int, _Flight] = {}  # by the number of their socket
        self._waiting: list[Batch] = []  # to be sent when nothing else is under way to their node

    def start(self, batch: Batch) -> Outcome:
        """Write a batch, as far as the socket takes it."""
        try:
            flight = _Flight(batch, self._links.take(batch))
        except (OSError, redis.RedisError) as error:
            outcome = Outcome([], error, connected=False)
            self._over(batch, outcome)
            return outcome
        descriptor = flight.link.socket.fileno()
        self._flights[descriptor] = flight
        flight.write()
        flight.deadline = self._deadline(flight, time.monotonic())
        self._poll.register(descriptor, select.POLLIN if flight.is_written else select.POLLIN | select.POLLOUT)
        if flight.is_done:
            self._land(descriptor)
        return flight.outcome

    def finish(self) -> None:
        """Read and write until every batch has its outcome."""
        flights, now = self._flights, time.monotonic()
        while flights:
            first = min(flight.deadline for flight in flights.values())
            events = self._poll.poll(None if first == _NEVER else max(0.0, first - now) * 1000)
            now = time.monotonic()
            for descriptor, event in events:
                flight = flights[descriptor]
                was_written = flight.is_written
                if not was_written and event & select.POLLOUT:
                    flight.write()
                if event & ~select.POLLOUT:
                    flight.read()
                flight.deadline = self._deadline(flight, now)
                if flight.is_done:
                    self._land(descriptor)
                elif flight.is_written and not was_written:
                    self._poll.modify(descriptor, select.POLLIN)
            for descriptor, flight in list(flights.items()):
                if flight.deadline <= now:
                    flight.fail(redis.TimeoutError(f"{shown(flight.batch.address)} was silent for {self._silence} s"))
                    self._land(descriptor)

    def abandon(self) -> None:
        for flight in self._flights.values():
            flight.link.close()

    def _land(self, descriptor: int) -> None:
        flight = self._flights.pop(descriptor)
        self._poll.unregister(descriptor)
        self._links.give_back(flight.batch, flight.outcome, flight.link)
        self._over(flight.batch, flight.outcome)

    def _over(self, batch: Batch, outcome: Outcome) -> None:
        """A batch has its outcome: others may follow it, and others may have waited for its node."""
        if self._then is None:
            return
        self._waiting += self._then(batch, outcome)
        busy = {(flight.batch.address, flight.batch.from_replica) for flight in self._flights.values()}
        ready = [batch for batch in self._waiting if (batch.address, batch.from_replica) not in busy]
        self._waiting = [batch for batch in self._waiting if (batch.address, batch.from_replica) in busy]
        for batch in ready:
            self.start(batch)

    def _deadline(self, flight: _Flight, now: float) -> float:
        patience = flight.batch.patience
        return _NEVER if self._silence is None or patience is None else now + self._silence + patience


_NEVER = float("inf")
