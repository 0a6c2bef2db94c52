"""Sorted sets, on ours and on a real Redis."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import redis
from hypothesis import strategies as st
from tests.support.comparison import Argv, comparison_machine, reply_of

from penstock.testing.redis import find_redis


def raw(client: redis.Redis, *argv: str | int | float) -> Any:
    """The reply as it travels: no callback of redis-py in between, an error as its text."""
    return reply_of(client, [str(arg).encode() for arg in argv])


def fill(client: redis.Redis, **scores: float) -> None:
    client.zadd("z", scores)


# -- member by member -----------------------------------------------------------------------------------------


def test_zadd_counts_what_it_added_and_with_ch_what_it_changed(r: redis.Redis) -> None:
    assert raw(r, "ZADD", "z", 1, "a", 2, "b", 1, "a") == 2
    assert raw(r, "ZADD", "z", 1, "a", 3, "b", 4, "c") == 1
    assert raw(r, "ZADD", "z", "CH", 1, "a", 4, "b", 5, "d") == 2
    assert raw(r, "ZADD", "z", "inf", "a") == 0
    assert r.zscore("z", "a") == math.inf


def test_zadd_options_keep_scores_from_changing(r: redis.Redis) -> None:
    fill(r, a=5)
    assert raw(r, "ZADD", "z", "NX", 1, "a", 1, "b") == 1
    assert raw(r, "ZADD", "z", "XX", "CH", 6, "a", 6, "c") == 1
    assert raw(r, "ZADD", "z", "GT", "CH", 3, "a", 3, "b") == 1
    assert raw(r, "ZADD", "z", "xx", "lt", "ch", 4, "a", 4, "b", 4, "c") == 1
    assert raw(r, "ZRANGE", "z", 0, -1, "WITHSCORES") == [b"b", b"3", b"a", b"4"]
    assert raw(r, "ZADD", "none", "XX", 1, "a") == 0
    assert raw(r, "ZADD", "none", "XX", "INCR", 1, "a") is None
    assert r.exists("none") == 0


def test_zadd_incr_answers_the_sum_or_null(r: redis.Redis) -> None:
    assert raw(r, "ZADD", "z", "INCR", 1.5, "a") == b"1.5"
    assert raw(r, "ZADD", "z", "INCR", 0.1, "a") == b"1.6000000000000001"
    assert raw(r, "ZADD", "z", "INCR", "GT", -1, "a") is None
    assert raw(r, "ZADD", "z", "INCR", "NX", 1, "a") is None
    assert raw(r, "ZADD", "z", "INCR", "XX", 1, "b") is None
    assert raw(r, "ZINCRBY", "z", "inf", "a") == b"inf"
    assert "resulting score is not a number (NaN)" in raw(r, "ZINCRBY", "z", "-inf", "a")
    assert "resulting score is not a number (NaN)" in raw(r, "ZADD", "z", "INCR", "-inf", "a")


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        ("NX 1", "syntax error"),
        ("NX XX 1 a", "XX and NX options at the same time are not compatible"),
        ("GT LT 1 a", "GT, LT, and/or NX options at the same time are not compatible"),
        ("NX GT 1 a", "GT, LT, and/or NX options at the same time are not compatible"),
        ("INCR 1 a 2 b", "INCR option supports a single increment-element pair"),
        ("1 a 2", "syntax error"),
        ("1 a x b", "value is not a valid float"),
        ("nan a", "value is not a valid float"),
        ("1e400 a", "value is not a valid float"),
        ("1e-400 a", "value is not a valid float"),
        ("1_0 a", "value is not a valid float"),
        ("1.2.3 a", "value is not a valid float"),
    ],
)
def test_zadd_refuses_and_changes_nothing(r: redis.Redis, argv: str, error: str) -> None:
    assert error in raw(r, "ZADD", "z", *argv.split())
    assert r.exists("z") == 0


@pytest.mark.parametrize("spelling", ["0x10", "0x1.8p3", "1.", ".5", "+1e2", "-Infinity", "-0", "1e-320", "3.0e0"])
def test_scores_may_be_spelled_as_in_c(r: redis.Redis, spelling: str) -> None:
    expected = float.fromhex(spelling) if "x" in spelling else float(spelling)
    assert raw(r, "ZADD", "z", spelling, "a") == 1
    assert r.zscore("z", "a") == expected


def test_a_string_is_no_sorted_set_for_any_command(r: redis.Redis) -> None:
    r.set("s", "text")
    for argv in (
        "ZADD s 1 a", "ZADD s NX 1 a", "ZADD s XX 1 a", "ZINCRBY s 1 a", "ZSCORE s a", "ZMSCORE s a", "ZCARD s",
        "ZRANK s a", "ZREVRANK s a", "ZREM s a", "ZCOUNT s 0 1", "ZLEXCOUNT s - +", "ZRANGE s 0 1", "ZPOPMIN s",
        "ZPOPMAX s 1", "ZRANDMEMBER s", "ZRANDMEMBER s 2", "ZUNION 1 s", "ZINTERSTORE d 1 s", "ZDIFF 1 s", "ZSCAN s 0",
        "ZRANGESTORE d s 0 1", "ZREMRANGEBYRANK s 0 1", "BZPOPMIN s 0.01",
    ):  # fmt: skip
        assert "WRONGTYPE" in raw(r, *argv.split()) or "wrong kind of value" in raw(r, *argv.split()), argv
    assert "min or max is not a float" in raw(r, "ZCOUNT", "s", "x", 1)
    assert r.get("s") == b"text"


def test_ranks_count_from_either_end(r: redis.Redis) -> None:
    fill(r, a=1, b=2, c=2)
    assert [r.zrank("z", name) for name in "abcx"] == [0, 1, 2, None]
    assert [r.zrevrank("z", name) for name in "abcx"] == [2, 1, 0, None]
    r.zadd("z", {"a": 9})
    assert [r.zrank("z", name) for name in "abc"] == [2, 0, 1]
    assert r.zmscore("z", ["b", "x"]) == [2.0, None]
    assert r.zmscore("none", ["b", "x"]) == [None, None]


def test_a_sorted_set_goes_with_its_last_member(r: redis.Redis) -> None:
    for remove in ("ZREM z a b", "ZPOPMIN z 5", "ZREMRANGEBYRANK z 0 -1", "ZREMRANGEBYSCORE z -inf +inf",
                   "ZREMRANGEBYLEX z - +"):  # fmt: skip
        fill(r, a=1, b=1)
        raw(r, *remove.split())
        assert r.exists("z") == 0, remove


def test_names_of_several_scores_are_a_run_from_the_first_that_fits(r: redis.Redis) -> None:
    fill(r, d=1, e=2, a=3, b=4)
    for low, high in (("[b", "[a"), ("(c", "(c"), ("[f", "[d")):
        assert r.zrangebylex("z", low, high) == []
        assert r.zlexcount("z", low, high) == 0
        assert r.zremrangebylex("z", low, high) == 0
    fill(r, c=1, a=2, b=2, d=3)
    assert r.zrangebylex("z", "[b", "[c") == [b"c", b"a", b"b"]


def test_popping_takes_the_ends_in_order(r: redis.Redis) -> None:
    fill(r, a=1, b=2, c=3, d=4, e=5)
    assert raw(r, "ZPOPMIN", "z") == [b"a", b"1"]
    assert raw(r, "ZPOPMAX", "z", 2) == [b"e", b"5", b"d", b"4"]
    assert raw(r, "ZPOPMAX", "z", 0) == []
    assert raw(r, "ZPOPMAX", "none") == []
    assert "syntax error" in raw(r, "ZPOPMIN", "z", 1, 1)
    assert r.zcard("z") == 2


@pytest.mark.since("7.0")
def test_a_pop_of_nothing_still_looks_at_its_arguments(r: redis.Redis) -> None:
    r.set("s", "text")
    assert "wrong kind of value" in raw(r, "ZPOPMAX", "s", 0)
    assert "must be positive" in raw(r, "ZPOPMIN", "z", -1)


@pytest.mark.since("7.0")
def test_zmpop_takes_from_the_first_set_there_is(r: redis.Redis) -> None:
    fill(r, a=1, b=2, c=3)
    assert raw(r, "ZMPOP", 2, "none", "z", "MIN") == [b"z", [[b"a", b"1"]]]
    assert raw(r, "ZMPOP", 2, "none", "z", "MAX", "COUNT", 9) == [b"z", [[b"c", b"3"], [b"b", b"2"]]]
    assert raw(r, "ZMPOP", 2, "none", "z", "MAX", "COUNT", 9) is None


def test_zscan_passes_every_member_with_its_score(r: redis.Redis) -> None:
    r.zadd("z", {f"m{n}": n + 0.5 for n in range(500)})
    assert dict(r.zscan_iter("z", count=50)) == {b"m%d" % n: n + 0.5 for n in range(500)}
    assert {name for name, _ in r.zscan_iter("z", match="m?")} == {b"m%d" % n for n in range(10)}
    assert raw(r, "ZSCAN", "none", 0, "BAD") == [b"0", []]
    r.delete("z")
    fill(r, b=2, a=3, c=0.1)
    assert raw(r, "ZSCAN", "z", 0) == [b"0", [b"c", b"0.10000000000000001", b"b", b"2", b"a", b"3"]]


# -- random choice --------------------------------------------------------------------------------------------


def test_random_members_are_distinct_or_drawn_again_by_the_sign_of_count(r: redis.Redis) -> None:
    names = {f"m{n}": float(n) for n in range(20)}
    r.zadd("z", names)
    members = {name.encode() for name in names}
    assert raw(r, "ZRANDMEMBER", "z") in members
    distinct = raw(r, "ZRANDMEMBER", "z", 7)
    assert len(set(distinct)) == 7 and set(distinct) <= members
    assert set(raw(r, "ZRANDMEMBER", "z", 99)) == members
    assert raw(r, "ZRANDMEMBER", "z", 0) == []
    drawn = raw(r, "ZRANDMEMBER", "z", -50)
    assert len(drawn) == 50 and len(set(drawn)) <= 20
    flat = raw(r, "ZRANDMEMBER", "z", -3, "WITHSCORES")
    assert all(name == b"m%d" % int(score) for name, score in zip(flat[::2], flat[1::2], strict=True))
    assert raw(r, "ZRANDMEMBER", "none") is None
    assert raw(r, "ZRANDMEMBER", "none", 3) == []


@pytest.mark.since("7.0")  # an older one prefers some members when it draws distinct ones
def test_every_member_is_as_likely_as_any_other(r: redis.Redis) -> None:
    """Ten members, 20,000 draws: a count off by 300 (seven standard deviations) does not happen by chance."""
    r.zadd("z", {f"m{n}": 10.0**n for n in range(10)})
    for draws in (raw(r, "ZRANDMEMBER", "z", -20000), _sampled(r, 5, 4000)):
        assert all(abs(count - 2000) < 300 for count in Counter(draws).values()), Counter(draws)
        assert len(Counter(draws)) == 10


def _sampled(client: redis.Redis, size: int, times: int) -> list[bytes]:
    with client.pipeline(transaction=False) as pipe:
        for _ in range(times):
            pipe.zrandmember("z", size)
        return [member for sample in pipe.execute() for member in sample]


# -- ranges ---------------------------------------------------------------------------------------------------


def test_ranges_by_score_know_open_and_infinite_bounds(r: redis.Redis) -> None:
    fill(r, low=-math.inf, a=1, b=2, c=3, high=math.inf)
    assert r.zrangebyscore("z", "(1", "3") == [b"b", b"c"]
    assert r.zrangebyscore("z", "-inf", "(1") == [b"low"]
    assert r.zrangebyscore("z", "(-inf", "(+inf") == [b"a", b"b", b"c"]
    assert r.zrevrangebyscore("z", "+inf", "(2", start=1, num=5) == [b"c"]
    assert r.zcount("z", "(inf", "inf") == 0
    assert r.zcount("z", 3, 1) == 0
    assert raw(r, "ZRANGE", "z", 3, "(1", "BYSCORE", "REV", "LIMIT", 0, 1, "WITHSCORES") == [b"c", b"3"]


def test_limit_offsets_and_counts_may_be_negative(r: redis.Redis) -> None:
    fill(r, a=1, b=2, c=3)
    assert raw(r, "ZRANGEBYSCORE", "z", 0, 9, "LIMIT", 1, -1) == [b"b", b"c"]
    assert raw(r, "ZRANGEBYSCORE", "z", 0, 9, "LIMIT", -1, 2) == []
    assert raw(r, "ZREVRANGEBYSCORE", "z", 9, 0, "LIMIT", 1, 1) == [b"b"]
    assert raw(r, "ZRANGE", "z", 0, -1, "LIMIT", 7, -1) == [b"a", b"b", b"c"]
    assert "LIMIT is only supported" in raw(r, "ZRANGE", "z", 0, -1, "LIMIT", 0, 1)


def test_zrangestore_replaces_what_was_there(r: redis.Redis) -> None:
    fill(r, a=1, b=2, c=3)
    r.set("d", "text", ex=100)
    assert raw(r, "ZRANGESTORE", "d", "z", 1, -1) == 2
    assert r.ttl("d") == -1
    assert raw(r, "ZRANGE", "d", 0, -1, "WITHSCORES") == [b"b", b"2", b"c", b"3"]
    assert raw(r, "ZRANGESTORE", "d", "z", 5, 9) == 0
    assert r.exists("d") == 0
    assert "syntax error" in raw(r, "ZRANGESTORE", "d", "z", 0, 1, "WITHSCORES")


# -- algebra --------------------------------------------------------------------------------------------------


def test_plain_sets_take_part_with_score_one(r: redis.Redis) -> None:
    fill(r, a=5, b=6)
    r.sadd("s", "b", "c")
    assert raw(r, "ZUNION", 2, "z", "s", "WITHSCORES") == [b"c", b"1", b"a", b"5", b"b", b"7"]
    assert raw(r, "ZINTER", 2, "z", "s", "WEIGHTS", 2, 10, "WITHSCORES") == [b"b", b"22"]
    assert raw(r, "ZDIFF", 2, "s", "z") == [b"c"]
    assert raw(r, "ZINTERSTORE", "s", 2, "z", "s", "AGGREGATE", "MAX") == 1
    assert raw(r, "ZRANGE", "s", 0, -1, "WITHSCORES") == [b"b", b"6"]
    assert raw(r, "ZDIFFSTORE", "s", 2, "s", "z") == 0
    assert r.exists("s") == 0


def test_infinities_that_cancel_out_are_zero(r: redis.Redis) -> None:
    r.zadd("x", {"a": math.inf})
    r.zadd("y", {"a": -math.inf})
    assert raw(r, "ZUNION", 2, "x", "y", "WITHSCORES") == [b"a", b"0"]
    assert raw(r, "ZINTER", 1, "x", "WEIGHTS", 0, "WITHSCORES") == [b"a", b"0"]
    assert raw(r, "ZINTER", 2, "x", "x", "WEIGHTS", 1, 0, "WITHSCORES") == [b"a", b"0"]
    assert raw(r, "ZUNION", 2, "x", "x", "WEIGHTS", 1, 0, "WITHSCORES") == [b"a", b"inf"]


def test_sums_are_added_from_the_smallest_set_up(r: redis.Redis) -> None:
    """(0.1 + 0.2) + 0.3 and 0.1 + (0.2 + 0.3) differ in the last digit."""
    r.zadd("x", {"a": 0.1, "b": 1, "c": 1})
    r.zadd("y", {"a": 0.2, "b": 1})
    r.zadd("w", {"a": 0.3})
    assert raw(r, "ZINTER", 3, "x", "y", "w", "WITHSCORES") == [b"a", b"0.59999999999999998"]
    assert raw(r, "ZUNION", 3, "x", "y", "w", "WITHSCORES")[:2] == [b"a", b"0.59999999999999998"]


# -- RESP3 ----------------------------------------------------------------------------------------------------


@pytest.mark.since("7.0")
def test_scores_are_doubles_and_rows_are_nested_in_resp3(r3: redis.Redis) -> None:
    fill(r3, a=1, b=2.5, c=math.inf)
    assert raw(r3, "ZSCORE", "z", "b") == 2.5
    assert raw(r3, "ZMSCORE", "z", "b", "x") == [2.5, None]
    assert raw(r3, "ZADD", "z", "INCR", 1, "a") == 2.0
    assert raw(r3, "ZINCRBY", "z", -1, "a") == 1.0
    assert raw(r3, "ZRANGE", "z", 0, -1) == [b"a", b"b", b"c"]
    rows = [[b"a", 1.0], [b"b", 2.5], [b"c", math.inf]]
    assert raw(r3, "ZRANGE", "z", 0, -1, "WITHSCORES") == rows
    assert raw(r3, "ZREVRANGEBYSCORE", "z", 2, 0, "WITHSCORES") == rows[:1]
    assert raw(r3, "ZUNION", 1, "z", "WITHSCORES") == rows
    assert raw(r3, "ZRANDMEMBER", "z", 5, "WITHSCORES") == rows[::-1]
    assert raw(r3, "ZSCAN", "z", 0) == [b"0", [b"a", b"1", b"b", b"2.5", b"c", b"inf"]]
    assert raw(r3, "ZPOPMIN", "z") == rows[0]
    assert raw(r3, "ZPOPMIN", "z", 1) == rows[1:2]
    assert raw(r3, "ZMPOP", 1, "z", "MAX") == [b"z", rows[2:]]
    assert raw(r3, "ZMPOP", 1, "z", "MAX") is None
    assert raw(r3, "ZPOPMIN", "z") == []


# -- anything, compared with a real Redis ---------------------------------------------------------------------

_NEW = find_redis().version >= (7, 0)
"""An older one keeps the sign of -0, pops with any count, and words the error of no keys otherwise: left out."""


def mostly(usual: list[Any], odd: list[Any]) -> st.SearchStrategy[Any]:
    """Odd values one time in eight or so: a command of many arguments must have a chance to succeed."""
    return st.sampled_from(usual * (7 * len(odd) // len(usual) + 1) + odd)


SCORES = [b"0", b"1", b"1", b"2", b"-1", b"1.5", b"0.1", b"inf", b"-inf", b"1e5", b"12345678901234567"]
names = st.sampled_from([b"x", b"y"])
any_key = mostly([b"x", b"y"], [b"plain", b"text", b"none"])
members = st.sampled_from([b"a", b"b", b"c", b"ab", b"", b"12", b"\xff"])
scores = mostly(SCORES, [*([b"-0"] if _NEW else []), b"+Inf", b"3.0e-7", b"0x1f", b"nan", b"one", b"", b" 1", b"1e400"])
weights = mostly([b"1", b"2", *([b"0", b"-1.5"] if _NEW else [])], [b"inf", b"heavy"])
integers = mostly([b"0", b"1", b"2", b"5", b"-1", b"-2"], [b"-100", b"100", b"x", b"01"])
low_scores = mostly([b"-inf", b"(-1", b"0", b"(0"], [b"", b"(", b"(nan", b"one", b" 1", b"1e400", b"5", b"(inf"])
high_scores = mostly([b"+inf", b"(inf", b"2", b"(2", b"1"], [b"", b"(", b"( 1", b"x", b"-5", b"(1e400"])
low_names = mostly([b"-", b"[a", b"(a", b"["], [b"+", b"(", b"(c", b"a", b"", b"-a"])
high_names = mostly([b"+", b"[c", b"(c", b"[\xff"], [b"-", b"(", b"[a", b"b", b"", b"+a"])
words = mostly(
    [[], [b"WITHSCORES"], [b"REV"], [b"BYSCORE"], [b"LIMIT", b"0", b"2"], [b"REV", b"withscores"]],
    [[b"BYLEX"], [b"LIMIT", b"0"], [b"LIMIT", b"x", b"1"], [b"BYSCORE", b"BYLEX"], [b"LIMIT", b"-1", b"1"], [b"oops"]],
)
limits = st.just([]) | st.tuples(st.just(b"LIMIT"), integers, integers).map(list)
with_scores = mostly([[], [b"WITHSCORES"]], [[b"WITH"], [b"withscores", b"WITHSCORES"]])


def argv(*parts: Any) -> st.SearchStrategy[Argv]:
    """A command from words, strategies of one argument and strategies of lists of arguments."""
    strategies = [st.just(part) if isinstance(part, bytes) else part for part in parts]
    return st.tuples(*strategies).map(
        lambda drawn: [arg for part in drawn for arg in (part if isinstance(part, list) else [part])]
    )


def one_of(*commands: bytes) -> st.SearchStrategy[bytes]:
    return st.sampled_from(commands)


def flat(rows: list[tuple[bytes, bytes]]) -> list[bytes]:
    return [arg for row in rows for arg in row]


pairs = st.lists(st.tuples(scores, members), min_size=1, max_size=3).map(flat)
good_pairs = st.lists(st.tuples(st.sampled_from(SCORES), members), min_size=3, max_size=8).map(flat)
zadd_options = st.lists(st.sampled_from([b"NX", b"XX", b"GT", b"LT", b"CH", b"INCR", b"gt"]), max_size=2)

changing = st.one_of(
    argv(b"ZADD", names, good_pairs),
    argv(b"ZADD", names, good_pairs),
    argv(b"ZADD", any_key, scores, members),
    argv(b"ZADD", any_key, zadd_options, pairs),
    argv(b"ZINCRBY", any_key, scores, members),
    argv(b"ZREM", any_key, st.lists(members, min_size=1, max_size=3)),
    argv(b"SADD", b"plain", members),
    argv(b"SET", b"text", b"text"),
)
popping = st.one_of(
    argv(one_of(b"ZPOPMIN", b"ZPOPMAX"), any_key, st.lists(integers if _NEW else one_of(b"1", b"2", b"5"), max_size=1)),
    argv(b"ZREMRANGEBYRANK", any_key, integers, integers),
    argv(b"ZREMRANGEBYSCORE", any_key, low_scores, high_scores),
    argv(b"ZMPOP", b"2", any_key, any_key, mostly([b"MIN", b"max"], [b"MID"]), limits) if _NEW else st.nothing(),
    argv(b"ZMPOP", integers, any_key, one_of(b"MIN", b"max"), b"COUNT", integers) if _NEW else st.nothing(),
)
reading = st.one_of(
    argv(b"ZSCORE", any_key, members),
    argv(b"ZMSCORE", any_key, st.lists(members, min_size=1, max_size=3)),
    argv(b"ZCARD", any_key),
    argv(one_of(b"ZRANK", b"ZREVRANK"), any_key, members),
    argv(b"ZSCAN", any_key, b"0", mostly([[], [b"MATCH", b"a*"]], [[b"COUNT", b"0"], [b"oops"]])),
    argv(b"ZRANDMEMBER", any_key, mostly([b"100"], [b"0", b"x"]), with_scores),
)
ranges = st.one_of(
    argv(one_of(b"ZRANGE", b"ZREVRANGE"), any_key, integers, integers, words),
    argv(b"ZRANGE", any_key, integers, integers, with_scores),
    argv(b"ZRANGE", any_key, low_scores, high_scores, b"BYSCORE", words),
    argv(b"ZRANGE", any_key, high_scores, low_scores, b"REV", b"BYSCORE", words),
    argv(b"ZRANGEBYSCORE", any_key, low_scores, high_scores, limits, with_scores),
    argv(b"ZREVRANGEBYSCORE", any_key, high_scores, low_scores, limits, with_scores),
    argv(b"ZCOUNT", any_key, low_scores, high_scores),
    argv(b"ZRANGESTORE", any_key, any_key, integers, integers, words),
    argv(b"ZRANGESTORE", any_key, any_key, low_scores, high_scores, b"BYSCORE", limits),
)
keys = st.lists(any_key, min_size=2, max_size=2)
plain_operands = argv(mostly([b"2"], [b"1", b"3", b"x", *([b"0", b"-1"] if _NEW else [])]), keys)
operands = st.builds(
    lambda keys, weights, how: [b"2", *keys, *weights, *how],
    keys,
    mostly([[]], [[b"WEIGHTS", b"2"]]) | argv(b"WEIGHTS", weights, weights),
    mostly([[], [b"AGGREGATE", b"MIN"], [b"aggregate", b"max"]], [[b"AGGREGATE", b"AVG"], [b"AGGREGATE"]]),
)
algebra = st.one_of(
    argv(one_of(b"ZUNION", b"ZINTER"), operands, with_scores),
    argv(one_of(b"ZUNION", b"ZINTER", b"ZDIFF"), plain_operands, with_scores),
    argv(one_of(b"ZUNIONSTORE", b"ZINTERSTORE"), any_key, operands),
    argv(
        one_of(b"ZUNIONSTORE", b"ZINTERSTORE", b"ZDIFFSTORE"), any_key, plain_operands, mostly([[]], [[b"WITHSCORES"]])
    ),
    argv(b"ZINTERCARD", plain_operands, st.just([]) | argv(b"LIMIT", integers)) if _NEW else st.nothing(),
)

TestSortedSetsAreAsInRedis = comparison_machine(changing | popping | reading | ranges | algebra, examples=80, steps=40)
TestSortedSetRangesAreAsInRedis = comparison_machine(changing | ranges | ranges, examples=60, steps=40)
TestSortedSetAlgebraIsAsInRedis = comparison_machine(changing | algebra | algebra, examples=60, steps=40)

by_name = st.one_of(
    argv(b"ZADD", names, st.lists(members, min_size=2, max_size=5).map(lambda drawn: flat([(b"0", m) for m in drawn]))),
    argv(b"ZREM", names, members),
    argv(b"ZRANGEBYLEX", any_key, low_names, high_names, limits),
    argv(b"ZREVRANGEBYLEX", any_key, high_names, low_names, limits | words),
    argv(b"ZRANGE", any_key, low_names, high_names, b"BYLEX", limits | words),
    argv(b"ZRANGE", any_key, high_names, low_names, b"BYLEX", b"REV", limits),
    argv(b"ZRANGESTORE", names, any_key, low_names, high_names, b"BYLEX", limits | words),
    argv(one_of(b"ZLEXCOUNT", b"ZREMRANGEBYLEX"), any_key, low_names, high_names),
)
TestRangesOfNamesAreAsInRedis = comparison_machine(by_name, examples=60, steps=40)
