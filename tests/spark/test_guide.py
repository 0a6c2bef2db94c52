"""The examples of docs/spark.md and docs/pipelines.md run as they are written, with other folders and servers."""

from __future__ import annotations

import json
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.support.docs import DOCS, blocks
from tests.support.spark.world import World


def snippets(page: str, places: dict[str, str]) -> list[str]:
    """The blocks of Python of a page, with other places in them."""
    text = (DOCS / page).read_text(encoding="utf-8")
    for shown, place in places.items():
        assert shown in text
        text = text.replace(shown, place)
    return blocks(text, "python")


def click(user: str, milliseconds: int) -> str:
    return json.dumps({"page": "/", "user": user, "milliseconds": milliseconds})


def test_the_snippets_of_the_spark_guide_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.call("TWRITE", "clicks", "ENTRIES", "/", click("ada", 20), "/", click("bob", 1500))
    world.client.hset("user:1", mapping={"name": "ada", "age": 36})
    names: dict[str, Any] = {}
    starting, reading, typed, fields, writing, once, rows, avro, keys, counting = snippets(
        "spark.md", {"/data/checkpoints": str(world.folder)}
    )
    for variable in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(variable, sys.executable)
    exec(starting, names)
    assert names["spark"].sparkContext is world.spark.sparkContext
    exec(reading, names)
    assert names["clicks"].columns == ["stream", "offset", "time", "tag", "entry"]
    world.call("TSCHEMA", "SET", "clicks", "page string, user string, milliseconds int")
    exec(typed, names)
    assert names["clicks"].columns == ["stream", "offset", "time", "tag", "page", "user", "milliseconds"]
    exec(fields, names)
    exec(writing, names)
    names["query"].processAllAvailable()
    names["query"].stop()
    ((_, tag, entry),) = world.call("TREAD", "alerts", 1, 10)
    assert (tag, json.loads(entry)["milliseconds"]) == (b"bob", 1500)
    exec(once, names)
    for _ in range(2):
        names["write"](world.read(stream="alerts"), 0)
    assert len(world.entries("alerts")) == 2
    exec(rows, names)
    assert world.entries("slow") == [b'{"page":"/","user":"ada","milliseconds":2100}']
    (statements,) = blocks((DOCS / "spark.md").read_text(encoding="utf-8"), "sql")
    for statement in statements.strip().removesuffix(";").split(";\n"):
        world.spark.sql(statement)
    assert world.entries("slow")[1:] == [b'{"page":"/","milliseconds":1500}']
    exec(avro, names)
    assert [tuple(row) for row in names["orders"].select("offset", "id", "price", "note").collect()] == [
        (1, 1, Decimal("1.50"), "fragile")
    ]
    exec(keys, names)
    assert world.client.hgetall("user:1") == {b"name": b"ada", b"age": b"36"}
    assert 0 < world.client.pttl("user:1") <= 86_400_000
    exec(counting, names)
    names["counting"].processAllAvailable()
    names["counting"].stop()
    assert world.client.hgetall("page:/") == {b"clicks": b"2", b"milliseconds": b"1520"}


def test_the_job_for_a_cluster_runs(world: World) -> None:
    world.write("clicks", "one", "two")
    places = {"redis://events:6379": world.url, "s3a://bucket": Path(world.folder).as_uri()}
    *_, job = snippets("pipelines.md", places)
    exec(job, {"spark": world.spark})
    assert sorted(world.entries("copied")) == [b"one", b"two"]
