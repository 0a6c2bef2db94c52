"""Strings, on ours and on a real Redis."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from hypothesis import strategies as st
from tests.support.comparison import comparison_machine
from tests.support.replies import error_of
from tests.support.word_strategies import words

from penstock.engine.dispatch import Engine
from penstock.engine.session import Session
from penstock.protocol.resp import RawPieces
from penstock.testing.clock import ManualClock
from penstock.testing.redis import find_redis


def test_set_stores_any_bytes_and_get_answers_them(r: redis.Redis) -> None:
    r.set("k", b"\x00\r\n\xff")
    assert r.get("k") == b"\x00\r\n\xff"
    assert r.get("nothing") is None


def test_set_replaces_any_type(r: redis.Redis) -> None:
    r.lpush("k", "a")
    r.set("k", "b")
    assert r.get("k") == b"b"


def test_get_of_another_type_is_wrongtype(r: redis.Redis) -> None:
    r.lpush("k", "a")
    for argv in (["GET", "k"], ["INCR", "k"], ["APPEND", "k", "x"], ["GETEX", "k"], ["SET", "k", "v", "GET"]):
        assert error_of(r, *argv) == "WRONGTYPE Operation against a key holding the wrong kind of value"
    assert r.type("k") == b"list"


def test_nx_and_xx_look_at_the_key_first(r: redis.Redis) -> None:
    assert r.set("k", "1", xx=True) is None
    assert r.set("k", "1", nx=True) is True
    assert r.set("k", "2", nx=True) is None
    assert r.set("k", "3", xx=True) is True
    assert r.get("k") == b"3"


@pytest.mark.since("7.0")
def test_set_get_answers_what_was_there_even_when_nothing_is_set(r: redis.Redis) -> None:
    assert r.set("k", "1", nx=True, get=True) is None
    assert r.set("k", "2", nx=True, get=True) == b"1"
    assert r.set("k", "3", get=True) == b"1"
    assert r.get("k") == b"3"


def test_set_takes_the_expiry_time_away_unless_told_to_keep_it(r: redis.Redis) -> None:
    r.set("k", "1", ex=100)
    r.set("k", "2", keepttl=True)
    assert 0 < r.ttl("k") <= 100
    r.set("k", "3")
    assert r.ttl("k") == -1


def test_a_time_in_the_past_leaves_no_key(r: redis.Redis) -> None:
    r.set("k", "1", exat=1)
    assert r.get("k") is None
    r.set("k", "1")
    assert r.getex("k", pxat=1) == b"1"
    assert r.exists("k") == 0


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["SET", "k", "v", "NX", "XX"], "syntax error"),
        (["SET", "k", "v", "EX"], "syntax error"),
        (["SET", "k", "v", "EX", "1", "PX", "1"], "syntax error"),
        (["SET", "k", "v", "EX", "1", "KEEPTTL"], "syntax error"),
        (["SET", "k", "v", "PERSIST"], "syntax error"),
        (["SET", "k", "v", "EX", "0"], "invalid expire time in 'set' command"),
        (["SET", "k", "v", "EX", "x"], "value is not an integer or out of range"),
        (["SET", "k", "v", "EX", "9223372036854775807"], "invalid expire time in 'set' command"),
        (["SET", "k", "v", "PX", "9223372036854775807"], "invalid expire time in 'set' command"),
        (["SETEX", "k", "-1", "v"], "invalid expire time in 'setex' command"),
        (["PSETEX", "k", "0", "v"], "invalid expire time in 'psetex' command"),
        (["GETEX", "k", "EX", "0"], "invalid expire time in 'getex' command"),
        (["GETEX", "k", "PERSIST", "EX", "1"], "syntax error"),
        (["MSET", "a", "1", "b"], "wrong number of arguments for 'mset' command"),
        (["MSETNX", "a", "1", "b"], "wrong number of arguments for 'msetnx' command"),
        (["INCRBY", "k", "1.5"], "value is not an integer or out of range"),
        (["DECRBY", "k", "-9223372036854775808"], "decrement would overflow"),
        (["INCRBYFLOAT", "k", "abc"], "value is not a valid float"),
        (["INCRBYFLOAT", "n", "inf"], "increment would produce NaN or Infinity"),
        (["SETRANGE", "k", "-1", "x"], "offset is out of range"),
        (["SETRANGE", "k", "536870912", "x"], "string exceeds maximum allowed size (proto-max-bulk-len)"),
        (["LCS", "k", "k", "LEN", "IDX"], "If you want both the length and indexes, please just use IDX."),
        (["LCS", "k", "k", "MINMATCHLEN"], "syntax error"),
        (["LCS", "k", "list"], "The specified keys must contain string values"),
    ],
)
@pytest.mark.since("7.0")
def test_what_cannot_be_done_is_refused_in_redis_words(r: redis.Redis, argv: list[str], text: str) -> None:
    r.set("k", "v")
    r.rpush("list", "a")
    assert error_of(r, *argv) == text
    assert (r.get("k"), r.ttl("k"), r.exists("a", "n")) == (b"v", -1, 0)


def test_append_is_refused_at_the_longest_argument(r: redis.Redis) -> None:
    limit = r.config_get("proto-max-bulk-len")["proto-max-bulk-len"]
    r.config_set("proto-max-bulk-len", 1 << 20)
    try:
        r.setrange("k", (1 << 20) - 1, "x")
        assert error_of(r, "APPEND", "k", "y") == "string exceeds maximum allowed size (proto-max-bulk-len)"
        assert r.strlen("k") == 1 << 20
    finally:
        r.config_set("proto-max-bulk-len", limit)


def test_counters_stay_strings(r: redis.Redis) -> None:
    assert (r.incr("k"), r.incrby("k", 9), r.decr("k"), r.decrby("k", 4)) == (1, 10, 9, 5)
    assert r.get("k") == b"5"
    assert r.append("k", "0") == 2
    assert r.incr("k") == 51
    assert (r.strlen("k"), r.getrange("k", 0, 0), r.mget("k", "x")) == (2, b"5", [b"51", None])


def test_counting_keeps_the_expiry_time(r: redis.Redis) -> None:
    r.set("k", 1, ex=100)
    r.incr("k")
    r.incrbyfloat("k", 0.5)
    r.append("k", "1")
    assert 0 < r.ttl("k") <= 100


def test_counters_end_where_64_bits_end(r: redis.Redis) -> None:
    r.set("k", (1 << 63) - 1)
    assert error_of(r, "INCR", "k") == "increment or decrement would overflow"
    r.set("k", -(1 << 63))
    assert error_of(r, "DECR", "k") == "increment or decrement would overflow"
    for text in ("01", " 1", "+1", "1_0", "1.0", ""):
        r.set("k", text)
        assert error_of(r, "INCR", "k") == "value is not an integer or out of range"


@pytest.mark.parametrize(
    ("start", "step", "total"),
    [
        ("0.1", "0.2", b"0.3"),
        ("5.0e3", "2.0e2", b"5200"),
        ("3", "-3", b"0"),
        ("1", "1e-20", b"1"),
        ("-1e-20", "0", b"0"),
        ("10.50", "0.1", b"10.6"),
        ("0x10", "1", b"17"),
        ("12345678901234567890", "1", b"12345678901234567891"),
    ],
)
def test_incrbyfloat_adds_with_64_bits(r: redis.Redis, start: str, step: str, total: bytes) -> None:
    r.set("k", start)
    r.execute_command("INCRBYFLOAT", "k", step)
    assert r.get("k") == total


def test_msetnx_sets_all_or_none(r: redis.Redis) -> None:
    assert r.msetnx({"a": 1, "b": 2})
    assert not r.msetnx({"b": 3, "c": 4})
    assert r.mget("a", "b", "c") == [b"1", b"2", None]


def test_getdel_and_getset_answer_the_old_string(r: redis.Redis) -> None:
    assert r.getset("k", "1") is None
    assert r.getset("k", "2") == b"1"
    assert r.getdel("k") == b"2"
    assert r.getdel("k") is None


def test_replies_in_a_transaction_show_the_string_as_it_was_then(r: redis.Redis) -> None:
    r.setrange("k", 0, "a" * 2000)
    with r.pipeline(transaction=True) as pipe:
        pipe.get("k").mget("k").getrange("k", 0, -1).setrange("k", 0, "b").append("k", "c").get("k")
        got, many, part, *_, after = pipe.execute()
    assert got == many[0] == part == b"a" * 2000
    assert after == b"b" + b"a" * 1999 + b"c"


@pytest.mark.since("7.0")
def test_lcs_finds_the_same_runs_as_redis(r: redis.Redis) -> None:
    r.mset({"a": "ohmytext", "b": "mynewtext"})
    assert r.lcs("a", "b") == b"mytext"
    assert r.lcs("a", "b", len=True) == 6
    assert r.execute_command("LCS", "a", "b", "IDX", "MINMATCHLEN", 4, "WITHMATCHLEN") == [
        b"matches", [[[4, 7], [5, 8], 4]], b"len", 6,
    ]  # fmt: skip
    assert r.lcs("a", "nothing") == b""


@pytest.mark.since("7.0")
def test_lcs_idx_is_a_map_in_resp3(r3: redis.Redis) -> None:
    r3.mset({"a": "abc", "b": "abc"})
    assert r3.execute_command("LCS", "a", "b", "IDX") == {b"matches": [[[0, 2], [0, 2]]], b"len": 3}


# -- what is logged: a replay at another time must give the same ------------------------------------------------


@pytest.fixture
def session() -> Session:
    return Session(Engine(clock=ManualClock(1_000_000)))


@pytest.mark.parametrize(
    ("command", "effect"),
    [
        ("SET k v EX 10", "SET k v PXAT 1010000"),
        ("SET k v PX 10 NX", "SET k v PXAT 1000010"),
        ("SETEX k 10 v", "SET k v PXAT 1010000"),
        ("PSETEX k 10 v", "SET k v PXAT 1000010"),
        ("GETEX old EX 10", "PEXPIREAT old 1010000"),
        ("GETEX old PXAT 1", "DEL old"),
        ("INCRBYFLOAT old 0.5", "SET old 1.5 KEEPTTL"),
        ("SET k v", "SET k v"),
    ],
)
def test_what_depends_on_the_clock_is_logged_by_effect(session: Session, command: str, effect: str) -> None:
    session.engine.execute(session, [b"SET", b"old", b"1"])
    logged: list[bytes] = []
    session.engine.log = lambda entries: logged.extend(b" ".join(argv) for _, argv in entries)
    session.engine.execute(session, command.encode().split())
    assert logged == [effect.encode()]


def test_getex_without_options_logs_nothing(session: Session) -> None:
    session.engine.execute(session, [b"SET", b"k", b"1"])
    session.engine.log = lambda entries: pytest.fail(f"logged {entries}")
    assert session.engine.execute(session, [b"GETEX", b"k"]) == b"1"
    assert session.engine.execute(session, [b"GETEX", b"k", b"PERSIST"]) == b"1"


def test_strings_expire_when_their_time_comes(session: Session) -> None:
    run = session.engine.execute
    clock = session.engine.clock
    assert isinstance(clock, ManualClock)
    run(session, [b"SET", b"k", b"v", b"PX", b"10"])
    clock.advance(9)
    assert run(session, [b"GET", b"k"]) == b"v"
    clock.advance(1)
    assert run(session, [b"GET", b"k"]) is None
    assert run(session, [b"INCR", b"k"]) == 1


# -- ours against Redis, at random ------------------------------------------------------------------------------

KEYS = st.sampled_from([b"a", b"b", b"c"])
VALUES = st.sampled_from(
    [b"", b"0", b"1", b"-5", b"10.5", b"abc", b"abcabc", b"9223372036854775807", b"-9223372036854775808", b"1e3",
        b"x" * 1030]
)  # fmt: skip
MODERN = find_redis().version >= (7,)  # an older one words some errors otherwise: those are left out
NUMBERS = st.sampled_from(
    [b"0", b"1", b"-1", b"2", b"-2", b"3", b"7", b"-100", b"100", b"1025", b"x", b"1.5", b"inf", b"-0", b""]
    + ([b"9223372036854775807", b"-9223372036854775808", b"9223372036854775808"] if MODERN else [])
)
TIMES = st.sampled_from([b"900000", b"x", b"4000000"] + ([b"0", b"-1", b"9223372036854775807"] if MODERN else []))
_word = st.sampled_from([b"NX", b"XX", b"KEEPTTL", b"PERSIST", b"bogus", *([b"get"] if MODERN else [])])
_expiry = words(st.sampled_from([b"EX", b"px", b"EXAT", b"PXAT"]), TIMES)
OPTIONS = st.lists(_expiry | words(_word), max_size=3).map(lambda groups: [word for group in groups for word in group])
LCS_OPTIONS = st.lists(st.sampled_from([b"LEN", b"IDX", b"WITHMATCHLEN", b"MINMATCHLEN", b"2"]), max_size=3)

commands = st.one_of(
    words(b"SET", KEYS, VALUES, OPTIONS),
    words(b"GETEX", KEYS, OPTIONS),
    *(words(name, KEYS) for name in (b"GET", b"GETDEL", b"INCR", b"DECR", b"STRLEN", b"TYPE", b"EXISTS", b"PERSIST")),
    *(words(name, KEYS, VALUES) for name in (b"GETSET", b"SETNX", b"APPEND", b"INCRBYFLOAT", b"LPUSH")),
    *(words(name, KEYS, NUMBERS) for name in (b"INCRBY", b"DECRBY", b"INCRBYFLOAT")),
    *(words(name, KEYS, TIMES, VALUES) for name in (b"SETEX", b"PSETEX")),
    *(words(name, KEYS, NUMBERS, NUMBERS) for name in (b"GETRANGE", b"SUBSTR")),
    words(b"SETRANGE", KEYS, NUMBERS, VALUES),
    *(words(name, KEYS, VALUES, KEYS, VALUES) for name in (b"MSET", b"MSETNX")),
    words(b"MGET", KEYS, KEYS, KEYS),
    *([words(b"LCS", KEYS, KEYS, LCS_OPTIONS)] if MODERN else []),
)

TestAgainstRedis = comparison_machine(commands, examples=60, steps=40)


def test_others_are_served_while_a_long_part_of_a_string_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(Engine())
    execute = session.engine.execute
    execute(session, [b"SETRANGE", b"long", b"1000000", b"x"])
    work: list[int] = []

    def aside(_: Session, amount: int, compute: Any) -> Any:
        work.append(amount)
        return compute()

    monkeypatch.setattr(Session, "aside", aside)
    reply = execute(session, [b"GETRANGE", b"long", b"1", b"-1"])
    assert isinstance(reply, RawPieces)
    assert b"".join(reply.pieces) == b"$1000000\r\n" + bytes(999_999) + b"x\r\n"
    assert work[0] > 1000
    assert execute(session, [b"GETRANGE", b"long", b"999990", b"-1"]) == bytes(10) + b"x"
    assert len(work) == 1
