"""The web application: which address leads to what.

/, /streams, /stream?key=... and the other pages    one HTML file; its scripts ask for the rest
/static/...                                         scripts and styles
/api/session, /api/login, /api/logout               who is logged in
/api/view/NAME, /api/live/NAME                      what a page shows, once or as events
/api/tail, /api/download, /api/message              messages
/api/do/NAME                                        actions
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from penstock.console import live
from penstock.console.action_log import ActionLog
from penstock.console.browser_sessions import COOKIE, IDLE, BrowserSession, BrowserSessions
from penstock.console.errors import Away, Missing, NotLoggedIn, Problem, Refused, TooMany, Wrong
from penstock.console.history import History
from penstock.console.json_bytes import as_json, text
from penstock.console.login import Login
from penstock.console.long_names import LongNames
from penstock.console.long_responses import LongResponses
from penstock.console.options import Options
from penstock.console.pages import ACTIONS, PAGES, STREAMED, VIEWS
from penstock.console.request_context import Body, Console, Query, RequestContext
from penstock.console.sampler import Samplers
from penstock.console.security import Guard
from penstock.console.throttle import Throttle

STATIC = Path(__file__).parent / "static"
TOKEN = "x-penstock-token"
LARGEST_BODY = 4 << 20
BODY_SECONDS = 60.0
RETRY_OWN = 5.0
RETRY_REFUSED = 60.0

Handler = Callable[[Request], Awaitable[Response]]


class App:
    """Handlers of requests, and what they share."""

    def __init__(self, options: Options) -> None:
        options.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        history = History(options.folder, options.place)
        self.console = Console(options, history, Samplers(history), ActionLog(options.folder), LongNames())
        self.sessions = BrowserSessions()
        self.long_responses = LongResponses()
        self.throttle = Throttle(time.monotonic)
        self._attempts = asyncio.Semaphore(4)

    def routes(self) -> list[Route | Mount]:
        api: dict[str, tuple[str, Handler]] = {
            "session": ("GET", self.session),
            "login": ("POST", self.log_in),
            "logout": ("POST", self.log_out),
            "view/{name}": ("GET", self.view),
            "live/{name}": ("GET", self.live),
            "stream/{name}": ("GET", self.streamed),
            "do/{name}": ("POST", self.act),
        }
        return [
            *(Route(page, self.page, methods=["GET"]) for page in PAGES),
            *(Route(f"/api/{path}", _answered(handler), methods=[method]) for path, (method, handler) in api.items()),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        own = asyncio.create_task(self._keep_recording())
        try:
            yield
        finally:
            own.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await own
            await self.console.samplers.close()
            await self.sessions.close()
            self.console.history.close()

    async def _keep_recording(self) -> None:
        """Log in as the console itself, as soon as the server lets it, so that graphs go on while no page is open."""
        login = Login(self.console.options.anonymous_url, *self.console.options.credentials)
        due = 0.0
        try:
            while True:
                if self.console.is_recording and login.is_over:  # as when the server has another password now
                    await self.console.samplers.keep_no_more()
                    self.console.is_recording = False
                    due = time.monotonic() + RETRY_REFUSED
                if not self.console.is_recording and time.monotonic() >= due:
                    try:
                        await login.identify()
                        await login.call("SCAN", 0, "COUNT", 1)
                        self.console.samplers.keep(login)
                        self.console.is_recording = True
                    except Away:
                        pass
                    except Problem:  # each attempt is a line in the server's ACL LOG
                        due = time.monotonic() + RETRY_REFUSED
                await self.console.samplers.tidy()
                await asyncio.sleep(RETRY_OWN)
        finally:
            await login.close()

    # -- pages and sessions -------------------------------------------------------------------------------------

    async def page(self, request: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    async def missing(self, request: Request, error: Exception) -> Response:
        """People that follow an old link get a page that says so; its scripts know the addresses."""
        if request.method == "GET" and not request.url.path.startswith(("/api/", "/static/")):
            return FileResponse(STATIC / "index.html", 404)
        return _Answer({"error": "There is no such address."}, 404)

    async def session(self, request: Request) -> Response:
        """The session of a page that begins. It is none if the server no longer takes its login."""
        session = self._session(request)
        if session.login.is_over:
            await self._end(request)
            raise NotLoggedIn("The server no longer accepts this login. Log in again.")
        response = _Answer(self._about(session))
        _set_cookie(request, response, request.cookies[cookie_name(request)], session)  # for another twelve hours
        return response

    def _session(self, request: Request) -> BrowserSession:
        return self.sessions.find(request.cookies.get(cookie_name(request)))

    def _about(self, session: BrowserSession) -> dict[str, Any]:
        options = self.console.options
        return {
            "user": text(session.user.encode("utf-8", "surrogateescape")),
            "token": session.token,
            "server": options.place,
            "masked": sorted(options.mask.fields),
            "recording": self.console.is_recording,
        }

    async def log_in(self, request: Request) -> Response:
        """With a name and a password; without both, as the user that needs none, if the server has one."""
        address = request.client.host if request.client else ""
        self._check_throttle(address)
        body = Body(await _body(request), self.console.names)
        user, password = body.credential("user", 256), body.credential("password", 4096)
        login = Login(self.console.options.anonymous_url, user, password)
        try:
            async with self._attempts:
                self._check_throttle(address)  # others of this address may have failed meanwhile
                name = await login.identify()
        except BaseException as error:
            await login.close()
            if isinstance(error, NotLoggedIn):
                if not user and not password:
                    raise NotLoggedIn("This server asks for a user and a password.") from None
                self.throttle.failed(address, user or "default")
                self.console.actions.add(user or "default", address, "log in", "", {}, "refused")
            raise
        if user or password:
            self.throttle.succeeded(address, user or "default")
        await self._end(request)
        is_encrypted = request.headers.get("origin", "").startswith("https:")  # by the proxy in front of the console
        session = BrowserSession(login, name, address, is_encrypted)
        if user or password:
            self.console.actions.add(name, address, "log in", "", {}, "done")
        response = _Answer(self._about(session))
        _set_cookie(request, response, await self.sessions.begin(session), session)
        return response

    def _check_throttle(self, address: str) -> None:
        if (wait := self.throttle.wait(address)) > 0:
            raise TooMany(f"Too many wrong passwords. Try again in {wait:.0f} s.")

    async def log_out(self, request: Request) -> Response:
        await self._end(request)
        response = _Answer({})
        response.delete_cookie(cookie_name(request), httponly=True, samesite="strict")
        return response

    async def _end(self, request: Request) -> None:
        name = request.cookies.get(cookie_name(request))
        with contextlib.suppress(NotLoggedIn):
            await self.console.samplers.leave(self.sessions.find(name).login)
        await self.sessions.end(name)

    # -- what pages show, and actions ---------------------------------------------------------------------------

    async def view(self, request: Request) -> Response:
        context = RequestContext(self.console, self._session(request), self._query(request))
        return _Answer(await _named(VIEWS, request)(context))

    def _query(self, request: Request) -> Query:
        return Query(request.scope["query_string"], self.console.names)

    async def live(self, request: Request) -> Response:
        context = RequestContext(self.console, self._session(request), self._query(request))
        found = live.until(self.console.closing, live.events(_named(VIEWS, request), context))
        return self._long_response(context, StreamingResponse(found, media_type=live.TYPE, headers=live.HEADERS))

    async def streamed(self, request: Request) -> Response:
        context = RequestContext(self.console, self._session(request), self._query(request))
        return self._long_response(context, await _named(STREAMED, request)(context))

    def _long_response(self, context: RequestContext, response: Response) -> Response:
        """An answer that is counted while it is sent. Pages are told by an event that there are too many."""

        def refused(problem: Problem) -> Response:
            if response.media_type == live.TYPE:
                return Response(live.problem_event(problem), media_type=live.TYPE, headers=live.HEADERS)
            return _Answer({"error": str(problem)}, problem.status)

        return self.long_responses.answer(context.session, response, refused)

    async def act(self, request: Request) -> Response:
        session = self._session(request)
        if request.headers.get(TOKEN) != session.token:
            raise Refused("The page is out of date: load it again.")
        action = _named(ACTIONS, request)
        session.login.forget_refusals()
        context = RequestContext(self.console, session, Body(await _body(request), self.console.names))
        try:
            done = await action.run(context)
        except Problem as problem:
            if isinstance(problem, Away) and problem.is_unsent:
                problem = Away(f"{problem} The command was not sent.")
            self._log(session, action.title, action.target(context), {}, str(problem))
            raise problem from None
        self._log(session, action.title, action.target(context), done.detail, "done")
        return _Answer({"text": done.text, **done.detail})

    def _log(self, session: BrowserSession, action: str, target: str, detail: dict[str, Any], outcome: str) -> None:
        self.console.actions.add(session.user, session.address, action, target, detail, outcome)


def cookie_name(request: Request) -> str:
    """Cookies of one host are for all its ports; two consoles must not take each other's session."""
    _, port = request.scope["server"]
    return f"{COOKIE}_{port}"


