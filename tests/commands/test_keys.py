"""Commands on keys of any type, on ours and on a real Redis."""

from __future__ import annotations

import pytest
import redis
from hypothesis import strategies as st
from tests.support.comparison import comparison_machine, sort_if
from tests.support.keys_of_every_type import EVERY_TYPE, contents, fill_every_type
from tests.support.word_strategies import several, words

from penstock.testing.redis import find_redis

# -- one key at a time ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["DEL", "UNLINK"])
def test_deleting_answers_how_many_there_were(r: redis.Redis, name: str) -> None:
    fill_every_type(r)
    assert r.execute_command(name, "s", "missing", "l", "s") == 2
    assert r.exists("s", "l", "e") == 1
    assert r.execute_command(name, "e", "h", "z", "x") == 4
    assert r.dbsize() == 0


def test_exists_and_touch_count_every_mention(r: redis.Redis) -> None:
    r.set("a", 1)
    assert r.exists("a") == 1
    assert r.exists("a", "a", "b") == 2
    assert r.touch("a", "b", "a") == 2


def test_type_names_every_type(r: redis.Redis) -> None:
    fill_every_type(r)
    for name, key in EVERY_TYPE.items():
        assert r.type(key) == name.encode()
    assert r.type("missing") == b"none"


# -- other names, other databases -----------------------------------------------------------------------------


@pytest.mark.parametrize("key", EVERY_TYPE.values())
def test_rename_copy_and_move_take_value_and_expiry_along(r: redis.Redis, key: str) -> None:
    fill_every_type(r)
    before = contents(r, key)
    r.pexpireat(key, 33_000_000_000_000)
    assert r.rename(key, "renamed")
    assert r.copy("renamed", "copied")
    assert r.exists(key) == 0
    assert r.move("renamed", 1)
    assert r.exists("renamed") == 0
    assert contents(r, "copied") == before
    r.select(1)
    assert contents(r, "renamed") == before
    for name, index in (("copied", 0), ("renamed", 1)):
        r.select(index)
        assert r.pttl(name) > 10_000_000_000_000
    r.select(0)


@pytest.mark.parametrize("key", EVERY_TYPE.values())
def test_a_copy_does_not_change_with_its_source(r: redis.Redis, key: str) -> None:
    fill_every_type(r)
    r.append("s", "x")
    before = contents(r, key)
    r.copy(key, "copied")
    r.append("s", "y")
    r.rpush("l", "c")
    r.sadd("e", "c")
    r.hset("h", "i", "3")
    r.zadd("z", {"c": 3})
    r.xadd("x", {"f": "3"}, id="3-0")
    assert contents(r, "copied") == before
    assert contents(r, key) != before


def test_rename_replaces_and_renamenx_does_not(r: redis.Redis) -> None:
    r.set("a", "1")
    r.set("b", "2", px=60_000_000)
    assert r.renamenx("a", "b") is False
    assert r.rename("a", "b") is True
    assert r.get("b") == b"1"
    assert r.ttl("b") == -1
    assert r.rename("b", "b") is True
    assert r.renamenx("b", "b") is False
    assert r.renamenx("b", "c") is True
    for name in ("RENAME", "RENAMENX"):
        with pytest.raises(redis.ResponseError, match="no such key"):
            r.execute_command(name, "missing", "missing")


def test_copy_needs_replace_for_a_name_that_is_taken(r: redis.Redis) -> None:
    r.set("a", "1")
    r.set("b", "2")
    assert r.copy("a", "b") is False
    assert r.copy("missing", "c") is False
    assert r.copy("a", "b", replace=True) is True
    assert r.get("b") == b"1"
    assert r.execute_command("COPY", "a", "a", "DB", 1, "replace") == 1
    for arguments, error in [
        (("a", "a"), "source and destination objects are the same"),
        (("a", "a", "DB", 0), "source and destination objects are the same"),
        (("a", "c", "DB", 99), "DB index is out of range"),
        (("a", "c", "DB", "x"), "value is not an integer or out of range"),
        (("a", "c", "DB"), "syntax error"),
        (("a", "c", "NOW"), "syntax error"),
    ]:
        with pytest.raises(redis.ResponseError, match=error):
            r.execute_command("COPY", *arguments)
    assert r.exists("c") == 0


def test_move_leaves_both_keys_alone_when_the_name_is_taken(r: redis.Redis) -> None:
    r.set("a", "here")
    r.execute_command("COPY", "a", "a", "DB", 1)
    r.set("a", "still here")
    assert r.move("a", 1) is False
    assert r.get("a") == b"still here"
    assert r.move("missing", 1) is False
    for index, error in [
        (0, "source and destination objects are the same"),
        (-1, "DB index is"),
        ("x", "value is not"),
    ]:
        with pytest.raises(redis.ResponseError, match=error):
            r.execute_command("MOVE", "a", index)


