"""Hashes, on ours and on a real Redis."""

from __future__ import annotations

from collections import Counter

import pytest
import redis
from hypothesis import strategies as st
from tests.support.comparison import comparison_machine, reply_of, sort_if

from penstock.commands import load
from penstock.engine.dispatch import Engine
from penstock.engine.interfaces import LogEntry
from penstock.engine.session import Session

# -- replies --------------------------------------------------------------------------------------------------------


def test_hset_counts_only_new_fields(r: redis.Redis) -> None:
    assert r.hset("h", mapping={"a": 1, "b": 2}) == 2
    assert r.hset("h", mapping={"b": 3, "c": 4}) == 1
    assert r.hgetall("h") == {b"a": b"1", b"b": b"3", b"c": b"4"}


def test_a_field_without_a_value_changes_nothing(r: redis.Redis) -> None:
    for name in ("HSET", "HMSET", "hset"):
        with pytest.raises(redis.ResponseError, match=f"wrong number of arguments for '{name.lower()}' command"):
            r.execute_command(name, "h", "a", 1, "b")
    assert r.exists("h") == 0


def test_hmset_answers_ok(r: redis.Redis) -> None:
    assert r.execute_command("HMSET", "h", "a", 1) in (True, b"OK")
    assert r.hget("h", "a") == b"1"


def test_hsetnx_leaves_what_exists(r: redis.Redis) -> None:
    assert r.hsetnx("h", "a", 1) == 1
    assert r.hsetnx("h", "a", 2) == 0
    assert r.hget("h", "a") == b"1"


def test_missing_fields_and_keys_read_as_nothing(r: redis.Redis) -> None:
    r.hset("h", "a", "1")
    assert r.hmget("h", ["a", "x", "a"]) == [b"1", None, b"1"]
    assert r.hmget("nothing", ["a", "x"]) == [None, None]
    assert r.hget("nothing", "a") is None
    assert r.hgetall("nothing") == {}
    assert r.hkeys("nothing") == r.hvals("nothing") == []
    assert (r.hlen("nothing"), r.hstrlen("h", "x"), r.hexists("h", "x")) == (0, 0, False)
    assert (r.hlen("h"), r.hstrlen("h", "a"), r.hexists("h", "a")) == (1, 1, True)


def test_removing_the_last_field_removes_the_key(r: redis.Redis) -> None:
    r.hset("h", mapping={"a": 1, "b": 2})
    assert r.hdel("h", "a", "a", "x") == 1
    assert r.exists("h") == 1
    assert r.hdel("h", "b") == 1
    assert r.exists("h") == 0
    assert r.hdel("h", "b") == 0


def test_integers_are_added_within_64_bits(r: redis.Redis) -> None:
    assert r.hincrby("h", "n", 5) == 5
    assert r.hincrby("h", "n", -7) == -2
    r.hset("h", mapping={"most": 2**63 - 1, "least": -(2**63), "word": "x", "padded": "01"})
    for field, step in (("most", 1), ("least", -1)):
        with pytest.raises(redis.ResponseError, match="increment or decrement would overflow"):
            r.hincrby("h", field, step)
    for field in ("word", "padded"):
        with pytest.raises(redis.ResponseError, match="hash value is not an integer"):
            r.hincrby("h", field, 1)
    with pytest.raises(redis.ResponseError, match="value is not an integer or out of range"):
        r.execute_command("HINCRBY", "h", "word", "1.5")


def test_a_refused_increment_creates_no_key(r: redis.Redis) -> None:
    with pytest.raises(redis.ResponseError, match="not a valid float"):
        r.execute_command("HINCRBYFLOAT", "h", "f", "x")
    with pytest.raises(redis.ResponseError, match="NaN or Infinity"):
        r.execute_command("HINCRBYFLOAT", "h", "f", "inf")
    assert r.exists("h") == 0


def test_floats_are_added_with_more_precision_than_a_double(r: redis.Redis) -> None:
    def add(field: str, amount: str) -> object:
        return reply_of(r, [b"HINCRBYFLOAT", b"h", field.encode(), amount.encode()])

    assert [add("f", amount) for amount in ("0.1", "0.2", "5e3")] == [b"0.1", b"0.3", b"5000.29999999999999982"]
    assert [add("g", amount) for amount in ("5e3", "-0x10", "-.5")] == [b"5000", b"4984", b"4983.5"]
    assert r.hget("h", "g") == b"4983.5"
    r.hset("h", mapping={"word": "x", "infinite": "inf"})
    assert "hash value is not a float" in str(add("word", "1"))
    assert "increment would produce NaN or Infinity" in str(add("infinite", "1"))