def _set_cookie(request: Request, response: Response, name: str, session: BrowserSession) -> None:
    response.set_cookie(
        cookie_name(request), name, max_age=int(IDLE), httponly=True, samesite="strict", secure=session.is_encrypted
    )


class _Answer(JSONResponse):
    def render(self, content: Any) -> bytes:
        return as_json(content)


def _named(table: dict[str, Any], request: Request) -> Any:
    try:
        return table[request.path_params["name"]]
    except KeyError:
        raise Missing("There is no such address.") from None


async def _body(request: Request) -> dict[str, Any]:
    """A JSON object of a bounded size."""
    data = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                data += part
                if len(data) > LARGEST_BODY:
                    raise Wrong(f"A request has at most {LARGEST_BODY >> 20} MB.")
    except TimeoutError:
        raise Wrong(f"A request has to be sent within {BODY_SECONDS:.0f} s.") from None
    try:
        values = json.loads(data or b"{}")
    except (ValueError, RecursionError):
        raise Wrong("The request is no JSON.") from None
    if not isinstance(values, dict):
        raise Wrong("The request is no JSON object.")
    return values


def _answered(handler: Handler) -> Handler:
    """A problem becomes an answer with its status."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except Problem as problem:
            return _Answer({"error": str(problem)}, problem.status)

    return answer


def create_app(app: App) -> Starlette:
    options = app.console.options
    return Starlette(
        routes=app.routes(), middleware=[Middleware(Guard, hosts=options.hosts)], lifespan=app.lifespan,
        exception_handlers={404: app.missing},
    )  # fmt: skip
