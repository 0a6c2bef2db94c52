"""Streams read by a real Spark, in batches and as streams."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.base import StreamingQueryException
from tests.support.spark.world import World

from penstock import Server
from penstock.client.api.streams import arrow_stream


def offsets(frame: Any) -> list[int]:
    return sorted(row.offset for row in frame.select("offset").collect())


def failure(load: Callable[[], Any]) -> str:
    """What is said of a frame that cannot be loaded, or cannot be read."""
    with pytest.raises(PySparkException) as caught:
        load().collect()
    return str(caught.value)


def test_a_stream_is_a_table(world: World) -> None:
    world.write("s", "apple", "bean")
    rows = world.read(stream="s").collect()
    assert [(row.stream, row.offset, bytes(row.tag), bytes(row.entry)) for row in rows] == [
        ("s", 1, b"a", b"apple"), ("s", 2, b"b", b"bean"),
    ]  # fmt: skip
    assert world.call("TSEEK", "s", "TIME", int(rows[0].time.timestamp() * 1000)) == 1
    assert [(row.tag, row.entry) for row in world.read(stream="s", text=True).collect()] == [
        ("a", "apple"),
        ("b", "bean"),
    ]


def test_several_streams_and_a_pattern(world: World) -> None:
    for name in ("log:a", "log:b", "other"):
        world.write(name, name)
    world.client.set("log:string", "not a stream")
    assert sorted(row.stream for row in world.read(stream="log:a, other").collect()) == ["log:a", "other"]
    assert sorted(row.stream for row in world.read(pattern="log:*").collect()) == ["log:a", "log:b"]


def test_places_by_offset_and_by_time(world: World) -> None:
    world.write("s", *(f"{number}" for number in range(1, 11)))
    assert offsets(world.read(stream="s", startingOffsets='{"s": 4}', endingOffsets='{"s": 7}')) == [4, 5, 6]
    assert offsets(world.read(stream="s", startingOffsets="latest")) == []
    moment = int(world.client.time()[0] * 1000) + 5000
    assert offsets(world.read(stream="s", startingTimestamp=moment)) == []
    assert len(offsets(world.read(stream="s", endingTimestamp=moment))) == 10


def test_a_stream_begins_at_an_offset_or_at_a_time(world: World) -> None:
    times = pa.array([1000, 2000, 2000, 3000], pa.int64())
    words = pa.array([b"1", b"2", b"3", b"4"], pa.binary())
    world.call("TWRITE", "s", "FORMAT", "ARROW", arrow_stream(pa.table({"time": times, "tag": words, "entry": words})))
    assert offsets(world.read(stream="s", startingTimestamp=2000, endingTimestamp=3000)) == [2, 3]
    assert offsets(world.read(stream="s", startingTimestamp=2001)) == [4]
    for number, places in enumerate(({"startingOffsets": '{"s": 3}'}, {"startingTimestamp": 2000})):
        frame = world.follow(stream="s", **places).selectExpr(f"'out{number}' AS stream", "entry")
        world.run(frame, f"checkpoint {number}")
    assert (world.entries("out0"), world.entries("out1")) == ([b"3", b"4"], [b"2", b"3", b"4"])


def test_a_query_that_runs_on_reads_what_comes_and_a_column_chooses_where_it_goes(world: World) -> None:
    world.write("s", "a", "b")
    frame = world.follow(stream="s", text=True).selectExpr("'to:' || tag AS stream", "entry")
    writer = frame.writeStream.format("penstock").option("url", world.url)
    query = writer.option("checkpointLocation", str(world.folder / "checkpoint")).start()
    try:
        query.processAllAvailable()
        world.write("s", "a later one")
        query.processAllAvailable()
    finally:
        query.stop()
    assert (world.entries("to:a"), world.entries("to:b")) == ([b"a", b"a later one"], [b"b"])


def test_one_stream_is_read_by_many_tasks(world: World) -> None:
    for _ in range(7):
        world.write("s", *("x" for _ in range(1000)))
    frame = world.read(stream="s", minPartitions=4)
    assert frame.rdd.getNumPartitions() == 4
    assert offsets(frame) == list(range(1, 7001))


def test_entries_that_are_json_become_columns(world: World) -> None:
    world.write("s", '{"user": "ada", "n": 1, "at": {"x": [1, 2]}}', '{"n": 2,\n "more": true}', "{}")
    schema = "offset long, user string, n int, at struct<x: array<int>>, tag string"
    rows = world.read(schema, stream="s").collect()
    assert [(row.offset, row.user, row.n, row.tag) for row in rows] == [
        (1, "ada", 1, "{"),
        (2, None, 2, "{"),
        (3, None, None, "{"),
    ]
    assert rows[0]["at"].x == [1, 2]


@pytest.mark.parametrize("bad", ["no json", "[1]", '{"n": "text"}', "", '{"n": 1} {"n": 2}', '"a"\n"b"'])
def test_an_entry_that_does_not_parse_fails_the_query_and_is_named(world: World, bad: str) -> None:
    world.write("s", '{"n": 1}')
    world.call("TWRITE", "s", "t", bad)
    world.write("s", '{"n": 3}')
    assert "stream s, offset 2: " in failure(lambda: world.read("n int", stream="s"))


def test_an_entry_that_does_not_parse_can_be_null_or_no_row_or_a_dead_letter(world: World) -> None:
    world.write("s", '{"n": 1}', "no json", '{"n": 3}')
    assert [row.n for row in world.read("n int", stream="s", badEntries="null").collect()] == [1, None, 3]
    assert [row.n for row in world.read("n int", stream="s", badEntries="drop").collect()] == [1, 3]
    frame = world.read("n int", stream="s", badEntries="deadletter", deadLetterStream="dead")
    assert [row.n for row in frame.collect()] == [1, 3]
    (letter,) = map(json.loads, world.entries("dead"))
    assert (letter["stream"], letter["offset"], letter["entry"]) == ("s", 2, "no json")
    assert "not JSON" in letter["why"]


def test_a_dead_letter_is_written_once_a_query_however_often_its_batch_is_read(world: World) -> None:
    world.call(
        "TWRITE", "s", "ENTRIES", "t", '{"n": 1}', "t", "no json", b"\xff", '{"n": 3}', b"\xff", b"\xff", "t", "[]"
    )
    schema = "tag string, entry string, n int"
    frame = world.follow(schema, stream="s", badEntries="deadletter", deadLetterStream="dead", minPartitions=2)
    seen: list[int] = []

    def twice(batch: Any, number: int) -> None:
        seen.extend(batch.count() for _ in range(2))

    query = frame.writeStream.foreachBatch(twice).trigger(availableNow=True)
    query.option("checkpointLocation", str(world.folder / "twice")).start().awaitTermination()
    assert seen == [1, 1]
    letters = [json.loads(entry) for entry in world.entries("dead")]
    assert sorted(letter["offset"] for letter in letters) == [2, 3, 4, 5], "one for each, whatever is wrong with it"


def test_a_null_instead_of_a_bad_entry_is_null_to_spark_too(world: World) -> None:
    world.write("s", b"good", b"\xff\xfe")
    rows = world.read(stream="s", text=True, badEntries="null").where("entry IS NULL").select("offset", "tag").collect()
    assert [(row.offset, row.tag) for row in rows] == [(2, None)]


def test_text_that_is_not_utf8_is_a_bad_entry(world: World) -> None:
    world.write("s", b"good", b"\xff\xfe")
    assert "stream s, offset 2: " in failure(lambda: world.read("entry string", stream="s"))
    assert [row.entry for row in world.read("entry string", stream="s", badEntries="null").collect()] == ["good", None]


@pytest.mark.parametrize(
    ("options", "schema", "problem"),
    [
        ({"stream": "nope"}, "", "there is no stream 'nope'"),
        ({"stream": "hash"}, "", "the key 'hash' at redis://127.0.0.1"),
        ({"pattern": "not *"}, "", r"matches the stream b'not utf-8 \xff', whose name is not UTF-8"),
        ({}, "", "name what to read"),
        ({"streams": "s"}, "", "did you mean stream?"),
        ({"stream": "s"}, "offset string", "column offset is string in the schema, and a message has it as bigint"),
    ],
)
def test_a_query_that_cannot_work_says_why(world: World, options: dict[str, str], schema: str, problem: str) -> None:
    world.write("s", "x")
    world.client.hset("hash", "a", "b")
    world.call("TWRITE", b"not utf-8 \xff", "", "")
    with pytest.raises(PySparkException) as caught:
        world.read(schema, **options).collect()
    assert problem in str(caught.value)


def test_a_stream_has_no_end_to_be_named(world: World) -> None:
    with pytest.raises(PySparkException, match="endingOffsets and endingTimestamp are for batches"):
        world.run(world.follow(stream="s", endingOffsets='{"s": 2}').select("entry"), stream="out")


def test_a_password_is_asked_for_by_name_and_never_shown(world: World) -> None:
    with Server(requirepass="sesame") as server:
        place = server.url.rpartition("/0")[0].removeprefix("redis://")
        for user, said in (
            ("", "refuses: "),
            ("default:rhubarb@", "refuses: "),
            ("default:sesame@", "there is no stream"),
        ):
            world.url = f"redis://{user}{place}"
            message = failure(lambda: world.read(stream="nope"))
            assert said in message
            assert f"redis://{place}" in message
            assert "sesame" not in message
            assert "rhubarb" not in message


def test_a_server_that_is_not_there_is_named(world: World) -> None:
    world.url = "redis://user:secret@127.0.0.1:1/0"
    message = failure(lambda: world.read(stream="s", retryTimeout=200))
    assert "no answer from the server at redis://127.0.0.1:1/0 for 0.2 seconds" in message
    assert "secret" not in message.partition("Traceback")[0]


def test_messages_that_were_evicted_are_loss_and_compacted_ones_are_not(world: World) -> None:
    world.write("s", *(f"{number}" for number in range(3000)))
    world.call("TEVICT", "s", 1000)
    message = failure(lambda: world.read(stream="s", startingOffsets='{"s": 900}'))
    assert "stream s: offsets 900 to 1000 cannot be read, messages up to 1000 were evicted" in message
    assert offsets(world.read(stream="s", startingOffsets='{"s": 900}', failOnDataLoss=False)) == list(
        range(1001, 3001)
    )
    world.write("c", *("same" for _ in range(2500)))
    world.call("TRETAIN", "c", "COMPACT", "yes")
    for _ in range(200):
        if len(world.entries("c")) < 2500:
            break
    assert len(offsets(world.read(stream="c"))) == len(world.entries("c"))


def test_a_stream_that_was_begun_anew_is_loss(world: World) -> None:
    world.write("s", "a", "b", "c")
    frame = world.follow(stream="s").select("entry")
    world.run(frame, stream="out")
    world.client.delete("s")
    said = r"stream s was read up to offset 3, and the stream is no longer there"
    with pytest.raises(StreamingQueryException, match=said):
        world.run(frame, stream="out")
    world.write("s", "new")
    with pytest.raises(
        StreamingQueryException, match="the stream ends at 1: it was deleted and begun anew, or its server"
    ):
        world.run(frame, stream="out")
    allowed = world.follow(stream="s", failOnDataLoss=False, group="progress").select("entry")
    world.run(allowed, stream="out")
    assert world.entries("out") == [b"a", b"b", b"c", b"new"], "it is read from its beginning"
    world.write("s", "new 2", "new 3", "new 4")
    world.run(frame, stream="out")
    assert world.entries("out") == [b"a", b"b", b"c", b"new", b"new 2", b"new 3", b"new 4"]
    world.client.delete("s")
    world.run(allowed, stream="out")
    world.write("s", "newest")
    world.run(allowed, stream="out")
    assert world.entries("out")[7:] == [b"newest"]
    world.client.delete("s")
    world.write("s", "newer")
    frame = world.follow(stream="s", startingOffsets='{"s": 1}')
    assert offsets(world.read(stream="s", startingOffsets='{"s": 1}', endingOffsets='{"s": 2}')) == [1]
    message = failure(lambda: world.read(stream="s", startingOffsets='{"s": 1}', endingOffsets='{"s": 9}'))
    assert "the stream ends at 1: it was deleted and begun anew" in message


def test_a_trigger_takes_no_more_rows_than_it_may(world: World) -> None:
    world.write("a", *("x" for _ in range(900)))
    world.write("b", *("y" for _ in range(100)))
    frame = world.follow(pattern="?", maxRowsPerTrigger=300).selectExpr("stream || ':' || string(entry) as entry")
    progress = world.run(frame, stream="the out")
    rows = [batch["numInputRows"] for batch in progress if batch["numInputRows"]]
    assert sum(rows) == 1000
    assert max(rows) <= 300
    assert sorted(set(world.entries("the out"))) == [b"a:x", b"b:y"]


def test_a_trigger_takes_about_as_many_bytes_as_it_may(world: World) -> None:
    world.write("s", *("x" * 100 for _ in range(1000)))
    progress = world.run(world.follow(stream="s", maxBytesPerTrigger=25_000).select("entry"), stream="out")
    rows = [batch["numInputRows"] for batch in progress if batch["numInputRows"]]
    assert sum(rows) == 1000
    assert 100 <= max(rows) <= 250


def test_streams_that_appear_later_are_read_from_their_beginning(world: World) -> None:
    frame = world.follow(pattern="log:*", startingOffsets="latest").select("stream", "entry").selectExpr("entry")
    world.write("log:a", "before")
    world.run(frame, stream="out")
    world.write("log:a", "after")
    world.write("log:b", "all of b")
    world.run(frame, stream="out")
    assert sorted(world.entries("out")) == [b"after", b"all of b"]


def test_progress_shows_as_the_lag_of_a_group(world: World) -> None:
    world.write("s", "a", "b", "c")
    world.run(world.follow(stream="s", group="spark").select("entry"), stream="out")
    (group,) = world.call("TGROUP", "LIST", "s")
    described = group if isinstance(group, dict) else dict(zip(group[::2], group[1::2], strict=True))
    assert (described[b"name"], described[b"position"], described[b"lag"]) == (b"spark", 4, 0)
    world.write("s", "d")
    (group,) = world.call("TGROUP", "LIST", "s")
    described = group if isinstance(group, dict) else dict(zip(group[::2], group[1::2], strict=True))
    assert described[b"lag"] == 1


def test_a_stream_of_a_missing_stream_waits_for_it(world: World) -> None:
    frame = world.follow(stream="s").select("entry")
    world.run(frame, stream="out")
    world.write("s", "a")
    world.run(frame, stream="out")
    assert world.entries("out") == [b"a"]


def test_an_evicted_range_fails_a_streaming_query_by_name(world: World) -> None:
    frame = world.follow(stream="s").select("entry")
    world.write("s", "first")
    world.run(frame, stream="out")
    world.write("s", *(f"{number}" for number in range(2500)))
    world.call("TEVICT", "s", 2000)
    with pytest.raises(StreamingQueryException, match="messages up to 2000 were evicted"):
        world.run(frame, stream="out")
    assert world.entries("out") == [b"first"], "nothing of a failed batch is visible"
    world.run(world.follow(stream="s", failOnDataLoss=False).select("entry"), stream="out")
    assert len(world.entries("out")) == 1 + 501
