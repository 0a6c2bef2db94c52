"""What a consumer holds, for how long, and what it gives back."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
import redis
from tests.support.background import in_background
from tests.support.client.consuming import Consume, fill
from tests.support.waiting import wait_until

from penstock import GIVE_UP, Client, Server, aio
from penstock.client.api.stream_replies import GroupInfo, Message
from penstock.client.consumer import orders
from penstock.protocol.dead_letters import Letter


def pending(url: str) -> list[tuple[int, int, int]]:
    """First, last and attempts of what the group holds."""
    with Client.from_url(url) as client:
        return [lease[:3] for lease in client.tgroup_pending("s", "g")]


def group(url: str) -> GroupInfo:
    with Client.from_url(url) as client:
        found: GroupInfo = client.tgroup_list("s")[0]
        return found


def letters(url: str) -> list[Letter]:
    with Client.from_url(url) as client:
        if not client.exists("dead"):
            return []
        return [Letter.decode(message.entry) for message in client.tread("dead", 1, 100) if message]


def test_a_message_knows_its_attempts_and_its_time_and_is_still_a_tuple(ours: Server, consume: Consume) -> None:
    fill(ours.url, 1)
    seen: list[Any] = []

    def body(consumer: Any, message: Any) -> None:
        seen.append(message)
        if len(seen) == 3:
            consumer.stop()
        else:
            raise ValueError

    consume(ours.url, body, {"on_error": lambda *_: None}, retry_delay_ms=1, block_ms=50)
    offset, tag, entry = seen[0]
    assert seen[0] == Message(1, b"t0", b"1") == (offset, tag, entry)
    assert [message.attempts for message in seen] == [1, 2, 3]
    assert abs(seen[0].time - time.time() * 1000) < 60_000
    elsewhere = pickle.loads(pickle.dumps(seen[2]))
    assert elsewhere == seen[2] and elsewhere.attempts == 3 and elsewhere.time == seen[2].time
    with pytest.raises(RuntimeError, match="another process"):
        elsewhere.ack()


def test_a_body_may_take_many_times_the_retry_time(ours: Server, consume: Consume) -> None:
    fill(ours.url, 1)
    runs: list[int] = []

    def body(consumer: Any, message: Any) -> None:
        runs.append(message.attempts)
        time.sleep(1.5)
        consumer.stop()

    counts = consume(ours.url, body, {"workers": 2}, retry_ms=300, block_ms=50)
    assert runs == [1] and counts.extended >= 3 and counts.stale == 0 and pending(ours.url) == []


def test_a_slow_body_keeps_no_message_from_idle_members(ours: Server) -> None:
    """The first consumer has fetched many when one body takes for ever; the second gets them all, without an attempt
    that no body made.
    """
    fill(ours.url, 400)
    release, at_last = threading.Event(), threading.Event()
    first: list[int] = []
    second: list[Any] = []

    def slow(message: Any) -> None:
        first.append(message.offset)
        if len(first) == 200:
            at_last.set()
            release.wait(60)

    with Client.from_url(ours.url) as client:
        stuck = client.consumer("s", "g", block_ms=50)
        with in_background(lambda: stuck.run(slow)):
            assert at_last.wait(60)
            idle = client.consumer("s", "g", block_ms=50)

            def body(message: Any) -> None:
                second.append(message)
                if len(second) == 200:
                    idle.stop()

            idle.run(body)
            stuck.stop()
            release.set()
        assert sorted(first + [message.offset for message in second]) == list(range(1, 401))
        assert stuck.counts.given_back >= 1 and pending(ours.url) == []


def test_what_is_done_is_acknowledged_although_the_next_body_is_slow(ours: Server) -> None:
    fill(ours.url, 100)
    release = threading.Event()
    done: list[int] = []
    with Client.from_url(ours.url) as client:
        consumer = client.consumer("s", "g", block_ms=50)

        def body(message: Any) -> None:
            if len(done) == 50:
                wait_until(lambda: client.tgroup_pending("s", "g")[0][0] == message.offset)
                release.set()
                consumer.stop()
            done.append(message.offset)

        consumer.run(body)
    assert release.is_set()


def test_an_acknowledgement_that_comes_too_late_is_counted_and_changes_nothing(
    ours: Server, caplog: pytest.LogCaptureFixture
) -> None:
    fill(ours.url, 1)
    with Client.from_url(ours.url) as client:
        consumer = client.consumer("s", "g", block_ms=50)

        def body(message: Any) -> None:
            client.tnack("s", "g", 1)
            other = client.tread("s", 0, 1, group="g", retry_ms=60_000)
            assert [m.offset for m in other] == [1]
            consumer.stop()

        consumer.run(body)
        assert consumer.counts.stale == 1
        assert pending(ours.url) == [(1, 1, 2)], "the other member has it"
    assert any("held for too long" in record.getMessage() for record in caplog.records)


def test_after_its_last_attempt_a_message_is_a_letter_that_says_why(ours: Server, consume: Consume) -> None:
    fill(ours.url, 3)
    attempts: list[int] = []
    done: list[int] = []

    def body(consumer: Any, message: Any) -> None:
        if message.offset == 2:
            attempts.append(message.attempts)
            if len(attempts) == 3:
                consumer.stop()
            raise ValueError("bad pixel")
        done.append(message.offset)

    terms = {"max_attempts": 3, "dead_letter": "dead", "retry_delay_ms": 1, "block_ms": 50}
    counts = consume(ours.url, body, {"on_error": lambda *_: None}, **terms)
    assert attempts == [1, 2, 3] and sorted(done) == [1, 3] and pending(ours.url) == []
    (letter,) = letters(ours.url)
    assert (letter.offset, letter.entry, letter.why) == (2, b"2", "ValueError: bad pixel")
    assert counts.given_up == 1 and counts.failed == 3


POISON = """
import os, sys
from penstock import Client
with Client.from_url(sys.argv[1]) as client:
    consumer = client.consumer("s", "g", max_attempts=3, dead_letter="dead", retry_ms=400, block_ms=50)
    def body(message):
        if message.entry == b"333":
            os.kill(os.getpid(), 9)
        print(message.offset, flush=True)
    consumer.run(body)