def test_a_list_renamed_to_an_awaited_key_wakes_its_client(r: redis.Redis) -> None:
    waiting = r.connection_pool.get_connection()
    try:
        waiting.send_command("BLPOP", "wanted", 20)
        while not any(client["cmd"] == "blpop" and "b" in client["flags"] for client in r.client_list()):
            pass
        r.rpush("l", "a")
        r.rename("l", "wanted")
        assert waiting.read_response() == [b"wanted", b"a"]
    finally:
        r.connection_pool.release(waiting)


# -- which keys there are -------------------------------------------------------------------------------------


def test_keys_matches_patterns(r: redis.Redis) -> None:
    r.mset({"user:1": "", "user:2": "", "user:10": "", "cart": ""})
    assert sorted(r.keys("user:?")) == [b"user:1", b"user:2"]
    assert sorted(r.keys("user:1*")) == [b"user:1", b"user:10"]
    assert len(r.keys("*")) == 4
    assert r.keys("c[ab]rt") == [b"cart"]
    assert r.keys("x*") == []


def test_randomkey_gives_every_key_its_turn(r: redis.Redis) -> None:
    assert r.randomkey() is None
    r.mset(dict.fromkeys("abcde", ""))
    assert {r.randomkey() for _ in range(300)} == {b"a", b"b", b"c", b"d", b"e"}


def test_scan_visits_every_key_and_filters(r: redis.Redis) -> None:
    fill_every_type(r)
    r.mset({f"key:{number}": number for number in range(500)})
    assert len(set(r.scan_iter(count=7))) == 500 + len(EVERY_TYPE)
    assert set(r.scan_iter(match="key:1?")) == {b"key:%d" % number for number in range(10, 20)}
    assert set(r.scan_iter(_type="LIST")) == {b"l"}
    assert set(r.scan_iter(_type="nonsense")) == set()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("x",), "invalid cursor"),
        (("18446744073709551616",), "invalid cursor"),
        (("0", "COUNT", "0"), "syntax error"),
        (("0", "COUNT", "x"), "value is not an integer"),
        (("0", "MATCH"), "syntax error"),
        (("0", "NOW", "1"), "syntax error"),
    ],
)
def test_scan_refuses_what_redis_refuses(r: redis.Redis, arguments: tuple[str, ...], error: str) -> None:
    with pytest.raises(redis.ResponseError, match=error):
        r.execute_command("SCAN", *arguments)


# -- OBJECT, WAIT, CLUSTER ------------------------------------------------------------------------------------


@pytest.mark.since("7.0")
def test_object_encoding_is_what_redis_would_choose(r: redis.Redis) -> None:
    def encoding(command: str, *arguments: object) -> bytes:
        r.delete("k")
        r.execute_command(command, "k", *arguments)
        return r.object("ENCODING", "k")

    assert encoding("SET", "12") == b"int"
    assert encoding("SET", "-9223372036854775808") == b"int"
    assert encoding("SET", "9223372036854775808") == b"embstr"
    assert encoding("SET", "012") == b"embstr"
    assert encoding("INCR") == b"int"
    assert encoding("SET", "x" * 44) == b"embstr"
    assert encoding("SET", "x" * 45) == b"raw"
    assert encoding("RPUSH", "a") == b"quicklist"
    assert encoding("SADD", *range(512)) == b"intset"
    assert encoding("SADD", *range(513)) == b"hashtable"
    assert encoding("SADD", "1", "a") == b"hashtable"
    assert encoding("HSET", "f", "x" * 64) == b"listpack"
    assert encoding("HSET", "f", "x" * 65) == b"hashtable"
    assert encoding("HSET", *[word for number in range(512) for word in (number, "")]) == b"listpack"
    assert encoding("HSET", *[word for number in range(513) for word in (number, "")]) == b"hashtable"
    assert encoding("ZADD", 1, "x" * 64) == b"listpack"
    assert encoding("ZADD", 1, "x" * 65) == b"skiplist"
    assert encoding("ZADD", *[word for number in range(129) for word in (number, number)]) == b"skiplist"


def test_object_answers_null_for_a_missing_key_and_help_for_people(r: redis.Redis) -> None:
    for name in ("ENCODING", "REFCOUNT", "FREQ", "IDLETIME"):
        assert r.object(name, "missing") is None
    r.mset({"shared": "9999", "own": "10000", "text": "x"})
    assert [r.object("REFCOUNT", key) for key in ("shared", "own", "text")] == [2147483647, 1, 1]
    with pytest.raises(redis.ResponseError, match="An LFU maxmemory policy is not selected"):
        r.object("FREQ", "text")
    assert b"OBJECT <subcommand>" in r.execute_command("OBJECT", "HELP")[0]


