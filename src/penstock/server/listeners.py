"""The sockets that a server listens on: TCP, TLS, and a Unix socket.

Port 0 means "none" in a configuration, as in Redis; an embedded server asks for `choose_port`, where the system picks a
free one, the same for every address, and `port` becomes that.

New certificates apply to clients that connect from then on.

`port`, `tls-port` and `bind` can change while the server runs (tcp_sockets.py).
"""

from __future__ import annotations

import contextlib
import errno
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

from penstock.engine.config import Config, ConfigError
from penstock.server.tcp_sockets import Listener, Place, TcpSockets, listen

TLS_FILES = ("tls-cert-file", "tls-key-file", "tls-key-file-pass", "tls-ca-cert-file", "tls-auth-clients")


class Listeners:
    """Opened by `open`, closed by `close`. `serve` and `stop` are called with each socket that is opened and closed."""

    def __init__(self, config: Config, serve: Callable[[Listener], None], stop: Callable[[Listener], None]) -> None:
        self._config = config
        self._serve = serve
        self._stop = stop
        self._tcp = TcpSockets(config, serve, stop)
        self._unix: list[Listener] = []
        self._is_open = False
        self.context: ssl.SSLContext | None = None  # for TLS; made when it is first needed
        for name in ("port", "tls-port", "bind"):
            config.on_change(name, lambda _: self._move())
        config.on_change("tcp-keepalive", self._keep_alive)
        for name in TLS_FILES:
            config.on_change(name, lambda _: self._renew())

    def open(self, choose_port: bool = False) -> None:
        """Listen on everything the configuration names, or raise OSError or ConfigError and listen on nothing."""
        config = self._config
        try:
            if choose_port and not config.port and config.bind:
                config.replace("port", self._tcp.open_any_port(config.bind[0]))
            self._update()
            if config.unixsocket:
                self._unix = [self._unix_at(Path(config.unixsocket), int(config.unixsocketperm, 8))]
                self._serve(self._unix[0])
            if not self.all:
                raise ConfigError("there is no address to listen on: set port and bind, tls-port, or unixsocket")
            self._is_open = True
        except BaseException as error:
            self.close()
            if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
                remedy = "Another program listens there; end it, or choose another port"
                raise OSError(error.errno, f"{error.strerror}. {remedy}") from None
            raise

    @property
    def all(self) -> list[Listener]:
        return [*self._tcp.all, *self._unix]

    @property
    def addresses(self) -> list[str]:
        """Where clients can connect, for people."""
        return [listener.shown for listener in self.all]

    def close(self) -> None:
        """Stop listening; accepted connections stay."""
        self._is_open = False
        self._tcp.close()
        for listener in self._unix:
            self._stop(listener)
            listener.socket.close()
        if self._unix:
            with contextlib.suppress(OSError):
                Path(self._config.unixsocket).unlink(missing_ok=True)
        self._unix.clear()

    def renew_certificates(self) -> bool:
        """Read the files for TLS again, for clients that connect from now on; whether TLS is on.

        A ConfigError says what is wrong with them, and the old certificates stay in use.
        """
        self.context = tls_context(self._config) if self._config.tls_port else None
        return self.context is not None

    def _renew(self) -> None:
        """CONFIG SET: use the files that the configuration names now, or refuse them.

        Naming the same file reads it again.
        """
        self.renew_certificates()

    # -- moving -----------------------------------------------------------------------------------------------

    def _move(self) -> None:
        """CONFIG SET: listen where the configuration says now, or raise OSError or ConfigError and stay."""
        if self._is_open:
            self._update()

    def _update(self) -> None:
        config = self._config
        ports = ((config.port, False), (config.tls_port, True))
        addresses = [address for address in config.bind if address]
        wanted = [Place(address, port, encrypted) for port, encrypted in ports if port for address in addresses]
        if config.tls_port and self.context is None:
            self.context = tls_context(config)
        self._tcp.move(wanted)

    # -- sockets ----------------------------------------------------------------------------------------------

    def _unix_at(self, path: Path, mode: int) -> Listener:
        listening = socket.socket(socket.AF_UNIX)
        try:
            if path.is_socket():
                path.unlink(missing_ok=True)  # a killed server leaves it behind, and no server could listen again
            listening.bind(str(path))
            if mode:
                path.chmod(mode)
            return listen(listening, False, self._config)
        except OSError as error:
            listening.close()
            taken = error.errno == errno.EADDRINUSE
            problem = "a file of another kind has this name" if taken else error.strerror or str(error)
            raise ConfigError(f"unixsocket {path} cannot be used: {problem}") from None

    def _keep_alive(self, seconds: int) -> None:
        for listener in self.all:
            listener.keep_alive(seconds)


def tls_context(config: Config, needed_by: str = "tls-port") -> ssl.SSLContext:
    """What TLS connections are made with; a ConfigError names the directive that is wrong."""
    if not config.tls_cert_file or not config.tls_key_file:
        raise ConfigError(f"{needed_by} needs tls-cert-file and tls-key-file")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # A function, even if there is no pass phrase: for a key that needs one OpenSSL would ask the terminal, and
        # wait.
        context.load_cert_chain(
            config.path("tls-cert-file"), config.path("tls-key-file"), lambda: str(config.tls_key_file_pass)
        )
    except OSError as error:
        raise ConfigError(f"tls-cert-file and tls-key-file cannot be used: {error}") from None
    if config.tls_auth_clients != "no":
        if not config.tls_ca_cert_file:
            raise ConfigError(f"tls-auth-clients {config.tls_auth_clients} needs tls-ca-cert-file")
        try:
            context.load_verify_locations(config.path("tls-ca-cert-file"))
        except OSError as error:
            raise ConfigError(f"tls-ca-cert-file cannot be used: {error}") from None
        required = config.tls_auth_clients == "yes"
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    return context
