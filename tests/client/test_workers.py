"""How workers end, and how they handle failures; other tests of consumers are in test_streams.py."""

from __future__ import annotations

import asyncio
import signal
import threading
from typing import Any

import pytest
import redis

from penstock import Client, Server, aio
from penstock.client.api.stream_replies import Message


class Interrupt(BaseException):
    """What KeyboardInterrupt is to a program."""


def fill(url: str, count: int) -> None:
    with redis.Redis.from_url(url) as plain:
        plain.flushall()
        words = [word for number in range(1, count + 1) for word in ("tag", str(number))]
        plain.execute_command("TWRITE", "s", "ENTRIES", *words)


def test_an_interrupted_run_waits_until_its_workers_have_acknowledged_what_is_done(ours: Server) -> None:
    """Ctrl-C is how such a program ends; the client is closed right after it, and must not be closed under
    the workers.
    """
    fill(ours.url, 20)
    done: list[int] = []

    def body(message: Message) -> None:
        done.append(message.offset)
        if len(done) == 3:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
            interrupted.wait()

    interrupted = threading.Event()

    def handler(*_: object) -> None:
        interrupted.set()
        raise Interrupt

    before = signal.signal(signal.SIGALRM, handler)
    try:
        with pytest.raises(Interrupt), Client.from_url(ours.url) as client:
            client.consumer("s", "g", count=5).run(body, workers=2)
    finally:
        signal.signal(signal.SIGALRM, before)
    with Client.from_url(ours.url) as client:
        again = client.tread("s", 0, 100, group="g", retry_ms=1000)
    assert sorted(done + [message.offset for message in again]) == list(range(1, 21))


def test_a_listener_for_failures_may_be_a_coroutine_function(ours: Server) -> None:
    fill(ours.url, 1)

    async def main() -> None:
        async with aio.Client.from_url(ours.url) as client:
            consumer = client.consumer("s", "g")
            told: list[tuple[int, str]] = []

            async def on_error(message: Message, error: Exception) -> None:
                await asyncio.sleep(0)
                told.append((message.offset, str(error)))

            def body(message: Message) -> None:
                consumer.stop()
                raise ValueError("no")

            await consumer.run(body, on_error=on_error)
            assert told == [(1, "no")]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("terms", "why"),
    [
        ({"retry_delay_ms": -1}, "retry_delay_ms=-1"),
        ({"expire_ms": -1}, "expire_ms=-1"),
        ({"count": "10"}, "count='10'"),
        ({"block_ms": None}, "block_ms=None"),
        ({"patience": -1}, "patience=-1"),
        ({"grace_ms": -1}, "grace_ms=-1"),
        ({"max_attempts": 0}, "max_attempts=0"),
        ({"max_bytes": 0}, "max_bytes=0"),
        ({"ordered_by": "key"}, "ordered_by='key'"),
        ({"ordered_by": "tag", "manual": True}, "excludes ordered_by"),
        ({"dead_letter": "dead"}, "needs expire_ms"),
    ],
)
def test_terms_are_refused_when_the_consumer_is_made_and_not_when_a_body_fails(
    ours: Server, terms: dict[str, Any], why: str
) -> None:
    with Client.from_url(ours.url) as client, pytest.raises(ValueError, match=why):
        client.consumer("s", "g", **terms)
