"""Answers that last: events, and files that are sent as they are read. Each holds a connection for as long as it lasts.

Their number is bounded for a session, for a user and for all together, and all together leave connections for ordinary
requests (serve.py has the bound of connections). One more is refused with a reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from penstock.console.browser_sessions import BrowserSession
from penstock.console.errors import TooMany

MOST = 400
MOST_OF_USER = 100
MOST_OF_SESSION = 20


class LongResponses:
    """Counts the answers that are being sent. Owned by the event loop."""

    def __init__(self) -> None:
        self._count: Counter[tuple[str, str]] = Counter()

    def answer(self, session: BrowserSession, response: Response, refused: Callable[[TooMany], Response]) -> Response:
        """The response, counted while it is sent; `refused` makes the one that is sent if there are too many."""
        return _Counted(self, session, response, refused)

    def begin(self, session: BrowserSession) -> None:
        """TooMany if one of the bounds is reached."""
        places = _places(session)
        for place, (most, what) in zip(places, _BOUNDS, strict=True):
            if self._count[place] >= most:
                raise TooMany(f"{what} {most} open pages and downloads already. Close some of them.")
        self._count.update(places)

    def end(self, session: BrowserSession) -> None:
        self._count.subtract(_places(session))
        self._count = +self._count  # without those that are 0


_BOUNDS = (
    (MOST_OF_SESSION, "This browser has"),
    (MOST_OF_USER, "Your user has"),
    (MOST, "This console has"),
)


def _places(session: BrowserSession) -> tuple[tuple[str, str], ...]:
    return ("session", session.token), ("user", session.user), ("all", "")


class _Counted(Response):
    def __init__(
        self,
        counts: LongResponses,
        session: BrowserSession,
        response: Response,
        refused: Callable[[TooMany], Response],
    ) -> None:
        self._counts = counts
        self._session = session
        self._response = response
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._counts.begin(self._session)
        except TooMany as problem:
            await self._refused(problem)(scope, receive, send)
            return
        try:
            await self._response(scope, receive, send)
        finally:
            self._counts.end(self._session)
