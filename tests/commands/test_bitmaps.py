"""Bitmaps, on ours and on a real Redis."""

from __future__ import annotations

import random

import pytest
import redis
from hypothesis import strategies as st
from tests.support.comparison import comparison_machine
from tests.support.replies import error_of
from tests.support.word_strategies import words

from penstock.testing.redis import find_redis


def test_setbit_grows_the_string_and_answers_the_old_bit(r: redis.Redis) -> None:
    assert r.setbit("k", 7, 1) == 0
    assert r.setbit("k", 7, 0) == 1
    assert r.setbit("k", 100, 1) == 0
    assert r.get("k") == b"\0" * 12 + b"\x08"
    assert (r.getbit("k", 100), r.getbit("k", 99), r.getbit("k", 100_000)) == (1, 0, 0)


def test_counters_are_bitmaps_too(r: redis.Redis) -> None:
    r.incrby("k", 12)
    assert r.bitcount("k") == 6
    assert r.setbit("k", 7, 0) == 1  # "1" becomes "0"
    assert r.setbit("k", 3, 1) == 1
    assert r.get("k") == b"02"


def test_a_big_bitmap_is_counted_searched_and_inverted(r: redis.Redis) -> None:
    data = random.Random(7).randbytes(1 << 16)
    padded = b"\0" * 70_000 + data
    r.set("k", padded)
    assert r.bitcount("k") == int.from_bytes(data, "big").bit_count()
    first = next(at for at in range(len(data) * 8) if data[at >> 3] >> (7 - (at & 7)) & 1)
    assert r.bitpos("k", 1) == 70_000 * 8 + first
    assert r.bitop("NOT", "n", "k") == len(padded)
    assert r.bitpos("n", 0) == 70_000 * 8 + first
    assert r.bitcount("n") + r.bitcount("k") == len(padded) * 8
    assert r.bitop("XOR", "zero", "k", "k") == len(padded)
    assert r.bitpos("zero", 1) == -1


def test_clear_bits_follow_a_string_unless_an_end_is_given(r: redis.Redis) -> None:
    r.set("k", b"\xff\xff")
    assert r.bitpos("k", 0) == 16
    assert r.bitpos("k", 0, 1) == 16
    assert r.bitpos("k", 0, 0, -1) == -1
    assert r.bitpos("nothing", 0) == 0
    assert r.bitpos("nothing", 1) == -1


def test_bitop_pads_shorter_strings_and_deletes_an_empty_result(r: redis.Redis) -> None:
    r.mset({"a": b"\xff\xf0", "b": b"\x0f"})
    assert r.bitop("AND", "d", "a", "b") == 2
    assert r.get("d") == b"\x0f\x00"
    r.bitop("OR", "d", "a", "b", "nothing")
    assert r.get("d") == b"\xff\xf0"
    assert r.bitop("OR", "d", "nothing") == 0
    assert r.exists("d") == 0


def test_bitfield_overflow_wraps_saturates_or_fails(r: redis.Redis) -> None:
    assert r.execute_command("BITFIELD", "k", "SET", "u8", 0, 250, "INCRBY", "u8", 0, 10) == [0, 4]
    assert r.execute_command("BITFIELD", "k", "OVERFLOW", "SAT", "INCRBY", "u8", 0, 300) == [255]
    assert r.execute_command("BITFIELD", "k", "OVERFLOW", "FAIL", "INCRBY", "u8", 0, 1, "GET", "u8", 0) == [None, 255]
    assert r.execute_command("BITFIELD", "k", "SET", "i5", "#3", -3, "GET", "i5", 15) == [0, -3]
    assert r.execute_command("BITFIELD_RO", "k", "GET", "u4", 4) == [15]


def test_a_refused_change_still_makes_room(r: redis.Redis) -> None:
    assert r.execute_command("BITFIELD", "k", "OVERFLOW", "FAIL", "INCRBY", "u2", 30, 9) == [None]
    assert r.get("k") == b"\0" * 4


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["SETBIT", "k", "-1", "1"], "bit offset is not an integer or out of range"),
        (["SETBIT", "k", "4294967296", "1"], "bit offset is not an integer or out of range"),
        (["SETBIT", "k", "#1", "1"], "bit offset is not an integer or out of range"),
        (["SETBIT", "k", "1", "2"], "bit is not an integer or out of range"),
        (["BITCOUNT", "k", "1"], "syntax error"),
        (["BITPOS", "k", "2"], "The bit argument must be 1 or 0."),
        (["BITOP", "NOT", "d", "k", "k"], "BITOP NOT must be called with a single source key."),
        (["BITOP", "NAND", "d", "k"], "syntax error"),
        (
            ["BITFIELD", "k", "GET", "u64", "0"],
            "Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.",
        ),
        (["BITFIELD", "k", "OVERFLOW", "NO"], "Invalid OVERFLOW type specified"),
        (["BITFIELD", "k", "GET", "u8"], "syntax error"),
        (["BITFIELD_RO", "k", "SET", "u8", "0", "1"], "BITFIELD_RO only supports the GET subcommand"),
        (["BITFIELD", "k", "SET", "u8", "0", "x"], "value is not an integer or out of range"),
        (["GETBIT", "list", "0"], "WRONGTYPE Operation against a key holding the wrong kind of value"),
    ],
)
def test_what_cannot_be_done_is_refused_in_redis_words(r: redis.Redis, argv: list[str], text: str) -> None:
    r.set("k", "v")
    r.rpush("list", "a")
    assert error_of(r, *argv) == text
    assert r.get("k") == b"v"


