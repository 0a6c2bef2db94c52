"""Whole databases, on ours and on a real Redis."""

from __future__ import annotations

import pytest
import redis


def test_select_and_swap_exchange_contents(r: redis.Redis) -> None:
    r.set("a", "zero")
    r.execute_command("SWAPDB", 0, 1)
    assert r.get("a") is None
    r.execute_command("SWAPDB", 0, 1)
    assert r.get("a") == b"zero"
    with pytest.raises(redis.ResponseError, match="invalid first DB index"):
        r.execute_command("SWAPDB", "x", 1)
    with pytest.raises(redis.ResponseError, match="DB index is out of range"):
        r.execute_command("SELECT", 99)


def test_flush_takes_only_its_two_words(r: redis.Redis) -> None:
    r.set("a", 1)
    with pytest.raises(redis.ResponseError, match="syntax error"):
        r.execute_command("FLUSHALL", "NOW")
    assert r.dbsize() == 1
    assert r.flushall(asynchronous=True)
    assert r.dbsize() == 0
