"""The process from which Spark forks its Python workers, with what most of them import.

Spark's own daemon imports little, and each worker then imports the rest: a quarter of a second of CPU. Spark forks a
worker for each task that runs at the same time, after each task that failed, and after a minute without work. Here the
client and redis are imported once, before the first fork, and for the workers of tasks also numpy, pyarrow, the source
and the sink. worker_python.py has Spark start this.

A fork copies only the thread that forks, and a lock that another thread holds stays locked in the copy. So nothing is
imported here that starts a thread. numpy does unless OMP_NUM_THREADS is 1, as Spark sets it for the workers of tasks,
and the allocator of pyarrow does unless it is told not to. pandas is left to the workers that need it: a daemon that
only reads would start a quarter of a second later.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys

from pyspark import daemon

LOOKUP = "pyspark.sql.worker.lookup_data_sources"
"""The workers that only ask which formats there are: one for each application, and it needs no client."""


ARROW_ALLOCATOR = "JE_ARROW_MALLOC_CONF"
"""The environment variable with the settings of jemalloc in pyarrow."""


def preload(worker: str) -> None:
    """Import what workers of this module need, and let no later garbage collection visit it."""
    if worker.startswith("pyspark."):
        importlib.import_module(worker)
    if worker != LOOKUP:
        importlib.import_module("penstock.client.api.sync")
        importlib.import_module("penstock.spark.data_source")
        if os.environ.get("OMP_NUM_THREADS") == "1" and ARROW_ALLOCATOR not in os.environ:
            os.environ[ARROW_ALLOCATOR] = "background_thread:false"
            importlib.import_module("penstock.spark.source")
            importlib.import_module("penstock.spark.sink")
            del os.environ[ARROW_ALLOCATOR]
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    preload(sys.argv[1])
    daemon.manager()
