"""A running server: the engine, its sockets, its periodic work, its start and its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from penstock import commands
from penstock.engine.config import Config
from penstock.engine.dispatch import Engine
from penstock.server.connection import Connection

log = logging.getLogger("penstock.server")


class LoopTimers:
    """engine.dispatch.Timers on an asyncio loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def call_later(self, delay: float, callback: Callable[[], None]) -> object:
        return self._loop.call_later(delay, callback)

    def cancel(self, timer: object | None) -> None:
        if isinstance(timer, asyncio.TimerHandle):
            timer.cancel()


class App:
    """See the top of this file. Make it inside a running loop."""

    def __init__(self, config: Config) -> None:
        commands.load()
        self.loop = asyncio.get_running_loop()
        self.config = config
        self.engine = Engine(config, timers=LoopTimers(self.loop))
        self.connections: set[Connection] = set()
        self.to_flush: set[Connection] = set()  # connections that something was sent to from elsewhere
        self._flush_scheduled = False
        self._servers: list[asyncio.Server] = []
        self._cron: asyncio.Task[None] | None = None

    # -- connections ------------------------------------------------------------------------------------------

    def connected(self, connection: Connection) -> None:
        session = connection.session
        peer = connection.transport.get_extra_info("peername")
        session.peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer or "")
        self.connections.add(connection)
        self.engine.sessions[session.id] = session
        self.engine.stats.connections += 1

    def disconnected(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self.to_flush.discard(connection)
        self.engine.forget(connection.session)

    def watch_backlog(self, connection: Connection) -> None:
        """A client reads too slowly."""

    def schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self.loop.call_soon(self.flush_others)

    def flush_others(self) -> None:
        self._flush_scheduled = False
        while self.to_flush:
            self.to_flush.pop().flush()

    # -- start and end ----------------------------------------------------------------------------------------

    async def start(self) -> None:
        for address in self.config.bind:
            optional = address.startswith("-")
            host = address.removeprefix("-")
            try:
                server = await self.loop.create_server(
                    lambda: Connection(self), host, self.config.port, backlog=self.config.tcp_backlog
                )
            except OSError:
                if not optional:
                    raise
                continue
            self._servers.append(server)
        self._cron = self.loop.create_task(self._periodic())

    @property
    def port(self) -> int:
        return int(self._servers[0].sockets[0].getsockname()[1])

    async def stop(self) -> None:
        if self._cron is not None:
            self._cron.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._cron
        for server in self._servers:
            server.close()
        for connection in list(self.connections):
            connection.close(after_reply=True)

    async def _periodic(self) -> None:
        while True:
            await asyncio.sleep(1 / self.config.hz)
            self.engine.clock.refresh()
            self.engine.keyspace.expire_cycle(1000)
