"""Whole databases, on ours and on a real Redis."""

from __future__ import annotations

import pytest
import redis
from tests.support.replies import error_of


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


@pytest.mark.since("7.0")
@pytest.mark.parametrize("index", [1 << 31, -(1 << 31) - 1])
def test_an_index_of_more_than_32_bits_is_refused_before_it_is_looked_up(r: redis.Redis, index: int) -> None:
    text = "value is out of range, value must between -2147483648 and 2147483647"
    r.set("a", 1)
    assert error_of(r, "SELECT", index) == text
    assert error_of(r, "MOVE", "a", index) == text
    assert error_of(r, "COPY", "a", "b", "DB", index) == text
    assert error_of(r, "SWAPDB", index, 0) == "invalid first DB index"
    assert error_of(r, "SWAPDB", 0, index) == "invalid second DB index"


def test_flush_takes_only_its_two_words(r: redis.Redis) -> None:
    r.set("a", 1)
    with pytest.raises(redis.ResponseError, match="syntax error"):
        r.execute_command("FLUSHALL", "NOW")
    assert r.dbsize() == 1
    assert r.flushall(asynchronous=True)
    assert r.dbsize() == 0
