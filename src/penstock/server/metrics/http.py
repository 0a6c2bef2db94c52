"""The little of HTTP/1.1 that monitoring programs need: a GET or HEAD at a time, without a body. No I/O here.

`RequestReader` takes bytes and gives requests, strictly: what is not exactly a request is refused with a reason, and
the connection ends, because what follows cannot be understood. A request has at most LONGEST bytes.

Rejected: a web framework, whose dependencies would be in the server's process; `http.server`, which needs a thread for
each connection and reads without bounds.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from http import HTTPStatus
from typing import NamedTuple

LONGEST = 8192
"""Bytes of a request."""
PLAIN = "text/plain; charset=utf-8"
TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"

_request_line = re.compile(rb"(%b) (/[!-~]{0,2000}) HTTP/1\.([01])" % TOKEN).fullmatch
_header = re.compile(rb"(%b):([\t -~\x80-\xff]*)" % TOKEN).fullmatch
"""No two parts of it match the same byte: otherwise a long row of spaces would take minutes."""


class Refused(Exception):
    """A request that is answered with an error, after which the connection ends."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


class Request(NamedTuple):
    """What was asked."""

    method: str
    path: str
    headers: dict[str, str]  # names in lower case
    keeps_connection: bool


class RequestReader:
    """Bytes in, requests out.

    >>> reader = RequestReader()
    >>> reader.feed(b"GET /metrics HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n")
    >>> reader.next().path
    '/metrics'
    """

    def __init__(self) -> None:
        self._data = b""

    @property
    def has_begun(self) -> bool:
        """Whether there is a part of a request."""
        return bool(self._data)

    def feed(self, data: bytes) -> None:
        self._data += data

    def next(self) -> Request | None:
        """The next request, or None if it is not whole yet. Refused for what is none."""
        head, end, rest = self._data.partition(b"\r\n\r\n")
        if len(head) + len(end) > LONGEST:
            raise Refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"a request may have {LONGEST} bytes")
        if not end:
            return None
        self._data = rest
        return _parse(head)


def _parse(head: bytes) -> Request:
    first, *lines = head.split(b"\r\n")
    line = _request_line(first)
    if line is None:
        raise Refused(HTTPStatus.BAD_REQUEST, "not a request of HTTP/1.1")
    method, path, minor = line[1].decode(), line[2].decode(), line[3]
    headers: dict[str, str] = {}
    for each in lines:
        found = _header(each)
        if found is None:
            raise Refused(HTTPStatus.BAD_REQUEST, "a header that is none")
        name, value = found[1].decode().lower(), found[2].strip(b" \t").decode("latin-1")
        if name in headers and name in ("host", "authorization", "content-length", "transfer-encoding"):
            raise Refused(HTTPStatus.BAD_REQUEST, f"two headers {name}")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    if minor == b"1" and "host" not in headers:
        raise Refused(HTTPStatus.BAD_REQUEST, "no header host")
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "a request may have no body")
    if method not in ("GET", "HEAD"):
        raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are answered")
    wishes = [word.strip().lower() for word in headers.get("connection", "").split(",")]
    keeps = "close" not in wishes and (minor == b"1" or "keep-alive" in wishes)
    return Request(method, path.partition("?")[0], headers, keeps)


def response(
    status: HTTPStatus, body: bytes, content_type: str = PLAIN, *, with_body: bool = True,
    keeps_connection: bool = False, more: tuple[str, ...] = (),
) -> bytes:  # fmt: skip
    """An answer; without its body, for HEAD, it still says how long the body is."""
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        f"Connection: {'keep-alive' if keeps_connection else 'close'}",
        *more,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + (body if with_body else b"")


def is_authorized(request: Request, user: str, password: str) -> bool:
    """Whether a request has the user and the password; always if there is no password.

    How long it takes says nothing about them.
    """
    if not password:
        return True
    scheme, _, encoded = request.headers.get("authorization", "").partition(" ")
    try:
        given = base64.b64decode(encoded.strip(), validate=True) if scheme.lower() == "basic" else b""
    except (binascii.Error, ValueError):
        given = b""
    wanted = f"{user}:{password}".encode("utf-8", "surrogateescape")
    return hmac.compare_digest(hashlib.sha256(given).digest(), hashlib.sha256(wanted).digest())


_address = re.compile(r"(localhost|[0-9.]+|\[[0-9a-f:.]+\])(:[0-9]+)?", re.IGNORECASE).fullmatch


def names_an_address(request: Request) -> bool:
    """Whether the host of a request is an address, or localhost. A page elsewhere can have its own name point here.

    >>> [names_an_address(Request("GET", "/", {"host": host}, True)) for host in ("[::1]:9121", "a.example")]
    [True, False]
    """
    return _address(request.headers.get("host", "localhost").strip()) is not None


def wants_open_metrics(request: Request) -> bool:
    """Whether OpenMetrics is preferred to plain text.

    >>> accepted = "text/plain;q=0.5, application/openmetrics-text;q=0.7"
    >>> wants_open_metrics(Request("GET", "/", {"accept": accepted}, True))
    True
    """
    ranks: dict[str, float] = {}
    for part in request.headers.get("accept", "").split(","):
        kind, *options = [word.strip().lower() for word in part.split(";")]
        rank = next((option[2:] for option in options if option.startswith("q=")), "1")
        try:
            ranks[kind] = max(ranks.get(kind, 0.0), float(rank))
        except ValueError:
            continue
    plain = ranks.get("text/plain", ranks.get("text/*", ranks.get("*/*", 0.0)))
    wanted = ranks.get("application/openmetrics-text", 0.0)
    return wanted > 0 and wanted >= plain
