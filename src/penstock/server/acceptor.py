"""From a listening socket to a connection.

The kernel keeps tcp-backlog clients that were not accepted yet. Further ones are dropped, and such a client tries again
after one second, then two, then four. So sockets are accepted as fast as they come, and their connections are made
afterwards, a few in each turn of the loop, so that other clients' commands run in between.

Rejected: `loop.create_server`. Under uvloop it accepts one client in a turn of the loop, which made a burst of 4,000
take seconds, and a client can only be refused after its transport was made.
"""

from __future__ import annotations

import _socket
import asyncio
import contextlib
import logging
import socket
from collections import deque
from typing import TYPE_CHECKING

from penstock.server.busy_script_io import Unadopted
from penstock.server.connection import Connection
from penstock.server.limits import is_local
from penstock.server.tcp_sockets import Listener, shown_address

if TYPE_CHECKING:
    from penstock.server.app import App

logger = logging.getLogger("penstock.server")

ACCEPTED_IN_A_TURN = 1000
MADE_IN_A_TURN = 50
REST = 0.1
"""Seconds without accepting after the system refused to accept: it has no descriptors or no memory left."""
HANDSHAKE_SECONDS = 10


class Accepted(socket.socket):
    """A client's socket whose family and type are plain integers.

    The standard library makes members of enums of them each time it is asked, also in its own `accept`, and the loop
    asks again: 4 microseconds a connection.
    """

    __slots__ = ()
    family = _socket.socket.family  # type: ignore[assignment]
    type = _socket.socket.type  # type: ignore[assignment]


class Acceptor:
    """See the top of this file. Owned by the loop thread."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.arriving: set[Connection] = set()  # clients that were accepted and are not among the connections yet
        self._accepted: deque[Connection] = deque()  # accepted, and nothing more done yet
        self._making: dict[asyncio.Task[None], Connection] = {}  # a task that nothing refers to may be collected

    # -- for Listeners ----------------------------------------------------------------------------------------

    def serve(self, listener: Listener) -> None:
        self._app.loop.add_reader(listener.socket, self._accept_all, listener)

    def stop(self, listener: Listener) -> None:
        self._app.loop.remove_reader(listener.socket)

    def close(self) -> None:
        """Close the clients that have no connection yet. One that a busy script served has one: making it ends it."""
        for task, connection in self._making.items():
            if connection in self.arriving:
                task.cancel()  # one that did not begin runs no line of `_make`
        self._accepted = deque(each for each in self._accepted if each not in self.arriving)
        for connection in self.arriving:
            connection.socket.close()  # a transport that has it already closes it with itself
        self.arriving.clear()

    # -- accepting --------------------------------------------------------------------------------------------

    def accept(self, listener: Listener) -> Connection | None:
        """The next client; None if it was refused. BlockingIOError if there is none."""
        descriptor, name = listener.socket._accept()  # type: ignore[attr-defined]  # what `accept` calls
        accepted = Accepted(*listener.kind, fileno=descriptor)
        host = "" if listener.is_unix else name[0]
        refusal = self._app.limits.refusal(host)
        if refusal is not None:
            self._app.engine.stats.rejected_connections += 1
            if not listener.encrypted:
                with contextlib.suppress(OSError):
                    accepted.send(refusal, socket.MSG_DONTWAIT)
            accepted.close()
            return None
        local = listener.local_address(accepted)
        peer = local if listener.is_unix else shown_address(name)
        connection = Connection(self._app, accepted, peer, local, listener.encrypted)
        connection.session.is_local = is_local(host)
        self.arriving.add(connection)
        return connection

    def accept_later(self, listener: Listener) -> Connection | None:
        """The same, and the loop makes its connection when it comes to it."""
        connection = self.accept(listener)
        if connection is not None:
            if not self._accepted:
                self._app.loop.call_soon(self._make_some)
            self._accepted.append(connection)
        return connection

    def _accept_all(self, listener: Listener) -> None:
        idle = not self._accepted
        try:
            for _ in range(ACCEPTED_IN_A_TURN):
                connection = self.accept(listener)
                if connection is not None:
                    self._accepted.append(connection)
        except (BlockingIOError, ConnectionAbortedError):
            pass
        except OSError as error:
            logger.warning("cannot accept a client: %s", error.strerror)
            self.stop(listener)
            self._app.loop.call_later(REST, self._serve_again, listener)
        if idle and self._accepted:
            self._make_some()

    def _serve_again(self, listener: Listener) -> None:
        if listener in self._app.listeners.all:
            self.serve(listener)

    # -- making connections -----------------------------------------------------------------------------------

    def _make_some(self) -> None:
        for _ in range(min(MADE_IN_A_TURN, len(self._accepted))):
            connection = self._accepted.popleft()
            task = self._app.loop.create_task(self._make(connection))
            self._making[task] = connection
            task.add_done_callback(self._making.__delitem__)
        if self._accepted:
            self._app.loop.call_soon(self._make_some)

    async def _make(self, connection: Connection) -> None:
        loop = self._app.loop
        try:
            if connection.encrypted:
                await loop.connect_accepted_socket(
                    lambda: connection, connection.socket, ssl=self._app.listeners.context,
                    ssl_handshake_timeout=HANDSHAKE_SECONDS,
                )  # fmt: skip
            elif connection.session.closing:  # a busy script served it, and it is over
                connection.socket.close()
                connection.connection_lost(None)
            else:
                await loop.connect_accepted_socket(lambda: Arrival(connection), connection.socket)
        except OSError as error:  # the client went away, or cannot speak TLS
            logger.info("closing client %s: %s", connection.session.peer, error)
            connection.socket.close()
        finally:
            self.arriving.discard(connection)


class Arrival(asyncio.Protocol):
    """Brings the loop's transport to a connection, which a busy script may have served without the loop."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        connection = self._connection
        transport.set_protocol(connection)
        early = connection.transport
        if isinstance(early, Unadopted):
            connection.move_to(transport, early.unsent)
        else:
            connection.connection_made(transport)
