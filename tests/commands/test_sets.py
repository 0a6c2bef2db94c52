"""Sets, on ours and on a real Redis."""

from __future__ import annotations

import socket
from collections import Counter
from urllib.parse import urlsplit

import pytest
import redis
from hypothesis import strategies as st
from tests.support.comparison import comparison_machine, sort_if

from penstock.commands import load
from penstock.engine.dispatch import Engine
from penstock.engine.interfaces import LogEntry
from penstock.engine.session import Session
from penstock.protocol.resp import pack
from penstock.testing.redis import find_redis

# -- members --------------------------------------------------------------------------------------------------------


def test_sadd_counts_only_new_members(r: redis.Redis) -> None:
    assert r.sadd("s", "a", "b", "a") == 2
    assert r.sadd("s", "b", "c") == 1
    assert r.sadd("s", "c") == 0
    assert r.smembers("s") == {b"a", b"b", b"c"}
    assert r.scard("s") == 3


def test_removing_the_last_member_removes_the_key(r: redis.Redis) -> None:
    r.sadd("s", "a", "b")
    assert r.srem("s", "a", "a", "x") == 1
    assert r.exists("s") == 1
    assert r.srem("s", "b") == 1
    assert r.exists("s") == 0
    assert r.srem("s", "b") == 0


def test_membership(r: redis.Redis) -> None:
    r.sadd("s", "a")
    assert (r.sismember("s", "a"), r.sismember("s", "x"), r.sismember("nothing", "a")) == (1, 0, 0)
    assert r.smismember("s", ["a", "x", "a"]) == [1, 0, 1]
    assert r.smismember("nothing", ["a", "x"]) == [0, 0]
    assert r.smembers("nothing") == set()
    assert r.scard("nothing") == 0


def test_smove_moves_once(r: redis.Redis) -> None:
    r.sadd("from", "a")
    assert r.smove("from", "to", "x") == 0
    assert r.smove("from", "from", "a") == 1
    assert r.smove("from", "to", "a") == 1
    assert r.smove("from", "to", "a") == 0
    assert r.exists("from") == 0
    assert r.smembers("to") == {b"a"}


def test_smove_to_another_type_removes_nothing(r: redis.Redis) -> None:
    r.sadd("from", "a")
    r.set("text", "x")
    with pytest.raises(redis.ResponseError, match="wrong kind of value"):
        r.smove("from", "text", "a")
    assert r.smembers("from") == {b"a"}
    assert r.smove("nothing", "text", "a") == 0


@pytest.mark.parametrize(
    "command",
    [
        "SADD text a", "SREM text a", "SCARD text", "SISMEMBER text a", "SMISMEMBER text a", "SMEMBERS text",
        "SMOVE text s a", "SPOP text", "SPOP text 1", "SRANDMEMBER text", "SRANDMEMBER text 1", "SSCAN text 0",
        "SINTER s text", "SUNION s text", "SDIFF s text", "SINTERSTORE d s text", "SUNIONSTORE d s text",
        "SDIFFSTORE d s text",
    ],
)  # fmt: skip
def test_another_type_is_refused(r: redis.Redis, command: str) -> None:
    r.set("text", "x")
    r.sadd("s", "a")
    r.sadd("d", "before")
    with pytest.raises(redis.ResponseError, match="wrong kind of value"):
        r.execute_command(*command.split())
    assert r.get("text") == b"x"
    assert r.smembers("d") == {b"before"}


