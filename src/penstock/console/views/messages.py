"""Messages of a stream: by offset, time or tag, a bounded portion at a time.

The newest come first. A portion is read in pieces whose size follows from the mean size of a message, and reading ends
when enough was found or read: neither a message of 12 MB nor a tag that is nowhere holds anything up.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from penstock.console.errors import Missing
from penstock.console.json_bytes import NAME, WHOLE, cut, payload
from penstock.console.login import Login, quietly
from penstock.console.request_context import RequestContext
from penstock.schema.fields import InvalidSchema
from penstock.schema.parser import parse

SHOWN = 50
PIECE_BYTES = 1 << 20
READ_BYTES = 4 << 20
READ_MESSAGES = 20_000
MOST_FIELDS = 12
"""Columns of a table of messages; the others are seen when a message is opened."""

Read = Callable[[int, int], Awaitable[list[Any]]]


async def messages(context: RequestContext) -> dict[str, Any]:
    """A page of messages before or from an offset; `tag` leaves out others."""
    given, login = context.given, context.login
    key, tag = given.key(), given.key("tag") if given.has("tag") else None
    info = await login.stream(key)
    first, last = info[b"first"], info[b"last"]
    size = max(info[b"bytes-raw"] // max(info[b"length"], 1), 1)
    piece = min(max(PIECE_BYTES // size, 1), 1000)

    async def read(start: int, count: int) -> list[Any]:
        found = await login.call("TREAD", key, start, count, "WITHTIME", "MAXBYTES", PIECE_BYTES)
        return [message for message in found if message is not None]

    if given.has("time"):
        start = await login.call("TSEEK", key, "TIME", given.number("time"))
        found, reached = await _forward(read, start, last, piece, tag)
        found.reverse()
        newer, older = reached if reached <= last else None, start if start > first else None
    elif given.has("from"):
        start = max(given.number("from"), first)
        found, reached = await _forward(read, start, last, piece, tag)
        found.reverse()
        newer, older = reached if reached <= last else None, start if start > first else None
    else:
        end = min(given.number("before", last + 1), last + 1)
        found, reached = await _backward(read, first, end, piece, tag)
        newer, older = end if end <= last else None, reached if reached > first else None
    return {
        "first": first,
        "last": last,
        "rows": [shown(context, message) for message in found],
        "fields": await _fields(login, key),
        "newer": newer,
        "older": older,
    }


async def _fields(login: Login, key: bytes) -> list[str]:
    """The names of the stream's schema, which are the columns of its messages; none without a schema."""
    schema = await quietly(login.call("TSCHEMA", "GET", key))
    if not schema:
        return []
    try:
        return [
            field.name for field in parse(schema[b"fields"].decode()).fields[:MOST_FIELDS] if len(field.name) <= NAME
        ]
    except (InvalidSchema, UnicodeDecodeError):
        return []  # of a later version


async def _forward(read: Read, start: int, last: int, piece: int, tag: bytes | None) -> tuple[list[Any], int]:
    """Messages from an offset on, oldest first; and the offset that was not looked at."""
    found: list[Any] = []
    seen = size = 0
    while start <= last and size < READ_BYTES and seen < READ_MESSAGES:
        part = await read(start, SHOWN - len(found) if tag is None else piece)
        seen += len(part)
        size += sum(len(message[2]) for message in part)
        for message in part:
            start = message[0] + 1
            if tag is None or message[1] == tag:
                found.append(message)
                if len(found) == SHOWN:
                    return found, start
        if not part:
            start = last + 1  # the rest was removed
    return found, start


async def _backward(read: Read, first: int, end: int, piece: int, tag: bytes | None) -> tuple[list[Any], int]:
    """Messages before an offset, newest first; and the offset before which was not looked."""
    found: list[Any] = []
    seen = size = 0
    while end > first and size < READ_BYTES and seen < READ_MESSAGES:
        count = min(piece, SHOWN - len(found)) if tag is None else piece
        start = max(end - count, first)
        part: list[Any] = []
        place, held = start, 0
        while place < end and held <= READ_BYTES and (more := await read(place, end - place)):
            part += more
            place = more[-1][0] + 1
            held += sum(len(message[2]) for message in more)
        if held > READ_BYTES and count > 1:  # these are far larger than the mean: fewer at a time
            piece = max(count // 4, 1)
            continue
        seen += len(part)
        size += held
        end = start
        for message in reversed(part):
            if tag is None or message[1] == tag:
                found.append(message)
                if len(found) == SHOWN:
                    return found, message[0]
    return found, end


def shown(context: RequestContext, message: list[Any], limit: int | None = None) -> dict[str, Any]:
    mask = context.console.options.mask
    return {
        "offset": message[0],
        "tag": cut(message[1]),
        "time": message[3],
        "entry": payload(message[2], mask, limit) if limit else payload(message[2], mask),
    }


async def one(login: Login, key: bytes, offset: int) -> list[Any]:
    found = await login.call("TREAD", key, offset, 1, "WITHTIME")
    if not found or found[0] is None or found[0][0] != offset:
        raise Missing(f"There is no message at offset {offset:,}: it is not written yet, or was removed.")
    message: list[Any] = found[0]
    return message


async def message(context: RequestContext) -> dict[str, Any]:
    """One message, with as much of its entry as a page can bear."""
    return shown(context, await one(context.login, context.given.key(), context.given.number("offset")), WHOLE)
