"""EXPIRE and its variants, on ours and on a real Redis; tests/engine/test_keyspace.py controls the clock."""

from __future__ import annotations

import time

import pytest
import redis

FAR = 33_000_000_000_000  # in a thousand years, in milliseconds


def test_a_key_is_gone_after_its_time(r: redis.Redis) -> None:
    r.set("k", "v")
    assert r.pexpire("k", 5) is True
    time.sleep(0.01)
    assert r.get("k") is None
    assert r.exists("k") == 0
    assert r.pttl("k") == -2


def test_a_time_that_is_over_is_not_kept(r: redis.Redis) -> None:
    r.set("k", "old", px=1)
    time.sleep(0.005)
    r.set("k", "new", keepttl=True)
    assert r.get("k") == b"new"
    assert r.ttl("k") == -1


def test_keys_go_without_anybody_looking(r: redis.Redis) -> None:
    pipe = r.pipeline(transaction=False)
    for number in range(2000):
        pipe.set(f"k{number}", "v", px=1)
    pipe.execute()
    deadline = time.monotonic() + 60
    while r.dbsize() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert r.dbsize() == 0


@pytest.mark.parametrize(
    ("name", "amount"), [("EXPIRE", 1000), ("PEXPIRE", 1_000_000), ("EXPIREAT", None), ("PEXPIREAT", None)]
)
def test_every_way_to_say_the_same_time(r: redis.Redis, name: str, amount: int | None) -> None:
    r.set("k", "v")
    if amount is None:
        amount = int(time.time()) + 1000
        amount *= 1000 if name == "PEXPIREAT" else 1
    assert r.execute_command(name, "k", amount) == 1
    assert 990 <= r.ttl("k") <= 1000
    assert 990_000 < r.pttl("k") <= 1_000_000
    assert r.execute_command(name, "missing", amount) == 0


@pytest.mark.since("7.0")
def test_expiretime_answers_the_absolute_time_rounded(r: redis.Redis) -> None:
    r.set("k", "v")
    assert r.expiretime("k") == r.pexpiretime("k") == -1
    assert r.expiretime("missing") == r.pexpiretime("missing") == -2
    r.pexpireat("k", FAR + 499)
    assert (r.expiretime("k"), r.pexpiretime("k")) == (FAR // 1000, FAR + 499)
    r.pexpireat("k", FAR + 500)
    assert r.expiretime("k") == FAR // 1000 + 1
    r.pexpireat("k", (1 << 63) - 1)
    assert r.pexpiretime("k") == (1 << 63) - 1
    assert r.get("k") == b"v"


@pytest.mark.parametrize(
    "line", ["EXPIRE k 0", "EXPIRE k -1", "PEXPIRE k -9223372036854775808", "EXPIREAT k 1", "PEXPIREAT k 0"]
)
def test_a_time_in_the_past_deletes_at_once(r: redis.Redis, line: str) -> None:
    r.set("k", "v")
    assert r.execute_command(*line.split()) == 1
    assert r.dbsize() == 0


def test_persist_and_set_take_the_time_away(r: redis.Redis) -> None:
    r.set("k", "v", px=FAR)
    assert r.persist("k") is True
    assert r.persist("k") is False
    assert r.persist("missing") is False
    assert r.ttl("k") == -1
    r.pexpireat("k", FAR)
    r.set("k", "w")
    assert r.ttl("k") == -1


def test_changing_a_value_keeps_its_time(r: redis.Redis) -> None:
    r.set("s", "1")
    r.rpush("l", "a")
    for key in ("s", "l"):
        r.pexpireat(key, FAR)
    r.incr("s")
    r.append("s", "0")
    r.rpush("l", "b")
    assert r.ttl("s") > 1000
    assert r.ttl("l") > 1000
    r.lpop("l", 2)
    r.rpush("l", "a")
    assert r.ttl("l") == -1


@pytest.mark.since("7.0")
def test_conditions_compare_with_the_time_the_key_has(r: redis.Redis) -> None:
    r.set("k", "v")
    for condition, expected in [("XX", 0), ("GT", 0), ("NX", 1), ("NX", 0)]:
        assert r.execute_command("PEXPIREAT", "k", FAR, condition) == expected
    for when, condition, expected in [
        (FAR, "GT", 0), (FAR + 1, "gt", 1), (FAR + 1, "LT", 0), (FAR, "LT", 1), (FAR + 9, "XX", 1),
        (FAR + 10, "XX GT", 1), (FAR + 11, "XX LT", 0),
    ]:  # fmt: skip
        assert r.execute_command("PEXPIREAT", "k", when, *condition.split()) == expected
    assert r.pexpiretime("k") == FAR + 10
    r.persist("k")
    assert r.execute_command("PEXPIREAT", "k", FAR, "LT") == 1
    assert r.execute_command("PEXPIREAT", "k", 1, "GT") == 0
    assert r.exists("k") == 1


@pytest.mark.since("7.0")
@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("EXPIRE k x", "value is not an integer or out of range"),
        ("EXPIRE k 1.5", "value is not an integer or out of range"),
        ("EXPIRE k 1 NOW", "Unsupported option NOW"),
        ("EXPIRE k x NX XX", "NX and XX, GT or LT options at the same time are not compatible"),
        ("PEXPIRE k 1 LT NX", "NX and XX, GT or LT options at the same time are not compatible"),
        ("EXPIREAT k 1 GT LT", "GT and LT options at the same time are not compatible"),
        ("expire missing 9223372036854775807", "invalid expire time in 'expire' command"),
        ("EXPIRE k -9223372036854775807", "invalid expire time in 'expire' command"),
        ("PEXPIRE k 9223372036854775807", "invalid expire time in 'pexpire' command"),
        ("EXPIREAT k 9223372036854776", "invalid expire time in 'expireat' command"),
        ("TTL", "wrong number of arguments for 'ttl' command"),
    ],
)
def test_errors_are_those_of_redis_and_change_nothing(r: redis.Redis, line: str, error: str) -> None:
    r.set("k", "v")
    with pytest.raises(redis.ResponseError) as caught:
        r.execute_command(*line.split())
    assert str(caught.value) == error
    assert r.ttl("k") == -1