def test_resp3_tells_sets_from_arrays(r: redis.Redis, peer: str) -> None:
    """Read off the wire, because hiredis makes a list of either."""
    r.sadd("s", "a")
    address = urlsplit(peer)
    assert address.hostname is not None
    assert address.port is not None
    with socket.create_connection((address.hostname, address.port)) as wire, wire.makefile("rb") as lines:
        wire.sendall(pack(b"HELLO", b"3") + pack(b"ECHO", b"ready"))
        while lines.readline() != b"ready\r\n":
            pass
        for expected, command in (
            (b"~1", b"SMEMBERS s"), (b"~1", b"SINTER s s"), (b"~1", b"SUNION s"), (b"~1", b"SDIFF s"),
            (b"*1", b"SRANDMEMBER s 3"), (b"~1", b"SPOP s 3"), (b"~0", b"SPOP s 3"), (b"~0", b"SMEMBERS s"),
            (b"*0", b"SRANDMEMBER s 3"), (b"_", b"SRANDMEMBER s"), (b"_", b"SPOP s"),
        ):  # fmt: skip
            wire.sendall(pack(*command.split()))
            assert lines.readline() == expected + b"\r\n", command
            if expected.endswith(b"1"):
                assert (lines.readline(), lines.readline()) == (b"$1\r\n", b"a\r\n")


def test_a_transactions_replies_show_each_moment(r: redis.Redis) -> None:
    with r.pipeline(transaction=True) as pipe:
        pipe.sadd("s", "a").smembers("s").sadd("s", "b").sunion("s").srem("s", "a").sdiff("s")
        replies = pipe.execute()
    assert [set(reply) for reply in replies[1::2]] == [{b"a"}, {b"a", b"b"}, {b"b"}]


# -- set algebra ----------------------------------------------------------------------------------------------------


def test_set_algebra(r: redis.Redis) -> None:
    r.sadd("one", "a", "b", "c", "d")
    r.sadd("two", "c", "d", "e")
    r.sadd("three", "d", "e", "f")
    assert r.sinter("one", "two", "three") == {b"d"}
    assert r.sunion("one", "two", "nothing") == {b"a", b"b", b"c", b"d", b"e"}
    assert r.sdiff("one", "two", "three") == {b"a", b"b"}
    assert r.sinter("one", "nothing") == r.sdiff("nothing", "one") == set()
    assert r.sinter("one") == r.sunion("one") == r.sdiff("one") == {b"a", b"b", b"c", b"d"}


def test_stored_results_replace_what_was_there(r: redis.Redis) -> None:
    r.sadd("one", "a", "b")
    r.sadd("two", "b")
    r.set("result", "text", ex=1000)
    assert r.sinterstore("result", "one", "two") == 1
    assert r.smembers("result") == {b"b"}
    assert r.ttl("result") == -1
    assert r.sunionstore("one", "one", "two") == 2
    assert r.sdiffstore("one", "one", "two") == 1
    assert r.smembers("one") == {b"a"}
    assert r.sinterstore("result", "one", "two") == 0
    assert r.exists("result") == 0


def test_a_stored_copy_is_a_set_of_its_own(r: redis.Redis) -> None:
    r.sadd("one", "a")
    r.srandmember("one")
    r.sdiffstore("two", "one")
    r.sadd("two", "b")
    r.sadd("one", "c")
    assert r.smembers("one") == {b"a", b"c"}
    assert r.smembers("two") == {b"a", b"b"}
    assert sorted(r.srandmember("two", 2)) == [b"a", b"b"]


@pytest.mark.since("7.0")
def test_sintercard_counts_up_to_its_limit(r: redis.Redis) -> None:
    r.sadd("one", *range(10))
    r.sadd("two", *range(5, 20))
    assert r.sintercard(2, ["one", "two"]) == 5
    assert r.sintercard(2, ["one", "two"], limit=3) == 3
    assert r.sintercard(2, ["one", "two"], limit=9) == 5
    assert r.sintercard(2, ["one", "nothing"], limit=9) == 0
    assert r.execute_command("SINTERCARD", 1, "one", "LIMIT", 3, "limit", 4) == 4


