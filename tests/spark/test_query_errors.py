"""What goes wrong with a query while it runs, or between two starts of it: one line each, with what to do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import redis
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from tests.support.spark.busy import BUSY, patiently
from tests.support.spark.world import World

from penstock import Server
from penstock.spark import reason
from penstock.spark.problems import finding

pytestmark = pytest.mark.timeout(900)


def start(world: World, frame: Any, name: str, mode: str = "append", once: bool = True, **options: Any) -> Any:
    writer = frame.writeStream.format("penstock").options(**{"url": world.url, "stream": "out"} | options)
    writer = writer.outputMode(mode).option("checkpointLocation", str(world.folder / name))
    return (writer.trigger(availableNow=True) if once else writer.trigger(processingTime="100 milliseconds")).start()


def finish(starting: Callable[[], Any]) -> None:
    """Run a query to its end."""
    patiently(lambda: starting().awaitTermination())


def line_of(failing: Callable[[], Any]) -> str:
    """What a query that fails says: one line."""
    while True:
        with pytest.raises((PySparkException, Py4JJavaError)) as caught:
            failing()
        said = reason(caught.value)
        if BUSY not in said:
            assert "\n" not in said
            assert len(said) < 500, said
            return said


def running(world: World, stream: str, name: str, **options: Any) -> Any:
    """A query that stays, and has read something."""
    frame = world.follow(stream=stream, **options).select("entry")
    query = start(world, frame, name, once=False, **options)
    while not any(batch["numInputRows"] for batch in query.recentProgress):
        if not query.isActive:
            assert BUSY in str(query.exception())
            query = start(world, frame, name, once=False, **options)
        time.sleep(0.05)
    return query


def counts(world: World, schema: str, key: str) -> Any:
    counted = world.follow(schema, stream="s").groupBy(key).count()
    return counted.selectExpr(f"CAST({key} AS STRING) AS tag", "CAST(count AS STRING) AS entry")


def test_a_query_that_changed_between_two_starts_is_told_what_to_do(world: World) -> None:
    world.write("s", '{"k": "1"}')
    world.write("other", "x")
    world.run(world.follow(stream="s").union(world.follow(stream="other")).select("entry"), "two", stream="out")
    fewer = line_of(lambda: start(world, world.follow(stream="s").select("entry"), "two").awaitTermination())
    assert fewer.endswith(
        "Read the sources that the query read before, or give the changed query a checkpoint of its own."
    )
    assert finding(fewer, None).lasting, "penstock run would try it for ever"

    finish(lambda: start(world, counts(world, "k string", "k"), "counts", "complete"))
    world.write("s", '{"k": "2"}')
    typed = line_of(lambda: start(world, counts(world, "k int", "k"), "counts", "complete").awaitTermination())
    assert "StringType" in typed and "IntegerType" in typed
    assert typed.endswith(
        "The state of the query was made with other columns: undo the change, or give the changed query a checkpoint "
        "of its own."
    )


def test_a_stream_whose_schema_was_made_anew_is_read_by_it_or_the_column_is_named(world: World) -> None:
    world.call("TSCHEMA", "SET", "t", "k string, v int")
    world.write("t", '{"k": "a", "v": 1}')
    world.run(world.follow(stream="t").select("k", "v"), "typed", stream="out")
    world.call("TSCHEMA", "DEL", "t")
    world.call("TSCHEMA", "SET", "t", "k string")
    world.write("t", '{"k": "b"}')
    assert "`v` cannot be resolved" in line_of(lambda: world.follow(stream="t").select("k", "v"))
    world.run(world.follow(stream="t").select("k"), "typed", stream="out")
    assert world.entries("out") == [b'{"k":"a","v":1}', b'{"k":"b"}']


def test_a_second_query_on_one_checkpoint_is_told_what_to_do(world: World, request: pytest.FixtureRequest) -> None:
    setting = "spark.sql.streaming.stopActiveRunOnRestart"  # by default Spark stops the first one
    request.addfinalizer(lambda: world.spark.conf.unset(setting))
    world.spark.conf.set(setting, "false")
    world.write("s", "a")
    first = running(world, "s", "one")
    try:
        said = line_of(lambda: start(world, world.follow(stream="s").select("entry"), "one", once=False))
    finally:
        first.stop()
    assert said.endswith("Stop the other one first, or give each query a checkpoint of its own.")
    assert world.entries("out") == [b"a"]


def test_a_stream_that_is_deleted_or_begun_anew_under_a_query_is_named(world: World) -> None:
    world.write("s", "a", "b", "c")
    query = running(world, "s", "deleted")
    world.client.delete("s")
    said = line_of(query.awaitTermination)
    assert "stream s was read up to offset 3, and the stream is no longer there" in said
    assert "failOnDataLoss" in said
    world.write("s", "a", "b", "c")
    query = running(world, "s", "anew")
    with world.client.pipeline(transaction=True) as both:
        both.delete("s")
        both.execute_command("TWRITE", "s", "", "new")
        both.execute()
    said = line_of(query.awaitTermination)
    assert "stream s was read up to offset 3, and the stream ends at 1: it was deleted and begun anew" in said
    assert "failOnDataLoss" in said


def test_a_server_that_goes_down_under_a_query_is_named(world: World) -> None:
    with Server() as server, redis.Redis.from_url(server.url) as client:
        place = f"127.0.0.1:{server.port}"
        client.execute_command("TWRITE", "s", "", "a")
        query = running(world, "s", "down", url=server.url, retryTimeout=1000)
    said = line_of(query.awaitTermination)
    assert place in said
    assert said.endswith("Is it running, and is the option url right?")
    assert "at-most-once" not in said
