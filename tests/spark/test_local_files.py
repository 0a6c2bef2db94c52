"""Spark on one machine starts no process for the files it writes, and its files are as Hadoop's own."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from tests.support.spark.watched_programs import WatchedPrograms

from penstock.spark import local_files


def test_no_process_is_started_for_a_file(
    spark: SparkSession, watched_programs: WatchedPrograms, tmp_path: Path
) -> None:
    checkpoint, table = tmp_path / "checkpoint", tmp_path / "table"
    spark.range(10).write.parquet(str(table))
    rows = spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 1).parquet(str(table))
    query = rows.groupBy("id").count().writeStream.format("noop").outputMode("update")
    query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()
    assert {each.name for each in (checkpoint / "commits").iterdir()} >= {"0"}
    assert watched_programs.starts_for(tmp_path) == []
    jvm: Any = spark._jvm
    jvm.java.lang.ProcessBuilder(["chmod", "700", str(table)]).start().waitFor()
    assert watched_programs.starts_for(tmp_path) == [f"chmod 700 {table}"], "the JVM starts other programs"


class Hadoop:
    """Its two interfaces to local files, in the JVM of the tests."""

    def __init__(self, spark: SparkSession) -> None:
        self.jvm: Any = spark._jvm
        configuration = spark._jsc.hadoopConfiguration()  # type: ignore[attr-defined]
        self.files = self.jvm.org.apache.hadoop.fs.FileSystem.getLocal(configuration)
        self.context = self.jvm.org.apache.hadoop.fs.FileContext.getLocalFSFileContext(configuration)

    def path(self, path: Path) -> Any:
        return self.jvm.org.apache.hadoop.fs.Path(f"file://{path}")

    def permission(self, mode: int) -> Any:
        return self.jvm.org.apache.hadoop.fs.permission.FsPermission(f"{mode:04o}")


@pytest.fixture
def hadoop(spark: SparkSession) -> Hadoop:
    return Hadoop(spark)


def test_both_interfaces_are_ours(hadoop: Hadoop) -> None:
    assert hadoop.files.getClass().getName() == "penstock.spark.LocalFiles"
    below = hadoop.context.getDefaultFileSystem()
    assert below.getClass().getName() == "penstock.spark.LocalFileContext"


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o751, 0o000, 0o777, 0o1777])
def test_permissions_are_set(hadoop: Hadoop, tmp_path: Path, mode: int) -> None:
    for number, api in enumerate((hadoop.files, hadoop.context)):
        file = tmp_path / f"file {number}"
        file.write_text("x")
        api.setPermission(hadoop.path(file), hadoop.permission(mode))
        assert stat.S_IMODE(file.stat().st_mode) == mode


def status(files: Any, path: Any) -> tuple[bool, bool, int] | str:
    try:
        found = files.getFileLinkStatus(path)
    except Py4JJavaError as error:
        return str(error.java_exception.getClass().getName())
    return found.isFile(), found.isSymlink(), found.getLen()


def test_files_and_links_are_as_hadoop_has_them(hadoop: Hadoop, tmp_path: Path) -> None:
    file, link, dangling = tmp_path / "file", tmp_path / "link", tmp_path / "dangling"
    file.write_text("12345")
    link.symlink_to(file)
    dangling.symlink_to(tmp_path / "nothing")
    own = hadoop.jvm.org.apache.hadoop.fs.LocalFileSystem()
    own.initialize(hadoop.jvm.java.net.URI("file:///"), hadoop.files.getConf())
    for each in (file, link, dangling, tmp_path, tmp_path / "nothing"):
        expected = status(own, hadoop.path(each))
        assert status(hadoop.files, hadoop.path(each)) == expected
        assert status(hadoop.context, hadoop.path(each)) == expected
    assert status(hadoop.files, hadoop.path(file)) == (True, False, 5)


def test_only_a_spark_of_this_machine_gets_the_classes() -> None:
    assert local_files.settings({"spark.master": "spark://elsewhere:7077"}) == {}
    assert local_files.settings({}) == {}, "what spark-defaults.conf says is not known here"
    assert local_files.settings({"spark.master": "local", "spark.hadoop.fs.file.impl": "another"}) == {}


def test_a_class_path_of_the_user_stays() -> None:
    found = local_files.settings({"spark.master": "local[*]", "spark.driver.extraClassPath": "mine.jar"})
    jar, others = found["spark.driver.extraClassPath"].split(":")
    assert Path(jar).exists()
    assert others == "mine.jar"


def test_without_a_cache_spark_goes_on_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert local_files.settings({"spark.master": "local[2]"}) == {}
    assert "cannot be made" in caplog.text


def test_the_jar_is_made_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    jar = local_files.prepared_jar()
    assert jar is not None
    assert [each.name for each in (tmp_path / "penstock").iterdir()] == [jar.name], "nothing else is left"
    made = jar.stat().st_mtime_ns
    assert local_files.prepared_jar() == jar
    assert jar.stat().st_mtime_ns == made
