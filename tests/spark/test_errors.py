"""What a user sees when something goes wrong: one line that says what to do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import PySparkException
from tests.support.spark.world import World

from penstock.spark import activate, reason
from penstock.spark.problems import shorten


def in_thread(call: Callable[[], Any]) -> Exception | None:
    """The error of a call in a thread of its own, if it has one."""
    errors: list[Exception | None] = [None]

    def run() -> None:
        try:
            call()
        except Exception as error:
            errors[0] = error

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return errors[0]


def test_a_thread_finds_the_format_when_its_session_is_active(world: World) -> None:
    frame = world.spark.createDataFrame([("a",)], "entry string")

    def write() -> None:
        frame.write.format("penstock").option("url", world.url).option("stream", "s").mode("append").save()

    error = in_thread(write)
    assert error is not None, "Spark finds it without our help now"
    assert "penstock.spark.activate(spark)" in reason(error)
    assert in_thread(lambda: (activate(world.spark), write())) is None
    assert world.entries("s") == [b"a"]


COUNT = "k AS key", "count"


def test_updates_are_refused_with_the_way_round_which_works(world: World) -> None:
    world.write("s", '{"k": "a"}', '{"k": "a"}', '{"k": "b"}')
    counts = world.follow("k string", stream="s").groupBy("k").count()
    updates = counts.selectExpr("k AS tag", "CAST(count AS STRING) AS entry")
    for frame, options in ((updates, {"stream": "out"}), (counts.selectExpr(*COUNT), {"type": "hash"})):
        writer = frame.writeStream.format("penstock").option("url", world.url).options(**options).outputMode("update")
        place = str(world.folder / f"refused {options}")
        query = writer.option("checkpointLocation", place).trigger(availableNow=True).start()
        with pytest.raises(PySparkException) as caught:
            query.awaitTermination()
        assert reason(caught.value) == (
            "penstock does not support Update mode. Write in foreachBatch, with the options txnAppId and txnVersion."
        )

    def write(batch: Any, number: int) -> None:
        once = {"txnAppId": "counts", "txnVersion": number, "stream": "out"}
        batch.write.format("penstock").option("url", world.url).options(**once).mode("append").save()

    place = str(world.folder / "updates")
    for more in ((), ('{"k": "a"}',)):
        if more:
            world.write("s", *more)
        writer = updates.writeStream.outputMode("update").foreachBatch(write).option("checkpointLocation", place)
        writer.trigger(availableNow=True).start().awaitTermination()
    assert world.entries("out") == [b"2", b"1", b"3"]


STREAMING = """\
[STREAM_FAILED] Query [id = d7dc8a66, runId = 5820082b] terminated with exception: \
[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source perform latestOffset: \
Traceback (most recent call last):
  File "/lib/pyspark/sql/streaming/python_streaming_source_runner.py", line 281, in main
penstock.spark.source.DataLoss: stream s was read up to offset 10, and the stream is no longer there. Start anew
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: [id = d7dc8a66, runId = 5820082b]
"""


IN_A_POOL = """\
[STREAM_FAILED] Query [id = 30d0146e, runId = 067fd651] terminated with exception: [FOREACH_BATCH_USER_FUNCTION_ERROR] \
An error occurred in the user provided function in foreach batch sink. Reason: An exception was raised by the Python \
Proxy. Return Message: Traceback (most recent call last):
  File "/lib/pyspark/errors/exceptions/captured.py", line 256, in deco
    return f(*a, **kw)
  File "/lib/py4j/protocol.py", line 327, in get_return_value
    raise Py4JJavaError(
py4j.protocol.Py4JJavaError: An error occurred while calling o61.save.
: org.apache.spark.SparkClassNotFoundException: [DATA_SOURCE_NOT_FOUND] Failed to find the data source: penstock. Make \
sure the provider name is correct. SQLSTATE: 42K02
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.dataSourceNotFoundError(QueryExecutionErrors.scala:755)
Caused by: java.lang.ClassNotFoundException: penstock.DefaultSource
\tat java.base/java.net.URLClassLoader.findClass(URLClassLoader.java:445)
 SQLSTATE: 39000 SQLSTATE: XXKST
=== Streaming Query ===
"""


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (
            IN_A_POOL,
            "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: penstock. Make sure the provider name is correct. "
            "If it is penstock: make the session with penstock.spark.builder, and call penstock.spark.activate(spark) "
            "in threads of your own.",
        ),
        (
            "[STREAM_FAILED] Query [id = 8, runId = 0] terminated with exception:  SQLSTATE: XXKST (no cause message)\n"
            "=== Streaming Query ===\nIdentifier: [id = 8, runId = 0]",
            "Spark says no reason: a Python process of the query has ended, or was killed. Start the query again.",
        ),
        (
            "[STREAM_FAILED] Query [id = 8, runId = 0] terminated with exception: Connection reset\n"
            "=== Streaming Query ===\nIdentifier: [id = 8, runId = 0]",
            "Connection reset",
        ),
        (
            "[INSERT_COLUMN_ARITY_MISMATCH.NOT_ENOUGH_DATA_COLUMNS] Cannot write to `penstock`, the reason is not "
            "enough data columns:\nTable columns: `stream`, `entry`.\nData columns: `entry`. SQLSTATE: 21S01",
            "[INSERT_COLUMN_ARITY_MISMATCH.NOT_ENOUGH_DATA_COLUMNS] Cannot write to `penstock`, the reason is not "
            "enough data columns: Table columns: `stream`, `entry`. Data columns: `entry`. If it is a view of a "
            "stream, name in it the columns that you insert: CREATE TEMPORARY VIEW v (tag string, entry string) USING "
            "penstock OPTIONS (stream 's').",
        ),
        (
            "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `a` cannot be resolved. Did you mean one of the "
            "following? [`tag`, `time`, `entry`, `stream`, `offset`]. SQLSTATE: 42703;\n'Project ['a]",
            "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `a` cannot be resolved. Did you mean one of the "
            "following? [`tag`, `time`, `entry`, `stream`, `offset`]. If it is a field of a stream: the stream has no "
            "schema now. Set one (TSCHEMA SET, `penstock schema infer`), or name the columns with .schema(...).",
        ),
        (
            "[STREAM_FAILED] Query [id = 8, runId = 0] terminated with exception: Stream closed SQLSTATE: XXKST\n"
            "=== Streaming Query ===",
            "Stream closed. A Python process of Spark has ended, or was killed: start the query again, several "
            "times if need be.",
        ),
        (
            "Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times: org.apache.spark.SparkException: "
            "Python worker exited unexpectedly (crashed)\n\tat org.apache.spark",
            "Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times: org.apache.spark.SparkException: "
            "Python worker exited unexpectedly (crashed). A Python process of Spark has ended, or was killed: start "
            "the query again, several times if need be.",
        ),
        (STREAMING, "stream s was read up to offset 10, and the stream is no longer there. Start anew"),
        (
            "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Python worker failed to connect back."
            " SQLSTATE: XXKST\n=== Streaming Query ===",
            "Python worker failed to connect back. Spark gives a Python process ten seconds to start, and this machine "
            "is too busy for that: start the query again.",
        ),
        (
            "[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log. SQLSTATE: 40000",
            "[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log. Give each query a checkpoint of its own.",
        ),
    ],
)
def test_an_error_of_spark_is_a_line_that_says_what_to_do(said: str, line: str) -> None:
    assert shorten(said) == line
