"""Browser sessions. They are in memory only: a console that is started again asks for the login again.

The cookie names the session and no script can read it. The token goes with every action in a header, which a page of
another site cannot send.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field

from penstock.console.errors import NotLoggedIn
from penstock.console.login import Login

COOKIE = "penstock_console"
IDLE = 12 * 3600.0
"""Seconds after which a session ends that has no open page and asks for nothing."""
MOST = 500
MOST_OF_USER = 100
"""So that logins of one user do not end the sessions of others."""


@dataclass(slots=True)
class BrowserSession:
    """A logged-in browser."""

    login: Login
    user: str
    address: str
    is_encrypted: bool = False
    """Whether the browser speaks TLS, so that its cookie is for nothing else."""
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    used: float = field(default_factory=time.monotonic)


class BrowserSessions:
    """All sessions by the value of their cookie."""

    def __init__(self) -> None:
        self._sessions: dict[str, BrowserSession] = {}

    async def begin(self, session: BrowserSession) -> str:
        """Keep a session; the value of its cookie. The one that was idle longest makes room, first of the same user."""
        for name in [name for name, each in self._sessions.items() if time.monotonic() - each.used > IDLE]:
            await self.end(name)
        of_user = [name for name, each in self._sessions.items() if each.user == session.user]
        for names, most in ((of_user, MOST_OF_USER), (list(self._sessions), MOST)):
            if len(names) >= most:
                await self.end(min(names, key=lambda name: self._sessions[name].used))
                break
        name = secrets.token_urlsafe(32)
        self._sessions[name] = session
        return name

    def find(self, name: str | None) -> BrowserSession:
        session = self._sessions.get(name or "")
        if session is None or time.monotonic() - session.used > IDLE:
            raise NotLoggedIn("Log in first.")
        session.used = time.monotonic()
        return session

    async def end(self, name: str | None) -> None:
        session = self._sessions.pop(name or "", None)
        if session is not None:
            await session.login.close()

    async def close(self) -> None:
        for name in list(self._sessions):
            await self.end(name)
