"""The archive of Spark's classes, made before the tests need it: python -m tests.support.spark.archive_training FOLDER

A JVM starts from the archive with half the CPU time (penstock/spark/class_archive.py), and the tests start more than
twenty. Java writes the archive when it ends. On a machine without one this program goes first: its session does a
little of everything that the tests do. The longest tests would make an archive too, but when they end most of the
others have started their JVMs.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import redis
from tests.support.spark.projects import project, write
from tests.support.spark.runs import SETTINGS, run

from penstock import Server
from penstock.spark import class_archive, local_files
from penstock.spark.class_archive import VARIABLE, ClassArchive, archive_for
from penstock.spark.options import URL_VARIABLE
from penstock.spark.pipeline_session import PipelineSession
from penstock.spark.starting import StartingSpark

PATIENCE = 100
"""Seconds for which tests wait for the archive. On a machine that is too busy they start without it."""

LET_GO = """
import os, sys
if os.fork() == 0:
    os.setsid()
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
"""A program that starts Python with its own arguments, and does not wait for it."""

FLOWS = """\
dp.create_sink("out", "penstock", {"stream": "out"})


@dp.append_flow(target="out")
def copy():
    return spark.readStream.format("penstock").option("stream", "in").load().select("tag", "entry")


@dp.table
def copied():
    return spark.readStream.format("penstock").option("stream", "in").load()


@dp.materialized_view
def counted():
    return spark.read.table("copied").groupBy("tag").count()
"""


def make(archive: ClassArchive, folder: Path) -> None:
    """Wait for the archive; the first process of pytest that asks has it made, in the folder that they share."""
    if archive.file.exists():
        return
    training = folder / "training"
    with contextlib.suppress(FileExistsError):
        training.mkdir()
        _start(training)
    until = time.monotonic() + PATIENCE
    while not (training / "ended").exists() and time.monotonic() < until:
        time.sleep(0.1)


def _start(folder: Path) -> None:
    """Start this program; it goes on by itself, also if the tests end before."""
    words = [sys.executable, "-c", LET_GO, "-m", "tests.support.spark.archive_training", str(folder)]
    with (folder / "log").open("wb") as log:
        subprocess.run(
            words, check=True, stdout=log, stderr=log, cwd=Path(__file__).parents[3],
            env=os.environ | {"SPARK_SUBMIT_OPTS": "", VARIABLE: ""},
        )  # fmt: skip


def main(folder: Path) -> None:
    class_archive.NICENESS = 0  # the tests wait for it
    with Server() as server, redis.Redis.from_url(server.url) as client:
        os.environ[URL_VARIABLE] = server.url
        write(client, 0)
        starting = StartingSpark(folder / "session", "training", SETTINGS)
        with PipelineSession(starting) as session:
            run(session, str(project(folder / "project", FLOWS)))
            rows = session.classic.read.format("penstock").option("stream", "in").schema("offset long, tag string")
            rows.load().where("offset > 50").groupBy("tag").count().collect()
            frame = session.classic.createDataFrame([("a", "one")], "tag string, entry string")
            frame.write.format("penstock").option("stream", "out").mode("append").save()
        starting.process.wait()
    archive = archive_for(local_files.settings(SETTINGS))
    if archive is not None and (lock := archive.adopt()) is not None:
        lock.close()


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    finally:
        (Path(sys.argv[1]) / "ended").touch()
