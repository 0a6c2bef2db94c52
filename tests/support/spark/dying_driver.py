"""Streaming queries from a stream to a stream and to counters, as a program of its own in which things die at chosen
points.

    python -m tests.support.spark.dying_driver URL FOLDER QUERY ... [QUERY:DEATH@BATCH ...]

Of the two queries `counters` runs first and to its end, and then `stream`.

A death is of the driver's JVM: `before` the commit of that batch, `inside` (the server has committed, Spark does not
know it) or `after` (Spark knows it). Or of a Python `worker`, when it has read some of that batch, once. Or of the
`server`, when that batch is staged and not committed: its process id is in FOLDER/server. A query that is to `hang`
stays inside the commit of that batch until the other one kills the JVM: one start of Spark serves two deaths.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamReader, DataSourceStreamWriter, InputPartition
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import StructType

import penstock.spark
from penstock.spark.data_source import PenstockDataSource
from penstock.spark.increments import IncrementStreamWriter
from penstock.spark.options import Options
from penstock.spark.sink import StreamWriter
from penstock.spark.source import StreamReader

ROWS_A_BATCH = 500
STREAM, COUNTERS = "stream", "counters"
SOURCES = {STREAM: "in", COUNTERS: "numbers"}
SINKS = {STREAM: {"stream": "out"}, COUNTERS: {"type": "hash", "mode": "increment"}}
COLUMNS = {STREAM: ["tag", "entry"], COUNTERS: ["'count' AS key", "1 AS rows", "n"]}


def is_to_die(query: str, who: str, batch: int) -> bool:
    return f"{query}:{who}@{batch}" in os.environ["DEATHS"].split()


def note(name: str) -> Path:
    """A file by which the processes of the test tell each other something."""
    return Path(os.environ["DEATHS_IN"], name)


def kill(who: str) -> None:
    """Kill a process; a server that has died before is waited for until it runs again."""
    while True:
        try:
            os.kill(int(note(who).read_text()), signal.SIGKILL)
        except ProcessLookupError:
            time.sleep(0.02)
        else:
            return


def hang(query: str) -> None:
    """Go no further while the JVM lives."""
    jvm = psutil.Process(int(note("jvm").read_text()))
    note(f"{query} hangs").touch()
    with contextlib.suppress(psutil.NoSuchProcess):
        while jvm.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.02)
    os._exit(1)


def die_around(query: str, commit: Callable[[list[Any], int], None], messages: list[Any], batch: int) -> None:
    """Commit, with a death before or after that."""
    if is_to_die(query, "server", batch):
        kill("server")
    if is_to_die(query, "before", batch):
        kill("jvm")
        os._exit(1)  # this process would live a moment longer, and commit
    commit(messages, batch)
    if is_to_die(query, "inside", batch):
        kill("jvm")
    if is_to_die(query, "hang", batch):
        hang(query)


class DyingWriter(StreamWriter):
    """The sink of streams, with a death in its commit."""

    def commit(self, messages: list[Any], batchId: int) -> None:
        die_around(STREAM, super().commit, messages, batchId)


class DyingCounters(IncrementStreamWriter):
    """The sink of counters, with a death in its commit."""

    def commit(self, messages: list[Any], batchId: int) -> None:
        die_around(COUNTERS, super().commit, messages, batchId)


class DyingReader(StreamReader):
    """The source, with a worker that dies when it has read something, the first time.

    Spark tells it that a batch is over before the next one begins.
    """

    def __init__(self, query: str, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        self._query = query

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        batch = int(context.getLocalProperty("streaming.sql.batchId") or -1)
        for rows in super().read(partition):
            marker = note(f"a worker of {self._query} died")
            if is_to_die(self._query, "worker", batch) and not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield rows

    def commit(self, end: dict[str, int]) -> None:
        super().commit(end)
        if is_to_die(self._query, "after", (end[SOURCES[self._query]] - 1) // ROWS_A_BATCH - 1):
            kill("jvm")
            os._exit(1)


class DyingSource(PenstockDataSource):
    @classmethod
    def name(cls) -> str:
        return "dying"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = self._to_read(schema)
        (query,) = (query for query, source in SOURCES.items() if (source,) == options.stream)
        return DyingReader(query, options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        options = self._options()
        return DyingCounters(options, schema) if options.of_keys else DyingWriter(options, schema)


def start(spark: SparkSession, url: str, folder: str, query: str) -> StreamingQuery:
    frame = (
        spark.readStream.format("dying").option("url", url).option("stream", SOURCES[query])
        .schema("tag binary, entry binary, n int").option("badEntries", "deadletter").option("deadLetterStream", "dead")
        .option("maxRowsPerTrigger", ROWS_A_BATCH).option("minPartitions", 2).load()
    )  # fmt: skip
    writer = frame.selectExpr(*COLUMNS[query]).writeStream.format("dying").option("url", url).options(**SINKS[query])
    return writer.option("checkpointLocation", f"{folder}/checkpoint of {query}").trigger(availableNow=True).start()


def main(url: str, folder: str, *words: str) -> None:
    queries = [query for query in (COUNTERS, STREAM) if query in words]
    os.environ |= {"DEATHS": " ".join(words), "DEATHS_IN": folder}  # every Python process of Spark inherits them
    builder = penstock.spark.builder("dying").master("local[2, 4]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.local.dir", folder).config("spark.driver.host", "127.0.0.1")
    builder = builder.config("spark.sql.warehouse.dir", f"{folder}/warehouse")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    note("jvm").write_text(str(jvm.java.lang.ProcessHandle.current().pid()))
    spark.dataSource.register(DyingSource)
    for name in queries:
        hangs = note(f"{name} hangs")
        hangs.unlink(missing_ok=True)
        query = start(spark, url, folder, name)
        while not (query.awaitTermination(0.1) or hangs.exists()):
            pass
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
