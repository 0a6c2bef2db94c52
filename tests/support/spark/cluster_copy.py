"""The program that spark-submit runs in test_cluster.py: `in` to `out` as a stream, on executors; then back as a batch.

The server's address comes from the environment of the driver; executors have no such variable.
"""

from __future__ import annotations

import os
import sys

from pyspark import TaskContext
from pyspark.sql import SparkSession
from tests.support.spark.busy import patiently


def executor(_: object) -> str:
    assert TaskContext.get() is not None
    assert "PENSTOCK_URL" not in os.environ
    return os.environ["SPARK_EXECUTOR_DIRS"]  # a worker gives each executor folders of its own


def main(checkpoint: str) -> None:
    spark = SparkSession.builder.appName("copy").getOrCreate()
    executors = set(spark.sparkContext.parallelize(range(8), 8).map(executor).collect())
    frame = spark.readStream.format("penstock").option("stream", "in").option("minPartitions", 4).load()
    writer = frame.select("tag", "entry").writeStream.format("penstock").option("stream", "out")
    writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    patiently(lambda: writer.start().awaitTermination())
    reader = spark.read.format("penstock").option("stream", "out").option("minPartitions", 4)
    rows = patiently(lambda: reader.load().count())
    sys.stdout.write(f"{len(executors)} executors, {rows} rows\n")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
