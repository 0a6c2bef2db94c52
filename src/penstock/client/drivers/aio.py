"""The asyncio driver: any number of tasks, one transport.

Commands submitted in one turn of the loop are written together at its end, and replies that arrive together are
finished together. Everything happens in the loop's thread, so nothing is locked.

redis-py opens the connection with streams; once it is open its transport gets our protocol, which hands bytes to the
core without a task in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
from collections.abc import Callable
from typing import Any

import redis

from penstock.client.drivers.base import DrivenConnection
from penstock.client.drivers.connecting import as_lost, give_up_soon, limit_opening, report_failure, server_of
from penstock.client.drivers.pool_handoff import Leave, identities_left
from penstock.client.engine.batch import Batch
from penstock.client.engine.connection import ConnectionCore
from penstock.client.engine.room import RoomQueue
from penstock.client.errors import BufferFull

READ = 128 * 1024
_of_parents: list[ClientProtocol] = []  # in a child: what must not even be collected


class AioConnection(DrivenConnection):
    """One core on one transport at a time."""

    def _begin(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._protocol: ClientProtocol | None = None
        self._connector: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._flushing = False
        self._room = RoomQueue(self.core, _let_look)
        self._is_abandoned = False

    async def run(self, batch: Batch) -> None:
        """Submit a batch and return when it is finished. Raises NotSent if it was not taken."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._move_to(loop)
        core = self.core
        try:
            self._room.submit(batch, loop.time())
        except BufferFull:
            await self._wait_for_room(batch, loop)
        waiter = batch.waiter = loop.create_future()
        self._act(loop)
        try:
            await waiter
        finally:
            if not batch.is_finished:
                if core.cancel(batch, loop.time()):
                    self._drop()
                    self._act(loop)
                self._wake_finished()

    def change(self, change: Callable[[ConnectionCore, float], object]) -> None:
        """Change the core's settings, and wake the tasks whose batches that finishes."""
        loop = self._loop
        change(self.core, 0.0 if loop is None else loop.time())
        self._wake_finished()
        if loop is not None and not loop.is_closed():  # else the next call moves to a loop that runs
            self._act(loop)

    async def aclose(self, leave: Leave | None = None) -> None:
        """Finish everything and end the connection, or leave it to another if it is as new."""
        self._leave(leave)
        if self._protocol is not None and self.core.is_idle and (farewell := self.core.exactly_once.farewell()):
            self._protocol.transport.write(farewell)
        self.core.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        connector, self._connector = self._connector, None
        if connector is not None:
            connector.cancel()
            await asyncio.wait([connector])
        self._drop()
        self._wake_finished()
        await asyncio.sleep(0)  # the transport closes in the loop's next turn

    def _leave(self, leave: Leave | None) -> None:
        protocol = self._protocol
        if leave is not None and protocol is not None and leave(protocol.redis_connection, self.core):
            self._protocol = None

    def abandon(self, leave: Leave | None = None) -> bool:
        """The client was collected without being closed: end its connection, or leave it to the pool, from any thread.
        True if one was ended.
        """
        self._leave(leave)
        self._is_abandoned = True
        loop, protocol, self._protocol = self._loop, self._protocol, None
        if loop is not None and not loop.is_closed():
            for work in (self._timer, self._connector):
                if work is not None:
                    loop.call_soon_threadsafe(work.cancel)
            if protocol is not None:
                loop.call_soon_threadsafe(protocol.close)
        return protocol is not None

    async def _wait_for_room(self, batch: Batch, loop: asyncio.AbstractEventLoop) -> None:
        """Submit the batch when it fits. Raises BufferFull if waiting is not wanted, or takes too long."""
        core, room = self.core, self._room
        room.enter(batch)
        waiter = batch.waiter = asyncio.Event()
        try:
            async with asyncio.timeout(core.settings.command_timeout):
                while not batch.is_submitted:
                    await waiter.wait()
                    waiter.clear()
                    with contextlib.suppress(BufferFull):
                        room.submit(batch, loop.time())
        except TimeoutError:
            raise core.pending.full() from None
        finally:
            room.leave(batch)

    # -- the loop ---------------------------------------------------------------------------------------------

    def _move_to(self, loop: asyncio.AbstractEventLoop) -> None:
        """A client may outlive a loop (`asyncio.run` twice); its connection does not, nor do calls that were not
        finished there.
        """
        if self._loop is not None and self._loop.is_running():
            raise RuntimeError(
                "this client is at work in another event loop, which is still running; make one client for each loop"
            )
        self.core.cancel_all("its event loop has ended")
        if self._protocol is not None:
            self.core.lost(redis.ConnectionError("the event loop of the connection has ended"), loop.time())
            self._drop()
        self._loop, self._connector, self._timer, self._flushing = loop, None, None, False
        self._room = RoomQueue(self.core, _let_look)
        self._wake_finished()

    def _act(self, loop: asyncio.AbstractEventLoop) -> None:
        """Arrange for what the core wants next."""
        core = self.core
        if self._protocol is not None:
            if not self._flushing:
                self._flushing = True
                loop.call_soon(self._flush)
        elif core.connect_at is not None and self._connector is None:
            self._connector = loop.create_task(self._connect())
        self._arm(loop)

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        at = self.core.timeouts.next_tick
        if at != math.inf and (self._timer is None or self._timer.when() > at):
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_at(at, self._tick)

    def _flush(self) -> None:
        self._flushing = False
        if self._protocol is not None and self._loop is not None:
            self._protocol.flush()
            self._arm(self._loop)

    def _tick(self) -> None:
        assert self._loop is not None
        self._timer = None
        if self._protocol is not None:
            self._protocol.look_at_progress(self._loop.time())
        if self.core.tick(self._loop.time() + 0.001):  # loops round their time
            self._drop()
        self._wake_finished()
        self._act(self._loop)

    def _wake_finished(self) -> None:
        for batch in self.core.pending.take_finished():
            waiter = batch.waiter
            if waiter is not None and not waiter.done() and not waiter.get_loop().is_closed():
                waiter.set_result(None)
        if self._room.batches:  # as many as may fit: one after the other would cost a turn of the loop each
            free = self.core.settings.max_buffered_commands - self.core.counters.buffered_commands
            self._room.wake(max(free, 1))
        self._tell()

    # -- the connection ---------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        """Until there is a connection, or no command needs one."""
        core, loop = self.core, self._loop
        assert loop is not None
        try:
            while core.connect_at is not None:
                delay = core.connect_at - loop.time()
                if delay > 0:
                    await asyncio.sleep(delay)
                    continue
                core.connecting()
                await self._open(loop)
                self._wake_finished()
        finally:
            if self._connector is asyncio.current_task():
                self._connector = None
        self._act(loop)

    async def _open(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            redis_connection = self._make_redis_connection()
        except Exception as error:  # an option that redis-py does not know
            self.core.refused(error, loop.time())
            return
        limit_opening(redis_connection, self.core.timeouts.time_to_connect(loop.time()))
        try:
            await redis_connection.connect()
        except Exception as error:
            report_failure(self.core, error, redis_connection, loop.time())
            return
        except BaseException:
            await redis_connection.disconnect(nowait=True)
            self.core.connect_failed(redis.ConnectionError("connecting was interrupted"), loop.time())
            raise
        if (
            self._is_abandoned
        ):  # Python 3.11 may lose the cancelling of a task that waits with a limit, as redis-py does
            await redis_connection.disconnect(nowait=True)
            return
        self._protocol = ClientProtocol(self, redis_connection)
        give_up_soon(self._protocol.transport.get_extra_info("socket"), self.core.settings.silence_timeout)
        self.core.connected(loop.time(), identities_left(redis_connection), server_of(redis_connection))
        self._act(loop)

    def received(self, protocol: ClientProtocol, data: memoryview | bytes) -> None:
        loop = self._loop
        if protocol is not self._protocol or loop is None:
            return
        if self.core.received(data, loop.time()):
            self._drop()
        self._wake_finished()
        if self.core.has_output or self._protocol is None:
            self._act(loop)

    def filled(self, protocol: ClientProtocol, count: int) -> None:
        if protocol is self._protocol and self._loop is not None:
            self.core.filled(count, self._loop.time())

    def lost(self, protocol: ClientProtocol, error: Exception) -> None:
        loop = self._loop
        if protocol is not self._protocol or loop is None:
            return
        self.core.lost(error, loop.time())
        self._drop()
        self._wake_finished()
        self._act(loop)

    def _drop(self) -> None:
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            protocol.close()

    def _let_go_in_child(self) -> None:
        """Closing the transport would reach into the parent's loop, whose epoll the child shares."""
        if self._protocol is not None:
            _of_parents.append(self._protocol)
            self._protocol.let_go()


def _let_look(batch: Batch) -> None:
    """Wake the task of a batch that waits for room."""
    if batch.waiter is not None:
        batch.waiter.set()


class ClientProtocol(asyncio.BufferedProtocol):
    """One connection: what redis-py opened, with our protocol on its transport."""

    def __init__(self, connection: AioConnection, redis_connection: Any) -> None:
        self._connection = connection
        self.redis_connection = redis_connection  # keeps redis-py's stream objects, whose end would close the transport
        self._is_full = False
        self._left = 0
        self._unwritten = 0
        self._buffer = memoryview(bytearray(READ))
        self._room: memoryview | None = None  # where a large reply is being received, in the place of our buffer
        self.transport = redis_connection._writer.transport
        stream = redis_connection._reader
        self.transport.set_protocol(self)
        self.transport.set_write_buffer_limits(high=1, low=0)  # with 0, TLS transports pause for ever
        # What came before the transport was ours does not come again: neither bytes nor the end.
        loop = self._loop = asyncio.get_running_loop()
        if stream._buffer:
            loop.call_soon(connection.received, self, bytes(stream._buffer))
        if stream._eof or self.transport.is_closing():
            loop.call_soon(self.connection_lost, None)

    @staticmethod
    def is_usable(redis_connection: Any) -> bool:
        """See pool_handoff.Driver; it must also be of this loop."""
        protocol = redis_connection._writer.transport.get_protocol()  # None once the transport is closed
        return (
            protocol is not None
            and protocol._loop is asyncio.get_running_loop()
            and not protocol.transport.is_closing()
        )

    @staticmethod
    def discard(redis_connection: Any) -> None:
        """See pool_handoff.Driver; its loop may run in another thread, or have ended."""
        protocol = redis_connection._writer.transport.get_protocol()
        if protocol is None:
            redis_connection._reader = redis_connection._writer = None
            return
        try:
            is_elsewhere = protocol._loop.is_running() and protocol._loop is not asyncio.get_running_loop()
        except RuntimeError:  # none runs in this thread
            is_elsewhere = True
        if is_elsewhere:
            protocol._loop.call_soon_threadsafe(protocol.close)
        else:
            protocol.close()

    def flush(self) -> None:
        """Write what the core has, until the transport has to keep some of it."""
        core, transport = self._connection.core, self.transport
        while not self._is_full:
            data = core.output()
            if not data:
                return
            core.writer.begin_write(len(data))
            transport.write(data)
            if self._is_full:
                self._unwritten = len(data)
            else:
                core.writer.end_write(len(data))

    def pause_writing(self) -> None:
        self._is_full = True
        self._left = self.transport.get_write_buffer_size()

    def look_at_progress(self, now: float) -> None:
        """Tell the core if some of what the transport keeps has gone since the last look."""
        if self._is_full and (left := self.transport.get_write_buffer_size()) < self._left:
            self._left = left
            self._connection.core.timeouts.heard = now

    def resume_writing(self) -> None:
        self._is_full = False
        self._connection.core.timeouts.heard = asyncio.get_running_loop().time()
        self._connection.core.writer.end_write(self._unwritten)
        self._unwritten = 0
        self.flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        self._room = self._connection.core.reader.room()
        return self._buffer if self._room is None else self._room

    def buffer_updated(self, nbytes: int) -> None:
        if self._room is None:
            self._connection.received(self, self._buffer[:nbytes])
        else:
            self._connection.filled(self, nbytes)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.lost(self, as_lost(exc or ConnectionError("the server closed the connection")))

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):  # its loop may be gone
            self.transport.abort()
        self.redis_connection._reader = self.redis_connection._writer = None

    def let_go(self) -> None:
        """Close our copy of a parent's socket, and leave its number to something harmless: its owner does not know."""
        number = self.transport.get_extra_info("socket").fileno()
        if number >= 0:
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, number)
            os.close(nothing)
