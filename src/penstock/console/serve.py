"""The console as a process: its socket, and how it starts and ends."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn

from penstock.console.app import App, create_app
from penstock.console.connection_timeouts import TimeoutProtocol
from penstock.console.options import Options


class PortTaken(Exception):
    """The address cannot be used; the text says why."""


def listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
    except OSError as error:
        raise PortTaken(f"{host}:{port} cannot be used: {error.strerror}; --port names another port") from error
    return listener


def serve(options: Options, tell: Callable[[str], None]) -> None:
    """Serve until a signal ends it; `tell` gets the address as soon as browsers can use it."""
    listener = listen(options.host, options.port)
    port = listener.getsockname()[1]
    host = f"[{options.host}]" if ":" in options.host else options.host
    app = App(options)
    config = uvicorn.Config(
        create_app(app), log_level="error", access_log=False, server_header=False, proxy_headers=False,
        http=TimeoutProtocol, ws="none", lifespan="on", timeout_graceful_shutdown=1, limit_concurrency=500,
        h11_max_incomplete_event_size=65536,
    )  # fmt: skip
    server = _Announcing(config, lambda: tell(f"http://{host}:{port}/"), app.console.closing.set)
    try:
        server.run(sockets=[listener])
    finally:
        listener.close()


class _Announcing(uvicorn.Server):
    """Says when it is ready, and tells the streams of events when it ends: uvicorn waits for them."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None], closing: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready
        self._closing = closing

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._closing()
        await super().shutdown(sockets)
