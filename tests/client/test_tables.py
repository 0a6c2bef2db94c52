"""Reading a stream as tables: what is asked when, by the body alone; and both clients on a server."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing
from typing import Any

import pyarrow as pa
import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from penstock import Client, Server, aio
from penstock.client.api.tables import Span, Words
from penstock.client.errors import ClientClosed, OutcomeUnknown

# -- the body ---------------------------------------------------------------------------------------------------------


def answer(words: Words, there: set[int], first: int, last: int) -> Any:
    """What a server would reply to a read of a stream that has the messages `there`."""
    _, _, at, count = words[:4]
    found = sorted(offset for offset in there if at <= offset < at + count)
    schema = pa.schema([("offset", pa.int64())]).with_metadata({"first": str(first), "last": str(last)})
    return pa.table({"offset": found}, schema=schema)


@given(st.sets(st.integers(1, 60)), st.integers(1, 70), st.none() | st.integers(0, 70), st.integers(1, 25))
def test_every_message_of_a_span_is_given_once_in_order_and_nothing_else_is_asked_for(
    there: set[int], first: int, last: int | None, count: int
) -> None:
    stream_first, stream_last = min(there, default=1), max(there, default=0)
    given_offsets, asked, under_way, reply = [], 0, None, None
    steps = Span("s", first, last, count).steps()
    while True:
        try:
            kind, what = steps.send(reply)
        except StopIteration:
            break
        reply = None
        if kind == "give":
            given_offsets += what.column("offset").to_pylist()
            continue
        if kind != "wait":
            assert what[2] >= asked, "it went back"
            assert last is None or what[2] + what[3] - 1 <= last, "it asked for more than is wanted"
            assert kind == "call" or what[2] <= stream_last, "it asked ahead for what may not be there"
            asked, under_way = what[2], answer(what, there, stream_first, stream_last)
        if kind != "ask":
            reply, under_way = under_way, None
    assert given_offsets == [offset for offset in sorted(there) if offset >= first and (last is None or offset <= last)]
    assert under_way is None


@pytest.mark.parametrize(
    ("terms", "why"),
    [
        ({"first": 0}, "1 or more"),
        ({"first": "new"}, r"\$"),
        ({"first": "$"}, "block_ms"),
        ({"count": 0}, "at least 1"),
    ],
)
def test_a_span_that_cannot_be_read_is_refused_with_a_reason(terms: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Span("s", **terms)


# -- both clients -----------------------------------------------------------------------------------------------------

Read = Callable[..., list[int]]


def read_sync(url: str, *args: Any, **terms: Any) -> list[int]:
    with Client.from_url(url, decode_responses=True) as client:
        return [offset for table in client.read_tables(*args, **terms) for offset in table.column("offset").to_pylist()]


def read_aio(url: str, *args: Any, **terms: Any) -> list[int]:
    async def work() -> list[int]:
        async with aio.Client.from_url(url) as client:
            return [o async for table in client.read_tables(*args, **terms) for o in table.column("offset").to_pylist()]

    return asyncio.run(work())


@pytest.fixture(params=[read_sync, read_aio])
def read(request: pytest.FixtureRequest) -> Read:
    found: Read = request.param
    return found


@pytest.fixture
def writer(ours: Server) -> Iterator[Client]:
    with Client.from_url(ours.url) as client:
        client.flushall()
        yield client


def fill(writer: Client, count: int, tags: int = 1) -> None:
    writer.twrite_many("s", [(f"t{number % tags}", f"entry {number}") for number in range(count)])


def await_readers() -> None:
    for thread in threading.enumerate():
        if thread.name == "read-tables":
            thread.join()


def test_all_of_a_stream_comes_in_portions(writer: Client, ours: Server, read: Read) -> None:
    fill(writer, 5000)
    assert read(ours.url, "s", count=700) == list(range(1, 5001))
    assert read(ours.url, "s", 100, 4200, count=700, max_bytes=2000) == list(range(100, 4201))
    assert read(ours.url, "s", 5001) == read(ours.url, "nothing") == read(ours.url, "s", 10, 9) == []


def test_evicted_and_compacted_messages_are_skipped(writer: Client, ours: Server, read: Read) -> None:
    fill(writer, 9000, tags=2500)
    writer.tretain("s", compact=True)
    writer.tevict("s", 1500)

    def left() -> list[int]:
        return [message.offset for message in writer.tread("s", 1501, 9000) if message is not None]

    before, found, after = left(), list[int](), list[int]()
    while len(before) == 7500 or before != after:  # it is compacted in small steps
        before, found, after = left(), read(ours.url, "s", count=300), left()
    assert found == before


def test_at_the_end_it_waits_for_more_if_asked_to(writer: Client, ours: Server, read: Read) -> None:
    fill(writer, 10)

    def read_while_another_writes(*args: Any, **terms: Any) -> list[int]:
        over = threading.Event()

        def write() -> None:
            while not writer.info("clients")["blocked_clients"] and not over.wait(0.001):
                pass
            fill(writer, 10)

        thread = threading.Thread(target=write)
        thread.start()
        found = read(ours.url, "s", *args, **terms)
        over.set()
        thread.join()
        return found

    assert read_while_another_writes(5, 15, block_ms=0) == list(range(5, 16))
    block_ms, last, found = 150, 20, list[int]()
    while not found:  # the writer may be delayed for longer than the reader waits
        block_ms, last = block_ms * 2, last + 10
        found = read_while_another_writes("$", block_ms=block_ms)
    assert found == list(range(last - 9, last + 1))


def test_the_next_read_is_on_its_way_while_the_caller_works(writer: Client, ours: Server) -> None:
    fill(writer, 300)
    with Client.from_url(ours.url) as client:
        for number, table in enumerate(client.read_tables("s", 1, 300, count=100), start=1):
            while client.counters.replied < min(number + 1, 3):
                time.sleep(0.001)
            assert table.num_rows == 100
        assert client.counters.sent == 3

    async def work() -> None:
        async with aio.Client.from_url(ours.url) as client:
            number = 0
            async for _ in client.read_tables("s", 1, 300, count=100):
                number += 1
                while client.counters.replied < min(number + 1, 3):
                    await asyncio.sleep(0.001)
            assert client.counters.sent == 3

    asyncio.run(work())


def test_commands_of_the_caller_do_not_wait_for_a_read(writer: Client, ours: Server) -> None:
    fill(writer, 100)
    with Client.from_url(ours.url) as client:
        for _ in client.read_tables("s", 1, count=10):
            client.incr("tables")
        assert client.get("tables") == b"10" and len(client._own_connections) == 1


def test_the_loop_may_be_left_at_any_table(writer: Client, ours: Server) -> None:
    fill(writer, 1000)
    with Client.from_url(ours.url) as client:
        for _ in client.read_tables("s", count=100):
            break
        assert client.ping()
    await_readers()

    async def work() -> None:
        async with aio.Client.from_url(ours.url) as client:
            async with aclosing(client.read_tables("s", count=100)) as tables:
                async for _ in tables:
                    break
            assert asyncio.all_tasks() == {asyncio.current_task()} and await client.ping()

    asyncio.run(work())


def test_the_error_of_a_read_is_raised_when_its_table_is_needed(writer: Client, ours: Server) -> None:
    fill(writer, 500)
    client = Client.from_url(ours.url)
    tables = client.read_tables("s", count=100)
    assert next(tables).num_rows == 100
    client.close()
    with pytest.raises(redis.ConnectionError) as failure:
        list(tables)  # the second may have come before the end
    assert isinstance(failure.value, ClientClosed | OutcomeUnknown)
    assert list(tables) == []
    writer.set("text", "x")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        list(writer.read_tables("text"))

    async def work() -> None:
        async with aio.Client.from_url(ours.url) as client:
            tables = client.read_tables("s", count=100)
            async for _ in tables:
                await client.aclose()
                break
            await tables.aclose()  # type: ignore[attr-defined]

    asyncio.run(work())


def test_a_child_reads_on_by_itself(writer: Client, ours: Server) -> None:
    fill(writer, 300)
    with Client.from_url(ours.url) as client:
        tables = client.read_tables("s", count=100)
        next(tables)
        await_readers()  # a fork while a thread is running would not be safe
        child = os.fork()
        if not child:
            status = 1
            try:
                status = int(sum(table.num_rows for table in tables) != 200)
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert sum(table.num_rows for table in tables) == 200
