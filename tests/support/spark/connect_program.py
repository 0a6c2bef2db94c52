"""What a program does through Spark Connect: python -m tests.support.spark.connect_program URL FOLDER

Prints JSON: what each part of it found.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
from pyspark.sql import functions as f
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from tests.support.spark.busy import patiently

import penstock.spark
from penstock.spark.metrics import stream_metrics

ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Count(StatefulProcessor):
    """How many rows each key has had."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "count long")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        count = (self._count.get() or (0,))[0] + sum(map(len, rows))
        self._count.update((count,))
        yield pd.DataFrame({"tag": [key[0]], "entry": [str(count)]})

    def close(self) -> None:
        pass


class Program:
    """Streams and queries of one session."""

    def __init__(self, url: str, folder: str) -> None:
        os.environ["PENSTOCK_URL"] = url
        builder = penstock.spark.builder("connect").config("spark.ui.enabled", "false")
        builder = builder.config("spark.local.dir", folder).config("spark.sql.warehouse.dir", f"{folder}/warehouse")
        builder = builder.config("spark.sql.shuffle.partitions", "1").config("spark.driver.host", "127.0.0.1")
        self.spark = (
            builder.config("spark.sql.streaming.stateStore.providerClass", ROCKS).remote("local[2]").getOrCreate()
        )
        self._folder = folder

    def read(self, stream: str, **options: Any) -> Any:
        return self.spark.read.format("penstock").option("text", True).options(stream=stream, **options).load()

    def follow(self, stream: str) -> Any:
        return self.spark.readStream.format("penstock").option("text", True).option("stream", stream).load()

    def run(self, name: str, writer: Callable[[], Any]) -> Any:
        """Run a query to the end of what there is; the progress of its batches."""

        def to_the_end() -> Any:
            ready = writer().option("checkpointLocation", f"{self._folder}/{name}").trigger(availableNow=True)
            query = ready.start()
            query.awaitTermination()
            return query.recentProgress

        return patiently(to_the_end)

    def entries(self, stream: str) -> list[str]:
        return sorted(row.entry for row in self.read(stream).select("entry").collect())


def write_once(batch: Any, number: int) -> None:
    writer = batch.select("tag", "entry").write.format("penstock").option("stream", "once")
    writer.option("txnAppId", "once").option("txnVersion", number).mode("append").save()


def main(url: str, folder: str) -> None:
    program = Program(url, folder)
    spark = program.spark
    rows = spark.createDataFrame([("a", "1"), ("b", "2"), ("a", "3")], "tag string, entry string").coalesce(1)
    rows.write.format("penstock").option("stream", "in").mode("append").save()
    found: dict[str, Any] = {"batch": program.entries("in"), "files": spark.conf.get("spark.hadoop.fs.file.impl", "")}

    doubled = f.pandas_udf(lambda entries: entries.astype("long") * 2, "long")
    found["pandas"] = sorted(row[0] for row in program.read("in").select(doubled("entry")).collect())

    frame = program.follow("in")
    progress = program.run("once", lambda: frame.writeStream.foreachBatch(write_once))
    found["metrics"] = [(each.stream, each.rows, each.lag) for shown in progress for each in stream_metrics(shown)]
    found["foreachBatch"] = program.entries("once")

    counts = frame.groupBy("tag").transformWithStateInPandas(Count(), "tag string, entry string", "Append", "None")
    program.run("state", lambda: counts.writeStream.format("penstock").option("stream", "counts"))
    found["transformWithState"] = sorted(tuple(row) for row in program.read("counts").select("tag", "entry").collect())

    left, right = frame.alias("l"), program.follow("once").alias("r")
    joined = left.join(right, f.expr("l.entry = r.entry")).selectExpr("concat(l.tag, r.tag) AS entry")
    program.run("joined", lambda: joined.writeStream.format("penstock").option("stream", "joined"))
    found["join"] = program.entries("joined")

    program.run("parquet", lambda: frame.writeStream.format("parquet").option("path", f"{folder}/table"))
    found["parquet"] = sorted(row.entry for row in spark.read.parquet(f"{folder}/table").collect())
    sys.stdout.write(json.dumps(found) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
