"""PEEK: the answer is bounded whatever a value holds."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from penstock import Server

HUGE = b"x" * 3_000_000


@pytest.fixture(scope="module")
def server() -> Any:
    with Server() as started:
        yield started


@pytest.fixture
def client(server: Server) -> Any:
    with redis.Redis.from_url(server.url) as connected:
        connected.flushall()
        yield connected


def test_every_type_is_shown_with_its_elements_cut(client: redis.Redis) -> None:
    client.hset("hash", mapping={b"f" * 50: HUGE, "b": "small"})  # type: ignore[dict-item]
    client.rpush("list", "a", HUGE, "c")
    client.sadd("set", HUGE)
    client.zadd("zset", {HUGE: 2.5, "low": 1})
    client.xadd("stream", {"field": HUGE})
    client.set("string", HUGE)
    client.set("number", 42)
    found = {key: client.execute_command("PEEK", key, 0, "BYTES", 20) for key in client.scan_iter()}
    size, cut = len(HUGE), HUGE[:20]
    assert found[b"hash"][0] == b"0"
    assert sorted(found[b"hash"][1]) == [[b"b", b"small", 5], [b"f" * 20, cut, size]]
    assert found[b"list"] == [b"0", [[0, b"a", 1], [1, cut, size], [2, b"c", 1]]]
    assert found[b"set"] == [b"0", [[None, cut, size]]]
    assert found[b"zset"] == [b"0", [[b"1", b"low", 3], [b"2.5", cut, size]]]
    assert found[b"stream"][1][0][1:] == [b"field " + HUGE[:14], size + 6]
    assert found[b"string"] == [b"0", [[None, cut, size]]]
    assert found[b"number"] == [b"0", [[None, b"42", 2]]]
    assert client.execute_command("PEEK", "nothing", 0) == [b"0", []]


@pytest.mark.parametrize("kind", ["hash", "list", "set", "zset"])
def test_all_elements_are_found_in_parts(client: redis.Redis, kind: str) -> None:
    names = [f"{number:04}" for number in range(1000)]
    fill = {
        "hash": ("HSET", *(word for name in names for word in (name, name))),
        "list": ("RPUSH", *names),
        "set": ("SADD", *names),
        "zset": ("ZADD", *(word for number, name in enumerate(names) for word in (number, name))),
    }
    command, *words = fill[kind]
    client.execute_command(command, "key", *words)
    seen, cursor, parts = [], b"0", 0
    while parts == 0 or cursor != b"0":
        cursor, rows = client.execute_command("PEEK", "key", cursor, "COUNT", 300)
        seen += [row[1].decode() for row in rows]
        parts += 1
    assert parts > 2
    assert sorted(set(seen)) == names


def test_what_cannot_be_shown_is_refused(client: redis.Redis) -> None:
    client.execute_command("TWRITE", "tstream", "t", "e")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        client.execute_command("PEEK", "tstream", 0)
    for words in (("COUNT", 0), ("COUNT", 1001), ("BYTES", 0), ("BYTES", 1 << 21), ("COUNT",), ("MATCH", "*")):
        with pytest.raises(redis.ResponseError):
            client.execute_command("PEEK", "key", 0, *words)
