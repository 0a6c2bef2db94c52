"""The outermost layer: which requests are looked at, and the headers of every answer.

A request must name the console by a known host, or a page whose name was pointed at this address could read everything
(DNS rebinding). A request that changes something must come from our own page: browsers say so in Origin and in
Sec-Fetch-Site, and the token of the session, which the actions check, is the second lock.

The policy lets the page load only what the console serves, run no inline script, and write no HTML from text. So a
name or a payload with a script in it stays text, even if some line of ours forgot to treat it so.
"""

from __future__ import annotations

import json
from collections.abc import MutableMapping
from typing import Any
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
SAFE = ("GET", "HEAD")


class Guard:
    """Wraps the application."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *_headers(scope)]
            await send(message)

        if (wrong := self._objection(scope["method"], scope["path"], headers)) is not None:
            await _refuse(send_guarded, wrong)
            return
        await self._app(scope, receive, send_guarded)

    def _objection(self, method: str, path: str, headers: MutableMapping[str, str]) -> str | None:
        host = headers.get("host", "")
        if (name := _name(host)) not in self._hosts:
            return (
                f"This console does not answer to the name '{name}'. Start it with --name {name or 'HOST'} "
                "if browsers are to use that name."
            )
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if method in SAFE:
            # Another port of this host gets our cookies too. Its pages cannot read the answers, but could ask for many.
            is_foreign = path.startswith("/api/") and site in ("same-site", "cross-site")
            return "This request comes from another site." if is_foreign else None
        if origin is not None and origin.lower().partition("://")[2] != host.lower():
            return "This request comes from another site."
        if site not in (None, "same-origin"):
            return "This request comes from another site."
        if not headers.get("content-type", "").startswith("application/json"):
            return "Requests that change something are JSON."
        return None


def _name(host: str) -> str:
    """The host of a Host header without its port; empty if there is none."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _headers(scope: Scope) -> list[tuple[bytes, bytes]]:
    found = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
    if not scope["path"].startswith("/static/"):
        found.append((b"cache-control", b"no-store"))
    return found


async def _refuse(send: Any, text: str) -> None:
    body = json.dumps({"error": text}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": body})
