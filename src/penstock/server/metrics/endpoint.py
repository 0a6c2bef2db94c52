"""The port for monitoring: /metrics, /healthz and /readyz, on the loop of the server.

Connections are few (MOST_CONNECTIONS): one more closes the one that was silent for longest. A request must be whole
within REQUEST_SECONDS, an answer must be taken within ANSWER_SECONDS, and an idle connection ends after IDLE_SECONDS.

The port is for this machine, unless a password or a client's certificate protects it or `metrics-protected-mode no`
says that neither is needed. /healthz and /readyz ask for no password: probes seldom have one, and learn nothing else.

`metrics-port` and the other settings can change while the server runs. If the new ones cannot be used, CONFIG SET is
refused and everything stays as it was.

Owned by the loop thread.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Coroutine
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from penstock.engine.config import ConfigError
from penstock.server.limits import is_local
from penstock.server.listeners import TLS_FILES, tls_context
from penstock.server.metrics.collector import Collector
from penstock.server.metrics.exposition import OPEN_METRICS, TEXT
from penstock.server.metrics.health import not_ready
from penstock.server.metrics.http import (
    PLAIN,
    Refused,
    Request,
    RequestReader,
    is_authorized,
    names_an_address,
    response,
    wants_open_metrics,
)
from penstock.server.tcp_sockets import Listener, Place, TcpSockets

if TYPE_CHECKING:
    import ssl

    from penstock.server.app import App

logger = logging.getLogger("penstock.server")

MOST_CONNECTIONS = 16
REQUEST_SECONDS = 5.0
ANSWER_SECONDS = 30.0
IDLE_SECONDS = 180.0
WRONG_PASSWORD_REST = 0.5
"""Seconds until a wrong password is answered: with so few connections, passwords cannot be guessed quickly."""
REST = 0.1
"""Seconds without accepting after the system refused to accept: it has no descriptors or no memory left."""
DIRECTIVES = (
    "metrics-port", "metrics-bind", "metrics-user", "metrics-password", "metrics-tls", "metrics-protected-mode",
)  # fmt: skip


class MetricsEndpoint:
    """See the top of this file."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._config = app.config
        self._collector = Collector(app.engine, lambda: len(self._connections))
        self._sockets = TcpSockets(app.config, self._serve, self._stop)
        self._context: ssl.SSLContext | None = None
        self._is_open = False
        self._connections: dict[_Connection, None] = {}  # the one that was silent for longest first
        self._tasks: set[asyncio.Task[None]] = set()  # a task that nothing refers to may be collected
        for name in (*DIRECTIVES, *TLS_FILES):
            self._config.on_change(name, lambda _: self._change())

    # -- listening --------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Listen, if the configuration says so. OSError or ConfigError if that is not possible."""
        self._update()
        self._is_open = True

    def close(self) -> None:
        """Stop listening, and end all connections."""
        self._is_open = False
        self._sockets.close()
        self._collector.close()
        for task in self._tasks:
            task.cancel()
        for connection in list(self._connections):
            connection.end()

    def renew_certificates(self) -> bool:
        """Read the files for TLS again; whether it is used here. ConfigError, and the old ones stay."""
        if self._context is not None:
            self._context = tls_context(self._config, "metrics-tls")
        return self._context is not None

    def _change(self) -> None:
        """CONFIG SET: use the new settings, or raise ConfigError or OSError and stay."""
        if self._is_open:
            self._update()

    def _update(self) -> None:
        config = self._config
        wanted: list[Place] = []
        context = None
        if config.metrics_port:
            context = tls_context(config, "metrics-tls") if config.metrics_tls else None
            wanted = [Place(address, config.metrics_port, config.metrics_tls) for address in config.metrics_bind]
        self._sockets.move(wanted, self._check_exposure)
        self._context = context

    def _check_exposure(self, listeners: list[Listener]) -> None:
        """Refuse to show the names of streams to other machines, unless they must prove that they may see them."""
        if not self._is_for_this_machine:
            return
        for listener in listeners:
            if not is_local(listener.socket.getsockname()[0]):
                raise ConfigError(
                    f"metrics-bind: {listener.shown} can be reached from other machines, and nothing protects it. Set "
                    "metrics-password, or metrics-tls yes with tls-auth-clients yes; or, if all that can reach it may "
                    "see it, metrics-protected-mode no"
                )

    @property
    def _is_for_this_machine(self) -> bool:
        """Nothing else protects the metrics."""
        config = self._config
        proven = config.metrics_password or (config.metrics_tls and config.tls_auth_clients == "yes")
        return not proven and config.metrics_protected_mode

    def _serve(self, listener: Listener) -> None:
        self._app.loop.add_reader(listener.socket, self._accept_all, listener)

    def _stop(self, listener: Listener) -> None:
        self._app.loop.remove_reader(listener.socket)

    def _accept_all(self, listener: Listener) -> None:
        try:
            for _ in range(MOST_CONNECTIONS):
                accepted, _ = listener.socket.accept()
                self._take(accepted, self._context if listener.encrypted else None)
        except (BlockingIOError, ConnectionAbortedError):
            pass
        except OSError as error:
            logger.warning("cannot accept a connection for metrics: %s", error.strerror)
            self._stop(listener)
            self._app.loop.call_later(REST, self._serve_again, listener)

    def _serve_again(self, listener: Listener) -> None:
        if listener in self._sockets.all:
            self._serve(listener)

    def _take(self, accepted: socket.socket, context: ssl.SSLContext | None) -> None:
        accepted.setblocking(False)
        while len(self._connections) >= MOST_CONNECTIONS:
            next(iter(self._connections)).end()
        connection = _Connection(self)
        self._connections[connection] = None
        connection.arrival = self._start(self._connect(connection, accepted, context))

    async def _connect(self, connection: _Connection, accepted: socket.socket, context: ssl.SSLContext | None) -> None:
        """Make the connection, which takes a while with TLS; `end` of the connection cancels it."""
        try:
            await self._app.loop.connect_accepted_socket(
                lambda: connection, accepted, ssl=context,
                ssl_handshake_timeout=REQUEST_SECONDS if context is not None else None,
            )  # fmt: skip
        except OSError as error:  # it went away, or cannot speak TLS
            logger.info("closing a connection for metrics: %s", error or type(error).__name__)
            self._connections.pop(connection, None)
            accepted.close()
        except asyncio.CancelledError:
            accepted.close()
            raise

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._app.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- for connections --------------------------------------------------------------------------------------

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._app.loop

    def heard(self, connection: _Connection) -> None:
        """A connection has sent something: others were silent for longer."""
        if connection in self._connections:
            del self._connections[connection]
            self._connections[connection] = None

    def ended(self, connection: _Connection) -> None:
        self._connections.pop(connection, None)

    def answer_soon(self, connection: _Connection, request: Request) -> None:
        self._start(self._answer(connection, request))

    async def _answer(self, connection: _Connection, request: Request) -> None:
        try:
            status, body, kind, more = await self._answer_to(request)
        except Exception:  # a bug of ours must not leave the connection without an answer
            logger.exception("internal error in the answer to a monitoring program")
            status, body, kind, more = HTTPStatus.INTERNAL_SERVER_ERROR, b"internal error; see the log\n", PLAIN, ()
        connection.send(
            response(
                status, body, kind, with_body=request.method == "GET", keeps_connection=request.keeps_connection,
                more=more,
            ),
            request.keeps_connection,
        )  # fmt: skip

    async def _answer_to(self, request: Request) -> tuple[HTTPStatus, bytes, str, tuple[str, ...]]:
        config = self._config
        if request.path == "/healthz":
            return HTTPStatus.OK, b"ok\n", PLAIN, ()
        if request.path == "/readyz":
            why = not_ready(self._app.engine, self._app.halted)
            status = HTTPStatus.OK if why is None else HTTPStatus.SERVICE_UNAVAILABLE
            return status, f"{why or 'ready'}\n".encode("utf-8", "backslashreplace"), PLAIN, ()
        if request.path != "/metrics":
            return HTTPStatus.NOT_FOUND, b"there are /metrics, /healthz and /readyz\n", PLAIN, ()
        if not is_authorized(request, config.metrics_user, config.metrics_password):
            if "authorization" in request.headers:
                await asyncio.sleep(WRONG_PASSWORD_REST)
            return HTTPStatus.UNAUTHORIZED, b"metrics-user and metrics-password are needed\n", PLAIN, (
                'WWW-Authenticate: Basic realm="penstock", charset="UTF-8"',
            )  # fmt: skip
        if self._is_for_this_machine and not names_an_address(request):  # a browser, and a name that was pointed here
            return HTTPStatus.FORBIDDEN, b"ask for localhost or an address, or set metrics-password\n", PLAIN, ()
        open_metrics = wants_open_metrics(request)
        return HTTPStatus.OK, await self._collector.page(open_metrics), OPEN_METRICS if open_metrics else TEXT, ()


