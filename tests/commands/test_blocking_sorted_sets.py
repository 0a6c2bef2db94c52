"""Waiting for sorted sets, on ours and on a real Redis."""

from __future__ import annotations

import pytest
import redis
from tests.support.commands.blocking import answer, call, waiting

from penstock.engine.dispatch import Engine
from penstock.engine.session import Session


def test_what_is_there_is_popped_at_once(r: redis.Redis) -> None:
    r.zadd("z", {"a": 1, "b": 2, "c": 3})
    assert call(r, "BZPOPMIN none z 0") == [b"z", b"a", b"1"]
    assert call(r, "BZPOPMAX none z 0") == [b"z", b"c", b"3"]
    assert r.zrange("z", 0, -1) == [b"b"]


def test_nothing_before_the_timeout_is_null(r: redis.Redis) -> None:
    assert call(r, "BZPOPMIN none 0.01") is None
    assert call(r, "BZPOPMAX none 0.01") is None


def test_a_waiting_client_gets_the_first_of_all_members_added_at_once(r: redis.Redis) -> None:
    with waiting(r, "BZPOPMIN x z 0") as [connection]:
        r.zadd("z", {"b": 2, "a": 1, "c": 3})
        assert answer(connection) == [b"z", b"a", b"1"]
    assert r.zrange("z", 0, -1) == [b"b", b"c"]


def test_clients_are_served_in_the_order_they_came(r: redis.Redis) -> None:
    with waiting(r, "BZPOPMAX z 0", "BZPOPMIN z 0", "BZPOPMIN z 0") as [first, second, third]:
        r.zadd("z", {"a": 1, "b": 2})
        assert answer(first) == [b"z", b"b", b"2"]
        assert answer(second) == [b"z", b"a", b"1"]
        r.zadd("z", {"late": 5})
        assert answer(third) == [b"z", b"late", b"5"]
    assert r.exists("z") == 0


def test_another_type_wakes_no_client(r: redis.Redis) -> None:
    with waiting(r, "BZPOPMIN z 0") as [connection]:
        r.lpush("z", "element")
        r.delete("z")
        r.zadd("other", {"a": 1})
        r.rename("other", "z")
        assert answer(connection) == [b"z", b"a", b"1"]


def test_a_stored_union_wakes_waiting_clients(r: redis.Redis) -> None:
    r.zadd("x", {"a": 1})
    r.zadd("y", {"a": 2})
    with waiting(r, "BZPOPMIN z 0") as [connection]:
        r.zunionstore("z", ["x", "y"])
        assert answer(connection) == [b"z", b"a", b"3"]


def test_commands_do_not_block_inside_a_transaction(r: redis.Redis) -> None:
    with r.pipeline() as pipe:
        pipe.bzpopmin("none", 0)
        pipe.zadd("z", {"a": 1})
        pipe.bzpopmax("z", 0)
        assert pipe.execute() == [None, 1, (b"z", b"a", 1.0)]


@pytest.mark.since("7.0")
def test_bzmpop_pops_several_or_waits_for_one(r: redis.Redis) -> None:
    r.zadd("z", {"a": 1, "b": 2, "c": 3})
    assert call(r, "BZMPOP 0 2 none z MAX COUNT 2") == [b"z", [[b"c", b"3"], [b"b", b"2"]]]
    assert call(r, "BZMPOP 0.01 1 none MIN") is None
    with waiting(r, "BZMPOP 0 2 x y MIN COUNT 5") as [connection]:
        r.zadd("y", {"a": 1, "b": 2})
        assert answer(connection) == [b"y", [[b"a", b"1"], [b"b", b"2"]]]
    assert r.exists("y") == 0


@pytest.mark.since("7.0")
@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("BZPOPMIN z -1", "timeout is negative"),
        ("BZPOPMIN z soon", "timeout is not a float or out of range"),
        ("BZMPOP soon 0 z MIN", "numkeys should be greater than 0"),
        ("BZMPOP soon 1 z MIN", "timeout is not a float or out of range"),
        ("BZMPOP 0 1 z MIDDLE", "syntax error"),
        ("BZMPOP 0 1 z MIN COUNT 0", "count should be greater than 0"),
        ("BZMPOP 0 1 z MIN COUNT", "syntax error"),
        ("BZMPOP 0 2 z MIN", "syntax error"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_popped(r: redis.Redis, text: str, error: str) -> None:
    r.zadd("z", {"a": 1})
    assert error in call(r, text)
    assert r.zcard("z") == 1


def test_scores_are_doubles_in_resp3(r3: redis.Redis) -> None:
    r3.zadd("z", {"a": 1.5})
    assert call(r3, "BZPOPMIN z 0") == [b"z", b"a", 1.5]
    assert call(r3, "BZPOPMIN z 0.01") is None


@pytest.mark.parametrize(
    ("text", "logged"),
    [
        ("BZPOPMIN none z 0", b"ZPOPMIN z 1"),
        ("BZPOPMAX none z 0", b"ZPOPMAX z 1"),
        ("BZMPOP 0 2 none z MAX COUNT 9", b"ZPOPMAX z 2"),
        ("ZMPOP 2 none z MIN", b"ZPOPMIN z 1"),
    ],
)
def test_what_was_popped_is_logged_as_a_command_that_does_not_wait(text: str, logged: bytes) -> None:
    engine = Engine()
    session = Session(engine)
    engine.execute(session, b"ZADD z 1 a 2 b".split())
    log: list[bytes] = []
    engine.log = lambda entries: log.extend(b" ".join(argv) for _, argv in entries)
    engine.execute(session, text.encode().split())
    assert log == [logged]
