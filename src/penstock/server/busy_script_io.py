"""Serves clients while a script blocks the loop.

A script runs in the loop thread, and uvloop's loop cannot be run from inside one of its own callbacks. So while a
script is busy (engine/scripting.py) its ticks come here, and the sockets are read and written directly. The loop looks
at them again only after the script, and finds them as if less had arrived. A client that the loop has not made a
connection for, because it came during the script or just before, is served too; the acceptor gives it to the loop
afterwards.

What is answered meanwhile shows no data, so it does not wait for the log (replies.py). Earlier replies do, and the
answers behind them: they leave when the thread of the log has synced, and replicas have confirmed, what they show. What
the script publishes leaves behind its changes, which are logged when it ends.

Limits: a TLS client gets no answer before the script ends, because only the loop can decrypt its input. A replica that
is behind gets no more of the feed until then, so what waits for it waits too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import socket
from typing import TYPE_CHECKING, Any

from penstock.server.connection import Connection
from penstock.server.tcp_sockets import Listener

if TYPE_CHECKING:
    from penstock.engine.scripting import Run
    from penstock.server.app import App

_CHUNK = 1 << 16


class BusyScriptSockets:
    """`look()` serves the clients that have sent something. Owned by the loop thread.

    It begins anew with each script: several may run in one turn of the loop, each for another client.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._run: Run | None = None  # the script that the selector was made for
        self._selector: selectors.BaseSelector | None = None
        self._links: list[tuple[Connection, asyncio.Transport]] = []  # to replicas, with their own transports

    def look(self) -> None:
        """Read what has arrived, run it, and send the replies; waits for nothing."""
        run = self._app.engine.scripting.running
        if run is not self._run:
            self._end()
            self._run = run
            self._begin()
        assert self._selector is not None
        if self._app.engine.commit is not None:
            self._app.engine.commit.look()
        for key, _ in self._selector.select(0):
            if isinstance(key.data, Connection):
                self._hear(key.fd, key.data)
            else:
                self._accept(key.data)

    def _begin(self) -> None:
        for connection in self._app.connections:  # the loop would send the feed after the script
            if connection.session.link is not None and not connection.encrypted:
                self._links.append((connection, connection.transport))
                connection.transport = Direct(connection.session.file_number, connection.transport)
        if self._app.engine.commit is not None:  # else replies wait for what was logged before the script
            self._app.engine.commit.flush()
        self._selector = selectors.DefaultSelector()
        for connection in self._app.connections:
            number = connection.session.file_number
            if number >= 0 and not (connection.encrypted or connection.running or connection.transport.is_closing()):
                with contextlib.suppress(OSError, KeyError):  # closed a moment ago; the loop does not know yet
                    self._selector.register(number, selectors.EVENT_READ, connection)
        for connection in [each for each in self._app.acceptor.arriving if not each.encrypted]:
            self._take(connection)
        for listener in self._app.listeners.all:
            if not listener.encrypted:
                self._selector.register(listener.socket, selectors.EVENT_READ, listener)
        self._app.loop.call_soon(self._end)  # which is after the script

    def _hear(self, number: int, connection: Connection) -> None:
        if connection.holds_enough:
            return
        try:
            data = os.read(number, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data or connection.session.closing:  # the loop will find the end too, and handle it
            self._forget(number)
            return
        transport = connection.transport
        connection.transport = Direct(number, transport)
        try:
            connection.data_received(data)
        finally:
            connection.transport = transport

    def _forget(self, number: int) -> None:
        assert self._selector is not None
        self._selector.unregister(number)

    def _accept(self, listener: Listener) -> None:
        try:
            connection = self._app.acceptor.accept_later(listener)
        except OSError:
            return
        if connection is not None:
            self._take(connection)

    def _take(self, connection: Connection) -> None:
        """Serve a client that the loop does not know yet."""
        assert self._selector is not None
        connection.socket.setblocking(False)
        connection.connection_made(Unadopted(connection.socket))
        self._selector.register(connection.socket, selectors.EVENT_READ, connection)

    def _end(self) -> None:
        self._run = None
        if self._selector is not None:
            self._selector.close()
            self._selector = None
        for connection, transport in self._links:
            connection.transport = transport
        self._links.clear()


class Direct(asyncio.Transport):
    """A transport whose writes go to the socket at once; what it does not take goes to the transport behind it."""

    def __init__(self, number: int, behind: asyncio.Transport) -> None:
        super().__init__()
        self._number = number
        self._behind = behind

    def write(self, data: Any) -> None:
        sent = 0
        if not self._behind.get_write_buffer_size():
            try:
                sent = os.write(self._number, data)
            except OSError:  # full, or closed: the transport knows what to do about either
                sent = 0
        if sent < len(data):
            self._behind.write(data[sent:])

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._behind.get_extra_info(name, default)

    def get_write_buffer_size(self) -> int:
        return self._behind.get_write_buffer_size()

    def pause_reading(self) -> None:
        self._behind.pause_reading()

    def resume_reading(self) -> None:
        self._behind.resume_reading()

    def is_closing(self) -> bool:
        return self._behind.is_closing()

    def close(self) -> None:
        self._behind.close()

    def abort(self) -> None:
        self._behind.abort()


class Unadopted(asyncio.Transport):
    """Stands behind `Direct` until the loop takes the socket: keeps what could not be sent."""

    def __init__(self, its_socket: socket.socket) -> None:
        super().__init__({"socket": its_socket})
        self.socket = its_socket
        self.unsent = bytearray()
        self._closing = False

    def write(self, data: Any) -> None:
        self.unsent += data

    def get_write_buffer_size(self) -> int:
        return len(self.unsent)

    def pause_reading(self) -> None:
        return

    def resume_reading(self) -> None:
        return

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """The last replies leave if the socket takes them; its descriptor stays open until the script is over."""
        with contextlib.suppress(OSError):
            self.socket.send(self.unsent)
        self.abort()

    def abort(self) -> None:
        self._closing = True
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
