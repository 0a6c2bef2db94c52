"""The browser of keys: names by pattern and type, and a bounded part of a value.

A search goes on until it has found a page of keys or has looked at enough; the answer has a cursor for the rest. Of a
value some elements are read, and a part of each, so large values do not hold anything up.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from penstock.console.errors import Missing, NotTheirs, Problem
from penstock.console.json_bytes import PREVIEW, WHOLE, cut, part, payload, text
from penstock.console.login import Login
from penstock.console.masking import Mask
from penstock.console.request_context import RequestContext

ROWS = 100
LOOKS = 40
SECONDS = 0.15
ELEMENTS = 50
MASKED_BYTES = 64 << 10


async def keys(context: RequestContext) -> dict[str, Any]:
    given, login = context.given, context.login
    pattern = given.key("pattern") if given.has("pattern") else b"*"
    if not any(sign in pattern for sign in b"*?["):
        pattern = b"*" + pattern + b"*"
    kind = given.text("type", "", 32)
    cursor: Any = given.number("cursor", 0)
    found: dict[bytes, None] = {}
    until = time.monotonic() + SECONDS
    for _ in range(LOOKS):
        words = ("SCAN", cursor, "MATCH", pattern, "COUNT", 500, *(("TYPE", kind) if kind else ()))
        cursor, names = await login.call(*words)
        found.update(dict.fromkeys(names))
        if not int(cursor) or len(found) >= ROWS or time.monotonic() > until:
            break
    names = list(found)
    return {
        "rows": await _described(context, names),
        "cursor": str(int(cursor)) if int(cursor) else None,
        "count": (await login.find_all([("DBSIZE",)]))[0],
    }


async def _described(context: RequestContext, names: Sequence[bytes]) -> list[dict[str, Any]]:
    """Rows of those that are there and that the user may read. SCAN names all keys, whatever a user may read."""
    login = context.login
    kinds = await login.call_all([("TYPE", name) for name in names]) if names else []
    found = [
        (name, None if isinstance(kind, Problem) else kind)
        for name, kind in zip(names, kinds, strict=True)
        if kind != b"none" and not isinstance(kind, NotTheirs)
    ]
    asked = [words for name, _ in found for words in (("PTTL", name), ("MEMORY", "USAGE", name))]
    replies = await login.find_all(asked) if asked else []
    return [
        {
            **context.names.named(name),
            "type": text(kind) if kind is not None else None,
            "expires": _moment(left),
            "bytes": size,
        }
        for (name, kind), left, size in zip(found, replies[::2], replies[1::2], strict=True)
    ]


def _moment(left: int | None) -> int | None:
    """The time at which a key expires."""
    return int(time.time() * 1000) + left if left is not None and left >= 0 else None


async def key(context: RequestContext) -> dict[str, Any]:
    """Describe a key, and a part of its value beginning at `from`."""
    name, login = context.given.key(), context.login
    kind = await login.call("TYPE", name)
    if kind == b"none":
        raise Missing("There is no such key.")
    left, size, encoding = await login.find_all(
        [("PTTL", name), ("MEMORY", "USAGE", name), ("OBJECT", "ENCODING", name)]
    )
    found: dict[str, Any] = {
        **context.names.named(name),
        "type": text(kind),
        "expires": _moment(left),
        "bytes": size,
        "encoding": text(encoding) if encoding is not None else None,
    }
    reader = _READERS.get(kind)
    if reader is not None:
        try:
            found |= await reader(login, name, context.given.number("from", 0), context.console.options.mask)
        except Problem as problem:
            if problem.status in (401, 503):
                raise
            found["wrong"] = str(problem)
    return found


async def _string(login: Login, name: bytes, start: int, mask: Mask) -> dict[str, Any]:
    length = await login.call("STRLEN", name)
    value = await login.call("GETRANGE", name, 0, WHOLE - 1)
    if mask and length > WHOLE:
        return {"length": length, "value": {"size": length, "text": "•••"}}
    shown = payload(value, mask, WHOLE)
    return {"length": length, "value": {**shown, "size": length, **({"cut": True} if length > WHOLE else {})}}


async def _elements(login: Login, name: bytes, start: int, mask: Mask, length: str) -> dict[str, Any]:
    """Some elements. PEEK cuts them, so that one of a gigabyte among small ones holds nothing up."""
    count = await login.call(length, name)
    # Masking looks at the whole of an element; one that is longer than this is hidden as a whole.
    limit = MASKED_BYTES if mask else PREVIEW + 1
    cursor, found = await login.call("PEEK", name, start, "COUNT", ELEMENTS, "BYTES", limit)
    rows = [
        {"name": _label(label), "value": part(value, size, mask, field=label if isinstance(label, bytes) else None)}
        for label, value, size in found
    ]
    return {"length": count, "rows": rows, "more": cursor.decode() if int(cursor) else None}


def _label(label: bytes | int | None) -> str:
    """A field, a score or an id; an index."""
    return "" if label is None else cut(label) if isinstance(label, bytes) else f"{label:,}"


_READERS: dict[bytes, Callable[[Login, bytes, int, Mask], Awaitable[dict[str, Any]]]] = {
    b"string": _string,
    b"list": partial(_elements, length="LLEN"),
    b"hash": partial(_elements, length="HLEN"),
    b"set": partial(_elements, length="SCARD"),
    b"zset": partial(_elements, length="ZCARD"),
    b"stream": partial(_elements, length="XLEN"),
}
