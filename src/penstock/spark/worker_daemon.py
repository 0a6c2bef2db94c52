"""The process from which Spark forks its Python workers, with what most of them import.

Spark's own daemon imports little, and each worker then imports the rest: a quarter of a second of CPU. Spark forks a
worker for each task that runs at the same time, after each task that failed, and after a minute without work. Here the
client and redis are imported once, before the first fork, and for the workers of tasks also numpy, pyarrow, the source
and the sink. worker_python.py has Spark start this. Where fork_server.py is there, the daemon itself is a fork, and
all of this is imported already.

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
    """Import what workers of this module need."""
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


def ready_to_fork() -> None:
    """Let no later garbage collection visit what is there now, and give each fork random numbers of its own."""
    os.register_at_fork(after_in_child=_reseed)
    gc.collect()
    gc.freeze()


def _reseed() -> None:
    """Python does so itself for `random`, numpy does not."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()


if __name__ == "__main__":
    preload(sys.argv[1])
    ready_to_fork()
    daemon.manager()
