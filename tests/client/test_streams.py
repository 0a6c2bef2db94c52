"""Stream commands and consumers, on both clients."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pyarrow as pa
import pytest
import redis
from tests.support.client.clients import Connect

from penstock import Client, Server, aio
from penstock.client.api.stream_replies import (
    Committed,
    History,
    Lease,
    LeasedMessage,
    Message,
    ProducerInfo,
    Reading,
    TimedMessage,
)
from penstock.protocol.errors import Fenced
from penstock.testing.proxy import FaultProxy


@pytest.fixture
def streams(connect: Connect, ours: Server) -> Any:
    client = connect(ours.url)
    client.flushall()
    return client


def test_messages_are_written_and_read(streams: Any) -> None:
    assert streams.twrite("s", "ada", "tea") == 1
    assert streams.twrite_many("s", [("bob", "coffee"), ("eve", "milk")], producer=("till", 1)) == 2
    assert streams.twrite_many("s", [("bob", "coffee"), ("eve", "milk")], producer=("till", 1)) == 2
    reading = streams.tread("s", 2, 10, with_info=True)
    assert reading == [Message(2, b"bob", b"coffee"), Message(3, b"eve", b"milk")]
    assert (reading.first, reading.last) == (1, 3) and isinstance(reading, Reading)
    assert streams.tevict("s", 1) == 1 and streams.tread("s", 1, 2) == [None, Message(2, b"bob", b"coffee")]
    assert streams.tread("s", 4, 1, block_ms=10) == []
    assert streams.tseek("s", 0) == 2


def test_execute_command_gives_stream_replies_as_they_are(streams: Any) -> None:
    streams.twrite("s", "ada", "tea")
    assert streams.execute_command("TREAD", "s", 1, 1) == [[1, b"ada", b"tea"]]


@pytest.mark.parametrize("protocol", [2, 3])
def test_the_description_of_a_stream_has_named_fields(connect: Connect, ours: Server, protocol: int) -> None:
    client = connect(ours.url, protocol=protocol, decode_responses=True)
    client.flushall()
    client.twrite_many("s", [("t", "1"), ("t", "2"), ("t", "3")])
    assert client.tretain("s", count=1000, compact=True) is True
    client.tread("s", 0, 2, group="g", retry_ms=1000)
    info = client.tinfo("s")
    assert (info.first, info.last, info.length, info.retention.count, info.retention.compact) == (1, 3, 3, 1000, True)
    assert info.history == History(length=0, bytes=0, files=0)
    (group,) = info.groups
    assert (group.name, group.position, group.lag, group.pending) == ("g", 3, 1, 2)
    assert client.tgroup_list("s") == [group]
    (lease,) = client.tgroup_pending("s", "g")
    assert isinstance(lease, Lease) and (lease.first, lease.last, lease.attempts) == (1, 2, 1)
    assert client.tnack("s", "g", 1, delay_ms=50_000) == 1 and client.tack("s", "g", range(1, 3)) == 2
    assert client.tgroup_set("s", "g", 1) is True and client.tgroup_del("s", "g") is True


def test_stages_become_visible_by_a_commit(streams: Any) -> None:
    assert streams.tstage("s", "a", [("t", "1")]) == 1
    assert streams.stage_arrow("s", "b", pa.table({"tag": ["t"], "entry": ["2"]})) == 1
    assert streams.tcommit("s", "job", 2, "a", "b") == Committed(1, 2)
    with pytest.raises(redis.ResponseError, match="FENCED") as failure:
        streams.tcommit("s", "job", 1, "a")
    assert isinstance(failure.value, Fenced)


def test_tables_go_in_and_come_out(streams: Any) -> None:
    table = pa.table({"tag": ["a", "b"], "entry": [b"\xff", b"2"]})
    assert streams.write_arrow("s", table) == 1
    back = streams.read_arrow("s", 1, 10)
    assert back.column_names == ["offset", "time", "tag", "entry"]
    assert back.column("offset").to_pylist() == [1, 2] and back.column("entry").to_pylist() == [b"\xff", b"2"]
    assert streams.read_arrow("s", 3, 10, block_ms=10).num_rows == 0


def test_a_table_tells_what_the_stream_has_and_where_to_go_on(streams: Any) -> None:
    streams.write_arrow("s", pa.table({"tag": ["a"] * 30_000, "entry": [b"entry %d" % n for n in range(30_000)]}))
    whole = streams.read_arrow("s", 1, 30_000)
    assert whole == streams.read_arrow("s", 1, 30_000, compressed=False)
    assert whole.column("entry").to_pylist() == [b"entry %d" % n for n in range(30_000)]
    streams.tevict("s", 12_345)
    info = streams.read_arrow("s", 1, 100, with_info=True)
    assert info.num_rows == 0 and info.schema.metadata == {b"first": b"%019d" % 12_346, b"last": b"%019d" % 30_000}
    part = streams.read_arrow("s", 12_346, 10_000, max_bytes=1000, with_info=True)
    assert 0 < part.num_rows < 100 and part.column("offset")[0].as_py() == 12_346
    grouped = streams.read_arrow("s", 0, 10, group="g", with_info=True)
    assert (
        grouped.column("offset").to_pylist() == list(range(12_346, 12_356))
        and int(grouped.schema.metadata[b"last"]) == 30_000
    )
    assert pa.concat_tables([part, whole, grouped]).num_rows == part.num_rows + 30_010


@pytest.mark.parametrize("as_table", [dict, lambda columns: pa.table(columns).to_reader(), pa.record_batch])
def test_whatever_pyarrow_makes_a_table_of_is_written(streams: Any, as_table: Any) -> None:
    assert streams.write_arrow("s", as_table({"tag": ["a", "b"], "entry": ["1", "2"]})) == 1
    assert streams.tread("s") == [Message(1, b"a", b"1"), Message(2, b"b", b"2")]


def test_a_group_begins_with_the_first_message_there_is(streams: Any) -> None:
    streams.twrite_many("s", [("t", "x")] * 3000)
    streams.tevict("s", 2000)
    assert streams.tread("s", group="g", count=1)[0].offset == 2001
    assert streams.read_arrow("s", group="h", count=1).column("offset").to_pylist() == [2001]
    assert [group.lost for group in streams.tgroup_list("s")] == [0, 0]


def test_offsets_are_acknowledged_one_by_one_in_ranges_or_in_lists(streams: Any) -> None:
    streams.twrite_many("s", [("t", "x")] * 10)
    offsets = [message.offset for message in streams.tread("s", group="g", retry_ms=60_000)]
    assert streams.tack("s", "g", offsets[:3], 5, range(6, 8), "9-10") == 8
    assert streams.tnack("s", "g", [4], delay_ms=60_000) == 1


def test_groups_get_delayed_messages_later(streams: Any) -> None:
    streams.twrite("s", "t", "now")
    streams.twrite("s", "t", "later", delay_ms=600_000)
    streams.write_arrow("s", pa.table({"tag": ["t"], "entry": ["then"]}), at_ms=4_000_000_000_000)
    assert [message.offset for message in streams.tread("s", group="g")] == [1]
    now, later, then = streams.tread("s", with_time=True)
    assert isinstance(now, TimedMessage) and now.visible_at == 0
    assert 590_000 < later.visible_at - now.time < 700_000
    assert abs(then.visible_at - 4_000_000_000_000) < 1000
    assert streams.tread("s", with_time=True, with_info=True).last == 3
    assert (streams.tinfo("s").delayed, streams.tgroup_list("s")[0].delayed) == (2, 2)
    streams.twrite_many("s", [("t", "x")], delay_ms=600_000)
    assert streams.tinfo("s").delayed == 3
    with pytest.raises(ValueError, match="give one of them"):
        streams.twrite("s", "t", "x", delay_ms=1, at_ms=1)


def test_several_streams_are_read_as_one_group(streams: Any) -> None:
    for key in ("urgent", "later"):
        streams.twrite_many(key, [("t", "1"), ("t", "2")])
    terms: Any = {"group": "g", "retry_ms": 60_000, "with_lease": True}
    (one, first), (other, second) = streams.tread_several(["urgent", "later"], count=3, with_info=True, **terms)
    assert (one, [message.offset for message in first], first.last) == (b"urgent", [1, 2], 2)
    assert (other, [message.offset for message in second]) == (b"later", [1])
    assert streams.tack("later", "g", 1, token=second.token) == 1
    assert streams.tread_several(["urgent", "later"], fair=True, **terms)[0][1][0].offset == 2
    assert streams.tread_several(["urgent", "later"], block_ms=1, **terms) == []
    assert [key for key, _ in streams.tread_several(["urgent"], group="h")] == ["urgent"]


def test_a_producer_that_restarts_learns_its_last_number(streams: Any) -> None:
    assert streams.tproducer("s", "till") is None
    streams.twrite("s", "t", "x")
    for sequence in (3, 7):
        streams.twrite_many("s", [("t", "x"), ("t", "y")], producer=("till", sequence))
    assert streams.tproducer("s", "till") == ProducerInfo(sequence=7, offset=4)
    assert streams.tproducer("s", "other") is None
    streams.tschema_set("s", "a int", check="deadletter", dead_letter="bad")
    streams.twrite_many("s", [("t", "x")], producer=("till", 8))
    assert streams.tproducer("s", "till") == ProducerInfo(sequence=8, offset=None)


def test_a_delivery_is_held_begun_and_acknowledged_by_its_token(streams: Any) -> None:
    streams.twrite_many("s", [("t", "x"), ("u", "y")])
    terms = {"group": "g", "retry_ms": 60_000, "max_attempts": 3, "with_lease": True}
    reading = streams.tread("s", reserve=True, with_info=True, consumer="ada", release=True, **terms)
    ((consumer,),) = [group.consumers for group in streams.tgroup_list("s")]
    assert (consumer.name, consumer.pending) == ("ada", 2)
    assert (reading.first, reading.last) == (1, 2)
    assert [(message.offset, message.entry, message.attempts) for message in reading] == [(1, b"x", 0), (2, b"y", 0)]
    assert isinstance(reading[0], LeasedMessage) and reading[0].time > 1_700_000_000_000
    assert streams.textend("s", "g", 30_000, 1, token=reading.token, begin=True) == 1
    assert streams.textend("s", "g", 30_000, range(1, 3), token=reading.token) == 2
    assert [lease.attempts for lease in streams.tgroup_pending("s", "g")] == [1, 0]
    assert streams.tack("s", "g", 1, token=reading.token - 1) == 0
    assert streams.tack("s", "g", 1, token=reading.token) == 1
    assert streams.tnack("s", "g", 2, token=reading.token) == 1
    table = streams.read_arrow("s", **terms)
    assert table.select(["offset", "attempts"]).to_pylist() == [{"offset": 2, "attempts": 1}]
    assert [*table.schema.metadata] == [b"token"]
    assert streams.tack("s", "g", 2, token=int(table.schema.metadata[b"token"])) == 1
    nothing = streams.read_arrow("s", block_ms=1, **terms)
    assert (nothing.column_names[-1], nothing.schema.metadata) == ("attempts", {b"token": b"0"})
    assert streams.tread("s", block_ms=1, **terms).token == streams.tread("s", **terms).token == 0


def test_what_makes_no_sense_is_refused_before_it_is_sent(streams: Any) -> None:
    streams.twrite("s", "t", "x")
    sent = streams.counters.sent
    for name, call in {
        "entries": lambda: streams.twrite_many("s", []), "entries is": lambda: streams.tstage("s", "token", []),
        "offsets": lambda: streams.tack("s", "g"), "offsets is": lambda: streams.tnack("s", "g", []),
        "expire_ms=5": lambda: streams.tread("s", group="g", expire_ms=5),
        "max_attempts=5": lambda: streams.tread("s", group="g", max_attempts=5),
        "with_lease=True": lambda: streams.read_arrow("s", group="g", with_lease=True),
        "offsets is empty": lambda: streams.textend("s", "g", 5),
    }.items():  # fmt: skip
        with pytest.raises(ValueError, match=f"^{name}"):
            call()
    assert streams.counters.sent == sent


def test_stream_commands_in_a_pipeline(streams: Any) -> None:
    pipe = streams.pipeline(transaction=False)
    pipe.twrite("s", "t", "1")
    pipe.tread("s", 1, 1)
    pipe.tinfo("s")
    offset, reading, info = pipe.execute()
    assert (offset, reading, info.length) == (1, [Message(1, b"t", b"1")], 1)


def fill(url: str, count: int) -> None:
    with Client.from_url(url) as client:
        client.flushall()
        client.twrite_many("s", [("t", str(number)) for number in range(count)])


def test_what_the_body_has_done_is_acknowledged(ours: Server) -> None:
    fill(ours.url, 25)
    with Client.from_url(ours.url) as client:
        seen = []
        with client.consumer("s", "g", count=10) as consumer:
            for message in consumer:
                seen.append(message.offset)
                if len(seen) == 25:
                    consumer.stop()
        assert seen == list(range(1, 26)) and client.tgroup_pending("s", "g") == []


def test_what_a_body_fails_on_is_given_back_and_the_rest_is_free_for_others(ours: Server) -> None:
    fill(ours.url, 10)
    with Client.from_url(ours.url) as client:
        with pytest.raises(RuntimeError), client.consumer("s", "g", retry_delay_ms=60_000) as consumer:
            for message in consumer:
                if message.offset == 3:
                    raise RuntimeError
        assert client.tgroup_pending("s", "g")[0][:2] == (3, 3)
        again = client.tread("s", 0, 100, group="g", retry_ms=1000)
        assert [message.offset for message in again] == list(range(4, 11))  # 3 waits for its delay


def test_leaving_the_loop_counts_as_done(ours: Server) -> None:
    fill(ours.url, 10)
    with Client.from_url(ours.url) as client:
        with client.consumer("s", "g") as consumer:
            for message in consumer:
                if message.offset == 3:
                    break
        assert client.tgroup_list("s")[0].acknowledged == 3


def test_workers_share_a_stream_and_try_again_what_fails(ours: Server) -> None:
    fill(ours.url, 200)
    with Client.from_url(ours.url) as client:
        consumer = client.consumer("s", "g", count=7, retry_delay_ms=1, block_ms=50)
        lock, done, told = threading.Lock(), [], []  # type: ignore[var-annotated]

        def body(message: Message) -> None:
            with lock:
                if message.offset % 50 == 0 and message.offset not in told:
                    raise ValueError(message.offset)
                done.append(message.offset)
                if len(done) == 200:
                    consumer.stop()

        consumer.run(body, workers=4, on_error=lambda message, error: told.append(message.offset))
        assert sorted(done) == list(range(1, 201)) and sorted(told) == [50, 100, 150, 200]
        assert client.tgroup_pending("s", "g") == []


def test_a_consumer_of_the_asyncio_client(ours: Server) -> None:
    fill(ours.url, 50)

    async def main() -> None:
        async with aio.Client.from_url(ours.url) as client:
            seen: list[int] = []
            async with client.consumer("s", "g", count=10) as consumer:
                async for message in consumer:
                    seen.append(message.offset)
                    if len(seen) == 20:
                        break
            assert seen == list(range(1, 21))
            worker = client.consumer("s", "g", count=5, retry_delay_ms=1, block_ms=50)

            async def body(message: Message) -> None:
                await asyncio.sleep(0)
                if message.offset == 30 and 30 not in seen:
                    seen.append(30)
                    raise ValueError
                seen.append(message.offset)
                if len(seen) == 51:
                    worker.stop()

            await worker.run(body, workers=3)
            assert sorted(seen) == sorted([*range(1, 51), 30])
            assert await client.tgroup_pending("s", "g") == []

    asyncio.run(main())


def test_a_worker_that_cannot_go_on_ends_them_all_and_says_why(ours: Server) -> None:
    fill(ours.url, 1)
    with Client.from_url(ours.url) as client:
        client.set("text", 1)
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            client.consumer("text", "g").run(print, workers=2)


def test_a_failed_body_is_logged_if_there_is_no_on_error(ours: Server, caplog: pytest.LogCaptureFixture) -> None:
    fill(ours.url, 2)

    def fail_once(message: Message) -> None:
        if message.offset == 1 and not caplog.records:
            raise ZeroDivisionError("of the body")
        if message.offset == 1:
            consumer.stop()

    with Client.from_url(ours.url) as client:
        consumer = client.consumer("s", "g", retry_delay_ms=0)
        consumer.run(fail_once)
    (record,) = caplog.records
    assert "message 1" in record.getMessage() and record.exc_info and record.exc_info[0] is ZeroDivisionError


def test_a_body_that_cannot_be_called_is_refused(ours: Server) -> None:
    async def body(message: Message) -> None: ...

    with Client.from_url(ours.url) as client:
        with pytest.raises(TypeError, match="not a function"):
            client.consumer("s", "g").run(None)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"aio\.Client"):
            client.consumer("s", "g").run(body)


def test_tasks_take_a_body_that_is_no_coroutine(ours: Server) -> None:
    fill(ours.url, 3)
    seen: list[int] = []

    async def work() -> None:
        async with aio.Client.from_url(ours.url) as client:
            consumer = client.consumer("s", "g")

            def body(message: Message) -> None:
                seen.append(message.offset)
                if message.offset == 3:
                    consumer.stop()

            await consumer.run(body)
            assert (await client.tgroup_list("s"))[0].pending == 0

    asyncio.run(work())
    assert seen == [1, 2, 3]


def test_a_consumer_goes_on_through_lost_connections(ours: Server) -> None:
    fill(ours.url, 60)
    with FaultProxy(("127.0.0.1", ours.port)) as proxy, Client.from_url(proxy.url, backoff_base=0.01) as client:
        seen = set()
        with client.consumer("s", "g", count=5, retry_ms=50, block_ms=50) as consumer:
            for message in consumer:
                seen.add(message.offset)
                if message.offset % 20 == 0:
                    proxy.cut_after_execution()
                if len(seen) == 60:
                    consumer.stop()
        assert consumer.counts.outages >= 2


def test_workers_that_are_cancelled_acknowledge_what_is_done_and_give_back_the_rest(ours: Server) -> None:
    fill(ours.url, 10)

    async def main() -> None:
        async with aio.Client.from_url(ours.url) as client:
            seen: list[int] = []
            stuck = asyncio.Event()

            async def body(message: Message) -> None:
                seen.append(message.offset)
                if len(seen) == 4:
                    stuck.set()
                    await asyncio.Event().wait()

            consumer = client.consumer("s", "g", retry_delay_ms=60_000)
            task = asyncio.create_task(consumer.run(body))
            await stuck.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            again = await client.tread("s", 0, 100, group="g", retry_ms=1000)
            assert [message.offset for message in again] == list(range(4, 11))  # 4 did not fail: it waits for nothing

    asyncio.run(main())


def test_a_worker_that_ends_the_program_acknowledges_what_is_done(ours: Server) -> None:
    fill(ours.url, 10)
    with Client.from_url(ours.url) as client:

        def body(message: Message) -> None:
            if message.offset == 4:
                raise SystemExit

        with pytest.raises(SystemExit):
            client.consumer("s", "g", retry_delay_ms=60_000).run(body)
        again = client.tread("s", 0, 100, group="g", retry_ms=1000)
        assert [message.offset for message in again] == list(range(5, 11))


@pytest.mark.parametrize("terms", [{"count": 0}, {"retry_ms": 0}, {"block_ms": 0}])
def test_terms_that_cannot_work_are_refused(ours: Server, terms: dict[str, int]) -> None:
    with Client.from_url(ours.url) as client:
        with pytest.raises(ValueError, match=next(iter(terms))):
            client.consumer("s", "g", **terms)
        with pytest.raises(ValueError, match="workers=0"):
            client.consumer("s", "g").run(print, workers=0)
