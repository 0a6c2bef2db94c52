"""The dead letters of a stream: where each came from, why, and whether it was put back."""

from __future__ import annotations

from typing import Any

from penstock.client.dead_letters import GROUP, mark
from penstock.console.asking import Asking
from penstock.console.shown import NAME, cut, payload
from penstock.protocol.dead_letters import Letter

SHOWN = 50
LONGEST = 2000
"""Characters of a reason."""


async def letters(asking: Asking) -> dict[str, Any]:
    given, login, key = asking.given, asking.login, asking.given.key()
    info = await login.stream(key)
    first, last = info[b"first"], info[b"last"]
    position = max([first, *(group[b"position"] for group in info[b"groups"] if group[b"name"] == GROUP.encode())])
    start = max(given.number("from", position), first)
    found = [
        message
        for message in await login.call("TREAD", key, start, SHOWN, "WITHTIME", "MAXBYTES", 1 << 20)
        if message is not None
    ]
    rows = [_row(asking, message, position) for message in found]
    await _look_for_marks(asking, key, rows)
    return {
        "rows": rows,
        "position": position,
        "left": max(last + 1 - position, 0),
        "from": start,
        "older": max(start - SHOWN, first) if start > first else None,
        "newer": found[-1][0] + 1 if found and found[-1][0] < last else None,
    }


def _row(asking: Asking, message: list[Any], position: int) -> dict[str, Any]:
    row: dict[str, Any] = {"offset": message[0], "time": message[3], "tag": cut(message[1])}
    try:
        letter = Letter.decode(message[2])
    except ValueError as error:
        return {**row, "wrong": str(error), "entry": payload(message[2], asking.console.options.mask)}
    return {
        **row,
        "stream": asking.names.named(letter.stream),
        "why": asking.console.options.mask.reason(letter.why or "")[:LONGEST] or "given up",
        "at": letter.offset,
        "group": letter.group and letter.group[:NAME],
        "attempts": letter.attempts,
        "entry": payload(letter.entry, asking.console.options.mask),
        "back": message[0] < position,
    }


async def _look_for_marks(asking: Asking, key: bytes, rows: list[dict[str, Any]]) -> None:
    """Letters that were put back on their own."""
    open_rows = [row for row in rows if row.get("back") is False]
    replies = await asking.login.find_all(
        [("TPRODUCER", asking.names.name(row["stream"]["key"]), mark(key, row["offset"])) for row in open_rows]
    )
    for row, reply in zip(open_rows, replies, strict=True):
        row["back"] = reply is not None
