"""Sums of decimal text, against a real Redis's INCRBYFLOAT."""

from __future__ import annotations

import pytest
import redis
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from penstock.testing.redis import RedisServer
from penstock.types import long_double

numbers = st.one_of(
    st.floats(-10, 10).map(repr),
    st.floats(-1e25, 1e25).map(repr),
    st.integers(-(10**25), 10**25).map(str),
    st.decimals(-1000, 1000, places=6).map(str),
    st.tuples(st.floats(-1, 1), st.integers(-60, 60)).map(lambda pair: f"{pair[0]:.12f}e{pair[1]}"),
    st.sampled_from(["inf", "5.", ".5", "", " 1", "1 ", "1_0", "+3", "0x1.8p1", "0e99999", "1e-5000", "nan", "-0", "1e",
        "e1"]),
).map(str.encode)  # fmt: skip


@pytest.fixture(scope="module")
def judge(theirs: RedisServer) -> redis.Redis:
    """A real Redis, on a database of its own."""
    return redis.Redis(port=theirs.port, db=8, protocol=2)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(one=numbers, other=numbers)
@example(one=b"18446744073709551615", other=b"1")
@example(one=b"36893488147419103231", other=b"0")
@example(one=b"-1e-18", other=b"0")
def test_a_sum_is_the_one_redis_makes(judge: redis.Redis, one: bytes, other: bytes) -> None:
    judge.set("k", one)
    try:
        judge.execute_command("INCRBYFLOAT", "k", other)
        wanted = judge.get("k")
    except redis.ResponseError:
        with pytest.raises((ValueError, long_double.Infinite)):
            long_double.add(one, other)
    else:
        assert long_double.add(one, other) == wanted


@pytest.mark.parametrize("text", [b"1e999999999", b"1e-999999999", b"0x1p999999999", b"1" * 6000, b"1e" + b"9" * 5000])
def test_numbers_that_would_take_for_ever_are_refused_at_once(text: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        long_double.add(text, b"1")
