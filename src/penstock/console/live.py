"""A view as a stream of server-sent events: the view is asked again every two seconds, and sent when it changed.

A problem is an event like any other, so the page can say that the server is away, and goes on by itself when it is
back.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from penstock.console.errors import Problem
from penstock.console.json_bytes import as_json
from penstock.console.request_context import RequestContext

TYPE = "text/event-stream"
HEADERS = {"x-accel-buffering": "no"}
EVERY = 2.0
SILENCE = 15.0
"""Seconds after which a comment is sent: a connection that is gone is noticed."""

View = Callable[[RequestContext], Awaitable[dict[str, Any]]]


def event(kind: str, data: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), as_json(data))


def problem_event(problem: Problem) -> bytes:
    return event("problem", {"status": problem.status, "error": str(problem)})


async def events(view: View, context: RequestContext) -> AsyncIterator[bytes]:
    sent, when = b"", 0.0
    while True:
        over = False
        context.session.used = time.monotonic()
        try:
            news = event("news", await view(context))
        except Problem as problem:
            news, over = problem_event(problem), problem.status in (401, 403)
        if news != sent:
            sent, when = news, time.monotonic()
            yield news
        elif time.monotonic() - when > SILENCE:
            when = time.monotonic()
            yield b": still here\n\n"
        if over:
            return
        await asyncio.sleep(EVERY)


async def until(closing: asyncio.Event, source: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield from a source until the console ends; the source itself never ends."""
    stop = asyncio.ensure_future(closing.wait())
    try:
        while not closing.is_set():
            step = asyncio.ensure_future(anext(source, None))
            try:
                await asyncio.wait({step, stop}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not step.done():
                    step.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await step
            if step.cancelled() or (part := step.result()) is None:
                return
            yield part
    finally:
        stop.cancel()
