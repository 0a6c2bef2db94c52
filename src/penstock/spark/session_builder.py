"""The builder that `penstock.spark.builder` gives: PySpark's own, with what a JVM of this machine should start with."""

from __future__ import annotations

import atexit
import functools
import os

from pyspark import SparkContext
from pyspark.sql import SparkSession

from penstock.spark import local_files
from penstock.spark.class_archive import JAVA_OPTIONS, archive_for
from penstock.spark.worker_python import FORK_SERVER, ForkServer, fork_server, use_worker_python


class Builder(SparkSession.Builder):
    def __init__(self) -> None:
        super().__init__()
        self._options = {}  # PySpark's own builders share one

    def getOrCreate(self) -> SparkSession:
        has_jvm = SparkContext._gateway or "PYSPARK_GATEWAY_PORT" in os.environ  # it has its classes and its Python
        # Spark Connect with a master of this machine, `remote("local[2]")`, starts a JVM here as well.
        master = str(self._options.get("spark.master") or self._options.get("spark.remote") or "")
        if not has_jvm and master.startswith("local"):
            use_worker_python()
            for name, value in local_files.settings({**self._options, "spark.master": master}).items():
                self.config(name, value)
            if JAVA_OPTIONS not in self._options and (archive := archive_for(self._options)) and archive.file.exists():
                self.config(JAVA_OPTIONS, archive.use)
            if (server := _server()) is not None:
                os.environ[FORK_SERVER] = server.name  # for Java, and for no other process that this one starts
        try:
            return super().getOrCreate()
        finally:
            os.environ.pop(FORK_SERVER, None)


@functools.cache
def _server() -> ForkServer | None:
    """The server for the workers of this process's JVM, which lives as long as this process."""
    server = fork_server()
    if server is not None:
        atexit.register(_end, server, os.getpid())
    return server


def _end(server: ForkServer, owner: int) -> None:
    if os.getpid() == owner:  # not a fork of it
        server.end()