class _Connection(asyncio.Protocol):
    """One connection: a request is answered before the next one is read."""

    def __init__(self, endpoint: MetricsEndpoint) -> None:
        self._endpoint = endpoint
        self._reader = RequestReader()
        self.arrival: asyncio.Task[None] | None = None  # until there is a transport
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_answering = False
        self._is_sending = False  # an answer waits to be taken
        self._is_over = False  # nothing more is read

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        if self._is_over:
            transport.abort()
            return
        transport.set_write_buffer_limits(high=0)  # so that it is said when an answer was taken
        self._wait(REQUEST_SECONDS)

    def connection_lost(self, error: Exception | None) -> None:
        self._is_over = True
        self._stop_waiting()
        self._endpoint.ended(self)

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        is_busy = self._is_answering or self._is_sending
        if not self._reader.has_begun and not is_busy:
            self._wait(REQUEST_SECONDS)
        self._endpoint.heard(self)
        self._reader.feed(data)
        if not is_busy:
            self._next()

    def resume_writing(self) -> None:
        """The answer has gone; with TLS this is also called after a read, when there is none."""
        if self._is_sending and not self._is_over:
            self._go_on()

    def _next(self) -> None:
        assert self._transport is not None
        try:
            request = self._reader.next()
        except Refused as error:
            self._is_over = True
            more = ("Allow: GET, HEAD",) if error.status is HTTPStatus.METHOD_NOT_ALLOWED else ()
            self._transport.write(response(error.status, f"{error}\n".encode(), more=more))
            self._transport.close()
            self._wait(REQUEST_SECONDS)
            return
        if request is not None:
            self._is_answering = True
            self._transport.pause_reading()
            self._stop_waiting()
            self._endpoint.answer_soon(self, request)

    def send(self, answer: bytes, keeps_connection: bool) -> None:
        """Send the answer to the last request."""
        if self._is_over or self._transport is None:
            return
        self._is_answering, self._is_sending = False, True
        self._wait(ANSWER_SECONDS)
        self._transport.write(answer)
        if not keeps_connection:
            self._is_over = True
            self._transport.close()
            return
        if not self._transport.get_write_buffer_size():  # else `resume_writing` is called
            self._go_on()

    def _go_on(self) -> None:
        """The answer was taken: read the next request. So one answer at most waits for a client."""
        assert self._transport is not None
        self._is_sending = False
        self._wait(REQUEST_SECONDS if self._reader.has_begun else IDLE_SECONDS)
        self._transport.resume_reading()
        if self._reader.has_begun:
            self._next()

    def end(self) -> None:
        """Close it at once."""
        self._is_over = True
        self._stop_waiting()
        self._endpoint.ended(self)
        if self._transport is not None:
            self._transport.abort()
        elif self.arrival is not None:
            self.arrival.cancel()

    def _wait(self, seconds: float) -> None:
        self._stop_waiting()
        self._timer = self._endpoint.loop.call_later(seconds, self.end)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
