"""The dead letters of a stream: where each came from, why, and whether it was put back."""

from __future__ import annotations

from typing import Any

from penstock.client.dead_letters import GROUP, mark
from penstock.console.json_bytes import NAME, cut, payload
from penstock.console.request_context import RequestContext
from penstock.protocol.dead_letters import Letter

SHOWN = 50
LONGEST = 2000
"""Characters of a reason."""


async def letters(context: RequestContext) -> dict[str, Any]:
    given, login, key = context.given, context.login, context.given.key()
    info = await login.stream(key)
    first, last = info[b"first"], info[b"last"]
    position = max([first, *(group[b"position"] for group in info[b"groups"] if group[b"name"] == GROUP.encode())])
    start = max(given.number("from", position), first)
    found = [
        message
        for message in await login.call("TREAD", key, start, SHOWN, "WITHTIME", "MAXBYTES", 1 << 20)
        if message is not None
    ]
    rows = [_row(context, message, position) for message in found]
    await _look_for_marks(context, key, rows)
    return {
        "rows": rows,
        "position": position,
        "left": max(last + 1 - position, 0),
        "from": start,
        "older": max(start - SHOWN, first) if start > first else None,
        "newer": found[-1][0] + 1 if found and found[-1][0] < last else None,
    }


def _row(context: RequestContext, message: list[Any], position: int) -> dict[str, Any]:
    row: dict[str, Any] = {"offset": message[0], "time": message[3], "tag": cut(message[1])}
    try:
        letter = Letter.decode(message[2])
    except ValueError as error:
        return {**row, "wrong": str(error), "entry": payload(message[2], context.console.options.mask)}
    return {
        **row,
        "stream": context.names.named(letter.stream),
        "why": context.console.options.mask.reason(letter.why or "")[:LONGEST] or "given up",
        "at": letter.offset,
        "group": letter.group and letter.group[:NAME],
        "attempts": letter.attempts,
        "entry": payload(letter.entry, context.console.options.mask),
        "back": message[0] < position,
    }


async def _look_for_marks(context: RequestContext, key: bytes, rows: list[dict[str, Any]]) -> None:
    """Letters that were put back on their own."""
    open_rows = [row for row in rows if row.get("back") is False]
    replies = await context.login.find_all(
        [("TPRODUCER", context.names.name(row["stream"]["key"]), mark(key, row["offset"])) for row in open_rows]
    )
    for row, reply in zip(open_rows, replies, strict=True):
        row["back"] = reply is not None
