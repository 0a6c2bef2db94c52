"""A running server: the engine, its sockets, its periodic work, its start and its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable
from time import perf_counter_ns
from typing import cast

from penstock import commands
from penstock.engine import module_loader
from penstock.engine.concurrency.workers import STOP_PATIENCE
from penstock.engine.config import Config
from penstock.engine.dispatch import Engine
from penstock.replication.replication import Replication
from penstock.server.acceptor import Acceptor
from penstock.server.busy_script_io import BusyScriptSockets
from penstock.server.client_memory import ClientMemory
from penstock.server.connection import Connection
from penstock.server.limits import Limits
from penstock.server.listeners import Listeners
from penstock.server.metrics.endpoint import MetricsEndpoint
from penstock.server.replies import Replies
from penstock.storage.persistence import Persistence

logger = logging.getLogger("penstock.server")


class LoopTimers:
    """engine.interfaces.Timers on an asyncio loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def call_later(self, delay: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(delay, callback)

    def cancel(self, timer: object | None) -> None:
        if timer is not None:
            cast(asyncio.TimerHandle, timer).cancel()  # uvloop's is a class of its own


class App:
    """See the top of this file. Make it inside a running loop."""

    def __init__(self, config: Config, choose_port: bool = False) -> None:
        commands.load()
        modules = [module_loader.load(name) for name in config.module]
        self.loop = asyncio.get_running_loop()
        self.config = config
        self.engine = Engine(config, timers=LoopTimers(self.loop), modules=modules)
        self.engine.memory.start()
        self.connections: set[Connection] = set()
        self.to_flush: set[Replies] = set()  # connections that something was sent to from elsewhere
        self._flush_scheduled = False
        self._resuming: list[Connection] = []  # that continue with the next turn of the loop
        self.query_buffer_limit: int = config.client_query_buffer_limit
        config.on_change("client-query-buffer-limit", lambda limit: setattr(self, "query_buffer_limit", limit))
        self.limits = Limits(self)
        self.client_memory = ClientMemory(self)
        self.acceptor = Acceptor(self)
        self.listeners = Listeners(config, self.acceptor.serve, self.acceptor.stop)
        self._choose_port = choose_port
        self.engine.serve_while_script_runs = BusyScriptSockets(self).look
        self.engine.give_replies = self._give_replies
        self._cron: asyncio.Task[None] | None = None
        self._expiring = False  # more keys are due than one slice of active expiry deletes: the next is scheduled
        self.persistence = Persistence(self.engine, self.loop, self.halt)  # says LOADING until it has loaded
        self.replication = Replication(self.engine, self.persistence, self.loop)
        self.halted = False  # no command runs any more
        self.metrics = MetricsEndpoint(self)
        self.stop_requested = asyncio.Event()  # set by signals and `halt`; the owner of the app waits for it
        self.stop_signal = 0  # the last signal that asked to stop
        self.interrupt_refused_at = -math.inf  # when Ctrl-C was refused, because the data cannot be written; monotonic
        if self.replication.shard is not None:
            self.replication.shard.on_agent_gone = self.stop_requested.set

    # -- connections ------------------------------------------------------------------------------------------

    def connected(self, connection: Connection) -> None:
        self.acceptor.arriving.discard(connection)
        if self.halted:  # accepted just before the sockets were closed, or its TLS handshake took until now
            connection.close(after_reply=False)
            return
        self.connections.add(connection)
        self.engine.sessions[connection.session.id] = connection.session
        self.engine.stats.connections += 1

    def disconnected(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self.to_flush.discard(connection)
        self.limits.forget(connection)
        self.engine.forget(connection.session)

    def schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self.loop.call_soon(self.flush_others)

    def flush_others(self) -> None:
        if self.engine.scripting.busy and self.engine.commit is not None:
            return  # each of them would be scheduled again
        self._flush_scheduled = False
        while self.to_flush:
            self.to_flush.pop().flush()

    def _give_replies(self) -> None:
        for connection in list(self.connections):
            connection.flush()

    def resume_soon(self, connection: Connection) -> None:
        """Have a connection continue; many that waited for the same thing do so one after the other."""
        self._resuming.append(connection)
        if len(self._resuming) == 1:
            self.loop.call_soon(self._resume)

    def _resume(self) -> None:
        # A connection that is resumed while they run continues with the next turn of the loop, so that two that feed
        # each other do not block it.
        resuming, self._resuming = self._resuming, []
        for connection in resuming:
            try:
                connection.go_on()
            except Exception:  # a bug of ours in one of them must not leave the others waiting
                logger.exception("internal error in the input of %s", connection.session.peer)
                connection.close(after_reply=False)

    # -- start and end ----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load, then serve. If it is asked to stop during that, it gives up loading; `stop` it then."""
        self.limits.fit_maxclients()
        self.listeners.open(self._choose_port)
        try:
            self.metrics.open()  # while it loads, /readyz says so
            await self.persistence.start(self.stop_requested.is_set)
            self.engine.streams.started()
            if not self.stop_requested.is_set():
                self.replication.start()
        except BaseException:
            self.listeners.close()
            self.metrics.close()
            raise
        if self.stop_requested.is_set():
            return
        self.engine.workers.start(self.loop.call_soon_threadsafe)
        self._cron = self.loop.create_task(self._periodic())

    @property
    def port(self) -> int:
        """Where plain connections are taken; 0 for nowhere."""
        return int(self.config.port)

    @property
    def tls_port(self) -> int:
        """Where TLS connections are taken; 0 for nowhere."""
        return int(self.config.tls_port)

    @property
    def addresses(self) -> list[str]:
        """Where clients can connect, for people."""
        return self.listeners.addresses

    async def shut_down(self) -> None:
        """What SHUTDOWN does, for a signal. ReplyError if something cannot be written; the server goes on then."""
        if not self.halted:
            await self._let_workers_finish()
            self.persistence.shut_down(save=None, force=False)

    def halt(self) -> None:
        """Run no command from now on: its effect would be in no snapshot and in no log."""
        self.halted = True
        self.replication.stop()
        self.engine.stream_members.stop()
        self.listeners.close()
        self.acceptor.close()
        for connection in list(self.connections):
            connection.close(after_reply=True)
        self.stop_requested.set()

    async def stop(self) -> None:
        if self._cron is not None:
            self._cron.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._cron
        self.listeners.close()
        await self._let_workers_finish()
        self.engine.workers.stop()
        self.halt()
        self.persistence.close()
        await self._let_last_replies_leave()
        self.metrics.close()

    async def _let_workers_finish(self) -> None:
        """Wait for commands that are in threads, but not for long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_PATIENCE):
                while self.engine.workers.jobs:
                    await asyncio.sleep(0.001)

    async def _let_last_replies_leave(self) -> None:
        """Wait until every client is gone, but not for long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                while self.connections:
                    await asyncio.sleep(0.001)
        for connection in list(self.connections):
            connection.transport.abort()

    def _expire(self) -> None:
        """Delete expired keys for a millisecond; while more are due, continue after the input that has come from
        clients.
        """
        engine = self.engine
        engine.clock.refresh()
        self._expiring = False
        more = engine.keyspace.expire_cycle()
        if engine.keyspace.ready:
            engine.blocking.serve()
        if more:
            self._expiring = True
            self.loop.call_soon(self._expire)

    async def _periodic(self) -> None:
        engine = self.engine
        duties = [engine.memory.tick, self.limits.sweep, self.client_memory.notice, engine.stats.tick,
                  self.persistence.tick, self.replication.tick, engine.clock.refresh, engine.streams.tick,
                  engine.once.tick, self._expire_unless_under_way]  # fmt: skip
        while True:
            planned = perf_counter_ns() + 1_000_000_000 // self.config.hz
            await asyncio.sleep(1 / self.config.hz)
            engine.stats.loop_delays.observe(max(perf_counter_ns() - planned, 0))
            for duty in duties:
                try:
                    duty()
                except Exception:  # a bug of ours in one of them must not be the end of all of them
                    logger.exception("internal error in the periodic work")

    def _expire_unless_under_way(self) -> None:
        if not self._expiring and self.engine.active_expiry:
            self._expire()