"""


def test_a_message_that_kills_its_process_takes_no_neighbour_to_the_dead_letters(ours: Server) -> None:
    fill(ours.url, 500)
    for _ in range(3):
        killed = subprocess.run([sys.executable, "-c", POISON, ours.url], capture_output=True, timeout=100, check=False)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    with subprocess.Popen([sys.executable, "-c", POISON, ours.url], stdout=subprocess.DEVNULL) as last:
        try:
            wait_until(lambda: group(ours.url).lag == 0 and pending(ours.url) == [] and letters(ours.url))
        finally:
            last.terminate()
    assert [letter.offset for letter in letters(ours.url)] == [333]


def test_sigterm_finishes_what_is_at_hand_and_gives_back_the_rest(ours: Server) -> None:
    fill(ours.url, 1000)
    program = """
import sys, time
from penstock import Client
with Client.from_url(sys.argv[1]) as client:
    with client.consumer("s", "g", block_ms=50) as consumer:
        for message in consumer:
            time.sleep(0.005)
            print(message.offset, flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", program, ours.url], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        seen = [int(child.stdout.readline()) for _ in range(20)]
        os.kill(child.pid, signal.SIGTERM)
        seen += [int(line) for line in child.stdout]
        assert child.wait(60) == 0
    with redis.Redis.from_url(ours.url) as plain:
        again = plain.execute_command("TREAD", "s", 0, 1000, "GROUP", "g", "RETRY", 1000, 0)
    assert sorted([*seen, *(row[0] for row in again)]) == list(range(1, 1001))


def test_a_body_that_outlives_the_grace_loses_its_message_to_others(ours: Server, consume: Consume) -> None:
    fill(ours.url, 3)
    release = threading.Event()

    def body(consumer: Any, message: Any) -> None:
        consumer.stop()
        release.wait(60)

    thread = threading.Timer(2, release.set)  # asyncio.run waits for the threads of to_thread
    thread.start()
    started = time.monotonic()
    consume(ours.url, body, grace_ms=200)
    assert time.monotonic() - started < 50
    with redis.Redis.from_url(ours.url) as plain:
        again = plain.execute_command("TREAD", "s", 0, 10, "BLOCK", 5000, "GROUP", "g", "RETRY", 1000, 0)
    assert again[0][0] == 1
    thread.join()


def test_a_killed_member_that_releases_keeps_nothing_from_others(ours: Server) -> None:
    fill(ours.url, 5)
    program = """
import sys, time
from penstock import Client
with Client.from_url(sys.argv[1]) as client:
    for message in client.consumer("s", "g", name="first", release=True, retry_ms=600_000):
        print(message.offset, flush=True)
        time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", program, ours.url], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"1\n"
        with Client.from_url(ours.url) as client:
            assert [member.name for member in client.tgroup_list("s")[0].consumers] == ["first"]
        child.kill()
    seen: list[int] = []
    with Client.from_url(ours.url) as client:
        consumer = client.consumer("s", "g", block_ms=50)

        def body(message: Any) -> None:
            seen.append(message.offset)
            if len(seen) == 5:
                consumer.stop()

        consumer.run(body)
    assert sorted(seen) == [1, 2, 3, 4, 5]


def test_a_consumer_that_is_forgotten_holds_nothing(ours: Server) -> None:
    """Without `with`, nothing says that the loop was left: the leases must run out, and not be extended for ever."""
    fill(ours.url, 3)
    with Client.from_url(ours.url) as client:
        for message in client.consumer("s", "g", retry_ms=200):
            assert message.offset == 1
            break
        again = client.tread("s", 0, 1, group="g", retry_ms=1000, block_ms=20_000)
        assert again[0].offset in (1, 2)
        wait_until(lambda: not any(t.name == "consumer-keeper" for t in threading.enumerate()))


def test_a_closed_client_ends_its_consumers(ours: Server) -> None:
    fill(ours.url, 1)
    client = Client.from_url(ours.url)
    consumer = client.consumer("s", "g", block_ms=50)

    def body(message: Any) -> None:
        client.close()

    with pytest.raises(redis.ConnectionError, match="closed"):
        consumer.run(body)


def test_workers_of_one_consumer_all_get_work_at_once(ours: Server) -> None:
    """Eight slow bodies side by side, although the first fetch is one message."""
    fill(ours.url, 8)
    meeting = threading.Barrier(8, timeout=60)
    met: list[int] = []
    with Client.from_url(ours.url) as client:
        consumer = client.consumer("s", "g", block_ms=50)

        def body(message: Any) -> None:
            meeting.wait()
            met.append(message.offset)
            if len(met) == 8:
                consumer.stop()

        consumer.run(body, workers=8)
    assert sorted(met) == list(range(1, 9))


def test_no_more_bytes_are_fetched_than_the_consumer_says(ours: Server, consume: Consume) -> None:
    """One message fills a fetch of a byte, so one is processed and at most one waits, however quick the bodies are."""
    fill(ours.url, 60)
    held: list[int] = []

    def body(consumer: Any, message: Any) -> None:
        held.append(consumer.held)
        if len(held) == 60:
            consumer.stop()

    consume(ours.url, body, max_bytes=1, block_ms=50)
    assert max(held) <= 2


def test_a_message_is_acknowledged_by_hand_after_the_body_has_returned(ours: Server) -> None:
    fill(ours.url, 10)
    held: list[Any] = []

    async def main() -> None:
        async with aio.Client.from_url(ours.url) as client:
            consumer = client.consumer("s", "g", manual=True, retry_ms=300, block_ms=50)

            async def body(message: Any) -> None:
                held.append(message)

            async def settle() -> None:
                while len(held) < 10:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(1)
                assert len(held) == 10, "their leases were extended"
                for message in held[:8]:
                    message.ack()
                held[8].nack(60_000)
                while len(await client.tgroup_pending("s", "g")) != 2:
                    await asyncio.sleep(0.01)
                consumer.stop()

            await asyncio.gather(consumer.run(body, workers=2), settle())
            again = await client.tread("s", 0, 10, group="g", retry_ms=1000)
            assert [message.offset for message in again] == [held[9].offset], "given back at the end"

    asyncio.run(main())


def test_a_body_may_acknowledge_early_and_then_fail(ours: Server, consume: Consume) -> None:
    fill(ours.url, 2)
    told: list[int] = []

    def body(consumer: Any, message: Any) -> None:
        if message.offset == 2:
            message.nack(60_000)
            consumer.stop()
        else:
            message.ack()
            raise ValueError

    consume(ours.url, body, {"on_error": lambda message, error: told.append(message.offset)})
    assert told == [1] and pending(ours.url) == [(2, 2, 1)]


def test_a_letter_that_cannot_be_written_leaves_its_message_pending(ours: Server, consume: Consume) -> None:
    fill(ours.url, 1)

    def body(consumer: Any, message: Any) -> None:
        with Client.from_url(ours.url) as client:
            client.set("dead", "no stream")
        raise ValueError("never")

    with pytest.raises(redis.ResponseError, match="'dead', which holds no stream; the messages stay pending"):
        consume(
            ours.url, body, {"on_error": lambda *_: None}, dead_letter="dead", retry={ValueError: GIVE_UP}, block_ms=50
        )
    assert (group(ours.url).pending, group(ours.url).acknowledged) == (1, 0)


def test_a_server_without_memory_for_a_letter_delays_the_message(
    ours: Server, consume: Consume, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orders, "NOT_GIVEN_UP", 100)
    fill(ours.url, 1)
    attempts: list[int] = []

    def body(consumer: Any, message: Any) -> None:
        attempts.append(message.attempts)
        with Client.from_url(ours.url) as client:
            client.config_set("maxmemory", 1 if len(attempts) == 1 else 0)
        if len(attempts) == 2:
            threading.Timer(0.5, consumer.stop).start()
        raise ValueError("never")

    consume(ours.url, body, {"on_error": lambda *_: None}, dead_letter="dead", retry={ValueError: GIVE_UP}, block_ms=50)
    assert attempts == [1, 2]
    assert [letter.why for letter in letters(ours.url)] == ["ValueError: never"]
    assert len([each for each in caplog.records if "is not given up yet" in each.getMessage()]) == 1