@pytest.mark.since("7.0")
@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("0 s", "numkeys should be greater than 0"),
        ("x s", "numkeys should be greater than 0"),
        ("2 s", "Number of keys can't be greater than number of args"),
        ("1 s LIMIT", "syntax error"),
        ("1 s LIMIT -1", "LIMIT can't be negative"),
        ("1 s LIMIT x", "LIMIT can't be negative"),
        ("1 s t", "syntax error"),
    ],
)
def test_bad_counts_of_common_members_are_refused(r: redis.Redis, words: str, error: str) -> None:
    with pytest.raises(redis.ResponseError, match=error):
        r.execute_command("SINTERCARD", *words.split())


@pytest.mark.since("7.0")
def test_another_type_is_an_error_even_beside_a_missing_key(r: redis.Redis) -> None:
    r.set("text", "x")
    for command in ("SINTER nothing text", "SINTERCARD 2 nothing text", "SINTERSTORE d nothing text"):
        with pytest.raises(redis.ResponseError, match="wrong kind of value"):
            r.execute_command(*command.split())


# -- random members -------------------------------------------------------------------------------------------------


def test_random_members_differ_unless_the_count_is_negative(r: redis.Redis) -> None:
    r.sadd("s", "a", "b", "c")
    assert r.srandmember("s") in {b"a", b"b", b"c"}
    assert len(set(r.srandmember("s", 2))) == 2
    assert sorted(r.srandmember("s", 10)) == [b"a", b"b", b"c"]
    assert len(r.srandmember("s", -10)) == 10
    assert r.srandmember("s", 0) == []
    assert r.srandmember("nothing") is None
    assert r.srandmember("nothing", 2) == []
    assert r.scard("s") == 3


def test_spop_removes_what_it_answers(r: redis.Redis) -> None:
    members = {b"%d" % number for number in range(20)}
    r.sadd("s", *members)
    first = r.spop("s")
    some = set(r.spop("s", 5))
    assert len(some) == 5
    assert {first} | some < members
    assert r.smembers("s") == members - some - {first}
    assert set(r.spop("s", 0)) == set()
    assert len(r.spop("s", 100)) == 14
    assert r.exists("s") == 0
    assert r.spop("s") is None
    assert set(r.spop("s", 3)) == set()


def test_popping_one_by_one_empties_a_set(r: redis.Redis) -> None:
    r.sadd("s", *range(50))
    assert {r.spop("s") for _ in range(50)} == {b"%d" % number for number in range(50)}
    assert r.exists("s") == 0


def test_every_member_is_drawn_while_members_come_and_go(r: redis.Redis) -> None:
    r.sadd("s", *(f"m{number}" for number in range(10)))
    drawn: Counter[bytes] = Counter()
    for turn in range(300):
        drawn[r.srandmember("s")] += 1
        r.sadd("s", f"n{turn}")
        r.srem("s", f"n{turn}")
    assert all(drawn[b"m%d" % number] for number in range(10))


@pytest.mark.since("7.0")
def test_bad_counts_of_random_members_are_refused(r: redis.Redis) -> None:
    r.sadd("s", "a")
    for words, error in (
        ("SRANDMEMBER s x", "value is not an integer or out of range"),
        ("SRANDMEMBER s 1 2", "syntax error"),
        ("SRANDMEMBER s -9223372036854775808", "value is out of range, value must between"),
        ("SPOP s x", "value is out of range, must be positive"),
        ("SPOP s -1", "value is out of range, must be positive"),
        ("SPOP s 1 2", "syntax error"),
    ):
        with pytest.raises(redis.ResponseError, match=error):
            r.execute_command(*words.split())


# -- iteration ------------------------------------------------------------------------------------------------------


def test_sscan_returns_every_member(r: redis.Redis) -> None:
    members = {b"m%d" % number for number in range(2000)}
    r.sadd("s", *members)
    cursor, some = r.sscan("s", count=100)
    assert cursor != 0
    assert len(some) < 1000
    assert set(r.sscan_iter("s", count=100)) == members
    assert set(r.sscan_iter("s", match="*77")) == {member for member in members if member.endswith(b"77")}
    assert r.sscan("nothing") == (0, [])


