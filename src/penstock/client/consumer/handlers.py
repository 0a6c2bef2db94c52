"""The function that a consumer calls, whatever its form: for one message, a list or a table, inside middleware."""

from __future__ import annotations

import inspect
import logging
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from penstock.client.consumer.delivered import Delivered

OnError = Callable[[Delivered, Exception], object]
Middleware = Callable[[Any, Callable[[Any], Any]], Any]
"""Called with the message (or the batch) and the next function; it calls that with the message, and returns what it
returns. For an aio.Client it is a coroutine function and awaits it.
"""

_logger = logging.getLogger("penstock.consumer")


TRACE_SECONDS = 60.0
"""How long a failure at the same place is logged without its trace."""
_MOST_PLACES = 1000


class FailureLog:
    """Logs bodies that fail: with the trace if it is new, else in one line.

    A body that fails on one message fails on many, and on each attempt. Called by any thread; two that come at once may
    both log the trace.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._shown: dict[tuple[str, int, str], float] = {}  # by place and type: when its trace was logged

    def __call__(self, message: Delivered, error: Exception) -> None:
        kind, now = type(error).__name__, self._clock()
        frames = traceback.extract_tb(error.__traceback__)
        file, line = (frames[-1].filename, frames[-1].lineno or 0) if frames else ("", 0)
        place = file, line, kind
        words = str(error).partition("\n")[0][:200]
        is_new = now - self._shown.get(place, now - TRACE_SECONDS) >= TRACE_SECONDS
        if is_new:
            if len(self._shown) >= _MOST_PLACES:
                self._shown.clear()
            self._shown[place] = now
        _logger.error(
            "the body failed on message %d, attempt %d: %s%s",
            message.offset, message.attempts, f"{kind}: {words}" if words else kind,
            "" if is_new else f" ({file}, line {line})", exc_info=error if is_new else None,
        )  # fmt: skip


log_failure = FailureLog()
"""What `run` does about a body that fails, unless it is given an `on_error`: the log says why."""


def is_coroutine(body: Any) -> bool:
    """Whether a body needs the consumer of an aio.Client."""
    called = getattr(body, "__call__", None)  # noqa: B004  (the method of an object with state)
    return inspect.iscoroutinefunction(body) or inspect.iscoroutinefunction(called)


def refuse_awaitable(result: Any) -> None:
    """A body of threads whose work would begin only if its result were awaited has done nothing: raise TypeError."""
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError(
            f"the body, or its middleware, answered {result!r}, which must be awaited: use the consumer of a "
            "penstock.aio.Client (penstock worker: make the function `async def`)"
        )


class Handler:
    """A body, and how it is called."""

    def __init__(
        self, body: Callable[[Any], Any], *, batch: int, batch_ms: int, table: bool, middleware: Sequence[Middleware]
    ) -> None:
        if not callable(body):
            raise TypeError(f"body={body!r} is not a function; it is called with each message")
        if batch < 0 or batch_ms < 0:
            raise ValueError(f"batch={batch}, batch_ms={batch_ms}: neither can be less than 0")
        if (table or batch_ms) and not batch:
            raise ValueError("table and batch_ms need batch, the most messages to call the body with")
        if table:
            import pyarrow  # noqa: F401  (fail before the first message)
        self.batch = batch
        self.batch_ms = batch_ms
        self._is_table = table
        self.is_coroutine = is_coroutine(body)
        self.call = body
        for layer in reversed(middleware):
            self.call = _around(layer, self.call)

    def argument(self, messages: list[Delivered]) -> Any:
        """The argument of the body."""
        return table_of(messages) if self._is_table else messages


def _around(layer: Middleware, inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda message: layer(message, inner)


def table_of(messages: Sequence[Delivered]) -> Any:
    """Messages as a pyarrow Table with the columns offset, time, tag, entry and attempts."""
    import pyarrow as pa

    return pa.table(
        {
            "offset": pa.array([message.offset for message in messages], pa.int64()),
            "time": pa.array([message.time for message in messages], pa.int64()),
            "tag": [message.tag for message in messages],
            "entry": [message.entry for message in messages],
            "attempts": pa.array([message.attempts for message in messages], pa.int64()),
        }
    )
