"""The path of load(), save() and start() is the name of a stream, as users of other formats try it."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException
from tests.support.spark.world import World

from penstock.spark import reason
from penstock.spark.options import OptionError, parse


def test_a_path_names_a_stream() -> None:
    assert parse({"path": "clicks"}).stream == ("clicks",)
    assert parse({"path": "clicks, orders"}).stream == ("clicks", "orders")
    assert parse({"paths": '["clicks", "orders"]'}).stream == ("clicks", "orders")
    assert parse({"path": "clicks", "subscribe": "clicks"}).stream == ("clicks",)
    assert parse({"path": "file:/warehouse/t"}).stream == (), "Spark has put it there"


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("stream", "orders"),
        ("topic", "orders"),
        ("pattern", "o*"),
        ("redisStream", "clicks"),
        ("keys", "user:*"),
        ("type", "set"),
    ],
)
def test_a_path_and_an_option_that_names_something_else_are_refused(option: str, text: str) -> None:
    named = {"topic": "stream"}.get(option, option)
    with pytest.raises(OptionError) as caught:
        parse({"path": "clicks", option: text})
    assert str(caught.value) == (
        f"the path 'clicks' of load(), save() or start() is the name of a stream, and the option {named} says "
        "something else; give one of them"
    )


def test_load_save_and_start_take_the_name_of_a_stream(world: World) -> None:
    world.write("orders", "a", "b")
    read = world.spark.read.format("penstock").option("url", world.url)
    assert [bytes(row.entry) for row in read.load("orders").collect()] == [b"a", b"b"]
    world.write("more", "c")
    assert read.load(["orders", "more"]).count() == 3
    read.load("orders").select("entry").write.format("penstock").option("url", world.url).mode("append").save("saved")
    assert world.entries("saved") == [b"a", b"b"]
    with pytest.raises(PySparkException) as caught:
        read.option("stream", "other").load("orders").count()
    assert "give one of them" in reason(caught.value)
    assert "\n" not in reason(caught.value)
    frame = world.spark.readStream.format("penstock").option("url", world.url).load("orders").select("entry")
    writer = frame.writeStream.format("penstock").option("url", world.url).trigger(availableNow=True)
    writer.option("checkpointLocation", str(world.folder / "checkpoint")).start("copied").awaitTermination()
    assert world.entries("copied") == [b"a", b"b"]
