"""A stream in batches, from an offset that the caller keeps: exactly once, if it is kept in the caller's transaction.

    for batch in client.follow("orders", start=offset_of(database)):
        with database.begin():
            insert(batch)
            store(batch.next_offset)

There is no group and no acknowledgement: the database says what is done, and it says so together with what was done. A
program that is killed goes on with the first batch that is not in the database. One program follows for one offset;
several share the work by following several streams.

Like a consumer it waits for a server that does not answer, for as long as `patience` says.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any, TypedDict

from penstock.client.api.stream_replies import Message
from penstock.client.api.streams import read_options
from penstock.client.consumer.outages import Outages, may_pass
from penstock.client.consumer.steps import Call, Wait


class FollowedBatch(list[Message]):
    """Messages in order. Those that the stream does not keep any more are left out."""

    next_offset: int
    """Where to go on after this batch."""

    def __init__(self, messages: Sequence[Message], next_offset: int) -> None:
        super().__init__(messages)
        self.next_offset = next_offset


Steps = Generator[Call | Wait | FollowedBatch, Any, None]


class FollowOptions(TypedDict, total=False):
    """The options of `client.follow`, for type checkers: those of Follow."""

    count: int
    max_bytes: int | None
    block_ms: int | None
    patience: float | None


@dataclass(frozen=True, slots=True)
class Follow:
    """The stream and position of a `follow`."""

    key: Any
    start: int | str = 1
    """The offset to begin with: `next_offset` of the last batch that was stored. "$" is for new messages."""
    count: int = 1000
    """The most messages of a batch."""
    max_bytes: int | None = 4 << 20
    """The most bytes of a batch; it has one message at least."""
    block_ms: int | None = 1000
    """How long one read waits. The iteration then goes on; None ends it at the end of the stream."""
    patience: float | None = None
    """Seconds to wait for a server that does not answer, before the error is raised; None: for ever."""

    def __post_init__(self) -> None:
        if self.start != "$" and (not isinstance(self.start, int) or self.start < 1):
            raise ValueError(f'start={self.start!r}: an offset is 1 or more; "$" is for what comes from now on')
        if self.count < 1:
            raise ValueError(f"count={self.count}: a batch has one message at least")

    def steps(self) -> Steps:
        """Commands to send, and batches to give."""
        outages = Outages(repr(self.key), self.patience)
        place = self.start
        while True:
            is_known = isinstance(place, int)  # else the end of the stream is asked for, once
            block = self.block_ms if is_known else None
            words = read_options(self.key, place, self.count, block_ms=block, max_bytes=self.max_bytes)
            (reply,) = yield Call([(*words, "WITHINFO")])
            if isinstance(reply, Exception):
                if not may_pass(reply):
                    raise reply
                yield Wait(outages.failed(reply, monotonic()))
                continue
            outages.answered(monotonic())
            if reply is None:
                continue  # nothing came in time
            (first, last), *rows = reply
            if not isinstance(place, int):
                place = last + 1
                continue
            place += len(rows)
            if messages := [Message._make(row) for row in rows if row is not None]:
                yield FollowedBatch(messages, place)
                continue
            place = max(place, first)
            if self.block_ms is None and place > last:
                return


def follow(client: Any, send: Any, what: Follow) -> Iterator[FollowedBatch]:
    """With a client of threads, which is closed at the end."""
    steps, answer = what.steps(), None
    try:
        while True:
            step = steps.send(answer)
            answer = None
            if isinstance(step, Call):
                answer = send(client, step)
            elif isinstance(step, Wait):
                sleep(step.seconds)
            else:
                yield step
    except StopIteration:
        return
    finally:
        client.close()


async def aio_follow(client: Any, send: Any, what: Follow) -> AsyncIterator[FollowedBatch]:
    """With a client of asyncio, which is closed at the end."""
    steps, answer = what.steps(), None
    try:
        while True:
            try:
                step = steps.send(answer)
            except StopIteration:
                return
            answer = None
            if isinstance(step, Call):
                answer = await send(client, step)
            elif isinstance(step, Wait):
                await asyncio.sleep(step.seconds)
            else:
                yield step
    finally:
        await client.aclose()
