"""Leaders hand over and are killed: Spark, a producer and a consumer go on without an error."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.replication.plain_shards import PlainShard
from tests.support.replication.sentinels import NAME, Sentinels
from tests.support.server_process import Process
from tests.support.waiting import wait_until

import penstock
from penstock.testing.redis import free_port

BATCH = 100
"""Messages between two events."""


@pytest.mark.timeout(900)
def test_a_query_a_producer_and_a_consumer_live_through_failovers(spark: SparkSession, tmp_path: Path) -> None:
    with PlainShard(tmp_path / "shard", 3) as shard:
        live_through(spark, tmp_path, shard.url, [shard.hand_over, lambda: kill_leader(shard)])


@pytest.mark.timeout(900)
def test_they_live_through_a_failover_by_sentinels(spark: SparkSession, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        servers: list[Process] = []
        for name in ("one", "two", "three"):
            (tmp_path / name).mkdir()
            following = f" --replicaof 127.0.0.1 {servers[0].port}" if servers else ""
            servers.append(Process(tmp_path / name, free_port(), options=f"--replica-acks 1{following}"))
            stack.callback(servers[-1].kill)
        sentinels = stack.enter_context(Sentinels(tmp_path, servers[0].port))
        wait_until(lambda: sentinels.knows(replicas=2))
        addresses = ",".join(f"127.0.0.1:{port}" for port in sentinels.ports)

        def kill() -> None:
            next(server for server in servers if server.port == sentinels.leader).process.kill()

        live_through(spark, tmp_path, f"penstock+sentinel://{addresses}/{NAME}", [kill])


def live_through(spark: SparkSession, folder: Path, url: str, events: list[Callable[[], None]]) -> None:
    """Messages go from a producer over Spark to a stream, and to a consumer, while these events happen."""
    with penstock.Client.from_url(url) as client:
        client.twrite("in", "t", "first")
        names = {"url": url, "retryTimeout": "120000"}
        source = spark.readStream.format("penstock").options(**names, stream="in", maxRowsPerTrigger="50").load()
        sink = source.select("tag", "entry").writeStream.format("penstock").options(**names, stream="out")
        query = sink.option("checkpointLocation", str(folder / "checkpoint")).start()
        consumer = client.consumer("in", "group")
        consumed: list[bytes] = []
        worker = threading.Thread(target=consumer.run, args=(lambda message: consumed.append(message.entry),))
        worker.start()

        def written() -> int:
            return client.tinfo("out").length if client.exists("out") else 0

        def goes_on(count: int) -> bool:
            assert query.exception() is None and worker.is_alive()
            return written() >= count

        expected = [b"first"]
        try:
            with client.producer("in") as producer:
                for event in (*events, lambda: None):
                    for _ in range(BATCH):
                        expected.append(b"message %d" % len(expected))
                        producer.send("t", expected[-1])
                    wait_until(partial(goes_on, len(expected) - BATCH // 2))
                    event()
            wait_until(lambda: goes_on(len(expected)) and len(consumed) >= len(expected))
        finally:
            query.stop()
            consumer.stop()
            worker.join()
        assert [message.entry for message in client.tread("in", 1, 2 * len(expected))] == expected
        assert sorted(message.entry for message in client.tread("out", 1, 2 * len(expected))) == sorted(expected)
        assert set(consumed) == set(expected)


def kill_leader(shard: PlainShard) -> None:
    old = shard.leader
    old.kill()
    shard.promote_furthest()
    old.start(shard.leader)
