"""A replica's part of compaction: a thread reads the files that it needs, before the batch that says so is applied.

`TAPPLY key COMPACT node ...` has a replica index the tags of the nodes that it has not indexed yet, which after a start
are all of them, and rewrite the nodes that its leader has rewritten. The feed waits for the thread, clients do not: the
index is made some nodes at a time, between two commands of clients. The nodes that a batch rewrites are read together,
because it is applied in one step: they are those that its leader rewrote in a millisecond or two. Nothing but the feed
changes the streams of a replica, so what was read is what the batch needs. What an earlier command of the same batch
moved to a file is read in place. The batch may wait for the disk, or never come: streams get what was read at the
moment when it is applied.

Owned by the loop thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from penstock.engine.cold_compaction import next_portion
from penstock.engine.dispatch import Engine
from penstock.engine.stream_history import fetch_what_is_there
from penstock.protocol.grammar import Argv
from penstock.types.stream.compaction import index_next
from penstock.types.stream.messages import Messages, Place
from penstock.types.stream.segments import MissingHistory
from penstock.types.stream.stored_nodes import with_fetched
from penstock.types.stream.stream import Stream

Fetched = list[tuple[Place, bytes]]


async def read_for_compaction(engine: Engine, commands: Sequence[Argv]) -> list[tuple[Messages, Fetched]]:
    """Index what a batch will have indexed, and read the nodes that it rewrites."""
    read: list[tuple[Messages, Fetched]] = []
    for messages, numbers in _compacted(engine, commands):
        try:
            await _index(engine, messages)
        except MissingHistory:
            continue  # the command says so
        places = [messages.place(number) for number in numbers if _is_in_file(messages, number)]
        if places:
            read.append((messages, await _fetch(engine, places)))
    return read


@contextmanager
def with_all(read: list[tuple[Messages, Fetched]]) -> Iterator[None]:
    """During this, a batch finds what was read for it."""
    with ExitStack() as stack:
        for messages, fetched in read:
            stack.enter_context(with_fetched(messages, fetched))
        yield


def _compacted(engine: Engine, commands: Sequence[Argv]) -> Iterator[tuple[Messages, list[int]]]:
    """The streams that a batch compacts, and the numbers of the nodes."""
    database = engine.keyspace[0]  # where a batch begins
    for argv in commands:
        if argv[0] == b"SELECT" and len(argv) == 2 and argv[1].isdigit() and int(argv[1]) < len(engine.keyspace):
            database = engine.keyspace[int(argv[1])]
        elif argv[0] == b"TAPPLY" and argv[2:3] == [b"COMPACT"]:
            stream = database.data.get(argv[1])
            if type(stream) is Stream and stream.messages.compactor is not None and stream.messages.history:
                yield stream.messages, [int(word) for word in argv[3:] if word.isdigit()]


def _is_in_file(messages: Messages, number: int) -> bool:
    return messages.lowest <= number < messages.active.number and number not in messages.nodes


async def _index(engine: Engine, messages: Messages) -> None:
    compactor = messages.compactor
    while compactor is not None and compactor.next < messages.active.number:
        found = await _fetch(engine, next_portion(messages))
        for fetched in [[one] for one in found] or [[]]:
            with with_fetched(messages, fetched):
                index_next(messages)
            await asyncio.sleep(0)


async def _fetch(engine: Engine, places: list[Place]) -> Fetched:
    """Have a thread read these nodes; those that are lost are left out. In place, if there is no thread."""
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    found: Fetched = []

    def read() -> None:
        payloads = fetch_what_is_there(places)
        for segment, place in places:
            payload = payloads[segment.identity(place)]
            if payload is not None:
                found.append(((segment, place), payload))

    def end() -> None:
        if not over.done():
            over.set_result(None)

    if places and engine.workers.in_background(read, end, for_disk=True):
        await over
    elif places:
        read()
    return found