@pytest.mark.since("7.0")
def test_object_points_to_its_help_when_asked_something_else(r: redis.Redis) -> None:
    with pytest.raises(redis.ResponseError, match=r"unknown subcommand 'NOW'\. Try OBJECT HELP\."):
        r.execute_command("OBJECT", "NOW", "text")


def test_idle_time_is_refused_because_it_is_not_tracked(ours: object) -> None:
    with redis.Redis.from_url(ours.url) as client:  # type: ignore[attr-defined]
        client.set("k", "v")
        with pytest.raises(redis.ResponseError, match="idle time not tracked"):
            client.object("IDLETIME", "k")
        client.delete("k")


def test_wait_answers_no_replicas_at_once(r: redis.Redis) -> None:
    assert r.wait(0, 0) == 0
    assert r.wait(-1, 60_000) == 0
    for arguments, error in [
        ((0, -1), "timeout is negative"),
        ((0, "x"), "timeout is not"),
        (("x", 0), "value is not"),
    ]:
        with pytest.raises(redis.ResponseError, match=error):
            r.execute_command("WAIT", *arguments)


@pytest.mark.parametrize(
    "line", ["CLUSTER INFO", "CLUSTER KEYSLOT a", "CLUSTER SLOTS", "CLUSTER HELP", "READONLY", "ASKING"]
)
@pytest.mark.since("7.0")
def test_there_is_no_cluster(r: redis.Redis, line: str) -> None:
    connection = r.connection_pool.get_connection()
    try:
        connection.send_command(*line.split())
        with pytest.raises(redis.ResponseError, match="This instance has cluster support disabled"):
            connection.read_response()
    finally:
        r.connection_pool.release(connection)


# -- comparison -----------------------------------------------------------------------------------------------

names = st.sampled_from([b"a", b"b", b"c", b""])
index = st.sampled_from([b"0", b"1", b"2", b"16", b"-1", b"x"])
FAR = 33_000_000_000_000
times = st.sampled_from([b"%d" % FAR, b"%d" % (FAR + 5), b"%d" % (FAR + 1_000_000), b"1", b"0", b"-1", b"x", b"1.5"])
seconds = st.sampled_from([b"%d" % (FAR // 1000), b"%d" % (FAR // 1000 + 1), b"-5", b"9223372036854775807", b""])
conditions = st.lists(st.sampled_from([b"NX", b"xx", b"GT", b"LT", b"NO"]), max_size=2)


generic = [
    words(b"SET", names, st.sampled_from([b"1", b"x"])),
    words(b"RPUSH", names, several(names)),
    words(b"SADD", names, several(names)),
    words(b"HSET", names, names, names),
    words(b"ZADD", names, b"1", names),
    words(b"APPEND", names, b"1"),
    words(b"INCR", names),
    words(b"DEL", several(names)),
    words(b"UNLINK", several(names)),
    words(b"EXISTS", several(names)),
    words(b"TOUCH", several(names)),
    words(b"TYPE", names),
    words(b"KEYS", st.sampled_from([b"*", b"a", b"[ab]", b""])),
    words(b"RENAME", names, names),
    words(b"RENAMENX", names, names),
    words(b"COPY", names, names, st.lists(st.sampled_from([b"REPLACE", b"DB", b"1", b"0", b"x"]), max_size=3)),
    words(b"MOVE", names, index),
    words(b"SELECT", index),
    words(b"SWAPDB", st.sampled_from([b"0", b"1"]), st.sampled_from([b"1", b"2"])),
    words(b"SCAN", b"0", b"TYPE", st.sampled_from([b"string", b"LIST", b"none"])),
    words(b"SCAN", b"0", b"MATCH", names),
    words(b"DBSIZE"),
    words(b"PERSIST", names),
    words(b"LRANGE", names, b"0", b"-1"),
    words(b"GET", names),
]
if find_redis().version >= (7,):
    generic += [
        words(b"PEXPIREAT", names, times, conditions),
        words(b"EXPIREAT", names, seconds, conditions),
        words(b"PEXPIRETIME", names),
        words(b"EXPIRETIME", names),
    ]


def normal(argv: list[bytes], reply: object) -> object:
    """Keys come in any order, from KEYS and inside SCAN's reply."""
    if argv[0] == b"SCAN" and isinstance(reply, list):
        return sorted(reply[1])
    return sort_if({b"KEYS"})(argv, reply)


TestKeysAgainstRedis = comparison_machine(st.one_of(generic), normal=normal, examples=50, steps=30)
