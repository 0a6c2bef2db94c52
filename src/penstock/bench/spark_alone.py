"""A batch of Spark as it comes, from rate to noop: python -m penstock.bench.spark_alone ROWS_A_SECOND BATCHES

A process of its own, because `penstock.spark.builder` changes how a Spark of this machine starts. It prints the median
of its batches in ms, without the first third of them.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time


def main(rate: int, batches: int) -> float:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    frame = spark.readStream.format("rate").option("rowsPerSecond", rate).load()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        writer = frame.writeStream.format("noop").option("checkpointLocation", folder)
        query = writer.trigger(processingTime="0 seconds").start()
        while (last := query.lastProgress) is None or last.batchId < batches:
            time.sleep(0.1)
        found = [each.durationMs["triggerExecution"] for each in query.recentProgress if each.numInputRows]
        query.stop()
    spark.stop()
    return float(statistics.median(found[batches // 3 :]))


if __name__ == "__main__":
    sys.stdout.write(f"{main(int(sys.argv[1]), int(sys.argv[2]))}\n")
