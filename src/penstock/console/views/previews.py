"""Previews of actions: moving a group, and another retention."""

from __future__ import annotations

import time
from typing import Any

from penstock.console.errors import Wrong
from penstock.console.json_bytes import cut
from penstock.console.login import Login
from penstock.console.request_context import RequestContext


async def target_of(login: Login, key: bytes, given: Any, info: dict[bytes, Any]) -> int:
    """The offset that a form means: `to` is first, end, offset or time."""
    to = given.text("to", "offset")
    if to == "first":
        return max(int(info[b"first"]), 1)
    if to == "end":
        return int(info[b"last"]) + 1
    if to == "time":
        return int(await login.call("TSEEK", key, "TIME", given.number("time")))
    if to != "offset":
        raise Wrong("A group is moved to the first message, the end, an offset or a time.")
    offset = given.number("offset", least=1)
    if offset > info[b"last"] + 1:
        raise Wrong(
            f"The stream ends at offset {info[b'last']:,}; {info[b'last'] + 1:,} is the last place for a group."
        )
    return int(offset)


async def move(context: RequestContext) -> dict[str, Any]:
    """Preview moving or making a group: messages delivered again, or passed over."""
    key, login = context.given.key(), context.login
    info = await login.stream(key)
    target = await target_of(login, key, context.given, info)
    name = context.given.key("group")
    group = next((each for each in info[b"groups"] if each[b"name"] == name), None)
    first, last = info[b"first"], info[b"last"]
    available = max(target, first)
    position = group[b"position"] if group else None
    at = await login.find_all([("TREAD", key, target, 1, "WITHTIME", "MAXBYTES", 1)]) if target <= last else [None]
    return {
        "offset": target,
        "time": next((message[3] for message in at[0] or [] if message), None),
        "exists": group is not None,
        "position": position,
        "lag": group[b"lag"] if group else None,
        "lag_then": max(last + 1 - available, 0),
        "again": max(position - available, 0) if position is not None else 0,
        "passed": max(available - max(position, first), 0) if position is not None else 0,
        "evicted": max(first - target, 0),
        "pending": group[b"pending"] if group else 0,
    }


async def retention(context: RequestContext) -> dict[str, Any]:
    """Preview the messages that another retention would remove now."""
    given, login, key = context.given, context.login, context.given.key()
    info = await login.stream(key)
    length, first = info[b"length"], info[b"first"]
    count, age, size = (given.number(name, 0) for name in ("count", "age", "bytes"))
    removed = {"count": max(length - count, 0) if count else 0, "age": 0, "bytes": 0}
    if age:
        removed["age"] = max(await login.call("TSEEK", key, "TIME", int(time.time() * 1000) - age) - first, 0)
    if size and (stored := info[b"bytes-stored"] + info[b"history"][b"bytes"]) > size:
        removed["bytes"] = int(length * (1 - size / stored))
    most = max(removed.values())
    behind = [group for group in info[b"groups"] if group[b"position"] < first + most]
    return {
        "removes": min(most, length),
        "by": max(removed, key=lambda name: removed[name]) if most else None,
        "about": removed["bytes"] == most and most > 0,
        "length": length,
        "unread": [cut(group[b"name"]) for group in behind][:5] if most else [],
    }