@pytest.mark.parametrize(
    "command",
    [
        "HSET s a 1", "HMSET s a 1", "HSETNX s a 1", "HGET s a", "HMGET s a", "HGETALL s", "HKEYS s", "HVALS s",
        "HLEN s", "HSTRLEN s a", "HEXISTS s a", "HDEL s a", "HINCRBY s a 1", "HINCRBYFLOAT s a 1", "HRANDFIELD s",
        "HRANDFIELD s 1", "HSCAN s 0",
    ],
)  # fmt: skip
def test_another_type_is_refused(r: redis.Redis, command: str) -> None:
    r.set("s", "text")
    with pytest.raises(redis.ResponseError, match="wrong kind of value"):
        r.execute_command(*command.split())
    assert r.get("s") == b"text"


def test_resp3_knows_maps_and_pairs(r3: redis.Redis) -> None:
    def reply(*argv: bytes) -> object:
        return reply_of(r3, list(argv))

    r3.hset("h", mapping={"a": "1"})
    assert reply(b"HGETALL", b"h") == {b"a": b"1"}
    assert reply(b"HGETALL", b"nothing") == {}
    assert reply(b"HRANDFIELD", b"h", b"3", b"WITHVALUES") == [[b"a", b"1"]]
    assert reply(b"HRANDFIELD", b"h", b"3") == [b"a"]
    assert reply(b"HMGET", b"h", b"a", b"x") == [b"1", None]
    assert reply(b"HSCAN", b"h", b"0") == [b"0", [b"a", b"1"]]


def test_a_transactions_replies_show_each_moment(r: redis.Redis) -> None:
    with r.pipeline(transaction=True) as pipe:
        pipe.hset("h", "a", 1).hgetall("h").hset("h", "b", 2).hgetall("h").hdel("h", "a").hgetall("h")
        replies = pipe.execute()
    assert replies[1::2] == [{b"a": b"1"}, {b"a": b"1", b"b": b"2"}, {b"b": b"2"}]


# -- random fields --------------------------------------------------------------------------------------------------


def test_random_fields_differ_unless_the_count_is_negative(r: redis.Redis) -> None:
    r.hset("h", mapping={"a": 1, "b": 2, "c": 3})
    assert r.hrandfield("h") in {b"a", b"b", b"c"}
    assert len(set(r.hrandfield("h", 2))) == 2
    assert sorted(r.hrandfield("h", 10)) == [b"a", b"b", b"c"]
    assert len(r.hrandfield("h", -10)) == 10
    assert r.hrandfield("h", 0) == []
    flat = r.hrandfield("h", -5, withvalues=True)
    assert len(flat) == 10
    assert set(zip(flat[::2], flat[1::2], strict=True)) <= {(b"a", b"1"), (b"b", b"2"), (b"c", b"3")}
    assert r.hrandfield("nothing") is None
    assert r.hrandfield("nothing", 2) == []


@pytest.mark.since("7.0")
def test_bad_counts_of_random_fields_are_refused(r: redis.Redis) -> None:
    r.hset("h", "a", 1)
    for words, error in (
        ("x", "value is not an integer or out of range"),
        ("2 WITHSCORES", "syntax error"),
        ("2 WITHVALUES x", "syntax error"),
        ("-9223372036854775808", "value is out of range, value must between"),
        ("-9223372036854775807 WITHVALUES", "value is out of range"),
    ):
        with pytest.raises(redis.ResponseError, match=error):
            r.execute_command("HRANDFIELD", "h", *words.split())


def test_every_field_is_drawn_while_fields_come_and_go(r: redis.Redis) -> None:
    r.hset("h", mapping={f"f{number}": 0 for number in range(10)})
    drawn: Counter[bytes] = Counter()
    for turn in range(300):
        drawn[r.hrandfield("h")] += 1
        r.hset("h", f"g{turn}", 0)
        r.hdel("h", f"g{turn}")
    assert all(drawn[b"f%d" % number] for number in range(10))


# -- iteration ------------------------------------------------------------------------------------------------------


def test_small_hashes_are_scanned_in_one_call(r: redis.Redis) -> None:
    r.hset("h", mapping={f"f{number}": number for number in range(100)})
    cursor, fields = r.hscan("h", count=5)
    assert cursor == 0
    assert len(fields) == 100
    assert r.hscan("h", match="f[12]0") == (0, {b"f10": b"10", b"f20": b"20"})
    assert r.hscan("nothing") == (0, {})


