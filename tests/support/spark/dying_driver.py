"""A streaming query from a stream to a stream or to counters, as a program of its own in which things die at chosen
points.

    python -m tests.support.spark.dying_driver URL FOLDER stream|counters [DEATH@BATCH ...]

A death is of the driver's JVM: `before` the commit of that batch, `inside` (the server has committed, Spark does not
know it) or `after` (Spark knows it). Or of a Python `worker`, when it has read some of that batch, once. Or of the
`server`, when that batch is staged and not committed: its process id is in FOLDER/server.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamReader, DataSourceStreamWriter, InputPartition
from pyspark.sql.types import StructType

from penstock.spark import local_files
from penstock.spark.data_source import PenstockDataSource
from penstock.spark.increments import IncrementStreamWriter
from penstock.spark.sink import StreamWriter
from penstock.spark.source import StreamReader
from penstock.spark.worker_python import worker_python

ROWS_A_BATCH = 500


def is_to_die(who: str, batch: int) -> bool:
    return f"{who}@{batch}" in os.environ["DEATHS"].split()


def kill(who: str) -> None:
    os.kill(int(Path(os.environ["DEATHS_IN"], who).read_text()), signal.SIGKILL)


def die_around(commit: Callable[[list[Any], int], None], messages: list[Any], batch: int) -> None:
    """Commit, with a death before or after that."""
    if is_to_die("server", batch):
        kill("server")
    if is_to_die("before", batch):
        kill("jvm")
        os._exit(1)  # this process would live a moment longer, and commit
    commit(messages, batch)
    if is_to_die("inside", batch):
        kill("jvm")


class DyingWriter(StreamWriter):
    """The sink of streams, with a death in its commit."""

    def commit(self, messages: list[Any], batchId: int) -> None:
        die_around(super().commit, messages, batchId)


class DyingCounters(IncrementStreamWriter):
    """The sink of counters, with a death in its commit."""

    def commit(self, messages: list[Any], batchId: int) -> None:
        die_around(super().commit, messages, batchId)


class DyingReader(StreamReader):
    """The source, with a worker that dies when it has read something, the first time."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        batch = int(context.getLocalProperty("streaming.sql.batchId") or -1)
        for rows in super().read(partition):
            if is_to_die("worker", batch) and not (marker := Path(os.environ["DEATHS_IN"], "a worker died")).exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield rows


class DyingSource(PenstockDataSource):
    @classmethod
    def name(cls) -> str:
        return "dying"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return DyingReader(self._to_read(schema), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        options = self._options()
        return DyingCounters(options, schema) if options.of_keys else DyingWriter(options, schema)


COUNTERS = {"type": "hash", "mode": "increment"}


def main(url: str, folder: str, sink: str, *deaths: str) -> None:
    os.environ["PYSPARK_PYTHON"] = worker_python()
    os.environ |= {"DEATHS": " ".join(deaths), "DEATHS_IN": folder}  # every Python process of Spark inherits them
    builder = SparkSession.builder.master("local[2, 4]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.local.dir", folder).config("spark.driver.host", "127.0.0.1")
    builder = builder.config("spark.sql.warehouse.dir", f"{folder}/warehouse")
    builder = builder.config(map=local_files.settings({"spark.master": "local"}))
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    Path(folder, "jvm").write_text(str(jvm.java.lang.ProcessHandle.current().pid()))
    spark.dataSource.register(DyingSource)
    frame = (
        spark.readStream.format("dying")
        .schema("tag binary, entry binary, n int").option("badEntries", "deadletter").option("deadLetterStream", "dead")
        .option("url", url).option("stream", "in").option("maxRowsPerTrigger", ROWS_A_BATCH).option("minPartitions", 2)
        .load()
    )  # fmt: skip
    frame = frame.selectExpr("'count' AS key", "1 AS rows", "n") if sink == "counters" else frame.select("tag", "entry")
    writer = frame.writeStream.format("dying").option("url", url)
    writer = writer.options(**COUNTERS if sink == "counters" else {"stream": "out"})
    query = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
    while query.isActive:
        query.awaitTermination(0.02)
        if (done := query.lastProgress) and is_to_die("after", done.batchId):
            kill("jvm")
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
