"""The sockets that a server listens on: TCP, TLS, and a Unix socket.

Port 0 means "none" in a configuration, as in Redis; an embedded server asks for `choose_port`, where the system picks a
free one, the same for every address, and `port` becomes that.

New certificates apply to clients that connect from then on.

`port`, `tls-port` and `bind` can change while the server runs. Sockets at addresses that stay are kept, new ones are
opened before old ones are closed, and if one cannot be opened everything stays as it was.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from penstock.engine.config import Config, ConfigError

TLS_FILES = ("tls-cert-file", "tls-key-file", "tls-key-file-pass", "tls-ca-cert-file", "tls-auth-clients")
_EVERYWHERE = {"*": "0.0.0.0", "::*": "::"}  # noqa: S104  # only when the configuration says so


class Place(NamedTuple):
    """An address of `bind` with a port, plain or for TLS."""

    address: str  # as it was given: with a leading - it may be missing
    port: int
    encrypted: bool


class Listener:
    """A socket that clients connect to."""

    def __init__(self, its_socket: socket.socket, encrypted: bool) -> None:
        self.socket = its_socket
        self.encrypted = encrypted
        self.kind = int(its_socket.family), int(its_socket.type), its_socket.proto
        name = its_socket.getsockname()
        self.is_unix = its_socket.family == socket.AF_UNIX
        self.address = f"{name}:0" if self.is_unix else shown_address(name)  # for CLIENT LIST, which has a port always
        self.everywhere = not self.is_unix and name[0] in _EVERYWHERE.values()

    @property
    def shown(self) -> str:
        """The address, for people."""
        return self.address.removesuffix(":0") if self.is_unix else self.address

    def local_address(self, accepted: socket.socket) -> str:
        """The address of this machine that an accepted client connected to."""
        return shown_address(accepted.getsockname()) if self.everywhere else self.address

    def keep_alive(self, seconds: int) -> None:
        """Have the kernel detect clients that vanished; an accepted socket inherits the settings of its listener."""
        if self.is_unix:
            return
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, bool(seconds))
        if seconds and hasattr(socket, "TCP_KEEPIDLE"):
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, seconds)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(seconds // 3, 1))
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


def shown_address(name: tuple[str, int]) -> str:
    """A TCP address as Redis prints it.

    >>> shown_address(("127.0.0.1", 6379)), shown_address(("::1", 6379))
    ('127.0.0.1:6379', '[::1]:6379')
    """
    return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"


class Listeners:
    """Opened by `open`, closed by `close`. `serve` and `stop` are called with each socket that is opened and closed."""

    def __init__(self, config: Config, serve: Callable[[Listener], None], stop: Callable[[Listener], None]) -> None:
        self._config = config
        self._serve = serve
        self._stop = stop
        self._tcp: dict[Place, list[Listener]] = {}  # a name of a host may have several addresses
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
                first = Place(config.bind[0], 0, False)
                (listener, *_) = self._tcp_at(first)
                config.replace("port", listener.socket.getsockname()[1])
                self._tcp[first._replace(port=config.port)] = [listener]
                self._serve(listener)
            self._update()
            if config.unixsocket:
                self._unix = [self._unix_at(Path(config.unixsocket), int(config.unixsocketperm, 8))]
                self._serve(self._unix[0])
            self._is_open = True
        except BaseException:
            self.close()
            raise

    @property
    def all(self) -> list[Listener]:
        return [listener for group in (*self._tcp.values(), self._unix) for listener in group]

    @property
    def addresses(self) -> list[str]:
        """Where clients can connect, for people."""
        return [listener.shown for listener in self.all]

    def close(self) -> None:
        """Stop listening; accepted connections stay."""
        self._is_open = False
        for listener in self.all:
            self._close(listener)
        if self._unix:
            with contextlib.suppress(OSError):
                Path(self._config.unixsocket).unlink(missing_ok=True)
        self._tcp.clear()
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
        try:
            self.renew_certificates()
        except ConfigError as error:
            raise ValueError(str(error)) from None

    # -- moving -----------------------------------------------------------------------------------------------

    def _move(self) -> None:
        """CONFIG SET: listen where the configuration says now, or raise OSError and stay."""
        if not self._is_open:
            return
        try:
            self._update()
        except ConfigError as error:
            raise ValueError(str(error)) from None

    def _update(self) -> None:
        config = self._config
        ports = ((config.port, False), (config.tls_port, True))
        wanted = [Place(address, port, encrypted) for port, encrypted in ports if port for address in config.bind]
        if config.tls_port and self.context is None:
            self.context = tls_context(config)
        obsolete = [place for place in self._tcp if place not in wanted]
        missing = [place for place in wanted if place not in self._tcp]
        try:
            opened = self._open(missing)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not obsolete:
                raise
            # It may be our own socket that is in the way: 127.0.0.1 keeps 0.0.0.0 from being listened on.
            self._forget(obsolete)
            try:
                opened = self._open(missing)
            except OSError:
                self._take(self._open(obsolete))
                raise
            obsolete = []
        self._take(opened)
        self._forget(obsolete)

    def _take(self, opened: dict[Place, list[Listener]]) -> None:
        self._tcp |= opened
        for listeners in opened.values():
            for listener in listeners:
                self._serve(listener)

    def _forget(self, places: list[Place]) -> None:
        for place in places:
            for listener in self._tcp.pop(place):
                self._close(listener)

    def _close(self, listener: Listener) -> None:
        self._stop(listener)
        listener.socket.close()

    # -- sockets ----------------------------------------------------------------------------------------------

    def _open(self, places: list[Place]) -> dict[Place, list[Listener]]:
        """Sockets at all of these places, or an OSError and none."""
        opened: dict[Place, list[Listener]] = {}
        try:
            for place in places:
                try:
                    opened[place] = self._tcp_at(place)
                except OSError:
                    if not place.address.startswith("-"):
                        raise
        except OSError:
            for listeners in opened.values():
                for listener in listeners:
                    listener.socket.close()
            raise
        return opened

    def _tcp_at(self, place: Place) -> list[Listener]:
        host = place.address.removeprefix("-")
        found = socket.getaddrinfo(_EVERYWHERE.get(host, host), place.port, type=socket.SOCK_STREAM)
        opened: list[Listener] = []
        try:
            for family, kind, protocol, _, name in dict.fromkeys(found):
                listening = socket.socket(family, kind, protocol)
                try:
                    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    if family == socket.AF_INET6:
                        listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                    listening.bind(name)
                    opened.append(self._listen(listening, place.encrypted))
                except OSError as error:
                    listening.close()
                    raise OSError(error.errno, f"cannot listen on {host}:{place.port}: {error.strerror}") from None
        except OSError:
            for listener in opened:
                listener.socket.close()
            raise
        return opened

    def _unix_at(self, path: Path, mode: int) -> Listener:
        path.unlink(missing_ok=True)  # a killed server leaves it behind, and no server could listen again
        listening = socket.socket(socket.AF_UNIX)
        try:
            listening.bind(str(path))
            if mode:
                path.chmod(mode)
            return self._listen(listening, encrypted=False)
        except OSError:
            listening.close()
            raise

    def _listen(self, bound: socket.socket, encrypted: bool) -> Listener:
        bound.setblocking(False)
        bound.listen(self._config.tcp_backlog)
        listener = Listener(bound, encrypted)
        listener.keep_alive(self._config.tcp_keepalive)
        return listener

    def _keep_alive(self, seconds: int) -> None:
        for listener in self.all:
            listener.keep_alive(seconds)


def tls_context(config: Config) -> ssl.SSLContext:
    """What TLS connections are made with; a ConfigError names the directive that is wrong."""
    if not config.tls_cert_file or not config.tls_key_file:
        raise ConfigError("tls-port needs tls-cert-file and tls-key-file")
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