def test_large_hashes_are_scanned_in_many_calls(r: redis.Redis) -> None:
    fields = {b"f%d" % number: b"%d" % number for number in range(2000)}
    r.hset("h", mapping=fields)
    cursor, some = r.hscan("h", count=100)
    assert cursor != 0
    assert len(some) < 1000
    assert dict(r.hscan_iter("h", count=100)) == fields
    assert dict(r.hscan_iter("h", match="f*9", count=700)) == {k: v for k, v in fields.items() if k.endswith(b"9")}


def test_what_was_removed_during_a_scan_is_not_returned(r: redis.Redis) -> None:
    r.hset("h", mapping={f"f{number}": number for number in range(1000)})
    cursor, seen = r.hscan("h", count=10)
    gone = [b"f%d" % number for number in range(0, 1000, 2)]
    r.hdel("h", *gone)
    r.hset("h", "f1", "changed")
    after = dict[bytes, bytes]()
    while cursor:
        cursor, some = r.hscan("h", cursor, count=10)
        after |= some
    assert not set(after) & set(gone)
    assert set(seen) | set(after) >= {b"f%d" % number for number in range(1, 1000, 2)}
    assert after.get(b"f1", b"changed") == b"changed"


def test_bad_cursors_and_options_are_refused(r: redis.Redis) -> None:
    r.hset("h", "a", 1)
    for words, error in (("x", "invalid cursor"), ("0 COUNT 0", "syntax error"), ("0 COUNT", "syntax error")):
        with pytest.raises(redis.ResponseError, match=error):
            r.execute_command("HSCAN", "h", *words.split())
    with pytest.raises(redis.ResponseError, match="invalid cursor"):
        r.execute_command("HSCAN", "nothing", "x")
    assert r.execute_command("HSCAN", "nothing", "0", "COUNT")[0] == 0


# -- what is logged ---------------------------------------------------------------------------------------------------


def test_a_float_increment_is_logged_as_its_sum() -> None:
    load()
    engine = Engine()
    logged: list[LogEntry] = []
    engine.log = logged.extend
    session = Session(engine)
    engine.execute(session, [b"HINCRBYFLOAT", b"h", b"f", b"0.1"])
    engine.execute(session, [b"HINCRBYFLOAT", b"h", b"f", b"0.2"])
    engine.execute(session, [b"HDEL", b"h", b"x"])
    assert logged == [(0, [b"HSET", b"h", b"f", b"0.1"]), (0, [b"HSET", b"h", b"f", b"0.3"])]


# -- ours against Redis
# -------------------------------------------------------------------------------------------------

key = st.sampled_from([b"h", b"i", b"text"])
field = st.sampled_from([b"a", b"b", b"", b"1"])
value = st.sampled_from(
    [b"", b"0", b"1", b"-5", b"01", b"3.25", b"1e3", b"x", b"inf", b"-0", b"9223372036854775807", b"\x00\xff"]
)
pairs = st.lists(st.tuples(field, value), min_size=1, max_size=3).map(
    lambda rows: [part for row in rows for part in row]
)


def call(name: bytes, *parts: st.SearchStrategy[bytes]) -> st.SearchStrategy[list[bytes]]:
    return st.tuples(*parts).map(lambda arguments: [name, *arguments])


commands = st.one_of(
    st.builds(lambda name, where, what: [name, where, *what], st.sampled_from([b"HSET", b"HMSET"]), key, pairs),
    st.builds(lambda where, what: [b"HSET", where, *what], key, st.lists(value, max_size=4)),
    call(b"HSETNX", key, field, value),
    call(b"HGET", key, field),
    call(b"HSTRLEN", key, field),
    call(b"HEXISTS", key, field),
    call(b"HINCRBY", key, field, value),
    call(b"HINCRBYFLOAT", key, field, value),
    st.builds(
        lambda name, where, what: [name, where, *what],
        st.sampled_from([b"HMGET", b"HDEL"]), key, st.lists(field, max_size=3),
    ),
    st.builds(lambda name, where: [name, where], st.sampled_from([b"HGETALL", b"HKEYS", b"HVALS", b"HLEN"]), key),
    call(b"HRANDFIELD", key, st.sampled_from([b"0", b"9", b"x"])),
    call(b"HSCAN", key, st.sampled_from([b"0", b"x", b"-1"])),
    call(b"HSCAN", key, st.just(b"0"), st.sampled_from([b"MATCH", b"count"]), st.sampled_from([b"[a1]", b"5", b"0"])),
    call(b"SET", st.just(b"text"), value),
    call(b"DEL", key),
)  # fmt: skip

TestHashesAgainstRedis = comparison_machine(commands, normal=sort_if({b"HRANDFIELD"}))
