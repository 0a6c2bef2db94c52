"""TCP sockets that listen at some places, and can move to others while the server runs.

Sockets at places that stay are kept, new ones are opened before old ones are closed, and if one cannot be opened
everything stays as it was.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from typing import NamedTuple

from penstock.engine.config import Config

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


class TcpSockets:
    """See the top of this file. `serve` and `stop` are called with each socket that is opened and closed."""

    def __init__(self, config: Config, serve: Callable[[Listener], None], stop: Callable[[Listener], None]) -> None:
        self._config = config
        self._serve = serve
        self._stop = stop
        self._at: dict[Place, list[Listener]] = {}  # a name of a host may have several addresses

    @property
    def all(self) -> list[Listener]:
        return [listener for group in self._at.values() for listener in group]

    def open_any_port(self, address: str) -> int:
        """Listen at a free port that the system chooses."""
        listeners = _tcp_at(Place(address, 0, False), self._config)
        port: int = listeners[0].socket.getsockname()[1]
        for other in listeners[1:]:
            other.socket.close()
        self._take({Place(address, port, False): listeners[:1]})
        return port

    def move(self, wanted: list[Place], check: Callable[[list[Listener]], None] = lambda listeners: None) -> None:
        """Listen at these places and at no others.

        It stays where it is if that raises an OSError, or `check`, which is given the sockets that there would be, an
        error.
        """
        obsolete = [place for place in self._at if place not in wanted]
        missing = [place for place in wanted if place not in self._at]
        kept = [listener for place in wanted for listener in self._at.get(place, ())]
        try:
            opened = self._open(missing, kept, check)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not obsolete:
                raise
            # It may be our own socket that is in the way: 127.0.0.1 keeps 0.0.0.0 from being listened on.
            self._forget(obsolete)
            try:
                opened = self._open(missing, kept, check)
            except BaseException:
                self._take(_open_all(obsolete, self._config))
                raise
            obsolete = []
        self._take(opened)
        self._forget(obsolete)

    def close(self) -> None:
        """Stop listening; accepted connections stay."""
        self._forget(list(self._at))

    def _open(
        self, places: list[Place], kept: list[Listener], check: Callable[[list[Listener]], None]
    ) -> dict[Place, list[Listener]]:
        opened = _open_all(places, self._config)
        try:
            check([*kept, *(listener for group in opened.values() for listener in group)])
        except BaseException:
            _close(opened)
            raise
        return opened

    def _take(self, opened: dict[Place, list[Listener]]) -> None:
        self._at |= opened
        for listeners in opened.values():
            for listener in listeners:
                self._serve(listener)

    def _forget(self, places: list[Place]) -> None:
        for place in places:
            for listener in self._at.pop(place):
                self._stop(listener)
                listener.socket.close()


def _open_all(places: list[Place], config: Config) -> dict[Place, list[Listener]]:
    """Sockets at all of these places, or an OSError and none."""
    opened: dict[Place, list[Listener]] = {}
    try:
        for place in places:
            try:
                opened[place] = _tcp_at(place, config)
            except OSError:
                if not place.address.startswith("-"):
                    raise
    except OSError:
        _close(opened)
        raise
    return opened


def _close(opened: dict[Place, list[Listener]]) -> None:
    for listeners in opened.values():
        for listener in listeners:
            listener.socket.close()


def _tcp_at(place: Place, config: Config) -> list[Listener]:
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
                opened.append(listen(listening, place.encrypted, config))
            except OSError as error:
                listening.close()
                raise OSError(error.errno, f"cannot listen on {host}:{place.port}: {error.strerror}") from None
    except OSError:
        for listener in opened:
            listener.socket.close()
        raise
    return opened


def listen(bound: socket.socket, encrypted: bool, config: Config) -> Listener:
    """Have a socket that is bound take connections."""
    bound.setblocking(False)
    bound.listen(config.tcp_backlog)
    listener = Listener(bound, encrypted)
    listener.keep_alive(config.tcp_keepalive)
    return listener
