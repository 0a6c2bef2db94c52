"""The argument of a view or an action: the console, the session, and the request."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from penstock.console.errors import Wrong
from penstock.console.login import Login
from penstock.console.options import Options

if TYPE_CHECKING:
    from penstock.console.action_log import ActionLog
    from penstock.console.browser_sessions import BrowserSession
    from penstock.console.history import History
    from penstock.console.long_names import LongNames
    from penstock.console.sampler import Sampler, Samplers


@dataclass(slots=True)
class Console:
    """The parts that all requests share; they belong to the event loop."""

    options: Options
    history: History
    samplers: Samplers
    actions: ActionLog
    names: LongNames
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the console ends: streams of events end then."""
    parquet_writers: int = 0
    is_recording: bool = False
    """Whether the console has a login of its own, so that graphs go on while no page is open."""


class Given:
    """Named values of a query or a JSON body, checked as they are read."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def text(self, name: str, default: str | None = None, longest: int = 1 << 20, errors: str = "strict") -> str:
        value = self._values.get(name, default)
        if not isinstance(value, str):
            raise Wrong(f"'{name}' is missing." if value is None else f"'{name}' must be a text.")
        if len(value) > longest:
            raise Wrong(f"'{name}' is too long.")
        try:
            value.encode("utf-8", errors)
        except UnicodeEncodeError:
            raise Wrong(f"'{name}' has half of a character in it.") from None
        return value

    def number(self, name: str, default: int | None = None, least: int = 0, most: int = 1 << 62) -> int:
        value = self._values.get(name, default)
        try:
            found = int(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            raise Wrong(f"'{name}' must be a whole number.") from None
        if not least <= found <= most:
            raise Wrong(f"'{name}' must be between {least:,} and {most:,}.")
        return found

    def has(self, name: str) -> bool:
        return self._values.get(name) not in (None, "")


class Query(Given):
    """The parameters in an address. A key is given by its id."""

    def __init__(self, raw: bytes, names: LongNames) -> None:
        """Values are bytes as texts of Latin-1, so that nothing of a key is lost."""
        text = raw.decode("latin-1")
        super().__init__(dict(parse_qsl(text, encoding="latin-1", keep_blank_values=True)))
        self._ids = dict(part.partition("=")[::2] for part in text.split("&"))
        self._names = names

    def key(self, name: str = "key") -> bytes:
        given = self._ids.get(name, "")
        return self._names.name(given) if given.startswith("@") else self.text(name).encode("latin-1")

    def words(self, name: str) -> str:
        """A text that people typed."""
        return self.key(name).decode("utf-8", "replace") if self.has(name) else ""


class Body(Given):
    """The body of a request that changes something. A key is given by its id."""

    def __init__(self, values: dict[str, Any], names: LongNames) -> None:
        super().__init__(values)
        self._names = names

    def key(self, name: str = "key") -> bytes:
        return self._names.name(self.text(name))

    def credential(self, name: str, longest: int) -> str | None:
        """A name or a password; a byte that is no UTF-8 is a surrogate escape."""
        return self.text(name, "", longest, "surrogateescape") or None


@dataclass(slots=True)
class RequestContext:
    """One request."""

    console: Console
    session: BrowserSession
    given: Any

    @property
    def login(self) -> Login:
        return self.session.login

    @property
    def names(self) -> LongNames:
        return self.console.names

    @property
    def sampler(self) -> Sampler:
        return self.console.samplers.of(self.session.login)
