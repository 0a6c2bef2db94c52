"""A consumer lives through a server that stalls, restarts or is not there yet."""

from __future__ import annotations

import logging
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.support.background import in_background
from tests.support.client.consuming import Consume, fill
from tests.support.server_process import Process
from tests.support.waiting import wait_until

from penstock import Client, Server
from penstock.testing.proxy import FaultProxy
from penstock.testing.redis import free_port


def url_of(port: int) -> str:
    return f"redis://127.0.0.1:{port}"


def test_a_stall_ends_no_consumer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A silent connection counts as lost after half a second here, and the stall is ten times as long: a scaled
    clock.
    """
    process = Process(tmp_path, free_port())
    try:
        fill(url_of(process.port), 200)
        done: list[int] = []
        stalled = threading.Event()

        def body(message: Any) -> None:
            done.append(message.offset)
            if len(done) == 50:
                process.process.send_signal(signal.SIGSTOP)
                stalled.set()
            if len(set(done)) == 200:
                consumer.stop()

        def resume() -> None:
            stalled.wait(60)
            time.sleep(5)
            process.process.send_signal(signal.SIGCONT)

        with Client.from_url(url_of(process.port), socket_timeout=0.5) as client, in_background(resume):
            consumer = client.consumer("s", "g", retry_ms=2000, block_ms=100)
            consumer.run(body, workers=4)
            assert client.tgroup_list("s")[0].pending == 0
        assert consumer.counts.outages >= 1 and consumer.counts.repeated >= 1
        assert any("does not answer" in record.getMessage() for record in caplog.records)
        assert any("answers again" in record.getMessage() for record in caplog.records)
    finally:
        process.process.send_signal(signal.SIGCONT)
        process.kill()


def test_a_consumer_waits_for_a_server_that_is_not_up_yet_and_for_one_that_restarts(
    tmp_path: Path, consume: Consume
) -> None:
    port = free_port()
    processes: list[Process] = []
    done: set[int] = set()
    killed = threading.Event()

    def start() -> None:
        time.sleep(0.5)
        processes.append(Process(tmp_path, port))
        fill(url_of(port), 40)
        killed.wait(60)
        processes[-1].kill()
        processes.append(Process(tmp_path, port))

    def body(consumer: Any, message: Any) -> None:
        done.add(message.offset)
        if len(done) == 20:
            killed.set()
        if len(done) == 40:
            consumer.stop()

    try:
        with in_background(start):
            counts = consume(url_of(port), body, {"workers": 2}, retry_ms=500, block_ms=100, count=5)
        assert counts.outages >= 1
    finally:
        processes[-1].kill()


def test_patience_has_an_end_if_the_caller_says_so(consume: Consume) -> None:
    with pytest.raises(redis.ConnectionError):
        consume(url_of(free_port()), lambda consumer, message: None, patience=0.2)


def test_what_would_fail_again_is_raised_at_once(ours: Server, consume: Consume) -> None:
    with redis.Redis.from_url(ours.url) as plain:
        plain.set("s", "text")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        consume(ours.url, lambda consumer, message: None)
    with redis.Redis.from_url(ours.url) as plain:
        plain.delete("s")


@pytest.mark.parametrize("delivery", ["at-most-once", "at-least-once", "exactly-once"])
def test_acknowledgements_are_sent_again_whatever_the_level(ours: Server, delivery: str) -> None:
    """Their replies are lost on the way, and the messages are done all the same; none is counted as stale."""
    fill(ours.url, 30)
    with (
        FaultProxy(("127.0.0.1", ours.port)) as proxy,
        Client.from_url(proxy.url, delivery=delivery, backoff_base=0.01) as client,
    ):
        for nth in (1, 3):
            proxy.cut_after_execution(b"TACK", nth=nth)
        seen: list[int] = []
        consumer = client.consumer("s", "g", block_ms=50)

        def body(message: Any) -> None:
            seen.append(message.offset)
            if len(seen) == 30:
                consumer.stop()

        consumer.run(body)
        assert sorted(seen) == list(range(1, 31)), "each once"
        assert client.tgroup_pending("s", "g") == []
        assert (consumer.counts.stale, consumer.counts.outages) == (0, 2)


def test_a_lost_reply_to_begin_counts_one_attempt(ours: Server) -> None:
    fill(ours.url, 1)
    with FaultProxy(("127.0.0.1", ours.port)) as proxy, Client.from_url(proxy.url) as client:
        fault = proxy.cut_after_execution(b"TEXTEND")
        consumer = client.consumer("s", "g", block_ms=50)

        def body(message: Any) -> None:
            with redis.Redis.from_url(ours.url) as plain:
                attempts.append(plain.execute_command("TGROUP", "PENDING", "s", "g")[0][2])
            consumer.stop()

        attempts: list[int] = []
        consumer.run(body)
        assert fault.has_fired and attempts == [1]


def test_a_consumer_that_stops_during_an_outage_ends_within_its_grace(
    ours: Server, consume: Consume, caplog: pytest.LogCaptureFixture
) -> None:
    fill(ours.url, 5)
    caplog.set_level(logging.WARNING)
    with FaultProxy(("127.0.0.1", ours.port)) as proxy:

        def body(consumer: Any, message: Any) -> None:
            proxy.refuse_connections()
            proxy.cut_connections()
            consumer.stop()

        consume(proxy.url, body, grace_ms=1500)  # it gives up when half of it is over, so a busy machine has the rest
    assert any("time to stop is over" in record.getMessage() for record in caplog.records)


def test_leases_are_extended_again_after_an_outage_longer_than_the_patience(tmp_path: Path) -> None:
    """The body does not meet the outage, and goes on: so do its leases."""
    process = Process(tmp_path, free_port())
    try:
        fill(url_of(process.port), 1)
        with Client.from_url(url_of(process.port), socket_timeout=0.5) as client:
            consumer = client.consumer("s", "g", retry_ms=1500, patience=0.5, block_ms=50)
            runs = 0
            for _ in consumer:
                runs += 1
                process.kill()
                time.sleep(1.5)
                process = Process(tmp_path, process.port)
                extended = consumer.counts.extended
                wait_until(partial(lambda before: consumer.counts.extended > before + 1, extended))
                assert client.tread("s", 0, 10, group="g", retry_ms=1500) == []
                consumer.stop()
        assert (runs, consumer.counts.done) == (1, 1)
    finally:
        process.kill()