def test_members_that_stay_are_scanned_while_others_come_and_go(r: redis.Redis) -> None:
    stay = {b"stay%d" % number for number in range(500)}
    r.sadd("s", *stay, *(b"go%d" % number for number in range(500)))
    cursor, some = r.sscan("s", count=50)
    seen = set(some)
    turn = 0
    while cursor:
        r.srem("s", *(b"go%d" % number for number in range(turn * 50, turn * 50 + 50)))
        r.sadd("s", *(b"new%d" % number for number in range(turn * 20, turn * 20 + 20)))
        turn += 1
        cursor, some = r.sscan("s", cursor, count=50)
        seen.update(some)
    assert stay <= seen


# -- what is logged -------------------------------------------------------------------------------------------------


def test_random_removals_are_logged_as_what_they_did() -> None:
    load()
    engine = Engine()
    logged: list[LogEntry] = []
    session = Session(engine)

    def run(*argv: bytes) -> list[list[bytes]]:
        logged.clear()
        engine.execute(session, list(argv))
        return [entry for _, entry in logged]

    engine.log = logged.extend
    run(b"SADD", b"s", *(b"%d" % number for number in range(10)))
    members = set(engine.execute(session, [b"SMEMBERS", b"s"]))
    ((name, key, member),) = run(b"SPOP", b"s")
    assert (name, key) == (b"SREM", b"s")
    members.remove(member)
    ((name, key, *several),) = run(b"SPOP", b"s", b"4")
    assert (name, key, len(several)) == (b"SREM", b"s", 4)
    members.difference_update(several)
    assert set(engine.execute(session, [b"SMEMBERS", b"s"])) == members
    assert run(b"SPOP", b"s", b"0") == run(b"SRANDMEMBER", b"s") == run(b"SADD", b"s", min(members)) == []
    assert run(b"SPOP", b"s", b"5") == [[b"DEL", b"s"]]


# -- ours against Redis -----------------------------------------------------------------------------------------------

key = st.sampled_from([b"s", b"t", b"text"])
member = st.sampled_from([b"a", b"b", b"", b"1", b"-7", b"\x00\xff"])
members = st.lists(member, max_size=4)
several = st.lists(key, max_size=3)


def call(name: bytes, *parts: st.SearchStrategy[bytes]) -> st.SearchStrategy[list[bytes]]:
    return st.tuples(*parts).map(lambda arguments: [name, *arguments])


commands = st.one_of(
    st.builds(
        lambda name, where, what: [name, where, *what],
        st.sampled_from([b"SADD", b"sadd", b"SREM", b"SMISMEMBER"]), key, members,
    ),
    call(b"SMOVE", key, key, member),
    call(b"SISMEMBER", key, member),
    call(b"SCARD", key),
    call(b"SMEMBERS", key),
    call(b"SPOP", key, st.sampled_from([b"0", b"9", b"-1", b"x"])),
    call(b"SRANDMEMBER", key, st.sampled_from([b"0", b"9", b"x"])),
    call(b"SSCAN", key, st.sampled_from([b"0", b"x", b""])),
    call(b"SSCAN", key, st.just(b"0"), st.sampled_from([b"MATCH", b"count"]), st.sampled_from([b"[a1]", b"99", b"0"])),
    st.builds(lambda where: [b"SDIFF", *where], several),
    st.builds(lambda where: [b"SUNION", *where], several),
    st.builds(
        lambda name, where: [name, *where],
        st.sampled_from([b"SUNIONSTORE", b"SDIFFSTORE"]), st.lists(key, min_size=1, max_size=4),
    ),
    call(b"SET", st.just(b"text"), member),
    call(b"DEL", key),
)  # fmt: skip
if find_redis().version >= (7, 0):
    commands |= st.builds(lambda where: [b"SINTER", *where], several)
    commands |= st.builds(lambda where: [b"SINTERSTORE", *where], st.lists(key, min_size=1, max_size=4))
    commands |= st.builds(
        lambda count, where, rest: [b"SINTERCARD", count, *where, *rest],
        st.sampled_from([b"0", b"1", b"2", b"x"]), several,
        st.sampled_from([[], [b"LIMIT"], [b"LIMIT", b"1"], [b"limit", b"0"], [b"LIMIT", b"-1"]]),
    )  # fmt: skip

