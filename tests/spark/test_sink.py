"""Streams written by a real Spark: staged by tasks, visible at once, once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
import redis
from pyspark.errors import PySparkException
from pyspark.sql import functions as f
from pyspark.sql.types import StructType
from tests.support.spark.world import World

from penstock import Server
from penstock.spark import sink
from penstock.spark.options import parse
from penstock.spark.stream_connection import Fenced


def save(world: World, frame: Any, mode: str = "append", **options: Any) -> None:
    frame.write.format("penstock").option("url", world.url).options(**options).mode(mode).save()


def info(world: World, stream: str) -> dict[bytes, Any]:
    described = world.call("TINFO", stream)
    return described if isinstance(described, dict) else dict(zip(described[::2], described[1::2], strict=True))


def test_rows_become_messages(world: World) -> None:
    frame = world.spark.createDataFrame([("a", "one"), (None, "two")], "tag string, entry string")
    save(world, frame.coalesce(1), stream="s")
    assert world.call("TREAD", "s", 1, 10) == [[1, b"a", b"one"], [2, b"", b"two"]]
    save(world, world.spark.createDataFrame([(b"\xff",)], "entry binary"), stream="s")
    assert world.entries("s") == [b"one", b"two", b"\xff"]
    save(world, world.spark.createDataFrame([("new",)], "entry string"), "overwrite", stream="s")
    assert world.call("TREAD", "s", 4, 10) == [[4, b"", b"new"]], "offsets are never used again"
    assert info(world, "s")[b"length"] == 1
    assert info(world, "s")[b"stages"] == 0


def test_a_column_chooses_the_stream_and_tasks_keep_their_order(world: World) -> None:
    frame = world.spark.range(20_000, numPartitions=4).select(
        f.concat(f.lit("even:"), f.col("id") % 2).alias("stream"), f.col("id").cast("string").alias("entry")
    )
    save(world, frame)
    assert world.entries("even:0") == [b"%d" % number for number in range(0, 20_000, 2)]
    assert world.entries("even:1") == [b"%d" % number for number in range(1, 20_000, 2)]


def test_a_column_of_times_is_the_time_of_the_messages(world: World) -> None:
    rows = world.spark.createDataFrame([(3, "a"), (1, "b")], "ms long, entry string").coalesce(1)
    save(world, rows.selectExpr("timestamp_micros(ms * 1000 + 999) AS time", "entry"), stream="s")
    save(world, rows.selectExpr("ms * 10 AS time", "entry"), stream="s")
    written = pa.ipc.open_stream(world.call("TREAD", "s", 1, 10, "FORMAT", "ARROW")).read_all()
    assert written.select(["time", "entry"]).to_pydict() == {"time": [3, 1, 30, 10], "entry": [b"a", b"b", b"a", b"b"]}
    with pytest.raises(PySparkException, match="a row has no time"):
        save(world, rows.selectExpr("IF(ms = 1, NULL, ms) AS time", "entry"), stream="s")


class Failure:
    """Lets the task that has the row `last` fail in the middle of its write, when another task is done with its own."""

    def __init__(self, world: World) -> None:
        self._tracker = world.spark.sparkContext.statusTracker()
        self._one_is_done, self._over = world.folder / "one is done", world.folder / "over"
        self._watch = threading.Thread(target=self._look)

    def of(self, rows: Any) -> Any:
        one_is_done, over = self._one_is_done, self._over

        def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield batch
                if b"last" in batch.column("entry").to_pylist() and not over.exists():
                    while not one_is_done.exists():
                        time.sleep(0.01)
                    raise ValueError("on purpose")

        return rows.mapInArrow(fail, "entry binary")

    def _look(self) -> None:
        while not self._one_is_done.exists():
            stages = map(self._tracker.getStageInfo, self._tracker.getActiveStageIds())
            if any(stage is not None and stage.numCompletedTasks for stage in stages):
                self._one_is_done.touch()
            time.sleep(0.01)

    def __enter__(self) -> None:
        self._watch.start()

    def __exit__(self, *exc: object) -> None:
        self._one_is_done.touch()
        self._over.touch()
        self._watch.join()


def test_nothing_is_left_of_a_write_that_fails_in_the_middle(world: World) -> None:
    rows = world.spark.range(2, numPartitions=2).selectExpr("CAST(IF(id = 0, 'first', 'last') AS BINARY) AS entry")
    failure = Failure(world)
    with failure, pytest.raises(PySparkException, match="on purpose"):
        save(world, failure.of(rows), stream="s")
    assert (world.entries("s"), info(world, "s")[b"stages"]) == ([], 0)
    save(world, failure.of(rows), stream="s")
    assert (world.entries("s"), info(world, "s")[b"stages"]) == ([b"first", b"last"], 0)


def test_a_batch_that_failed_in_the_middle_is_there_once_when_its_query_goes_on(world: World) -> None:
    world.write("in", "first", "last")
    failure = Failure(world)
    frame = failure.of(world.follow(stream="in", minPartitions=2).select("entry"))
    with failure, pytest.raises(PySparkException, match="on purpose"):
        world.run(frame, stream="s")
    assert (world.entries("s"), info(world, "s")[b"stages"]) == ([], 0)
    world.run(frame, stream="s")
    assert (world.entries("s"), info(world, "s")[b"stages"]) == ([b"first", b"last"], 0)


@pytest.mark.parametrize(
    ("columns", "options", "problem"),
    [
        ("value string", {"stream": "s"}, "a column 'entry' is needed, and there are value"),
        ("entry string, user string", {"stream": "s"}, "columns user cannot be written"),
        ("entry string, time date", {"stream": "s"}, "column time is date; write it as a timestamp, or as bigint"),
        ("entry int", {"stream": "s"}, "column entry is int; write it as a string or as binary"),
        ("entry string", {}, "name the stream to write to"),
        ("entry string", {"stream": "a,b"}, "name the stream to write to"),
    ],
)
def test_rows_that_are_no_messages_are_refused(
    world: World, columns: str, options: dict[str, str], problem: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        save(world, world.spark.createDataFrame([], columns), **options)
    assert problem in str(caught.value)


def test_a_key_that_is_no_stream_is_named_and_left_alone(world: World) -> None:
    world.client.set("string", "x")
    with pytest.raises(PySparkException, match=r"the key 'string' at redis://.* is no stream"):
        save(world, world.spark.createDataFrame([("a",)], "entry string").coalesce(1), stream="string")
    assert world.client.get("string") == b"x"


def test_a_row_without_an_entry_is_refused_and_nothing_written(world: World) -> None:
    with pytest.raises(PySparkException, match="a row has no entry"):
        save(world, world.spark.createDataFrame([("a",), (None,)], "entry string"), stream="s")
    assert world.entries("s") == []


def test_a_commit_that_is_repeated_changes_nothing(world: World) -> None:
    options = parse({"url": world.url, "stream": "s"})
    for attempt in ("one", "two"):  # the driver died after the commit: the batch runs again, with other tokens
        world.call("TSTAGE", "s", f"q/{attempt}", "ENTRIES", "", "row")
        world.call("TSTAGE", "t", f"q/{attempt}", "ENTRIES", "", "row")
        staged = sink.Staged("q", 0, {"s": [f"q/{attempt}"], "t": [f"q/{attempt}"]})
        sink.commit(options, [staged, None], "q", 7)
    assert world.entries("s") == world.entries("t") == [b"row"]
    assert info(world, "s")[b"stages"] == 1
    sink.abort(options, [staged, None])
    assert info(world, "s")[b"stages"] == 0


def test_a_batch_of_an_old_checkpoint_is_refused_with_the_reason(ours: Server) -> None:
    with redis.Redis.from_url(ours.url) as client:
        writer = sink.StreamWriter(parse({"url": ours.url, "stream": "fenced"}), StructType().add("entry", "string"))
        for number in (7, 7, 6):
            client.execute_command("TSTAGE", "fenced", f"q/{number}", "ENTRIES", "", "row")
            messages = [sink.Staged("q", 0, {"fenced": [f"q/{number}"]})]
            if number == 6:
                with pytest.raises(Fenced, match=r"^batch 6 is older than a batch, which .* checkpoint of its own$"):
                    writer.commit(messages, number)
            else:
                writer.commit(messages, number)
        assert client.execute_command("TREAD", "fenced", 1, 10) == [[1, b"", b"row"]]


def test_a_query_that_is_started_again_goes_on_where_it_was(world: World) -> None:
    frame = world.follow(stream="s", maxRowsPerTrigger=2).select("tag", "entry")
    world.write("s", "a", "b", "c")
    world.run(frame, stream="out")
    world.run(frame, stream="out")
    world.write("s", "d")
    world.run(frame, stream="out")
    assert world.call("TREAD", "out", 1, 10) == [[1, b"a", b"a"], [2, b"b", b"b"], [3, b"c", b"c"], [4, b"d", b"d"]]
