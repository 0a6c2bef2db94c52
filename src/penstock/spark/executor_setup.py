"""Prepares a Python process on a Spark executor for our work.

Spark collects garbage in a worker process after every task, which looks at every object there is. For what pyspark,
pyarrow and Penstock have imported that takes 45 ms, longer than a short task, and the next task waits for it. None of
those objects will ever be garbage, so the collector is told to ignore them.
"""

from __future__ import annotations

import functools
import gc

from pyspark import TaskContext


@functools.cache
def freeze_imports() -> None:
    """Exclude all existing objects from garbage collection. Call it when everything is imported.

    Only the first call has an effect.
    """
    gc.collect()
    gc.freeze()


def query_of_task() -> str | None:
    """The id of the streaming query that this task belongs to.

    It is in the checkpoint, so it is the same after a restart.

    None if Spark does not tell: in foreachBatch, an action that another thread starts (a thread pool, or any action
    through Spark Connect) does not have the properties of the query's own thread.
    """
    context = TaskContext.get()
    return context.getLocalProperty("sql.streaming.queryId") if context is not None else None