# -- ours against Redis, at random ------------------------------------------------------------------------------

KEYS = st.sampled_from([b"a", b"b", b"c"])
VALUES = st.sampled_from([b"", b"\x00", b"\xff", b"\x0f\xf0", b"\xff\xff\xff", b"\x00\x00\x01", b"12", b"\xff\x7f\x00"])
OFFSETS = st.sampled_from(
    [b"0", b"1", b"7", b"8", b"13", b"31", b"63", b"-1", b"#1", b"#3", b"x", b"4294967296", b"99"]
)
PLACES = st.sampled_from([b"0", b"1", b"2", b"3", b"7", b"9", b"-1", b"-2", b"-9", b"100", b"-100", b"x", b"17"])
TYPES = st.sampled_from([b"u1", b"i1", b"u8", b"i8", b"i5", b"u13", b"u63", b"i64", b"u64", b"x", b"i0"])
AMOUNTS = st.sampled_from(
    [b"0", b"1", b"-1", b"5", b"127", b"128", b"-129", b"255", b"256", b"9223372036854775807", b"-9223372036854775808",
        b"x"]
)  # fmt: skip
_operation = st.one_of(
    st.tuples(st.just(b"GET"), TYPES, OFFSETS),
    st.tuples(st.sampled_from([b"SET", b"incrby"]), TYPES, OFFSETS, AMOUNTS),
    st.tuples(st.just(b"OVERFLOW"), st.sampled_from([b"WRAP", b"sat", b"FAIL", b"x"])),
)
UNITS = st.sampled_from([b"BYTE", b"bit", b"x"])
MODERN = find_redis().version >= (7,)  # an older one knows no units

commands = st.one_of(
    words(b"SET", KEYS, VALUES),
    words(b"INCR", KEYS),
    words(b"GET", KEYS),
    words(b"LPUSH", st.just(b"c"), VALUES),
    words(b"DEL", KEYS),
    words(b"SETBIT", KEYS, OFFSETS, st.sampled_from([b"0", b"1", b"1", b"2"])),
    words(b"GETBIT", KEYS, OFFSETS),
    words(b"BITCOUNT", KEYS),
    words(b"BITCOUNT", KEYS, PLACES, PLACES),
    *([words(b"BITCOUNT", KEYS, PLACES, PLACES, UNITS)] if MODERN else []),
    words(b"BITPOS", KEYS, st.sampled_from([b"0", b"1", b"2"])),
    words(b"BITPOS", KEYS, st.sampled_from([b"0", b"1"]), PLACES),
    words(b"BITPOS", KEYS, st.sampled_from([b"0", b"1"]), PLACES, PLACES),
    *([words(b"BITPOS", KEYS, st.sampled_from([b"0", b"1"]), PLACES, PLACES, UNITS)] if MODERN else []),
    words(b"BITOP", st.sampled_from([b"AND", b"or", b"XOR", b"NOT", b"x"]), KEYS, KEYS),
    words(b"BITOP", st.sampled_from([b"AND", b"or", b"XOR", b"NOT"]), KEYS, KEYS, KEYS),
    st.tuples(
        st.sampled_from([b"BITFIELD", b"BITFIELD", b"BITFIELD", b"BITFIELD_RO"]), KEYS, st.lists(_operation, max_size=4)
    ).map(lambda call: [call[0], call[1], *(word for operation in call[2] for word in operation)]),
)

TestAgainstRedis = comparison_machine(commands, examples=60, steps=40)


@pytest.mark.since("7.0")
def test_a_range_that_ends_before_it_starts_counts_nothing_whatever_its_unit(r: redis.Redis) -> None:
    r.set("a", "abc")
    assert r.execute_command("BITCOUNT", "a", -1, -2, "x") == 0
    with pytest.raises(redis.ResponseError, match="syntax error"):
        r.execute_command("BITCOUNT", "a", -2, -1, "x")
