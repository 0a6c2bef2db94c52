"""Redis streams, on ours and on a real Redis."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from hypothesis import strategies as st
from tests.support.commands.bench import Bench
from tests.support.commands.blocking import answer, call, waiting
from tests.support.comparison import Argv, comparison_machine
from tests.support.replies import error_of, raw
from tests.support.word_strategies import several, words

from penstock.engine.dispatch import Engine
from penstock.engine.session import Session
from penstock.testing.clock import ManualClock
from penstock.testing.redis import find_redis

MODERN = find_redis().version >= (7,)  # an older one words some errors differently and reports less: those are left out
ADDED_IN_7 = {b"max-deleted-entry-id", b"entries-added", b"recorded-first-entry-id"}


def fill(r: redis.Redis, *ids: str) -> None:
    for at in ids:
        r.xadd("s", {"f": at}, id=at)


def ids(rows: list[Any]) -> list[bytes]:
    return [row[0] for row in rows]


def without(fields: set[bytes], told: Any) -> Any:
    """A reply of XINFO, flat in RESP2 and a map in RESP3, that leaves these fields out."""
    if isinstance(told, dict):
        return {field: value for field, value in told.items() if field not in fields}
    return [part for pair in zip(told[::2], told[1::2], strict=True) if pair[0] not in fields for part in pair]


# -- adding ---------------------------------------------------------------------------------------------------


def test_ids_made_from_the_clock_only_grow(r: redis.Redis) -> None:
    made = [tuple(map(int, r.xadd("s", {"n": n}).split(b"-"))) for n in range(50)]
    assert made == sorted(set(made))
    assert r.xlen("s") == 50


def test_a_clock_that_is_set_back_does_not_set_ids_back() -> None:
    clock = ManualClock(5000)
    session = Session(Engine(clock=clock))
    add = b"XADD s * f v".split()
    assert session.engine.execute(session, add) == b"5000-0"
    clock.now = 4000
    assert session.engine.execute(session, add) == b"5000-1"
    clock.now = 5001
    assert session.engine.execute(session, add) == b"5001-0"


@pytest.mark.since("7.0")
def test_a_sequence_number_is_filled_in(r: redis.Redis) -> None:
    assert [call(r, f"XADD s {at} f v") for at in ("0-*", "5-*", "5-*", "7", "7-*")] == [
        b"0-1", b"5-0", b"5-1", b"7-0", b"7-1",
    ]  # fmt: skip
    assert "equal or smaller" in call(r, "XADD s 6-* f v")


def test_a_stream_is_not_made_when_that_is_not_wanted(r: redis.Redis) -> None:
    assert r.xadd("s", {"f": "v"}, nomkstream=True) is None
    assert r.exists("s") == 0
    fill(r, "1-1")
    assert r.xadd("s", {"f": "v"}, id="2-2", nomkstream=True) == b"2-2"


REFUSED = [
    "XADD s 3-2 f v", "XADD s 3-3 f v", "XADD s 0-0 f v", "XADD s 0 f v", "XADD s x f v", "XADD s 4-x f v",
    "XADD s 4- f v", "XADD s -4 f v", "XADD s *-4 f v", "XADD s 4-5-* f v", "XADD s -* f v", "XADD s 4-5-6 f v",
    "XADD s ( f v", "XADD s (4 f v", "XADD s + f v", "XADD s - f v", "XADD s $ f v", "XADD s 18446744073709551616 f v",
    "XADD s 4 f", "XADD s MAXLEN 5 f v", "XADD s MAXLEN 1 MINID 1 4 f v", "XADD s LIMIT 5 4 f v",
    "XADD s LIMIT 0 4 f v", "XADD s MAXLEN 5 LIMIT 5 4 f v", "XADD s MAXLEN -1 4 f v",
    "XADD s MAXLEN ~ 5 LIMIT -1 4 f v", "XADD s MAXLEN x 4 f v", "XADD s MINID x 4 f v", "XADD s MAXLEN ~ 4 f v",
    "XADD string 0-0 f v", "XADD string 9 f v", "XTRIM s LIMIT 5", "XTRIM s LIMIT 0", "XTRIM s foo bar",
    "XTRIM s MAXLEN 5 foo", "XTRIM s MAXLEN ~", "XTRIM string MAXLEN 0", "XTRIM s MAXLEN = 0 LIMIT 4",
    "XTRIM s NOMKSTREAM MAXLEN 0", "XDEL s x", "XDEL s 3-3 x", "XDEL string x", "XDEL none x", "XDEL s -",
    "XDEL s (3-3", "XSETID s 1-1", "XSETID none 9", "XSETID string 9", "XRANGE s x +", "XRANGE s (- +", "XRANGE s ( +",
    "XRANGE s - + COUNT", "XRANGE s - + COUNT x", "XRANGE s - + foo 1",
    "XRANGE s (18446744073709551615-18446744073709551615 +", "XRANGE s - (0-0", "XRANGE string x y",
    "XRANGE string - +", "XRANGE none x y", "XREVRANGE s x -", "XREVRANGE s (0-0 -", "XREVRANGE s x (0-0",
    "XREAD STREAMS s", "XREAD STREAMS s 0 1", "XREAD COUNT x STREAMS s 0", "XREAD BLOCK x STREAMS s 0",
    "XREAD BLOCK -1 STREAMS s 0", "XREAD BLOCK 1.5 STREAMS s 0", "XREAD foo STREAMS s 0", "XREAD COUNT 1 2 3",
    "XREAD STREAMS s >", "XREAD STREAMS s x", "XREAD STREAMS s -", "XREAD NOACK STREAMS s 0",
    "XREAD GROUP g c STREAMS s 0", "XREAD STREAMS string 0", "XREAD STREAMS s string 0 0",
    "XREAD BLOCK 0 STREAMS string $", "XREAD COUNT 1 BLOCK 1", "XREAD COUNT 1 STREAMS", "XINFO STREAM none",
    "XINFO STREAM none foo", "XINFO STREAM s FULL COUNT x", "XINFO STREAM string", "XLEN string",
]  # fmt: skip
if MODERN:
    REFUSED += [
        "XADD s 4 f v g", "XADD s MAXLEN 5 4", "XADD s NOMKSTREAM 4 f", "XADD s NOMKSTREAM NOMKSTREAM NOMKSTREAM",
        "XSETID s 9 ENTRIESADDED 1", "XSETID s 9 ENTRIESADDED -1", "XSETID s 9 ENTRIESADDED x",
        "XSETID s 9 ENTRIESADDED", "XSETID s 9 MAXDELETEDID 10", "XSETID s 9 foo 1", "XSETID none x",
        "XINFO STREAM s foo", "XINFO STREAM s FULL COUNT", "XINFO STREAM s FULL foo 1", "XINFO STREAM", "XINFO foo",
    ]  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_refused_is_refused_in_the_words_of_redis(ours: Any, theirs: Any, text: str) -> None:
    replies = []
    for server in (ours, theirs):
        with redis.Redis.from_url(server.url, protocol=2) as client:
            client.flushall()
            client.set("string", "v")
            fill(client, "1-1", "3-3")
            replies.append(call(client, text))
            assert ids(client.xrange("s")) == [b"1-1", b"3-3"]
    assert replies[0] == replies[1]


@pytest.mark.since("7.0")
def test_nothing_comes_after_the_last_possible_id(r: redis.Redis) -> None:
    last = "18446744073709551615-18446744073709551615"
    assert call(r, f"XADD s {last} f v") == last.encode()
    for at in ("*", "18446744073709551615-*", "5"):
        assert "exhausted the last possible ID" in error_of(r, "XADD", "s", at, "f", "v")
    assert r.xread({"s": last}) == []


# -- trimming and deleting ------------------------------------------------------------------------------------


def test_trimming_drops_the_oldest(r: redis.Redis) -> None:
    fill(r, "1-1", "2-2", "3-3", "4-4", "5-5")
    assert r.xtrim("s", maxlen=4, approximate=False) == 1
    assert r.xtrim("s", minid="3-3", approximate=False) == 1
    assert r.xadd("s", {"f": "v"}, id="6-6", maxlen=3, approximate=False) == b"6-6"
    assert ids(r.xrange("s")) == [b"4-4", b"5-5", b"6-6"]
    assert r.xtrim("none", maxlen=0) == 0


def test_a_block_has_as_many_entries_as_the_directive_says(r: redis.Redis) -> None:
    def fill(count: int) -> None:
        r.delete("s")
        for number in range(1, count + 1):
            r.xadd("s", {"f": "v"}, id=f"{number}-0")

    name = "stream-node-max-entries"
    try:
        r.config_set(name, 10)
        fill(100)
        r.xadd("s", {"f": "v"}, id="101-0", maxlen=55, approximate=True, limit=30)
        assert r.xlen("s") == 71
        assert r.xtrim("s", maxlen=55, approximate=True) == 10
        assert r.xtrim("s", minid="59-0", approximate=True) == 10
        r.config_set(name, 2)
        fill(3)
        assert r.xtrim("s", maxlen=0, approximate=True, limit=1) == 0
        assert r.xtrim("s", maxlen=0, approximate=True, limit=2) == 2
        r.config_set(name, 1)
        fill(102)
        assert r.xtrim("s", maxlen=1, approximate=True) == 100
    finally:
        r.config_set(name, 100)


def test_approximate_trimming_keeps_what_shares_a_block(r: redis.Redis) -> None:
    for n in range(1, 251):
        r.xadd("s", {"f": "v"}, id=f"{n}-0", maxlen=10)
    assert r.xlen("s") == 50
    assert r.xtrim("s", maxlen=10, approximate=True) == 0
    for n in range(251, 300):
        r.xadd("s", {"f": "v"}, id=f"{n}-0")
    assert r.xtrim("s", minid="299-0", approximate=True, limit=99) == 0
    assert r.xtrim("s", minid="301-0", approximate=True, limit=0) == 99


def test_a_stream_that_lost_its_entries_stays_and_remembers(r: redis.Redis) -> None:
    fill(r, "1-1", "2-2")
    assert r.xdel("s", "2-2", "2-2", "9-9") == 1
    assert r.xtrim("s", maxlen=0, approximate=False) == 1
    assert r.type("s") == b"stream"
    assert r.xlen("s") == 0
    assert "equal or smaller" in error_of(r, "XADD", "s", "2-2", "f", "v")
    copied = r.dump("s")
    r.restore("copy", 0, copied)
    assert r.xlen("copy") == 0
    assert "equal or smaller" in error_of(r, "XADD", "copy", "2-1", "f", "v")


@pytest.mark.parametrize(
    ("text", "logged"),
    [
        (b"XADD s * f v", b"XADD s 7000-0 f v"),
        (b"XADD s 6000-* f v", b"XADD s 6000-0 f v"),
        (b"XADD s NOMKSTREAM MAXLEN ~ 5 LIMIT 0 * f v", b"XADD s MAXLEN = 101 7000-0 f v"),
        (b"XADD s MAXLEN ~ 500 LIMIT 7 * f v", b"XADD s 7000-0 f v"),
        (b"XADD s MINID 199 * f v", b"XADD s MAXLEN = 3 7000-0 f v"),
        (b"XTRIM s MINID ~ 150 LIMIT 100", b"XTRIM s MAXLEN = 100"),
        (b"XTRIM s MAXLEN ~ 150", None),
        (b"XDEL s 7 8", b"XDEL s 7 8"),
        (b"XDEL s 1000", None),
    ],
)
def test_the_log_gives_the_same_stream_again(text: bytes, logged: bytes | None) -> None:
    bench, replayed = Bench(), Bench()
    for target in (bench, replayed):
        for n in range(1, 201):
            target.run("XADD", "s", str(n), "f", "v")
        target.logged.clear()
    bench.clock.now = 7000
    bench.run(*text.split())
    written = [b" ".join(argv) for unit in bench.logged for _, argv in unit]
    assert written == ([] if logged is None else [logged])
    for line in written:
        replayed.run(*line.split())
    assert replayed.run("XINFO", "STREAM", "s") == bench.run("XINFO", "STREAM", "s")


# -- reading --------------------------------------------------------------------------------------------------


def test_ranges_go_both_ways_and_may_leave_their_bounds_out(r: redis.Redis) -> None:
    fill(r, "1-1", "1-2", "2-1", "3-0", "5-7")
    assert r.xrange("s", "(1-2", "(5-7") == [(b"2-1", {b"f": b"2-1"}), (b"3-0", {b"f": b"3-0"})]
    assert ids(r.xrange("s", "1", "2")) == [b"1-1", b"1-2", b"2-1"]
    assert ids(r.xrevrange("s", "(3", "1-2")) == [b"3-0", b"2-1", b"1-2"]
    assert ids(r.xrevrange("s", count=2)) == [b"5-7", b"3-0"]
    assert r.xrange("s", "+", "-") == []
    assert raw(r, "XRANGE", "s", "-", "+", "COUNT", "0") is None
    assert raw(r, "XRANGE", "none", "-", "+", "COUNT", "0") == []


def test_reading_starts_above_an_id(r: redis.Redis) -> None:
    fill(r, "1-1", "2-2", "3-3")
    assert r.xread({"s": "1-1", "none": 0}, count=1) == [[b"s", [(b"2-2", {b"f": b"2-2"})]]]
    assert raw(r, "XREAD", "STREAMS", "s", "s", "1", "2-2") == [
        [b"s", [[b"1-1", [b"f", b"1-1"]], [b"2-2", [b"f", b"2-2"]], [b"3-3", [b"f", b"3-3"]]]],
        [b"s", [[b"3-3", [b"f", b"3-3"]]]],
    ]
    assert raw(r, "XREAD", "STREAMS", "s", "$") is None


def test_resp3_reads_a_map_of_streams(r3: redis.Redis) -> None:
    fill(r3, "1-1")
    assert raw(r3, "XREAD", "STREAMS", "s", "none", "0", "0") == {b"s": [[b"1-1", [b"f", b"1-1"]]]}
    assert raw(r3, "XREAD", "BLOCK", "5", "STREAMS", "s", "$") is None


@pytest.mark.parametrize(
    "text", ["XINFO STREAM s", "XINFO STREAM s FULL", "XINFO STREAM s FULL COUNT 1", "XINFO STREAM e"]
)
@pytest.mark.parametrize("protocol", [2, 3])
def test_what_is_known_of_a_stream_is_told_as_redis_tells_it(ours: Any, theirs: Any, text: str, protocol: int) -> None:
    replies = []
    for server in (ours, theirs):
        with redis.Redis.from_url(server.url, protocol=protocol) as client:
            client.flushall()
            fill(client, *(f"{n}-{n}" for n in range(1, 14)))
            client.xdel("s", "2-2")
            client.xtrim("s", maxlen=11, approximate=False)
            client.xadd("e", {"f": "v"}, id="1-1")
            client.xdel("e", "1-1")
            replies.append(call(client, text))
            assert client.object("encoding", "s") == b"stream"
    mine, original = replies
    assert (mine if MODERN else without(ADDED_IN_7, mine)) == original


@pytest.mark.parametrize("text", ["XREAD COUNT 1 STREAMS a b 0 0", "XADD a * f v", "XRANGE a - +", "XINFO STREAM a"])
def test_keys_are_found(r: redis.Redis, text: str) -> None:
    assert raw(r, "COMMAND", "GETKEYS", *text.split()) == ([b"a", b"b"] if "READ" in text else [b"a"])


# -- waiting --------------------------------------------------------------------------------------------------


def test_nothing_before_the_timeout_is_null(r: redis.Redis) -> None:
    fill(r, "1-1")
    assert raw(r, "XREAD", "BLOCK", "5", "STREAMS", "s", "$") is None


def test_a_waiting_reader_gets_what_comes_after_its_call(r: redis.Redis) -> None:
    fill(r, "1-1")
    with waiting(r, "XREAD BLOCK 0 STREAMS s none $ 0", "XREAD BLOCK 0 STREAMS s 5-0") as [now, later]:
        r.xadd("s", {"f": "v"}, id="2-2")
        assert answer(now) == [[b"s", [[b"2-2", [b"f", b"v"]]]]]
        r.xadd("s", {"f": "v"}, id="5-0")
        r.xadd("s", {"f": "v"}, id="5-1")
        assert answer(later) == [[b"s", [[b"5-1", [b"f", b"v"]]]]]


def test_all_entries_of_a_transaction_reach_every_reader_together(r: redis.Redis) -> None:
    with waiting(r, "XREAD BLOCK 0 STREAMS s $", "XREAD COUNT 1 BLOCK 0 STREAMS s $") as [all_of_them, one]:
        with r.pipeline() as pipe:
            pipe.xadd("s", {"f": "v"}, id="1-1")
            pipe.xadd("s", {"f": "v"}, id="2-2")
            pipe.execute()
        assert ids(answer(all_of_them)[0][1]) == [b"1-1", b"2-2"]
        assert ids(answer(one)[0][1]) == [b"1-1"]


def test_a_reader_waits_on_when_its_key_is_deleted_or_becomes_something_else(r: redis.Redis) -> None:
    fill(r, "1-1")
    with waiting(r, "XREAD BLOCK 0 STREAMS s $") as [connection]:
        r.delete("s")
        r.lpush("s", "element")
        r.delete("s")
        r.xadd("s", {"f": "v"}, id="1-2")
        assert answer(connection) == [[b"s", [[b"1-2", [b"f", b"v"]]]]]


def test_commands_do_not_block_inside_a_transaction(r: redis.Redis) -> None:
    with r.pipeline() as pipe:
        pipe.execute_command("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
        pipe.xadd("s", {"f": "v"}, id="1-1")
        pipe.execute_command("XREAD", "BLOCK", "0", "STREAMS", "s", "0")
        assert pipe.execute() == [[], b"1-1", [[b"s", [(b"1-1", {b"f": b"v"})]]]]


def test_a_script_reads_entries_as_nested_tables(r: redis.Redis) -> None:
    fill(r, "1-1")
    assert (
        r.eval("local e = redis.call('XRANGE', KEYS[1], '-', '+') return {e[1][1], e[1][2][2]}", 1, "s") == [b"1-1"] * 2
    )


# -- everything, compared -------------------------------------------------------------------------------------

NAMES = st.sampled_from([b"s", b"t"])
NUMBERS = st.integers(0, 6).map(lambda n: b"%d" % n)
IDS = st.sampled_from(
    [b"0-0", b"0-1", b"1-1", b"1-2", b"2", b"2-0", b"3-1", b"4-18446744073709551615", b"5", b"6-6", b"x"]
)
NEW_IDS = IDS | st.integers(1, 40).map(lambda n: b"%d-%d" % (n, n % 3))
BOUNDS = IDS | IDS.map(lambda at: b"(" + at) | st.sampled_from([b"-", b"+", b"(-"])
EXACTLY = st.sampled_from([[], [b"="]])
TRIMMINGS = (
    words(b"MAXLEN", EXACTLY, NUMBERS)
    | words(b"MINID", EXACTLY, IDS)
    | words(b"MAXLEN", b"~", NUMBERS, b"LIMIT", NUMBERS)
)
COUNTS = st.sampled_from([[], [b"COUNT", b"2"], [b"count", b"0"], [b"COUNT", b"-1"]])
COMMANDS = st.one_of(
    words(b"XADD", NAMES, NEW_IDS, b"f", NUMBERS),
    words(b"XADD", NAMES, st.integers(1, 40).map(lambda n: b"%d-%d" % (n, n % 3)), b"f", NUMBERS),
    words(b"XADD", NAMES, TRIMMINGS, NEW_IDS, b"f", NUMBERS),
    words(b"XADD", NAMES, b"nomkstream", NEW_IDS, b"f", NUMBERS, b"g", NUMBERS),
    words(b"XLEN", NAMES),
    words(b"XRANGE", NAMES, BOUNDS, BOUNDS, COUNTS),
    words(b"XREVRANGE", NAMES, BOUNDS, BOUNDS, COUNTS),
    words(b"XREAD", COUNTS, b"STREAMS", NAMES, NEW_IDS),
    words(b"XREAD", COUNTS, b"STREAMS", b"s", b"t", NEW_IDS, st.just(b"$") | NEW_IDS),
    words(b"XDEL", NAMES, several(NEW_IDS)),
    words(b"XTRIM", NAMES, TRIMMINGS),
    words(b"XSETID", NAMES, NEW_IDS if MODERN else NEW_IDS.filter(lambda at: at != b"x")),
    words(b"DEL", NAMES),
    words(b"COPY", b"s", b"t", b"REPLACE"),
)
SINCE_7 = st.one_of(
    words(b"XADD", NAMES, st.integers(0, 9).map(lambda n: b"%d-*" % n), b"f", NUMBERS),
    words(b"XSETID", NAMES, NEW_IDS, b"ENTRIESADDED", NUMBERS, b"MAXDELETEDID", IDS),
    words(b"XINFO", b"STREAM", NAMES, st.sampled_from([[], [b"FULL"], [b"FULL", b"COUNT", b"2"]])),
)


def without_stale_errno(argv: Argv, reply: Any) -> Any:
    """Redis 7.0 refuses `XADD key ms-*` in a full millisecond with the text of whatever error came last."""
    if argv[0] == b"XADD" and reply == "error: ResponseError Elements are too large to be stored":
        return "error: ResponseError The ID specified in XADD is equal or smaller than the target stream top item"
    return reply


TestStreams = comparison_machine(COMMANDS | SINCE_7 if MODERN else COMMANDS, without_stale_errno, examples=80, steps=40)


@pytest.mark.parametrize(
    "line",
    [
        "XRANGE s - +",
        "XREVRANGE s + - COUNT 1500",
        "XREAD STREAMS s 0",
        "XREAD COUNT 1200 STREAMS none s 0 7",
        "XINFO STREAM s FULL COUNT 0",
        "DUMP s",
    ],
)
def test_others_are_served_during_a_long_read(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(Engine())
    for number in range(1, 2001):
        session.engine.execute(session, [b"XADD", b"s", b"%d-0" % number, b"field", b"value"])
    work: list[int] = []

    def aside(_: Session, amount: int, compute: Any, commit: Any = None) -> Any:
        work.append(amount)
        return compute()

    monkeypatch.setattr(Session, "aside", aside)
    session.engine.execute(session, line.encode().split())
    assert work and work[0] > 1000
    session.engine.execute(session, b"XRANGE s 500 520".split())
    session.engine.execute(session, b"XREAD COUNT 10 STREAMS s 0".split())
    assert len(work) == 1
