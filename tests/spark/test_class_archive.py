"""The archive of Spark's classes is made by one JVM, and only a whole one is used."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest
from pyspark.find_spark_home import _find_spark_home

from penstock.spark import class_archive
from penstock.spark.class_archive import KEPT, VARIABLE, ClassArchive, archive_for, start_for


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClassArchive:
    """The archive of a user who has none yet.

    Ours is built upon the archive of Java's own classes. Every Java of a distribution before version 25 has one, and a
    test cannot give one to a Java that was made without it (jlink): it would have to write into its folder.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))
    monkeypatch.delenv(VARIABLE)
    found = archive_for({})
    if found is None:
        pytest.skip(f"{os.environ['JAVA_HOME']} has no archive of its own classes, or another kind (version 25)")
    return found


def java(option: str, *words: str, inherits: tuple[int, ...] = ()) -> subprocess.Popen[str]:
    """A JVM of a few classes, which ends when its input does."""
    (jar,) = (Path(_find_spark_home()) / "jars").glob("py4j-*.jar")
    command = [f"{os.environ['JAVA_HOME']}/bin/java", *shlex.split(option), *words, "-cp", str(jar)]
    command += ["py4j.GatewayServer", "--die-on-broken-pipe", "0"]
    return subprocess.Popen(
        command, pass_fds=inherits, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_one_java_makes_the_archive_and_those_after_it_start_from_it(archive: ClassArchive) -> None:
    first = archive.start()
    assert first.lock is not None
    with java(first.option, inherits=(first.lock.fileno(),)) as maker:
        first.lock.close()
        assert archive.start() == class_archive.Start(), "two make it at once"
        maker.communicate()
    then = archive.start()
    assert (then.makes, archive.file.exists()) == (False, True)
    with java(then.option, "-Xlog:class+load") as user:
        said, _ = user.communicate()
    loaded = [line for line in said.splitlines() if " py4j.GatewayServer source: " in line]
    assert loaded and all("shared objects file" in line for line in loaded)


def test_an_archive_that_a_killed_java_left_is_made_again(archive: ClassArchive) -> None:
    first = archive.start()
    assert first.lock is not None
    first.lock.close()
    archive.file.with_suffix(".new").write_bytes(bytes(4096))  # its first bytes would have been written last
    again = archive.start()
    assert again.makes
    assert not archive.file.exists()
    assert again.lock is not None
    again.lock.close()


def test_an_archive_that_a_later_session_outgrew_is_made_anew_and_used_until_then(archive: ClassArchive) -> None:
    archive.file.parent.mkdir(parents=True)
    archive.file.write_bytes(b"of a short run")
    archive.note(10_000, makes=True)
    archive.note(11_000, makes=False)
    assert not archive.start().makes, "every session would make it anew"
    archive.note(12_000, makes=False)
    maker = archive.start()
    assert maker.lock is not None
    assert archive.start() == class_archive.Start(archive.use, archive=archive)
    archive.file.with_suffix(".new").write_bytes(b"of a whole run")
    archive.note(12_000, makes=True)
    maker.lock.close()
    assert not archive.start().makes
    assert archive.file.read_bytes() == b"of a whole run"
    archive.note(12_500, makes=False)
    assert not archive.start().makes


def test_an_archive_of_a_version_that_did_not_count_its_classes_is_made_anew_once(archive: ClassArchive) -> None:
    archive.file.parent.mkdir(parents=True)
    archive.file.write_bytes(b"old")
    assert not archive.start().makes
    archive.note(12_000, makes=False)
    for makes in (True, False):
        start = archive.start()
        assert start.makes is makes, "a session that was killed is followed by one that starts quickly"
        if start.lock is not None:
            start.lock.close()


def test_the_archives_that_were_used_last_are_kept(archive: ClassArchive) -> None:
    archive.file.parent.mkdir(parents=True)
    others = [archive.file.with_name(f"classes-{number}") for number in range(KEPT + 1)]
    for age, other in enumerate(others):
        other.touch()
        os.utime(other, (1_000_000 - age, 1_000_000 - age))
    archive.file.with_suffix(".new").write_bytes(b"whole")
    assert not archive.start().makes
    assert [each for each in (archive.file, *others) if each.exists()] == [archive.file, *others[: KEPT - 1]]


def test_another_class_path_has_another_archive(archive: ClassArchive) -> None:
    assert archive_for({"spark.driver.extraClassPath": "mine.jar"}) != archive
    assert archive_for({"spark.master": "local[2]"}) == archive


def test_without_a_cache_or_when_told_so_spark_starts_as_it_does(
    archive: ClassArchive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a cache").write_text("a file where the folder should be")
    assert start_for({}) == class_archive.Start()
    assert "its classes cannot be kept" in caplog.text
    monkeypatch.setenv(VARIABLE, "no")
    assert archive_for({}) is None
