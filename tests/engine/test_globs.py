"""Globs: what Redis's KEYS says about a pattern and a name is what we say."""

from __future__ import annotations

import time

import pytest
import redis
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from penstock.engine.globs import compile_glob
from penstock.testing.redis import RedisServer

patterns = st.lists(
    st.sampled_from([b"a", b"b", b"c", b"A", b"*", b"?", b"[", b"]", b"^", b"-", b"\\", b"!", b".", b"\n", b"\xff"]),
    max_size=9,
).map(b"".join)
names = st.lists(st.sampled_from([b"a", b"b", b"c", b"A", b"]", b"-", b"\\", b"^", b".", b"\n", b"\xff"]), max_size=6)


@pytest.fixture(scope="module")
def judge(theirs: RedisServer) -> redis.Redis:
    """A real Redis, on a database of its own."""
    client = redis.Redis(port=theirs.port, db=9, protocol=2)
    client.flushdb()
    return client


@settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck))
@given(pattern=patterns, name=names.map(b"".join))
@example(pattern=b"**", name=b"")
@example(pattern=b"*", name=b"")
@example(pattern=b"", name=b"")
@example(pattern=b"[a-]", name=b"^")
@example(pattern=b"[^", name=b"b")
@example(pattern=b"[]a]", name=b"a")
@example(pattern=b"[c-a]b", name=b"bb")
@example(pattern=b"[\\]]", name=b"]")
@example(pattern=b"a*a", name=b"a")
@example(pattern=b"[a-\xff", name=b"b")
@example(pattern=b"[\xf0-\xff]", name=b"\xff")
@example(pattern=b"a*[^a]*a?", name=b"aba-")
@example(pattern=b"\\", name=b"\\")
def test_a_pattern_matches_what_redis_says_it_matches(judge: redis.Redis, pattern: bytes, name: bytes) -> None:
    judge.set(name, "")
    try:
        assert compile_glob(pattern)(name) == (judge.keys(pattern) == [name])
    finally:
        judge.delete(name)


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        (b"MAX*", b"maxmemory", True),
        (b"max?emory", b"MAXMEMORY", True),
        (b"[A-C]x", b"bX", True),
        (b"[\\A]", b"a", False),  # Redis compares an escaped member of a class as it is
        (b"[^a]", b"A", False),
        (b"save", b"SAVE", True),
    ],
)
def test_case_is_ignored_on_request(pattern: bytes, name: bytes, matches: bool) -> None:
    assert compile_glob(pattern, ignore_case=True)(name) is matches


def test_many_stars_do_not_backtrack() -> None:
    started = time.process_time()
    assert not compile_glob(b"a*" * 40 + b"b")(b"a" * 2000)
    assert time.process_time() - started < 5  # it would take for ever, not a little longer


def test_the_same_pattern_is_compiled_once() -> None:
    assert compile_glob(b"once*per[ab]") is compile_glob(b"once*per[ab]")
