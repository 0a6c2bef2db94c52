"""mypy and pyright see the real types of the clients: a misspelt option or a misused reply is an error.

basedpyright is pyright in a wheel of its own; pyright's own wheel fetches the program when it is first run.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio

import penstock
from penstock.client.api import options
from penstock.client.api.shared import OPTIONS
from penstock.client.cluster.core import ClusterCore
from penstock.client.consumer.follow import Follow, FollowOptions
from penstock.client.consumer.options import ConsumerOptions, ConsumerSettings

ROOT = Path(__file__).parent.parent.parent

RIGHT = """\
from typing import assert_type

import penstock
from penstock import aio
from penstock.client.api.schemas import SchemaInfo
from penstock.client.api.sync import Pipeline
from penstock.client.consumer.delivered import Delivered

client = penstock.Client("localhost", 6379, db=1, delivery="exactly-once", socket_timeout=3.5)
assert_type(client, penstock.Client)
assert_type(penstock.Client.from_url("redis://localhost", delivery="at-most-once"), penstock.Client)
assert_type(client.get("key"), bytes | str | None)
assert_type(client.set("key", 1), bool | str | bytes | None)
assert_type(client.tschema_set("orders", "item string"), int)
assert_type(client.tschema_get("orders"), SchemaInfo | None)
assert_type(client.pipeline().tschema_del("orders"), Pipeline)
assert_type(client.twrite("orders", "ada", "tea"), int | None)
assert_type(client.tinfo("orders").length, int)
assert_type(client.pipeline().twrite("orders", "ada", "tea").tevict("orders", 1), Pipeline)
for message in client.tread("orders", 1):
    if message is not None:
        assert_type(message.offset, int)
        assert_type(message.entry, bytes | str)


def cook(message: Delivered) -> None:
    assert_type(message.attempts, int)


assert_type(client.consumer("orders", "kitchen", retry_ms=1000).run(cook, workers=4), None)
cluster = penstock.Cluster("localhost", 7000, patience=3, password="secret")
assert_type(cluster.tschema_versions("orders"), list[SchemaInfo])
assert_type(cluster.get("key"), bytes | str | None)

try:
    client.incr("hits")
except penstock.NotSent as error:
    assert_type(error.state, penstock.State)


async def tasks() -> None:
    client = aio.Client(host="localhost", delivery=penstock.Delivery.EXACTLY_ONCE)
    assert_type(await client.get("key"), bytes | str | None)
    assert_type(client.pipeline(), aio.Pipeline)
    assert_type(await client.tschema_set("orders", "item string"), int)
    assert_type(await client.tack("orders", "kitchen", 1), int)
    assert_type(client.pipeline().tschema_del("orders"), aio.Pipeline)
    assert_type(aio.Cluster.from_url("redis://localhost:7000", read_from_replicas=True), aio.Cluster)
"""

MISTAKES = """\
import penstock
from penstock import aio

penstock.Client(deliverry="exactly-once")
penstock.Client(delivery=3)
penstock.Client.from_url("redis://localhost", max_bufered_bytes=1)
penstock.Cluster("localhost", 7000, paatience=3)
aio.Client(hosst="localhost")
aio.Cluster("localhost", 7000, split="yes")
penstock.NotSend
penstock.Client().get("key").upper()
penstock.Client().tschema_set("orders", "item string", chek="refuse")
penstock.Client().twrite("orders", "ada")
penstock.Client().tread("orders", retry=5)
penstock.Client().consumer("orders", "kitchen", retri_ms=5)
penstock.Client().producer("orders", linger=5)
"""
FIRST_MISTAKE = 4


def run_checker(name: str, folder: Path) -> list[str]:
    """The lines in which a checker finds errors in the two programs, each as `path:line: error ...`.

    It checks both in one run, because most of its time goes into what they import.
    """
    paths = [folder / "right.py", folder / "mistakes.py"]
    for path, text in zip(paths, (RIGHT, MISTAKES), strict=True):
        path.write_text(text, encoding="utf-8")
    program = {
        "mypy": ["-m", "mypy", "--no-error-summary", "--strict"],
        "pyright": ["-m", "basedpyright", "--level", "error", "--pythonpath", sys.executable],
    }[name]
    words = [sys.executable, *program, *map(str, paths)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert not done.stderr, done.stderr
    assert done.returncode in (0, 1), done.stdout
    return [line for line in done.stdout.splitlines() if re.search(r"\berror\b:", line)]


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_a_checker_knows_what_clients_take_and_give_and_finds_each_mistake(checker: str, tmp_path: Path) -> None:
    errors = run_checker(checker, tmp_path)
    found = [match[1] for line in errors if (match := re.search(r"mistakes\.py:(\d+)", line))]
    assert set(map(int, found)) == set(range(FIRST_MISTAKE, len(MISTAKES.splitlines()) + 1)), errors
    assert [line for line in errors if "mistakes.py:" not in line] == []


def _arguments(constructor: Any) -> set[str]:
    return inspect.signature(constructor).parameters.keys() - {"self", "connection"}


@pytest.mark.parametrize(
    ("named", "taken"),
    [
        (options.ClientOptions, _arguments(redis.Redis.__init__) | set(OPTIONS)),
        (options.AioClientOptions, _arguments(redis.asyncio.Redis.__init__) | set(OPTIONS)),
        (options.RoutingOptions, _arguments(ClusterCore.__init__) - {"host", "port", "max_connections"}),
    ],
)
def test_a_checker_is_told_of_every_option(named: Any, taken: set[str]) -> None:
    assert named.__optional_keys__ == taken


@pytest.mark.parametrize(
    ("named", "taken", "given"),
    [(ConsumerOptions, ConsumerSettings, {"key", "group"}), (FollowOptions, Follow, {"key", "start"})],
)
def test_a_checker_is_told_of_every_option_of_a_consumer(named: Any, taken: Any, given: set[str]) -> None:
    assert named.__optional_keys__ == {field.name for field in fields(taken)} - given


def test_every_public_name_is_there() -> None:
    for name in penstock.__all__:
        assert getattr(penstock, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'NotSend'"):
        _ = penstock.NotSend
