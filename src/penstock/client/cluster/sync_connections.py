"""Blocking connections to the nodes of a cluster, and the exchange of many batches over them at once.

redis-py makes each connection (TLS, login, HELLO, names), then the socket is ours: not blocking, so that one thread
writes to every node before it reads from any, and still takes replies from a node that would rather be read than write
more. A connection is owned by the exchange that took it. A batch that is alone, and small, goes over the connection
that all threads share (shared_connection.py).
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from collections.abc import Container, Mapping
from functools import partial
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from penstock.client.cluster.call_bounds import CallBounds
from penstock.client.cluster.driver_requests import Exchange, NodeBatch, Outcome, Rules
from penstock.client.cluster.pool import READ_SIZE, WRITE_SIZE, NodePool, connection_arguments
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
from penstock.client.drivers.connecting import close_half_open, connection_maker, limit_opening
from penstock.client.drivers.polling import POLLIN, POLLOUT, new_poll
from penstock.client.drivers.sync import Reentered, SyncConnection
from penstock.client.errors import NotSent

_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def read_only(redis_connection: Any) -> None:
    """Prepare a connection that reads from a replica."""
    redis_connection.on_connect()
    redis_connection.send_command("READONLY")
    redis_connection.read_response()


class NodeConnection:
    """One connection to one node."""

    __slots__ = ("__weakref__", "_buffer", "_process", "_redis_connection", "is_tls", "replies", "socket")

    def __init__(self, redis_connection: Any) -> None:
        self._redis_connection = redis_connection
        self._process = os.getpid()
        self.replies = NodeReplyReader(redis_connection.encoder)
        self._buffer = memoryview(bytearray(READ_SIZE))

    def open(self, seconds: float | None) -> None:
        limit_opening(self._redis_connection, seconds)
        try:
            self._redis_connection.connect()
        except BaseException as error:
            close_half_open(error)
            raise
        self.socket: socket.socket = self._redis_connection._sock
        self.socket.setblocking(False)
        self.is_tls = isinstance(self.socket, ssl.SSLSocket)

    def receive(self) -> memoryview | None:
        """The received bytes; None if there are none now. ConnectionError at the end."""
        try:
            size = self.socket.recv_into(self._buffer)
        except _NOT_NOW:
            return None
        if not size:
            raise redis.ConnectionError("the node closed the connection")
        return self._buffer[:size]

    def whose(self) -> str:
        """See pool.OwnConnection."""
        return (
            "" if self._process == os.getpid() else "what was watched before the fork is watched for the parent process"
        )

    def is_usable(self) -> bool:
        """Whether the node has not closed it while it lay idle."""
        try:
            return (data := self.receive()) is None or self.replies.is_only_push(data)
        except (OSError, redis.RedisError):
            return False

    def shut_down(self) -> None:
        """End it while another thread may be using it; that thread closes it."""
        with contextlib.suppress(OSError, AttributeError):  # it was not open yet
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._redis_connection.disconnect()


class _InFlight:
    """A batch on its way."""

    __slots__ = ("_data", "batch", "connection", "deadline", "outcome", "sent")

    def __init__(self, batch: NodeBatch, connection: NodeConnection) -> None:
        self.batch = batch
        self.connection = connection
        self.outcome = Outcome([])
        self._data = batch.joined()
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
                self.sent += self.connection.socket.send(self._data[self.sent : self.sent + WRITE_SIZE])
        except _NOT_NOW:
            return
        except OSError as error:
            with contextlib.suppress(OSError, redis.RedisError):  # what was answered before the end counts
                while self._take():
                    pass
            self.fail(error)

    def read(self) -> None:
        try:
            while self._take():
                if not self.connection.is_tls or self.is_done:  # a poll sees only what TLS has not decrypted yet
                    return
        except (OSError, redis.RedisError) as error:
            self.fail(error)

    def _take(self) -> bool:
        """Read once; False if there is nothing now."""
        data = self.connection.receive()
        if data is None:
            return False
        self.connection.replies.take(data, self.outcome.replies, self.batch)
        return True

    def fail(self, error: Exception) -> None:
        self.outcome.error = error
        self.outcome.accepted = self.sent
        self.outcome.is_written = self.is_written


class SyncNodePool(NodePool[NodeConnection, SyncConnection]):
    """Connections by node; `exchange` is the one thing to do with them."""

    def __init__(self, arguments: Mapping[str, Any], rules: Rules, bounds: CallBounds, encoder: Any) -> None:
        self._arguments = connection_arguments(arguments)
        super().__init__(rules, bounds, partial(SyncConnection, core_maker(self._arguments, encoder)))
        self.silence: float | None = self._arguments.get("socket_timeout", 5.0)
        self._clients: dict[Address, redis.Redis] = {}

    def client(self, address: Address) -> redis.Redis:
        """A redis-py client of one node, for what concerns one node."""
        client = self._clients.get(address)
        if client is None:
            client = redis.Redis(host=address[0], port=address[1], **self._arguments)
            client = self._clients.setdefault(address, client)
        return client

    def exchange(self, wanted: Exchange) -> list[Outcome]:
        """Write every batch, then read replies, from whichever node has some."""
        batches = wanted.batches
        if len(batches) == 1 and goes_shared(batches[0]):
            outcome = self.share(batches[0], wanted.until)
            if outcome is not None:
                if wanted.then is not None and (more := wanted.then(batches[0], outcome)):
                    self.exchange(Exchange(more, wanted.then, wanted.until))
                if self._events:
                    self.tell()
                return [outcome]
        exchange = _Exchange(self, wanted)
        try:
            outcomes = [exchange.start(batch) for batch in batches]
            exchange.finish()
        except BaseException:  # an interrupt: replies are still on their way to these
            exchange.abandon()
            raise
        if self._events:
            self.tell()
        return outcomes

    def share(self, batch: NodeBatch, until: float) -> Outcome | None:
        """Use the shared connection. None: this is a signal handler, which would wait for the call that it
        interrupts.
        """
        if (refusal := self.refusal(until)) is not None:
            return refusal
        key = (batch.address, batch.from_replica)
        connection = self._shared.get(key) or self.sharing(key)
        made = as_batch(batch, until)
        try:
            connection.run(made)
        except Reentered:
            return None
        except NotSent as error:
            self.refuse(made, error)
        return self.outcome(made, batch.address, until)

    def forget(self, known: Container[Address]) -> None:
        super().forget(known)
        with self._lock:
            for connection in self.take_departed(known):
                connection.close()  # a thread that has it already finds it closed, and looks again
            for address in [address for address in self._clients if address not in known]:
                del self._clients[address]

    def close(self) -> None:
        self.is_closed = True
        for shared in list(self._shared.values()):
            shared.close()
        for key in list(self._idle):
            while (connection := self.take_idle(key)) is not None:
                self.dismiss(key[0], connection)
        for held in self.every():  # a call that waits for a reply ends now
            held.shut_down()
        for client in list(self._clients.values()):
            client.close()

    def after_fork(self) -> None:
        super().after_fork()
        self._clients = {}

    def take(self, batch: NodeBatch, until: float) -> NodeConnection | None:
        """A connection for a batch alone; None if there are too many already."""
        if (at_hand := self.at_hand(batch)) is not None:
            return at_hand
        connection = NodeConnection(self.make_connection(batch.address, batch.from_replica))
        if not self.admit(batch.address, connection):
            return None
        try:
            connection.open(None if until == _NEVER else until - self.rules.clock())
        except BaseException:
            self.not_opened(batch.address)
            self.dismiss(batch.address, connection)
            raise
        self.answers(batch.address)
        return connection

    def make_connection(self, address: Address, from_replica: bool) -> Any:
        pool = self.client(address).connection_pool
        return connection_maker(pool, Retry(NoBackoff(), 0), read_only if from_replica else None)()


class _Exchange:
    """Batches on their way, and those that follow them."""

    def __init__(self, pool: SyncNodePool, wanted: Exchange) -> None:
        self._pool = pool
        self._clock = pool.rules.clock
        self._silence = pool.silence
        self._then = wanted.then
        self._until = wanted.until
        self._poll = new_poll()
        self._in_flight: dict[int, _InFlight] = {}  # by the number of their socket
        self._waiting: list[NodeBatch] = []  # to be sent when nothing else is under way to their node
        self._sharing: list[
            tuple[NodeBatch, Outcome]
        ] = []  # those for which there is no connection, and where their outcomes go

    def start(self, batch: NodeBatch) -> Outcome:
        """Write a batch, as far as the socket takes it."""
        if (refusal := self._pool.refusal(self._until)) is not None:
            return self._ended(batch, refusal)
        try:
            connection = self._pool.take(batch, self._until)
        except (OSError, redis.RedisError) as error:
            return self._ended(batch, Outcome([], error, connected=False))
        if connection is None:
            outcome = too_many(batch, self._pool.rules.max_connections)
            if not may_share(batch):
                return self._ended(batch, outcome)
            self._sharing.append((batch, outcome))
            return outcome
        if self._pool.is_closed:  # while it waited
            self._pool.dismiss(batch.address, connection)
            return self._ended(batch, closed())
        flight = _InFlight(batch, connection)
        descriptor = flight.connection.socket.fileno()
        self._in_flight[descriptor] = flight
        flight.write()
        flight.deadline = self._deadline(flight, self._clock())
        self._poll.register(descriptor, POLLIN if flight.is_written else POLLIN | POLLOUT)
        if flight.is_done:
            self._end_flight(descriptor)
        return flight.outcome

    def finish(self) -> None:
        """Read and write until every batch has its outcome."""
        while self._in_flight or self._sharing:
            self._read_and_write()
            if self._sharing:
                batch, outcome = self._sharing.pop(0)
                shared = self._pool.share(batch, self._until)
                if shared is not None:
                    outcome.take_over(shared)
                self._over(batch, outcome)

    def _read_and_write(self) -> None:
        flights, now = self._in_flight, self._clock()
        while flights:
            first = min(flight.deadline for flight in flights.values())
            events = self._poll.poll(None if first == _NEVER else max(0.0, first - now) * 1000)
            now = self._clock()
            for descriptor, event in events:
                flight = flights[descriptor]
                was_written = flight.is_written
                if not was_written and event & POLLOUT:
                    flight.write()
                if event & ~POLLOUT:
                    flight.read()
                flight.deadline = self._deadline(flight, now)
                if flight.is_done:
                    self._end_flight(descriptor)
                elif flight.is_written and not was_written:
                    self._poll.modify(descriptor, POLLIN)
            for descriptor, flight in list(flights.items()):
                if flight.deadline <= now:
                    flight.fail(self._too_late(flight, now))
                    self._end_flight(descriptor)

    def _too_late(self, flight: _InFlight, now: float) -> Exception:
        return no_answer(flight.batch.address, now >= self._until, self._silence)

    def abandon(self) -> None:
        for flight in self._in_flight.values():
            self._pool.dismiss(flight.batch.address, flight.connection)

    def _end_flight(self, descriptor: int) -> None:
        flight = self._in_flight.pop(descriptor)
        self._poll.unregister(descriptor)
        self._pool.give_back(flight.batch, flight.outcome, flight.connection)
        self._over(flight.batch, flight.outcome)

    def _ended(self, batch: NodeBatch, outcome: Outcome) -> Outcome:
        """Before it began."""
        self._over(batch, outcome)
        return outcome

    def _over(self, batch: NodeBatch, outcome: Outcome) -> None:
        """A batch has its outcome: others may follow it, and others may have waited for its node."""
        if self._then is None:
            return
        self._waiting += self._then(batch, outcome)
        busy = {(flight.batch.address, flight.batch.from_replica) for flight in self._in_flight.values()}
        ready = [batch for batch in self._waiting if (batch.address, batch.from_replica) not in busy]
        self._waiting = [batch for batch in self._waiting if (batch.address, batch.from_replica) in busy]
        for batch in ready:
            self.start(batch)

    def _deadline(self, flight: _InFlight, now: float) -> float:
        patience = flight.batch.patience
        silent = _NEVER if self._silence is None or patience is None else now + self._silence + patience
        return min(silent, self._until)


_NEVER = float("inf")
