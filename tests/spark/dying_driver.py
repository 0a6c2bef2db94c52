"""A streaming query from stream to stream, as a program of its own that kills its own JVM at a chosen point of a batch.

    python -m tests.spark.dying_driver URL FOLDER POINT BATCH

POINT is `before` the commit of that batch, `inside` (the server has committed, Spark does not know it), `after` (Spark
knows it), `worker` (a Python worker dies in the middle of reading, once) or `never`.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamReader, DataSourceStreamWriter, InputPartition
from pyspark.sql.types import StructType

from penstock.spark.data_source import PenstockDataSource
from penstock.spark.sink import StreamWriter
from penstock.spark.source import StreamReader

ROWS_A_BATCH = 500


def kill_driver(folder: str) -> None:
    os.kill(int(Path(folder, "jvm").read_text()), signal.SIGKILL)


class DyingWriter(StreamWriter):
    """The sink, with a death in its commit."""

    def commit(self, messages: list[Any], batchId: int) -> None:
        point, batch, folder = os.environ["DIE_AT"].split()
        if (point, int(batch)) == ("before", batchId):
            kill_driver(folder)
        super().commit(messages, batchId)
        if (point, int(batch)) == ("inside", batchId):
            kill_driver(folder)


class DyingReader(StreamReader):
    """The source, with a worker that dies in its second batch of rows, the first time."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        point, _, folder = os.environ["DIE_AT"].split()
        for number, batch in enumerate(super().read(partition)):
            marker = Path(folder) / "a worker died"
            if point == "worker" and number == 0 and not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch


class DyingSource(PenstockDataSource):
    @classmethod
    def name(cls) -> str:
        return "dying"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return DyingReader(self._to_read(schema), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return DyingWriter(self._options(), schema)


def main(url: str, folder: str, point: str, batch: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["DIE_AT"] = f"{point} {batch} {folder}"  # every Python process of Spark inherits it
    builder = SparkSession.builder.master("local[2, 4]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.local.dir", folder).config("spark.driver.host", "127.0.0.1")
    builder = builder.config("spark.sql.warehouse.dir", f"{folder}/warehouse")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    Path(folder, "jvm").write_text(str(jvm.java.lang.ProcessHandle.current().pid()))
    spark.dataSource.register(DyingSource)
    frame = (
        spark.readStream.format("dying")
        .option("url", url).option("stream", "in").option("maxRowsPerTrigger", ROWS_A_BATCH).option("minPartitions", 2)
        .load().select("tag", "entry")
    )  # fmt: skip
    writer = frame.writeStream.format("dying").option("url", url).option("stream", "out")
    query = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
    while query.isActive:
        query.awaitTermination(0.02)
        done = query.lastProgress
        Path(folder, "batch").write_text(str(done.batchId if done else -1))
        if point == "after" and done is not None and done.batchId >= int(batch):
            kill_driver(folder)
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
