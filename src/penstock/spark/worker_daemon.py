"""The process from which Spark forks its Python workers, with what most of them import.

Spark's own daemon imports little, and each worker then imports the rest: a quarter of a second of CPU. Spark forks a
worker for each task that runs at the same time, after each task that failed, and after a minute without work. Here the
client, redis and numpy are imported once, before the first fork. worker_python.py has Spark start this.

A fork copies only the thread that forks, and a lock that another thread holds stays locked in the copy. So nothing is
imported here that starts a thread. pyarrow and pandas do, and numpy does unless OMP_NUM_THREADS is 1, as Spark sets it
for the workers of tasks; each worker imports these by itself.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys

from pyspark import daemon

LOOKUP = "pyspark.sql.worker.lookup_data_sources"
"""The workers that only ask which formats there are: one for each application, and it needs no client."""


def preload(worker: str) -> None:
    """Import what workers of this module need, and let no later garbage collection visit it."""
    if worker.startswith("pyspark."):
        importlib.import_module(worker)
    if worker != LOOKUP:
        importlib.import_module("penstock.client.api.sync")
        importlib.import_module("penstock.spark.data_source")
        if os.environ.get("OMP_NUM_THREADS") == "1":
            importlib.import_module("numpy")
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    preload(sys.argv[1])
    daemon.manager()
