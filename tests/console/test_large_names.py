"""Names, elements and reports of any size: pages and the answers of the server stay bounded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import redis
from tests.support.console.browser import Browser
from tests.support.console.console_process import ConsoleProcess

from penstock import Server
from penstock.console.errors import Missing
from penstock.console.long_names import MOST_BYTES, LongNames
from penstock.protocol.dead_letters import Letter
from penstock.protocol.pipelines import KEY, PipelineReport

NAME = b"n" * 1_000_000
HUGE = b"x" * 20_000_000
PAGE = 200_000
"""Bytes."""


@pytest.fixture(scope="module", autouse=True)
def _data(client: redis.Redis, server: Server) -> Iterator[None]:
    client.execute_command("TWRITE", NAME, "t", "e")
    client.execute_command("TREAD", NAME, 0, 1, "GROUP", NAME, "RETRY", 3_600_000, 0, "CONSUMER", NAME)
    client.execute_command("TWRITE", "dead", NAME, Letter(NAME, b"e", "w" * 1_000_000, 1, "g" * 1_000_000, 1).encode())
    client.set(b"k" + NAME, "value")
    client.hset("fields", NAME, "value")  # type: ignore[arg-type]
    with redis.Redis.from_url(server.url, client_name=NAME.decode()) as named:
        named.ping()
        yield


def test_a_name_of_a_megabyte_is_cut_and_the_whole_is_a_link_away(
    console: ConsoleProcess, browser: Browser, client: redis.Redis
) -> None:
    rows = console.view("streams")["rows"]
    (stream,) = (row["key"] for row in rows if row.get("name_size") == len(NAME))
    (found,) = console.view("keys?pattern=kn*")["rows"]
    (group,) = console.view(f"stream?key={stream}")["groups"]
    for page in (
        "streams", "overview", "clients", "keys", "key?key=fields", f"key?key={found['key']}", "letters?key=dead",
        f"stream?key={stream}", f"graph?key={stream}", f"messages?key={stream}", "messages?key=dead",
        f"move?key={stream}&group={group['id']}&to=first", f"retention?key={stream}&count=1",
    ):  # fmt: skip
        status, _, said = console.ask(f"/api/view/{page}")
        assert (status, len(json.dumps(said)) < PAGE) == (200, True), page
    for known, name in ((stream, NAME), (found["key"], b"k" + NAME), (group["id"], NAME)):
        assert console.ask(f"/api/stream/name?key={known}")[2] == name
    browser.open(f"{console.address}/streams")
    browser.click("td.name a", "nnn")
    browser.sees("Whole name (976.6 kB)")
    assert len(browser.text()) < 20_000
    status, _, said = console.ask("/api/do/delete-group", {"key": stream, "group": group["id"]})
    assert (status, len(said["text"]) < 500) == (200, True)
    assert client.execute_command("TGROUP", "LIST", NAME) == []
    assert console.ask("/api/do/delete-key", {"key": found["key"]})[0] == 200
    assert not client.exists(b"k" + NAME)
    status, _, said = console.ask(f"/api/view/stream?key=@{'0' * 64}")
    assert (status, "no longer knows" in said["error"]) == (404, True)


def test_a_name_that_looks_like_the_id_of_a_long_one_is_a_name(console: ConsoleProcess, client: redis.Redis) -> None:
    """So that nothing can be deleted in the place of another."""
    names = LongNames()
    known = names.id(NAME)
    client.set(known, "short")
    (row,) = console.view(f"keys?pattern=%40{known[1:]}")["rows"]
    assert row["key"] == f"%40{known[1:]}"
    assert console.view(f"key?key={row['key']}")["value"]["text"] == "short"
    assert names.name(row["key"]) == known.encode()
    assert console.ask("/api/do/delete-key", {"key": row["key"]})[0] == 200
    assert not client.exists(known)


def test_long_names_take_bounded_room() -> None:
    names, size = LongNames(), 8 << 20
    ids = [names.id(bytes([number]) * size) for number in range(MOST_BYTES // size + 2)]
    with pytest.raises(Missing):
        names.name(ids[0])
    assert names.name(ids[-1])[:1] == bytes([len(ids) - 1])
    assert names.id(names.name(ids[2])) == ids[2]


@contextmanager
def _bounded(client: redis.Redis, most: int) -> Iterator[None]:
    """The server sends at most so many bytes meanwhile."""
    before = client.info("stats")["total_net_output_bytes"]
    yield
    assert client.info("stats")["total_net_output_bytes"] - before < most


@pytest.mark.parametrize("kind", ["list", "hash", "set", "zset", "stream"])
def test_one_huge_element_among_small_ones_is_not_read_whole(
    console: ConsoleProcess, client: redis.Redis, kind: str
) -> None:
    few = [b"%d" % number for number in range(300)]
    elements = [*few, HUGE] if kind == "stream" else [*few[:3], HUGE, *few[3:]]  # the newest come first
    for at, element in enumerate(elements):
        words = {"list": ("RPUSH", element), "hash": ("HSET", b"%d" % at, element), "set": ("SADD", element),
                 "zset": ("ZADD", at, element), "stream": ("XADD", "*", "f", element)}  # fmt: skip
        client.execute_command(words[kind][0], "elements", *words[kind][1:])
    with _bounded(client, 2 << 20):
        cursor, sizes = "0", []
        while cursor is not None:
            said = console.view(f"key?key=elements&from={cursor}")
            sizes += [row["value"]["size"] for row in said["rows"]]
            cursor = said["more"]
    assert said["length"] == 301
    assert max(sizes) >= len(HUGE)
    client.delete("elements")


def test_the_reports_of_pipelines_are_read_in_parts(console: ConsoleProcess, client: redis.Redis) -> None:
    reports = {f"run {number}": PipelineReport(f"run {number}", "here", number, 1).encode() for number in range(1000)}
    client.hset(KEY, mapping={**reports, "huge": HUGE})
    with _bounded(client, 4 << 20):
        said = console.view("pipelines")
    assert (len(said["rows"]), said["more"]) == (200, True)
    client.delete(KEY)
    client.hset(
        KEY, mapping={"one": reports["run 1"], "huge": PipelineReport("h", "h", 2, 2, "failed", "e" * 99_999).encode()}
    )
    with _bounded(client, 2 << 20):
        said = console.view("pipelines")
    assert [(row["name"], row["error"]) for row in said["rows"]] == [
        ("run 1", ""),
        ("huge", "Its report is too large to be shown."),
    ]
    assert not said["more"]
