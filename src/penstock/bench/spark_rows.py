"""The rows of Spark: the source against a reader from memory and against Redis Streams, and tables of keys on a
cluster.

Real Spark in one session, local[2], made for the first row that needs it. Every figure is rows a second of a whole job,
which starts when the action is called. A job that does next to nothing takes 0.2 to 0.4 s here, so the sizes make that
a small part of ours, the faster one. Java compiles busy code for about ten seconds, and the side that is measured first
would pay for that. So a new session reads from memory for a while, the first run of each side is not counted, and the
median of the others is the figure.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import Any

from penstock.bench.cluster_rows import shared_cluster
from penstock.bench.messages import ARROW_ROWS, KEY, fill
from penstock.bench.row import Row
from penstock.bench.servers import Running
from penstock.bench.spark_latency import Latencies

MESSAGES = 5_000_000
REDIS_MESSAGES = 2_000_000
STREAMED = 2_000_000
HASHES = 200_000
TASKS = 4
JOBS = 3
WARMING_JOBS = 6
_ALL_CORES = os.sched_getaffinity(0)


@functools.cache
def _spark() -> Any:
    import penstock.spark
    from penstock.bench.spark_readers import MemorySource, RedisStreamSource

    os.sched_setaffinity(0, _ALL_CORES)  # the bench leaves a core to the servers; Spark gets both, as in production
    builder = (
        penstock.spark.builder("bench")
        .master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.memory", "2g")
    session = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    for source in (MemorySource, RedisStreamSource):
        session.dataSource.register(source)
    atexit.register(session.stop)
    for _ in range(WARMING_JOBS):
        _scan(_memory(session, MESSAGES), MESSAGES)()
    return session


def _memory(session: Any, rows: int) -> Any:
    """So many messages, without a server."""
    reader = session.read.format("bench_memory").option("stream", KEY.decode()).option("minPartitions", TASKS)
    reader = reader.option("typed", "false")  # there is no server to ask for a schema
    return reader.option("endingOffsets", f'{{"{KEY.decode()}": {rows + 1}}}').load()


def _rows(scale: float, most: int) -> int:
    return max(int(most * scale) // ARROW_ROWS * ARROW_ROWS, ARROW_ROWS)


def _rate(rows: int, job: Callable[[], object]) -> float:
    job()
    seconds = []
    for _ in range(JOBS):
        started = time.perf_counter()
        job()
        seconds.append(time.perf_counter() - started)
    return rows / statistics.median(seconds)


def _scan(frame: Any, rows: int) -> Callable[[], None]:
    """A job that reads every row and every byte."""

    def job() -> None:
        ((count, _),) = frame.selectExpr("count(*)", "sum(length(entry))").collect()
        assert count == rows, (count, rows)

    return job


def _url(server: Running) -> str:
    return f"redis://127.0.0.1:{server.port}"


def _stream(server: Running) -> Any:
    reader = _spark().read.format("penstock").option("url", _url(server)).option("stream", KEY.decode())
    return reader.option("minPartitions", TASKS).load()


def _read(server: Running, scale: float) -> float:
    rows = _rows(scale, MESSAGES)
    fill(server, rows)
    return _rate(rows, _scan(_stream(server), rows))


def _read_memory(server: Running, scale: float) -> float:
    rows = _rows(scale, MESSAGES)
    return _rate(rows, _scan(_memory(_spark(), rows), rows))


def _read_either(server: Running, scale: float) -> float:
    rows = _rows(scale, REDIS_MESSAGES)
    fill(server, rows)
    if server.is_ours:
        return _rate(rows, _scan(_stream(server), rows))
    reader = _spark().read.format("bench_redis_streams").option("port", server.port).option("rows", rows)
    return _rate(rows, _scan(reader.option("tasks", TASKS).load(), rows))


def _run_stream(server: Running, scale: float, sink: str, options: dict[str, str]) -> float:
    rows = _rows(scale, STREAMED)
    fill(server, rows)
    reader = _spark().readStream.format("penstock").option("url", _url(server)).option("stream", KEY.decode())
    frame = reader.option("minPartitions", TASKS).load().select("tag", "entry")

    def job() -> None:
        folder = tempfile.mkdtemp(prefix="penstock-bench-")
        try:
            writer = frame.writeStream.format(sink).options(**options).option("checkpointLocation", folder)
            writer.trigger(availableNow=True).start().awaitTermination()
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    return _rate(rows, job)


def _stream_to_stream(server: Running, scale: float) -> float:
    return _run_stream(server, scale, "penstock", {"url": _url(server), "stream": "copy"})


def _stream_to_nowhere(server: Running, scale: float) -> float:
    return _run_stream(server, scale, "noop", {})


def _users(rows: int) -> Any:
    from pyspark.sql import functions as f

    return _spark().range(rows, numPartitions=2).select(
        f.concat(f.lit("user:"), "id").alias("key"), f.concat(f.lit("name "), "id").alias("name"),
        (f.col("id") % 90).alias("age"), (f.col("id") / 7).alias("score"),
    )  # fmt: skip


def _hashes(server: Running, scale: float) -> float:
    from penstock.spark.keys import by_slot

    rows = max(int(HASHES * scale), 1000)
    port = shared_cluster().masters[0].port
    frame = _users(rows)

    def job() -> None:
        writer = by_slot(frame, 3).write.format("penstock").option("url", f"redis://127.0.0.1:{port}")
        writer.option("type", "hash").mode("append").save()

    return _rate(rows, job)


def _hashes_redis_py(server: Running, scale: float) -> float:
    rows = max(int(HASHES * scale), 1000)
    port = shared_cluster().masters[0].port
    frame = _users(rows)

    def write(part: Iterable[Any]) -> None:
        from redis.cluster import RedisCluster

        client: Any = RedisCluster(host="127.0.0.1", port=port)
        pipe = client.pipeline()
        for number, row in enumerate(part, 1):
            pipe.hset(row.key, mapping={"name": row.name, "age": row.age, "score": row.score})
            if number % 5000 == 0:
                pipe.execute()
        pipe.execute()
        client.close()

    return _rate(rows, lambda: frame.foreachPartition(write))


_LATENCIES = Latencies(lambda: _spark())

SPARK_ROWS = [
    Row("spark.read", "Spark reads 5M messages, against the same reader fed from memory", "rows/s", 0.6, _read,
        baseline=_read_memory),
    Row("spark.redis", "Spark reads messages, against redis-py and Redis Streams", "rows/s", 5.0, _read_either),
    Row("spark.stream", "Spark, stream to stream, against stream to nowhere", "rows/s", None, _stream_to_stream,
        baseline=_stream_to_nowhere),
    Row("spark.keys", "Spark writes hashes to a cluster of 3, against foreachPartition with redis-py", "rows/s", 3.0,
        _hashes, baseline=_hashes_redis_py),
    Row("pipeline.latency", "Spark, from one stream to the next at 100/s, against a batch of Spark as it comes", "ms",
        1.3, _LATENCIES.through, True, baseline=_LATENCIES.alone, report=_LATENCIES.report, family="spark"),
]  # fmt: skip
