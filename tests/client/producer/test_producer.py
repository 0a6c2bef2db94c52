"""Producers of threads and of tasks on a real server, behind the fault proxy. A server that is killed is in
tests/integration/test_producer_kill.py.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from typing import Any

import pytest
import redis
from tests.support.client.clients import Connect
from tests.support.client.producers import producer_of
from tests.support.waiting import wait_until

from penstock import Client, Server, aio
from penstock.client.errors import BufferFull, ClientClosed, NoReplyInTime, NotEncodable, NotSentInTime
from penstock.testing.proxy import FaultProxy


def entries(witness: redis.Redis, key: str = "s") -> list[bytes]:
    return [message[2] for message in witness.execute_command("TREAD", key, 1, 1_000_000)]


@pytest.fixture
def client(connect: Connect, proxy: FaultProxy, witness: redis.Redis) -> Any:
    return connect(f"redis://127.0.0.1:{proxy.port}/0")


def test_futures_have_the_offsets(client: Any, witness: redis.Redis) -> None:
    with producer_of(client, "s") as producer:
        futures = [producer.write("tag", number) for number in range(1000)]
        assert [future.result(60) for future in futures] == list(range(1, 1001))
        assert producer.counters == {"written": 1000, "failed": 0, "held": 0, "writes": producer.counters["writes"]}
        assert producer.counters["writes"] < 500
    assert entries(witness) == [b"%d" % number for number in range(1000)]


def test_many_threads_write_and_each_keeps_its_order(client: Any, witness: redis.Redis) -> None:
    def work(number: int) -> None:
        for count in range(200):
            producer.send(f"thread-{number}", count)

    with producer_of(client, "s", batch_bytes=20_000) as producer, ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
        producer.flush(60)
    found: dict[bytes, list[int]] = {}
    for _, tag, entry in witness.execute_command("TREAD", "s", 1, 10_000):
        found.setdefault(tag, []).append(int(entry))
    assert len(found) == 8 and all(counts == list(range(200)) for counts in found.values())


def test_a_callback_gets_the_offset_or_the_error(client: Any, witness: redis.Redis) -> None:
    told: list[Any] = []
    with producer_of(client, "s") as producer:
        producer.send("tag", "x", lambda offset, error: told.append((offset, error)))
        producer.send("tag", "y", lambda offset, error: 1 / 0)  # is logged, and harms no other
        producer.send("tag", "z", lambda offset, error: told.append((offset, error)))
        producer.flush(60)
        assert told == [(1, None), (3, None)]
        witness.set("text", 1)
    with producer_of(client, "text") as producer:
        producer.send("tag", "x", lambda offset, error: told.append(error))
        producer.flush(60)
    assert "WRONGTYPE" in str(told[-1]) or "wrong kind of value" in str(told[-1])


def test_a_failure_without_future_or_callback_is_raised_by_flush(client: Any, witness: redis.Redis) -> None:
    witness.set("text", 1)
    with producer_of(client, "text") as producer:
        producer.send("tag", "x")
        with pytest.raises(redis.ResponseError, match="wrong kind of value"):
            producer.flush(60)
        producer.send("tag", "x")
        with pytest.raises(redis.ResponseError, match="wrong kind of value"):
            producer.close(60)


CUTS = ["before", "in the request", "after", "in the reply"]


@pytest.mark.parametrize("place", CUTS)
def test_a_write_that_was_cut_off_is_there_once(
    client: Any, proxy: FaultProxy, witness: redis.Redis, place: str
) -> None:
    with producer_of(client, "s", linger_ms=0, batch_bytes=5000) as producer:
        futures = []
        for _ in range(5):
            fault = {
                "before": lambda: proxy.cut_before_forwarding(b"TWRITE", 2),
                "in the request": lambda: proxy.cut_mid_request(50, b"TWRITE", 2),
                "after": lambda: proxy.cut_after_execution(b"TWRITE", 2),
                "in the reply": lambda: proxy.cut_mid_reply(1, b"TWRITE", 2),
            }[place]()
            while not fault.has_fired:
                futures += [producer.write("tag", len(futures) + more) for more in range(50)]
                producer.flush(60)
        assert [future.result(60) for future in futures] == list(range(1, len(futures) + 1))
    assert entries(witness) == [b"%d" % number for number in range(len(futures))]


def test_messages_wait_for_a_server_that_is_away_and_for_one_that_was_never_there(
    client: Any, proxy: FaultProxy, witness: redis.Redis
) -> None:
    proxy.refuse_connections()
    proxy.cut_connections()
    with producer_of(client, "s", backoff_cap=0.05) as producer:
        future = producer.write("tag", "x")
        with pytest.raises(TimeoutError, match="still held"):
            producer.flush(0.2)
        assert not future.done() and producer.counters["held"] == 1
        proxy.accept_connections()
        assert future.result(60) == 1


def test_a_message_whose_time_is_up_fails_with_how_far_it_came(
    client: Any, proxy: FaultProxy, witness: redis.Redis
) -> None:
    with producer_of(client, "s", timeout=1.0) as producer:
        producer.write("tag", "first").result(60)
        proxy.hold_replies()
        sent = producer.write("tag", "sent")
        with pytest.raises(NoReplyInTime, match="may have been written"):
            sent.result(60)
        proxy.release_replies()
        proxy.refuse_connections()
        with producer_of(client, "s", timeout=1.0) as late, pytest.raises(NotSentInTime, match="was not sent within"):
            late.write("tag", "unsent").result(60)
        proxy.accept_connections()
        assert producer.write("tag", "last").result(60) == 3
    assert entries(witness) == [b"first", b"sent", b"last"]


def test_a_full_buffer_holds_callers_back(client: Any, proxy: FaultProxy, witness: redis.Redis) -> None:
    with producer_of(client, "s", linger_ms=0, max_bytes=10_000) as producer:
        producer.write("tag", "first").result(60)
        proxy.hold_replies()
        with pytest.raises(BufferFull, match="max_bytes is 10000"):
            for _ in range(100):
                producer.send("tag", "x" * 100, timeout=0)
        held = producer.counters["held"]
        assert 0 < held < 100
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(producer.write, "tag", "patient", 60)
            proxy.release_replies()
            offset: int = waiting.result(60).result(60)
        assert offset == held + 2


def test_what_cannot_be_encoded_fails_its_caller_only(client: Any, witness: redis.Redis) -> None:
    with producer_of(client, "s") as producer:
        with pytest.raises(NotEncodable, match="no wire form"):
            producer.write("tag", object())
        assert producer.write("tag", "x").result(60) == 1
    with pytest.raises(NotEncodable):
        producer_of(client, object())


def test_a_closed_producer_refuses_messages(client: Any, witness: redis.Redis) -> None:
    producer = producer_of(client, "s")
    future = producer.write("tag", "x")
    producer.close()
    assert future.result(0) == 1
    with pytest.raises(ClientClosed, match="the producer is closed"):
        producer.write("tag", "x")
    producer.close()


def test_entries_that_do_not_fit_the_schema_fail_alone(client: Any, witness: redis.Redis) -> None:
    with Client.from_url(f"redis://127.0.0.1:{witness.connection_pool.connection_kwargs['port']}") as plain:
        plain.tschema_set("s", "n bigint NOT NULL", check="refuse")
    with producer_of(client, "s") as producer:
        futures = [producer.write("tag", '{"n": 1}' if number % 10 else "?") for number in range(30)]
        outcomes = [future.exception(60) or future.result() for future in futures]
    assert [outcome for outcome in outcomes if isinstance(outcome, int)] == list(range(1, 28))
    assert all("does not fit" in str(outcomes[number]) for number in (0, 10, 20))


def test_offsets_are_right_after_the_stream_began_to_put_misfits_aside(client: Any, witness: redis.Redis) -> None:
    fits, misfit = '{"n": 1}', "?"
    with producer_of(client, "s") as producer:
        assert producer.write("tag", fits).result(60) == 1
        witness.execute_command("TSCHEMA", "SET", "s", "n bigint NOT NULL", "CHECK", "deadletter", "bad")
        futures = [producer.write("tag", misfit if number % 7 == 0 else fits) for number in range(100)]
        offsets = [future.result(60) for future in futures]
        found = {message[0]: message[2] for message in witness.execute_command("TREAD", "s", 1, 1000)}
        claimed = [offset for offset in offsets if offset is not None]
        assert len(found) == 86 and len(set(claimed)) == len(claimed)
        assert all(offset is None for offset in offsets[::7])
        assert producer.write("tag", fits).result(60) == 87


def test_a_producer_uses_one_connection_and_the_clients_level_does_not_matter(
    connect: Connect, ours: Server, witness: redis.Redis
) -> None:
    for level in ("at-most-once", "exactly-once"):
        client = connect(ours.url, delivery=level)
        with producer_of(client, level) as producer:
            assert producer.write("tag", "x").result(60) == 1


def test_a_successor_of_the_same_name_takes_the_place_of_a_producer_that_is_still_at_work(
    client: Any, witness: redis.Redis
) -> None:
    with producer_of(client, "s", name="importer") as old:
        assert old.write("tag", "old").result(60) == 1
        with producer_of(client, "s", name="importer") as new:
            assert old.write("tag", "old").result(60) == 2, "the new one has not written yet"
            assert new.write("tag", "new").result(60) == 3
            with pytest.raises(redis.ResponseError, match="FENCED"):
                old.write("tag", "old").result(60)
            with pytest.raises(redis.ResponseError, match="FENCED"):
                old.write("tag", "old")
            assert new.write("tag", "new").result(60) == 4
    with producer_of(client, "s", name="importer") as third:
        assert third.write("tag", "third").result(60) == 5
    assert entries(witness) == [b"old", b"old", b"new", b"new", b"third"]


# -- threads ---------------------------------------------------------------------------------------------------


def test_its_futures_are_those_of_the_standard_library(ours: Server, witness: redis.Redis) -> None:
    with Client.from_url(ours.url) as client, client.producer("s") as producer:
        first: Future[int | None] = producer.write("tag", "x")
        assert isinstance(first, Future) and first.running() and not first.cancel()
        done: list[Any] = []
        first.add_done_callback(lambda future: done.append(future.result()))
        others = [producer.write("tag", "x") for _ in range(20)]
        assert wait([first, *others], timeout=60).not_done == set()
        assert sorted(future.result() for future in as_completed(others, 60)) == list(range(2, 22))
        late = producer.write("tag", "x")
        producer.flush(60)
        late.add_done_callback(lambda future: done.append(future.result()))
        assert done == [1, 22] and late.done() and late.exception() is None

        async def awaited() -> Any:
            return await asyncio.wrap_future(producer.write("tag", "x"))

        assert asyncio.run(awaited()) == 23


class Interrupt(BaseException):
    """What KeyboardInterrupt is to a program."""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an interrupt in the end of an object
def test_a_thread_that_is_interrupted_harms_no_other(ours: Server, witness: redis.Redis) -> None:
    def handler(*_: object) -> None:
        raise Interrupt

    def write_along() -> None:
        for number in range(3000):
            futures.append(producer.write("other", number))

    futures: list[Any] = []
    before = signal.signal(signal.SIGALRM, handler)
    interrupts = written = 0
    try:
        with Client.from_url(ours.url) as client, client.producer("s", max_bytes=100_000) as producer:
            other = threading.Thread(target=write_along)
            other.start()
            while other.is_alive() or interrupts < 20:
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.002)
                    for _ in range(5000):  # an interrupt may have been swallowed
                        producer.write("mine", written)
                        written += 1
                except Interrupt:
                    interrupts += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            producer.flush(60)
            offsets = [future.result(60) for future in futures]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    found = witness.execute_command("TREAD", "s", 1, 10_000_000)
    others = [(offset, int(entry)) for offset, tag, entry in found if tag == b"other"]
    assert others == list(zip(offsets, range(3000), strict=True))
    mine = [int(entry) for _, tag, entry in found if tag == b"mine"]
    assert sorted(set(mine)) == list(range(max(mine) + 1)), "an interrupted call may be made again, and none is lost"


def test_a_child_process_is_refused_and_the_parent_goes_on(ours: Server, witness: redis.Redis) -> None:
    with Client.from_url(ours.url) as client, client.producer("s") as producer:
        producer.write("tag", "parent").result(60)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                producer.write("tag", "child")
            except RuntimeError as error:
                os.write(writing, str(error).encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        os.close(writing)
        assert b"belongs to the process" in os.read(reading, 1000)
        os.close(reading)
        assert producer.write("tag", "parent").result(60) == 2


def test_what_is_held_when_the_program_ends_is_written(ours: Server, witness: redis.Redis) -> None:
    program = f"""
