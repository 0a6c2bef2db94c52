"""Which streaming query a task belongs to. Its id is in the checkpoint: it outlives the driver, and whatever is written under it is known again."""

from __future__ import annotations

from pyspark import TaskContext


def query_of_task() -> str:
    """The id of the query; runs on an executor."""
    context = TaskContext.get()
    query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
    if not query:
        raise RuntimeError("Spark did not say which query this is (sql.streaming.queryId)")
    return query
