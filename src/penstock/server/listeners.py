"""The sockets a server listens on: TCP, TLS, and a Unix socket.

Port 0 means "none" in a configuration, as in Redis; an embedded server asks for `choose_port`, where the system picks
a free one, the same for every address.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from pathlib import Path

from penstock.engine.config import Config, ConfigError

Factory = Callable[[], asyncio.Protocol]

_EVERYWHERE = {"*": "0.0.0.0", "::*": "::"}  # noqa: S104  # only when the configuration says so
HANDSHAKE_SECONDS = 10


class Listeners:
    """Opened by `open`, closed by `close`; made inside a running loop."""

    def __init__(self, config: Config, factory: Factory) -> None:
        self._config = config
        self._factory = factory
        self._loop = asyncio.get_running_loop()
        self._servers: list[asyncio.Server] = []
        self.plain: list[int] = []  # file numbers of the sockets that do not speak TLS
        self.port = 0
        self.tls_port = 0

    async def open(self, choose_port: bool = False) -> None:
        """Listen on everything the configuration names, or raise OSError or ConfigError and listen on nothing."""
        config = self._config
        try:
            if config.port or choose_port:
                self.port = await self._listen(config.port, None)
            if config.tls_port:
                self.tls_port = await self._listen(config.tls_port, tls_context(config))
            if config.unixsocket:
                await self._listen_unix(Path(config.unixsocket), int(config.unixsocketperm, 8))
        except BaseException:
            self.close()
            raise

    async def _listen(self, port: int, context: ssl.SSLContext | None) -> int:
        """Listen on each address of `bind`; the port, which the first address may have had chosen for it."""
        for address in self._config.bind:
            host = address.removeprefix("-")
            try:
                server = await self._loop.create_server(
                    self._factory, _EVERYWHERE.get(host, host), port, backlog=self._config.tcp_backlog, ssl=context,
                    ssl_handshake_timeout=HANDSHAKE_SECONDS if context is not None else None,
                )  # fmt: skip
            except OSError:
                if not address.startswith("-"):
                    raise
                continue
            self._servers.append(server)
            if context is None:
                self.plain += [sock.fileno() for sock in server.sockets]
            port = port or int(server.sockets[0].getsockname()[1])
        return port

    async def _listen_unix(self, path: Path, mode: int) -> None:
        path.unlink(missing_ok=True)  # a killed server leaves it behind, and nobody could listen again
        server = await self._loop.create_unix_server(self._factory, str(path), backlog=self._config.tcp_backlog)
        self._servers.append(server)
        self.plain += [sock.fileno() for sock in server.sockets]
        if mode:
            path.chmod(mode)

    @property
    def addresses(self) -> list[str]:
        """Where clients can connect, for people."""
        names = [sock.getsockname() for server in self._servers for sock in server.sockets]
        return [f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name) for name in names]

    def close(self) -> None:
        """Listen no more; connections that were accepted stay."""
        for server in self._servers:
            server.close()
        if self._servers and self._config.unixsocket:
            with contextlib.suppress(OSError):
                Path(self._config.unixsocket).unlink(missing_ok=True)
        self._servers.clear()
        self.plain.clear()


def tls_context(config: Config) -> ssl.SSLContext:
    """What TLS connections are made with; a ConfigError names the directive that is wrong."""
    if not config.tls_cert_file or not config.tls_key_file:
        raise ConfigError("tls-port needs tls-cert-file and tls-key-file")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(config.tls_cert_file, config.tls_key_file, config.tls_key_file_pass or None)
    except OSError as error:
        raise ConfigError(f"tls-cert-file and tls-key-file cannot be used: {error}") from None
    if config.tls_auth_clients != "no":
        if not config.tls_ca_cert_file:
            raise ConfigError(f"tls-auth-clients {config.tls_auth_clients} needs tls-ca-cert-file")
        try:
            context.load_verify_locations(config.tls_ca_cert_file)
        except OSError as error:
            raise ConfigError(f"tls-ca-cert-file cannot be used: {error}") from None
        required = config.tls_auth_clients == "yes"
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    return context