import penstock
producer = penstock.Client.from_url("{ours.url}").producer("s", linger_ms=100_000)
for number in range(100):
    producer.send("tag", number)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    assert len(entries(witness)) == 100


# -- tasks -----------------------------------------------------------------------------------------------------


def test_tasks_write_together(ours: Server, witness: redis.Redis) -> None:
    async def main() -> list[Any]:
        async with aio.Client.from_url(ours.url) as client, client.producer("s") as producer:

            async def one(number: int) -> Any:
                return await (await producer.write("tag", number))

            offsets = await asyncio.gather(*map(one, range(100)))
            assert producer.counters["writes"] == 1
            return offsets

    assert asyncio.run(main()) == list(range(1, 101))


def test_a_cancelled_task_does_not_take_its_message_back(ours: Server, witness: redis.Redis) -> None:
    async def main() -> None:
        async with aio.Client.from_url(ours.url) as client, client.producer("s", linger_ms=50) as producer:
            first = await producer.write("tag", "first")
            second = await producer.write("tag", "second")
            first.cancel()
            assert await second == 2

    asyncio.run(main())
    assert entries(witness) == [b"first", b"second"]


def test_a_producer_belongs_to_one_loop(ours: Server, witness: redis.Redis) -> None:
    async def write() -> Any:
        return await producer.write("tag", "x")

    async def main() -> None:
        await write()
        with pytest.raises(RuntimeError, match="another event loop"):
            await asyncio.to_thread(asyncio.run, write())
        await producer.aclose()
        await client.aclose()

    client = aio.Client.from_url(ours.url)
    producer = client.producer("s")
    asyncio.run(main())


def test_a_producer_waits_until_its_thread_has_something_to_send(ours: Server, witness: redis.Redis) -> None:
    with Client.from_url(ours.url) as client, client.producer("s", linger_ms=0) as producer:
        for number in range(1, 20):
            assert producer.write("tag", number).result(60) == number
        wait_until(lambda: producer.counters["held"] == 0)
