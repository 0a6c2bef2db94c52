"""Answers that are streams: a tail of new messages as events, and messages as a file.

A file has a bounded number of messages and bytes, and is sent as it is read. Parquet is written by a process of its
own: pyarrow takes more memory than the whole console.
"""

from __future__ import annotations

import asyncio
import contextlib
import csv
import io
import re
import struct
import sys
from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import Response, StreamingResponse

from penstock.console.errors import Problem, TooMany, Wrong
from penstock.console.json_bytes import cut, text
from penstock.console.live import HEADERS, TYPE, event, problem_event, until
from penstock.console.parquet_child import ROW
from penstock.console.request_context import RequestContext
from penstock.console.views.messages import one, shown

MOST_MESSAGES = 100_000
MOST_BYTES = 256 << 20
MOST_WRITERS = 4
"""Processes that write Parquet, all users together: each takes about 100 MB."""
PIECE, PIECE_BYTES = 1000, 1 << 20
TAIL_PIECE, TAIL_BYTES = 100, 256 << 10
TAIL_MOST_BEHIND = 500
BLOCK_MS = 10_000
PAUSE = 0.25


# -- the tail -------------------------------------------------------------------------------------------------


async def tail(context: RequestContext) -> Response:
    key = context.given.key()
    bounds, *_ = await context.login.call("TREAD", key, 1, 0, "WITHINFO")
    found = until(context.console.closing, _tail(context, key, bounds[1] + 1))
    return StreamingResponse(found, media_type=TYPE, headers=HEADERS)


async def _tail(context: RequestContext, key: bytes, place: int) -> AsyncIterator[bytes]:
    """New messages, at most four portions a second. A reader that cannot follow passes over messages, and is told."""
    yield event("begin", {"offset": place})
    while True:
        try:
            reply = await context.login.block(
                "TREAD", key, place, TAIL_PIECE, "WITHTIME", "WITHINFO", "MAXBYTES", TAIL_BYTES, "BLOCK", BLOCK_MS
            )
            if reply is None:
                (first, last), *_ = await context.login.call("TREAD", key, 1, 0, "WITHINFO")
                if place > last + 1:  # the stream was replaced
                    place = first
                yield b": still here\n\n"
                continue
        except Problem as problem:
            yield problem_event(problem)
            if problem.status != 503:
                return
            await asyncio.sleep(1)
            continue
        (first, last), *found = reply
        rows = [message for message in found if message is not None]
        passed = 0
        if last - place > TAIL_MOST_BEHIND:
            passed = last - TAIL_PIECE - place
            place = last - TAIL_PIECE
            rows = []
        elif found:
            place += len(found)
        else:
            place = max(first, place)
        yield event("messages", {"rows": [shown(context, message) for message in rows], "passed": passed, "last": last})
        await asyncio.sleep(PAUSE)


# -- files ----------------------------------------------------------------------------------------------------


async def download(context: RequestContext) -> Response:
    """Messages between two offsets as CSV or Parquet."""
    given, key = context.given, context.given.key()
    kind = given.text("format", "csv")
    if kind not in ("csv", "parquet"):
        raise Wrong("A download is csv or parquet.")
    info = await context.login.stream(key)
    first = max(given.number("from", info[b"first"]), info[b"first"])
    last = min(given.number("to", info[b"last"]), info[b"last"], first + MOST_MESSAGES - 1)
    if kind == "parquet" and context.console.parquet_writers >= MOST_WRITERS:
        raise TooMany(f"{MOST_WRITERS} downloads as Parquet are under way. Wait for one to end, or take CSV.")
    pieces = _pieces(context, key, first, last)
    body = _csv(pieces) if kind == "csv" else _parquet(context, pieces)
    return StreamingResponse(body, media_type=_TYPES[kind], headers=_attachment(f"{cut(key)}-{first}-{last}.{kind}"))


_TYPES = {"csv": "text/csv; charset=utf-8", "parquet": "application/vnd.apache.parquet"}


def _attachment(name: str) -> dict[str, str]:
    return {"content-disposition": f'attachment; filename="{re.sub(r"[^A-Za-z0-9._-]", "_", name)[-120:]}"'}


async def _pieces(context: RequestContext, key: bytes, first: int, last: int) -> AsyncIterator[list[Any]]:
    """Messages as they are read, payloads masked; up to a bound in bytes."""
    mask, sent = context.console.options.mask, 0
    while first <= last and sent < MOST_BYTES:
        found = await context.login.call(
            "TREAD", key, first, min(PIECE, last - first + 1), "WITHTIME", "MAXBYTES", PIECE_BYTES
        )
        if not found:
            return
        first += len(found)
        sent += sum(len(message[2]) for message in found if message)
        yield [(message[0], message[3], message[1], mask.apply(message[2])) for message in found if message]


async def _csv(pieces: AsyncIterator[list[Any]]) -> AsyncIterator[bytes]:
    """RFC 4180. Bytes that are no UTF-8 become escapes. A text that a spreadsheet would run gets an apostrophe."""
    yield b"offset,time,tag,entry\r\n"
    async for piece in pieces:
        sheet = io.StringIO()
        writer = csv.writer(sheet)
        writer.writerows((offset, when, _cell(tag), _cell(entry)) for offset, when, tag, entry in piece)
        yield sheet.getvalue().encode()


def _cell(raw: bytes) -> str:
    shown_text = text(raw)
    return f"'{shown_text}" if shown_text[:1] in ("=", "+", "-", "@", "\t", "\r") else shown_text


async def _parquet(context: RequestContext, pieces: AsyncIterator[list[Any]]) -> AsyncIterator[bytes]:
    context.console.parquet_writers += 1
    try:
        async for part in _written(pieces):
            yield part
    finally:
        context.console.parquet_writers -= 1


async def _written(pieces: AsyncIterator[list[Any]]) -> AsyncIterator[bytes]:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "penstock.console.parquet_child",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert child.stdin is not None
    assert child.stdout is not None
    feeding = asyncio.create_task(_feed(child.stdin, pieces))
    try:
        while data := await child.stdout.read(1 << 16):
            yield data
        await feeding
    finally:
        feeding.cancel()
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
        await child.wait()


async def _feed(pipe: asyncio.StreamWriter, pieces: AsyncIterator[list[Any]]) -> None:
    async for piece in pieces:
        for offset, when, tag, entry in piece:
            pipe.write(struct.pack(ROW, offset, when, len(tag), len(entry)) + tag + entry)
        await pipe.drain()
    pipe.close()


async def raw(context: RequestContext) -> Response:
    """The entry of one message as a file, whatever its size."""
    offset = context.given.number("offset")
    message = await one(context.login, context.given.key(), offset)
    data = context.console.options.mask.apply(message[2])
    return Response(data, media_type="application/octet-stream", headers=_attachment(f"message-{offset}.bin"))


async def name(context: RequestContext) -> Response:
    """The whole name of a key or a group whose beginning is on a page."""
    return Response(context.given.key(), media_type="application/octet-stream", headers=_attachment("name.bin"))
