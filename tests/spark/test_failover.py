"""A leader hands over, and the next one is killed: Spark, a producer and a consumer go on without an error."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.replication.plain_shards import PlainShard
from tests.support.waiting import wait_until

import penstock

BATCH = 100
"""Messages between two events."""


@pytest.mark.timeout(900)
def test_a_query_a_producer_and_a_consumer_live_through_failovers(spark: SparkSession, tmp_path: Path) -> None:
    with PlainShard(tmp_path / "shard", 3) as shard, penstock.Client.from_url(shard.url) as client:
        client.twrite("in", "t", "first")
        names = {"url": shard.url, "retryTimeout": "120000"}
        source = spark.readStream.format("penstock").options(**names, stream="in", maxRowsPerTrigger="50").load()
        sink = source.select("tag", "entry").writeStream.format("penstock").options(**names, stream="out")
        query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
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
                for event in (shard.hand_over, lambda: kill_leader(shard), lambda: None):
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