_UNORDERED = {b"SMEMBERS", b"SPOP", b"SRANDMEMBER", b"SINTER", b"SUNION", b"SDIFF"}
_sorted = sort_if(_UNORDERED)


def _normal(argv: list[bytes], reply: object) -> object:
    if argv[0] == b"SSCAN" and isinstance(reply, list):
        return [reply[0], sorted(reply[1])]
    return _sorted(argv, reply)


TestSetsAgainstRedis = comparison_machine(commands, normal=_normal)


# -- order --------------------------------------------------------------------------------------------------------

EXTREMES = [-(1 << 63), (1 << 63) - 1]


def numbers(*values: int) -> list[bytes]:
    return [b"%d" % value for value in values]


def unsorted(r: redis.Redis, *words: object) -> list[bytes]:
    """A reply of members as they came; redis-py would make a set of it."""
    connection = r.connection_pool.get_connection()
    try:
        connection.send_command(*words)
        reply: list[bytes] = connection.read_response()
    finally:
        r.connection_pool.release(connection)
    return reply


def test_small_sets_of_integers_are_answered_in_order(r: redis.Redis) -> None:
    r.sadd("s", *(at * 37 % 301 - 150 for at in range(301)))
    r.sadd("s", *EXTREMES)
    ordered = numbers(EXTREMES[0], *range(-150, 151), EXTREMES[1])
    assert unsorted(r, "SMEMBERS", "s") == ordered
    assert unsorted(r, "SSCAN", "s", 0, "COUNT", 5) == [b"0", ordered]
    assert unsorted(r, "SSCAN", "s", 0, "MATCH", "14?") == [b"0", numbers(*range(140, 150))]
    assert unsorted(r, "SORT", "s", "BY", "nosort") == unsorted(r, "SORT", "s", "BY", "nosort", "DESC") == ordered
    assert unsorted(r, "SRANDMEMBER", "s", 303) == ordered
    r.sadd("t", *range(100, 200))
    assert unsorted(r, "SINTER", "t", "s") == numbers(*range(100, 151))
    assert unsorted(r, "SUNION", "t", "s") == numbers(EXTREMES[0], *range(-150, 200), EXTREMES[1])
    assert unsorted(r, "SDIFF", "t", "s") == numbers(*range(151, 200))
    assert unsorted(r, "SPOP", "t", 100) == numbers(*range(100, 200))


@pytest.mark.parametrize("other", ["a", "", "01", "+1", "-0", " 1", "1_0", "9223372036854775808", "9" * 5000])
def test_sets_with_other_members_have_no_order_but_all_members(r: redis.Redis, other: str) -> None:
    r.sadd("s", *range(20))
    r.sadd("s", other)
    expected = sorted([*numbers(*range(20)), other.encode()])
    assert sorted(unsorted(r, "SMEMBERS", "s")) == sorted(unsorted(r, "SUNION", "s", "none")) == expected
    assert sorted(unsorted(r, "SSCAN", "s", 0, "COUNT", 100)[1]) == expected


def test_how_many_integers_have_an_order_is_a_setting(r: redis.Redis) -> None:
    before = r.config_get("set-max-intset-entries")["set-max-intset-entries"]
    r.sadd("s", *(at * 37 % 2003 for at in range(2003)))
    try:
        r.config_set("set-max-intset-entries", 3000)
        r.sunionstore("s", "s", "none")  # Redis chooses how to keep a set when it is made
        assert unsorted(r, "SMEMBERS", "s") == numbers(*range(2003))
    finally:
        r.config_set("set-max-intset-entries", before)
    assert sorted(unsorted(r, "SMEMBERS", "s")) == sorted(numbers(*range(2003)))
