"""A stream as tables, in order: the next read is on its way while the caller works on the last.

    for table in client.read_tables("orders", 1):
        ...

One body, `Span.steps`, says what to ask and what to give; the two drivers only wait. Ahead is asked what is known to be
there, since every reply tells the stream's last offset: so nothing that blocks is under way behind the caller's back,
and nothing is read that was not asked for. Reads have a connection of their own: megabytes must not hold up the small
commands of the caller.

Rejected: a reader that fills a queue. It has to be told to stop, and has by then read tables that are not used.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from redis.client import NEVER_DECODE

from penstock.client.api.calls import answer, call
from penstock.client.api.stream_replies import DEFAULT_ROWS, ArrowReading
from penstock.client.api.streams import read_options
from penstock.client.api.typed import TypedColumns
from penstock.client.engine.batch import Batch

Words = tuple[Any, ...]
Step = tuple[str, Any]
"""("call", words of a read) wants its table; ("ask", words) wants None, and ("wait", None) then wants the table;
("give", table).
"""


@dataclass(frozen=True, slots=True)
class Span:
    """The range of a stream to read, and the size of its parts."""

    key: Any
    first: int | str = 1
    """The offset to begin with, or "$" for what comes from now on."""
    last: int | None = None
    """The offset to end with; None ends where the stream does."""
    count: int = DEFAULT_ROWS
    """How many messages a table has at most."""
    max_bytes: int | None = None
    """A table ends with the message that reaches so many bytes."""
    block_ms: int | None = None
    """How long to wait for more at the end of the stream, 0 for ever; None does not wait."""
    typed: bool = False
    """Whether the tables have the fields of the stream's schema as columns."""
    bad_entries: str = "fail"
    """What to do about entries that do not fit it: fail, null or drop."""

    def __post_init__(self) -> None:
        if self.first != "$" and (not isinstance(self.first, int) or self.first < 1):
            raise ValueError(f'first={self.first!r}: an offset is 1 or more; "$" is for what comes from now on')
        if self.first == "$" and self.block_ms is None:
            raise ValueError('first="$" is what comes from now on: say with block_ms how long to wait for it')
        if self.count < 1:
            raise ValueError(f"count={self.count}: a table needs room for at least 1 message")
        if self.bad_entries != "fail" and not self.typed:
            raise ValueError(f"bad_entries={self.bad_entries!r} needs typed=True: raw entries are never bad")
        TypedColumns(self.key, self.bad_entries)

    def steps(self) -> Generator[Step, Any, None]:
        """The next thing to do, until the end of the span, or of the stream."""
        if isinstance(self.first, int) and self._is_over(self.first):
            return
        at, is_asked = self.first, False
        table = yield "call", self._read(at, waits=at == "$")
        while (info := table.schema.metadata) is not None:  # None: it waited, and nothing came
            last = int(info[b"last"])
            at = self._next(at, table, int(info[b"first"]), last)
            is_asked = at <= last and not self._is_over(at)
            if is_asked:
                yield "ask", self._read(at)
            if table.num_rows:
                yield "give", self._shown(table)
            if is_asked:
                table = yield "wait", None
            elif self._is_over(at) or self.block_ms is None:
                return
            else:
                table = yield "call", self._read(at, waits=True)

    def _shown(self, table: Any) -> Any:
        """Made when the table is given, and not when it is read: where to read on goes by all messages."""
        return TypedColumns(self.key, self.bad_entries).of(table) if self.typed else table

    def _is_over(self, at: int) -> bool:
        return self.last is not None and at > self.last

    def _next(self, at: int | str, table: Any, first: int, last: int) -> int:
        """The offset to read next: after the last message, or after the range if all of it was removed."""
        if table.num_rows:
            return int(table.column("offset")[-1].as_py()) + 1
        if isinstance(at, str):
            return last + 1
        return max(at, first, min(at + self.count, last + 1))

    def _read(self, at: int | str, waits: bool = False) -> Words:
        count = self.count if self.last is None or isinstance(at, str) else min(self.count, self.last - at + 1)
        words = read_options(self.key, at, count, block_ms=self.block_ms if waits else None, max_bytes=self.max_bytes)
        return (*words, "FORMAT", "ARROW", "COMPRESSED", "WITHINFO")


def table_read(words: Words) -> Batch:
    """The batch for one read; on a connection of its own, as if it blocked."""
    batch = call(words, {NEVER_DECODE: True}, is_shared=True)
    batch.blocks = True
    return batch


def table_of(batch: Batch, callbacks: Any) -> Any:
    """The table of a finished one."""
    return answer(batch, {"reading": ArrowReading()}, callbacks)


class _Ahead:
    """A read in a thread of its own, which ends with it. It need not be stopped: a read that is not waited for is
    dropped.
    """

    def __init__(self, read: Callable[[Words], Any], words: Words) -> None:
        self._read, self._words, self._process = read, words, os.getpid()
        self._table: Future[Any] = Future()
        threading.Thread(target=self._work, name="read-tables", daemon=True).start()

    def _work(self) -> None:
        try:
            self._table.set_result(self._read(self._words))
        except BaseException as error:
            self._table.set_exception(error)

    def wait(self) -> Any:
        if self._process != os.getpid():  # the thread is in the parent
            return self._read(self._words)
        return self._table.result()


def read_tables(read: Callable[[Words], Any], span: Span) -> Iterator[Any]:
    """For penstock.Client; `read` gives the table for the words of a command."""
    steps, reply = span.steps(), None
    ahead: _Ahead | None = None
    while True:
        try:
            kind, what = steps.send(reply)
        except StopIteration:
            return
        reply = None
        if kind == "give":
            yield what
        elif kind == "ask":
            ahead = _Ahead(read, what)
        elif kind == "wait":
            assert ahead is not None
            reply, ahead = ahead.wait(), None
        else:
            reply = read(what)


async def aio_read_tables(read: Callable[[Words], Awaitable[Any]], span: Span) -> AsyncIterator[Any]:
    """For penstock.aio.Client."""
    steps, reply = span.steps(), None
    ahead: asyncio.Future[Any] | None = None
    try:
        while True:
            try:
                kind, what = steps.send(reply)
            except StopIteration:
                return
            reply = None
            if kind == "give":
                yield what
            elif kind == "ask":
                ahead = asyncio.ensure_future(read(what))
            elif kind == "wait":
                assert ahead is not None
                reply, ahead = await ahead, None
            else:
                reply = await read(what)
    finally:
        if ahead is not None:  # it is not wanted any more
            ahead.cancel()
            await asyncio.wait([ahead])
            if not ahead.cancelled():
                ahead.exception()
