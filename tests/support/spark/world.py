"""A server and a Spark session for one test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import redis
from pyspark.sql import SparkSession
from tests.support.spark.busy import patiently

from penstock import Server


class World:
    """A server and a Spark session, and the words between them."""

    def __init__(self, spark: SparkSession, server: Server, client: redis.Redis, folder: Path) -> None:
        self.spark = spark
        self.url = server.url
        self.client = client
        self.folder = folder

    def call(self, *words: Any) -> Any:
        return self.client.execute_command(*words)

    def write(self, stream: str, *entries: str | bytes) -> None:
        """Append entries, each with a tag that is its first letter."""
        self.call("TWRITE", stream, "ENTRIES", *(word for entry in entries for word in (entry[:1], entry)))

    def entries(self, stream: str) -> list[bytes]:
        """Everything in a stream."""
        return [message[2] for message in self.call("TREAD", stream, 1, 1_000_000) if message is not None]

    def read(self, schema: str = "", **options: Any) -> Any:
        """A batch of `format("penstock")`."""
        reader = self.spark.read.format("penstock").option("url", self.url).options(**options)
        return (reader.schema(schema) if schema else reader).load()

    def follow(self, schema: str = "", **options: Any) -> Any:
        """A stream of `format("penstock")`."""
        reader = self.spark.readStream.format("penstock").option("url", self.url).options(**options)
        return (reader.schema(schema) if schema else reader).load()

    def run(self, frame: Any, name: str = "checkpoint", **options: Any) -> list[Any]:
        """Write a streaming frame to a stream until there is no more; the progress of its batches."""
        writer = frame.writeStream.format("penstock").option("url", self.url).options(**options)
        writer = writer.option("checkpointLocation", str(self.folder / name)).trigger(availableNow=True)

        def to_the_end() -> list[Any]:
            query = writer.start()
            query.awaitTermination()
            progress: list[Any] = query.recentProgress
            return progress

        return patiently(to_the_end)
