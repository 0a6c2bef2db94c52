"""The options of a console."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from penstock.console.masking import Mask

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class Options:
    """Immutable: every part of the console reads it."""

    url: str
    """The server; a user and password in it are the console's own, which browsers never get."""
    folder: Path
    """Where the history of the graphs and the log of actions are."""
    host: str = "127.0.0.1"
    port: int = 0
    names: tuple[str, ...] = ()
    """Other names under which browsers may ask for the console."""
    mask: Mask = field(default_factory=Mask)

    @property
    def place(self) -> str:
        """The server for people, and the name under which its history is kept."""
        parts = urlsplit(self.url)
        if parts.scheme == "unix":
            return parts.path
        host = parts.hostname or "127.0.0.1"
        return f"{f'[{host}]' if ':' in host else host}:{parts.port or 6379}{parts.path.rstrip('/')}".removesuffix("/0")

    @property
    def credentials(self) -> tuple[str | None, str | None]:
        """The console's own user and password. Bytes that are no UTF-8 are surrogate escapes.

        >>> Options("redis://ada:p%FFq@127.0.0.1", Path()).credentials
        ('ada', 'p\\udcffq')
        """
        parts = urlsplit(self.url)
        query = dict(option.partition("=")[::2] for option in parts.query.split("&"))
        user, password = parts.username or query.get("username"), parts.password or query.get("password")
        return _unquoted(user), _unquoted(password)

    @property
    def anonymous_url(self) -> str:
        """The server's address without a user and password: the query may have other options."""
        parts = urlsplit(self.url)
        query = "&".join(
            option for option in parts.query.split("&") if option.partition("=")[0] not in ("username", "password")
        )
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=query))

    @property
    def hosts(self) -> frozenset[str]:
        """Names of the Host header that are answered. A page elsewhere whose name was pointed here is not."""
        return frozenset({*LOOPBACK, self.host.lower(), *(name.lower() for name in self.names)})


def _unquoted(text: str | None) -> str | None:
    return unquote(text, errors="surrogateescape") if text else None


def default_folder() -> Path:
    """Where programs keep such data: $XDG_STATE_HOME, usually ~/.local/state."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "penstock" / "console"
