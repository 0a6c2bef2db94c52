"""The Python that Spark starts its workers with.

Spark puts a zip of PySpark's sources first on the path of its workers. Python compiles what it imports from a zip at
each start, and that takes three times as long as the start itself: 1.2 s of CPU instead of 0.4 s for each of the six
or more processes that a query begins with. On a busy machine it takes longer than the ten seconds after which Spark
gives a worker up. A PySpark that pip installed is in the same version beside the zip, with its compiled files. So
workers start by a script that takes the zips out of the path.

The script also starts our daemon in place of Spark's (worker_daemon.py). The setting `spark.python.daemon.module` would
do so for tasks, but not for processes that plan.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shlex
import sys
from pathlib import Path

import pyspark
from pyspark.find_spark_home import _find_spark_home

from penstock.spark.cache import cached

logger = logging.getLogger(__name__)

_SCRIPT = """\
#!/bin/sh
# Starts Python for Spark without the zips of PySpark's sources on its path; PySpark is installed beside them.
# Workers are forked from a daemon of Penstock, which has imported what they need.
path=$PYTHONPATH
PYTHONPATH=
IFS=:
for each in $path; do
    case $each in
        */pyspark.zip | */py4j-*-src.zip) ;;
        *) PYTHONPATH=$PYTHONPATH${{PYTHONPATH:+:}}$each ;;
    esac
done
if [ "$1 $2" = "-m pyspark.daemon" ]; then
    shift 2
    set -- -m penstock.spark.worker_daemon "$@"
fi
exec {python} "$@"
"""


def use_worker_python() -> None:
    """Have the next JVM of this process start its workers quickly.

    Spark starts tasks with the Python that PYSPARK_PYTHON names. Processes that plan, such as the driver's part of a
    data source, are started with the one that PYSPARK_DRIVER_PYTHON names, if it names one.
    """
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = worker_python()


def worker_python() -> str:
    """What PYSPARK_PYTHON should name for a Spark on this machine."""
    if Path(_find_spark_home()).resolve() != Path(pyspark.__file__).resolve().parent:
        return sys.executable  # another Spark than the installed PySpark: its zip may be of another version
    script = _SCRIPT.format(python=shlex.quote(sys.executable))
    name = f"python-{hashlib.sha256(script.encode()).hexdigest()[:16]}"

    def make(file: Path) -> None:
        file.write_text(script, encoding="utf-8")
        file.chmod(0o755)

    try:
        return str(cached(name, make))
    except OSError as error:
        logger.warning("Spark's Python workers will start slowly: %s cannot be kept: %s", name, error)
        return sys.executable
