"""Slow commands give the same reply on the loop and in a thread, and in a thread they use neither session nor keyspace.

`aside` here is as strict as possible: `compute` runs in a thread of its own while the databases cannot be used, and a
few elements already count as long work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import hiredis
import pytest
import redis

from penstock.commands import (
    bitmaps,
    dumping,
    hashes,
    keys,
    lists,
    memory,
    sets,
    sorted_set_algebra,
    sorted_set_ranges,
    sorted_sets,
    sorting,
    string_parts,
    xstreams,
)
from penstock.engine.concurrency import long_work
from penstock.engine.declarations import Argv, Reply
from penstock.engine.dispatch import Engine
from penstock.engine.keyspace import scanning
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError
from penstock.protocol.resp import encode
from penstock.types.xstream import XStream
from penstock.types.zset import SortedSet

T = TypeVar("T")

FAMILIES = [
    bitmaps,
    dumping,
    hashes,
    keys,
    lists,
    memory,
    sets,
    sorted_set_algebra,
    sorted_set_ranges,
    sorted_sets,
    sorting,
    string_parts,
    xstreams,
    scanning,
    long_work,
]
ELEMENTS = range(60)

DATA = [
    ("SADD", "evens", *range(0, 60, 2)),
    ("SADD", "threes", *range(0, 60, 3)),
    ("SADD", "words", *(f"word-{number}" for number in ELEMENTS)),
    ("RPUSH", "list", *((number * 7) % 61 for number in ELEMENTS)),
    ("HSET", "hash", *(word for number in ELEMENTS for word in (f"field-{number}", f"value-{number}"))),
    ("ZADD", "scores", *(word for number in ELEMENTS for word in (number % 7 + 0.5, f"name-{number:02}"))),
    ("ZADD", "names", *(word for number in ELEMENTS for word in (0, f"name-{number:02}"))),
    ("SET", "bits", "some bits" * 10_000),
    ("SET", "fewer", "fewer bits" * 5_000),
    ("SETRANGE", "fewer", 0, "Fewer"),
    ("SET", "word", "no number"),
    ("MSET", *(word for number in ELEMENTS for word in (f"weight-{number}", 100 - number))),
    *(("HSET", f"user-{number}", "age", number * 11 % 17, "name", f"name {number}") for number in range(0, 60, 2)),
    ("INCRBY", "note-2", 70),
    ("SETRANGE", "note-3", 1, "5"),
    *(("XADD", "entries", f"{number + 1}-1", "field", f"value-{number}") for number in ELEMENTS),
]  # fmt: skip

READS = """
SMEMBERS evens | SMEMBERS none | SUNION evens threes words | SUNION evens | SINTER evens threes | SINTER evens none
SDIFF words evens threes | SDIFF evens threes none | SINTERCARD 2 evens threes | SINTERCARD 2 evens threes LIMIT 3
LRANGE list 0 -1 | LRANGE list 5 50 | LRANGE list -20 -3 | LRANGE list 9 3 | HGETALL hash | HKEYS hash | HVALS hash
ZRANGE scores 0 -1 | ZRANGE scores 3 40 WITHSCORES | ZRANGE scores 0 -1 REV | ZRANGE scores 1 4 BYSCORE LIMIT 2 20
ZREVRANGE scores 2 50 WITHSCORES | ZRANGEBYSCORE scores (1 (5 | ZREVRANGEBYSCORE scores 4 2 WITHSCORES LIMIT 1 9
ZRANGEBYLEX names [name-03 [name-44 | ZREVRANGEBYLEX names + (name-10 LIMIT 3 12 | ZCOUNT scores 1 5 | ZCOUNT none 1 5
ZLEXCOUNT names - + | ZRANK scores name-30 | ZREVRANK scores name-30 | ZRANK scores nobody | ZREVRANK scores nobody
ZUNION 2 scores evens | ZUNION 3 scores names words WEIGHTS 2 3 4 AGGREGATE MAX WITHSCORES | ZINTER 2 scores names
ZINTER 2 scores names WEIGHTS 1 -1 WITHSCORES | ZDIFF 2 scores evens | ZDIFF 2 scores names | ZINTERCARD 2 scores names
ZINTERCARD 2 scores names LIMIT 5 | SORT list | SORT list DESC | SORT list LIMIT 5 20 | SORT list LIMIT 50 100 DESC
SORT words | SORT words LIMIT 0 0 | SORT words ALPHA | SORT words ALPHA DESC | SORT scores BY nosort
SORT scores BY nosort DESC LIMIT 3 5
SORT list BY nosort DESC | SORT list BY weight-* | SORT list GET # GET weight-* | SORT list GET # GET nothing
SORT list BY weight-* ALPHA | SORT list BY weight-* ALPHA DESC | SORT list BY user-*->name ALPHA LIMIT 3 40
SORT list BY user-*->age DESC GET # GET user-*->name
SORT list BY note-* GET note-* | SORT list BY nosort GET note-* | SORT scores BY nosort GET user-*->age GET #
SORT list BY user-*->name
SORT list BY weight-* LIMIT 5 10 GET weight-*->x GET weight-*-> | SORT_RO evens DESC | SORT none | SORT bits | KEYS *
KEYS weight-1? | BITCOUNT bits
LPOS list 7 | LPOS list 7 COUNT 0 | LPOS list none | LPOS list none COUNT 0 | LPOS list 7 RANK -1
LPOS list 7 RANK 2 COUNT 5
LPOS list 59 MAXLEN 10 | LPOS list 7 RANK 100 COUNT 0 | LPOS none 7 | DUMP evens | DUMP hash | DUMP list
DUMP scores | DUMP bits | DUMP none | BITCOUNT bits 5 7000 | BITCOUNT bits 3 9000 BIT | SUNION evens word
ZUNION 2 scores word | SINTERCARD 1 word | MEMORY USAGE evens | MEMORY USAGE hash | MEMORY USAGE list
MEMORY USAGE scores | MEMORY USAGE entries | MEMORY USAGE bits | MEMORY USAGE none
XRANGE entries - + | XRANGE entries 5 (40 | XRANGE entries - + COUNT 20 | XRANGE entries 70 + | XREVRANGE entries + -
XREVRANGE entries (40 5 COUNT 30 | XREAD STREAMS entries 0 | XREAD COUNT 25 STREAMS entries none 7-1 0
XREAD STREAMS entries entries 50 0 | XINFO STREAM entries FULL | XINFO STREAM entries FULL COUNT 0
GETRANGE bits 5 7000 | GETRANGE bits 0 -1 | GETRANGE fewer 90 40000 | GETRANGE fewer 0 -1 | GETRANGE fewer 9 3
"""

WRITES = """
SUNIONSTORE new evens threes | SINTERSTORE new evens threes | SDIFFSTORE new words evens | SINTERSTORE words evens none
SINTERSTORE evens evens threes | ZUNIONSTORE new 2 scores names WEIGHTS 2 3
ZINTERSTORE new 2 scores names AGGREGATE MIN
ZDIFFSTORE new 2 names evens | ZUNIONSTORE scores 2 scores evens | ZINTERSTORE new 2 scores none
ZRANGESTORE new scores 3 40 | ZRANGESTORE new scores 5 1 BYSCORE REV LIMIT 2 20 | ZRANGESTORE scores none 0 -1
ZREMRANGEBYRANK scores 3 20 | ZREMRANGEBYSCORE scores 1 3 | ZREMRANGEBYLEX names [name-20 + | ZPOPMIN scores
ZPOPMAX scores 9 | ZMPOP 2 none scores MIN COUNT 20 | ZMPOP 1 none MAX | SORT list STORE new
SORT words ALPHA STORE words
SORT list DESC LIMIT 3 30 STORE list | SORT none STORE list | SORT list BY weight-* GET # GET weight-* STORE new
COPY evens new | COPY list new | COPY hash new | COPY scores new | COPY evens new DB 1 | COPY evens list REPLACE
COPY evens list | BITOP AND new bits fewer | BITOP XOR bits bits fewer | BITOP NOT new bits | BITOP OR new none none
SORT words STORE new | LPOP list 20 | RPOP list 55 | LPOP list 100 | RPOP list 60 | LTRIM list 10 20
LTRIM list 5 -1 | LTRIM list 9 3
LTRIM list 0 -1 | LREM list 0 7 | LREM list -1 7 | LREM list 1 7 | LREM list 0 none | LINSERT list BEFORE 7 new
LINSERT list AFTER 59 new | LINSERT list AFTER none new | ZREMRANGEBYRANK scores 0 -1 | ZREMRANGEBYRANK scores 50 2
ZREMRANGEBYSCORE scores 9 10 | ZREMRANGEBYRANK scores -5 -1 | ZPOPMIN scores 100 | ZPOPMAX scores 60 | ZPOPMIN scores 55
BZPOPMIN none scores 0 | BZPOPMAX scores 0 | BZMPOP 0 2 none scores MIN COUNT 20 | BZMPOP 0 1 scores MAX COUNT 100
LMPOP 2 none list LEFT COUNT 20 | LMPOP 1 list RIGHT COUNT 100 | LMPOP 1 none LEFT COUNT 9 | LMPOP 1 hash LEFT COUNT 9
BLMPOP 0 2 none list RIGHT COUNT 55 | ZMPOP 1 scores MAX COUNT 100 | ZMPOP 2 none scores MAX COUNT 59
SORT list BY weight-* STORE list | SORT list BY user-*->age DESC GET # GET user-*->name STORE new
SORT list BY note-* GET note-* STORE new | SORT list GET nothing-* STORE new | SORT none BY weight-* STORE list
SORT list BY user-*->name STORE new
"""


def _commands(text: str) -> list[str]:
    return [command.strip() for line in text.split("\n") for command in line.split("|") if command.strip()]


class _Shut:
    """Stands where a compute must not look."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"a compute asked for .{name}")

    def __call__(self, *arguments: object) -> Any:
        raise AssertionError("a compute asked a database")


def _aside(session: Session, work: int, compute: Callable[[], Any], commit: Any = lambda result: result) -> Reply:
    """Session.aside, in a thread that is left alone with the values."""
    assert work > 0
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(compute())
        except BaseException as error:
            outcome.append(error)

    database, engine = session.db, session.engine
    get, data = database.get, database.data
    session.db = session.engine = _Shut()  # type: ignore[assignment]
    database.get = database.data = _Shut()  # type: ignore[assignment]
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    session.db, session.engine = database, engine
    database.get, database.data = get, data
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return commit(outcome[0])


def _in_both_ways(run: Callable[[Session], T]) -> T:
    """What `run` gives for a session of an engine that holds DATA, which must be the same at once and aside."""
    outcomes = []
    for is_long in (False, True):
        session = Session(Engine())
        for words in DATA:
            _run(session, [str(word).encode() for word in words])
        with pytest.MonkeyPatch.context() as patch:
            for family in FAMILIES:
                patch.setattr(family, "LONG", 0 if is_long else 1 << 60)
            patch.setattr(Session, "aside", _aside)
            outcomes.append(run(session))
    assert outcomes[0] == outcomes[1]
    return outcomes[0]


def _run(session: Session, argv: Argv) -> bytes:
    try:
        reply = session.engine.execute(session, argv)
    except ReplyError as error:
        reply = error
    return encode(reply, session.protocol)


def _decoded(wire: bytes) -> Any:
    reader = hiredis.Reader()
    reader.feed(wire)
    return reader.gets()


def _comparable(wire: bytes, unordered: bool) -> Any:
    reply = _decoded(wire)
    if isinstance(reply, hiredis.ReplyError):
        return repr(reply)
    return sorted(reply) if unordered and isinstance(reply, list) else reply


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("command", _commands(READS))
def test_a_reply_does_not_depend_on_where_it_is_made(command: str, protocol: int) -> None:
    unordered = command.startswith(("SMEMBERS", "SUNION", "SINTER ", "SDIFF"))

    def run(session: Session) -> Any:
        session.protocol = protocol
        wire = _run(session, command.encode().split())
        return wire[:1], _comparable(wire, unordered)

    _in_both_ways(run)


@pytest.mark.parametrize("key", ["evens", "words", "list", "hash", "scores", "bits", "note-2"])
def test_a_value_is_restored_the_same_wherever_it_is_loaded(key: str) -> None:
    def run(session: Session) -> Any:
        payload = _decoded(_run(session, [b"DUMP", key.encode()]))
        replies = [
            _run(session, [b"RESTORE", b"new", b"0", payload]),
            _run(session, [b"RESTORE", b"new", b"0", payload]),
            _run(session, [b"RESTORE", b"bits", b"1", payload, b"REPLACE", b"ABSTTL"]),
            _run(session, [b"RESTORE", b"word", b"9999999999999", payload[:-1] + b"?", b"REPLACE"]),
        ]
        data = session.db.data
        assert b"bits" not in data
        return replies, _contents(data[b"new"]), _contents(data[b"word"])

    _in_both_ways(run)


@pytest.mark.parametrize("command", _commands(WRITES))
def test_what_is_stored_does_not_depend_on_where_it_is_made(command: str) -> None:
    def run(session: Session) -> Any:
        reply = _run(session, command.encode().split())
        return reply, {
            (database.index, name): _contents(value)
            for database in session.engine.keyspace.databases
            for name, value in database.data.items()
        }

    _in_both_ways(run)


def _contents(value: Any) -> Any:
    if isinstance(value, int | bytes | bytearray):
        return value
    value.check()
    if isinstance(value, XStream):
        return list(value)
    return dict(value.scores) if isinstance(value, SortedSet) else value


@pytest.mark.parametrize(
    "command", ["SMEMBERS evens", "LRANGE list 0 -1", "HGETALL hash", "ZRANGE scores 0 3 WITHSCORES"]
)
@pytest.mark.parametrize("protocol", [2, 3])
def test_a_script_sees_plain_values(command: str, protocol: int) -> None:
    words = ", ".join(f"'{word}'" for word in command.split())
    script = f"redis.setresp({protocol}); return cjson.encode(redis.call({words}))".encode()

    def run(session: Session) -> tuple[bytes, list[int]]:
        wire = _run(session, [b"EVAL", script, b"0"])
        return wire[:1], sorted(wire)  # Lua's tables have no order, so of a set or a map only the letters are the same

    assert _in_both_ways(run)[0] == b"$"


@pytest.mark.parametrize(
    ("command", "collection"),
    [
        ("SRANDMEMBER words {}", "SMEMBERS words"),
        ("HRANDFIELD hash {}", "HKEYS hash"),
        ("HRANDFIELD hash {} WITHVALUES", "HGETALL hash"),
        ("ZRANDMEMBER scores {}", "ZRANGE scores 0 -1"),
        ("ZRANDMEMBER scores {} WITHSCORES", "ZRANGE scores 0 -1 WITHSCORES"),
    ],
)
@pytest.mark.parametrize("count", [1, 25, 59, 60, 100, -1, -25, -200])
@pytest.mark.parametrize("protocol", [2, 3])
def test_random_elements_are_of_the_collection(command: str, collection: str, count: int, protocol: int) -> None:
    def run(session: Session) -> tuple[bytes, int]:
        def rows(words: str) -> list[Any]:
            nonlocal mark
            wire = _run(session, words.encode().split())
            mark, found = wire[:1], _decoded(wire)
            if isinstance(found, dict):
                return [[field, value] for field, value in found.items()]
            pairs = protocol == 2 and ("WITH" in words or "GETALL" in words)
            return [list(pair) for pair in zip(found[::2], found[1::2], strict=True)] if pairs else found

        mark = b""
        session.protocol = protocol
        everything = rows(collection)
        drawn = rows(command.format(count))
        assert all(row in everything for row in drawn)
        if count > 0:
            assert all(drawn.count(row) == 1 for row in drawn)
        return mark, len(drawn)

    assert _in_both_ways(run) == (b"*", min(count, 60) if count > 0 else -count)


def test_sort_answers_what_other_keys_held_when_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = [
        "MSET weight-1 900 weight-2 -5",
        "DEL weight-7",
        "APPEND weight-9 9",
        "PEXPIREAT weight-3 1",
    ]

    def aside(session: Session, work: int, compute: Callable[[], Any], commit: Any) -> Reply:
        for line in changes:
            _run(session, line.encode().split())
        return commit(compute())

    session = Session(Engine())
    for words in DATA:
        _run(session, [str(word).encode() for word in words])
    _run(session, [b"PEXPIREAT", b"weight-11", b"9999999999999"])
    command = [b"SORT", b"list", b"BY", b"weight-*", b"GET", b"#", b"GET", b"weight-*", b"GET", b"user-*->name"]
    before = _run(session, command)
    monkeypatch.setattr(sorting, "LONG", 0)
    monkeypatch.setattr(Session, "aside", aside)
    assert _run(session, command) == before
    monkeypatch.undo()
    assert _run(session, command) != before


SORTS_BY_HASHES = [
    "SORT list BY user-*->age DESC GET # GET user-*->name GET weight-*",
    "SORT scores BY user-*->none GET user-*->name",
    "SORT list BY nosort GET user-*->name STORE new",
]


def _while_aside(monkeypatch: pytest.MonkeyPatch, command: str, changes: list[str]) -> tuple[Session, Reply, int]:
    """Run a SORT whose thread has half of its rows when other clients change keys; the session, the reply, and how
    often rows were made."""
    made = 0
    rows = sorting._rows

    def counted(*arguments: Any) -> Any:
        nonlocal made
        made += 1
        for at, row in enumerate(rows(*arguments)):
            if at == 30 and made == 1:
                for line in changes:
                    _run(other, line.encode().split())
            yield row

    session = Session(Engine())
    other = Session(session.engine)
    for words in DATA:
        _run(session, [str(word).encode() for word in words])
    monkeypatch.setattr(sorting, "LONG", 0)
    monkeypatch.setattr(sorting, "_rows", counted)
    reply = _run(session, command.encode().split())
    monkeypatch.undo()
    return session, reply, made


@pytest.mark.parametrize("command", SORTS_BY_HASHES)
@pytest.mark.parametrize(
    "change",
    [
        "HSET user-4 name changed age 99",
        "HDEL user-30 name",
        "DEL user-8",
        "SET user-8 x",
        "RENAME user-8 user-9",
        "PEXPIREAT user-8 1",
        "FLUSHALL",
        "SWAPDB 0 1",
    ],
)
def test_sort_answers_what_hashes_hold_at_one_moment(
    monkeypatch: pytest.MonkeyPatch, command: str, change: str
) -> None:
    changes = ["HSET user-1 name first", change, "HSET user-59 name last"]
    session, reply, _ = _while_aside(monkeypatch, command, changes)
    assert list(session.db.data.get(b"new", ())) == list(_stored_after(command, changes))
    if "STORE" not in command:
        assert reply == _run(session, command.encode().split())


def _stored_after(command: str, changes: list[str]) -> list[bytes]:
    session = Session(Engine())
    for words in DATA:
        _run(session, [str(word).encode() for word in words])
    for line in [*changes, command]:
        _run(session, line.encode().split())
    return list(session.db.data.get(b"new", ()))


@pytest.mark.parametrize("command", SORTS_BY_HASHES)
def test_changes_of_other_keys_do_not_have_sort_look_again(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    changes = ["HSET user-77 name x", "HSET user name x", "HSET user-4-4 name x", "SET user-400 x", "LPUSH else 1"]
    session, reply, made = _while_aside(monkeypatch, command, changes)
    assert made == 1
    assert reply == _run(session, command.encode().split())
    assert list(session.db.data.get(b"new", ())) == list(_stored_after(command, changes))


def test_changes_are_not_noted_when_sort_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    session, _, _ = _while_aside(monkeypatch, SORTS_BY_HASHES[0], ["SET a b"])
    _run(session, b"SET a c".split())
    assert not session.db.observed


@pytest.mark.parametrize("limit", ["", " LIMIT 0 0"])
def test_what_sort_stores_is_what_it_logs_although_other_keys_changed(
    monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    def aside(session: Session, work: int, compute: Callable[[], Any], commit: Any) -> Reply:
        _run(session, b"MSET weight-1 900 weight-2 -5".split())
        return commit(compute())

    session = Session(Engine())
    for words in DATA:
        _run(session, [str(word).encode() for word in words])
    command = f"SORT list BY weight-* GET # GET weight-*{limit}".encode().split()
    expected = [row or b"" for row in _decoded(_run(session, command))]
    monkeypatch.setattr(sorting, "LONG", 0)
    monkeypatch.setattr(Session, "aside", aside)
    assert _decoded(_run(session, [*command, b"STORE", b"evens"])) == len(expected)
    logged = session.effects or []
    monkeypatch.undo()
    assert list(session.db.data.get(b"evens", ())) == expected
    for effect in logged:
        _run(session, effect)
    assert list(session.db.data.get(b"evens", ())) == expected
    assert [row or b"" for row in _decoded(_run(session, command))] != expected or limit


@pytest.mark.parametrize("count", [1, 25, 59, 60, 100])
@pytest.mark.parametrize("protocol", [2, 3])
def test_popped_members_are_gone_and_logged(count: int, protocol: int) -> None:
    def run(session: Session) -> tuple[bytes, int]:
        session.protocol = protocol
        before = _decoded(_run(session, [b"SMEMBERS", b"words"]))
        _run(session, [b"PEXPIREAT", b"words", b"9999999999999"])
        wire = _run(session, [b"SPOP", b"words", b"%d" % count])
        (logged,) = session.effects or []
        popped, left = set(_decoded(wire)), set(_decoded(_run(session, [b"SMEMBERS", b"words"])))
        assert popped | left == set(before) and not popped & left
        assert set(logged) == ({b"SREM", b"words"} | popped if left else {b"DEL", b"words"})
        assert session.db.expires_at(b"words") == (9999999999999 if left else None)
        return wire[:1], len(popped)

    assert _in_both_ways(run) == (b"*" if protocol == 2 else b"~", min(count, 60))


@pytest.mark.parametrize("command", ["SSCAN many {}", "HSCAN pairs {}", "ZSCAN board {}", "SCAN {}"])
@pytest.mark.parametrize("options", ["", " COUNT 40", " COUNT 1000", " COUNT 70 MATCH *1*"])
def test_an_iteration_gives_the_same_wherever_its_steps_are_made(command: str, options: str) -> None:
    numbers = range(scanning.SMALL + 72)

    def run(session: Session) -> list[list[bytes]]:
        _run(session, [b"SADD", b"many", *(b"m%d" % number for number in numbers)])
        _run(session, [b"HSET", b"pairs", *(b"p%d" % (number // 2) for number in range(2 * len(numbers)))])
        _run(session, [b"ZADD", b"board", *(b"%d" % (number // 2) for number in range(2 * len(numbers)))])
        _run(session, [b"PEXPIREAT", b"words", b"9999999999999"])
        answers: list[list[bytes]] = []
        cursor = b"0"
        while not answers or cursor != b"0":
            cursor, found = _decoded(_run(session, (command.format(cursor.decode()) + options).encode().split()))
            answers.append(found)
        assert len(session.engine.cursors) == 0
        return answers

    answers = _in_both_ways(run)
    assert len(answers) == 1 or "1000" not in options


def test_a_transaction_answers_what_was_there_when_each_command_ran() -> None:
    def run(session: Session) -> tuple[int, list[bytes]]:
        for words in ("MULTI", "SMEMBERS evens", "LRANGE list 0 0", "SADD evens new", "LPUSH list new"):
            _run(session, words.encode().split())
        members, first, *_ = _decoded(_run(session, [b"EXEC"]))
        return len(members), first

    assert _in_both_ways(run) == (30, [b"0"])


@pytest.mark.parametrize(
    "line",
    [
        "SMEMBERS s",
        "SUNIONSTORE d s",
        "SORT s ALPHA",
        "COPY s c",
        "KEYS *",
        "HGETALL h",
        "SPOP s 2",
        "SRANDMEMBER s 2",
        "SRANDMEMBER s -2",
        "HRANDFIELD h 2",
        "HRANDFIELD h -2 WITHVALUES",
        "ZRANDMEMBER z 2",
        "ZRANDMEMBER z -2 WITHSCORES",
        "SCAN 0",
        "SSCAN many 0",
        "SORT l BY w-*",
        "DUMP s",
        "MEMORY USAGE s",
        "LREM l 0 x",
        "LPOS l none",
        "LINSERT l AFTER none x",
        "LTRIM l 0 0",
        "LPOP l 2",
        "ZREMRANGEBYRANK z 0 0",
        "ZPOPMIN z 1",
        "LMPOP 1 l LEFT COUNT 2",
        "BLMPOP 0 1 l LEFT COUNT 2",
        "ZMPOP 1 z MIN COUNT 2",
        "BZMPOP 0 1 z MIN COUNT 2",
        "SORT l BY w-* STORE d",
        "SORT l GET w-* STORE d",
        "SORT l BY h-*->f",
        "SORT l GET h-*->f STORE d",
    ],
)
def test_the_server_that_the_families_are_run_on_does_have_threads_work(ours_threaded: str, line: str) -> None:
    with redis.Redis.from_url(ours_threaded) as client:
        client.flushall()
        client.sadd("s", "x")
        client.hset("h", "f", "v")
        client.zadd("z", {"m": 1, "n": 2})
        client.zrank("z", "m")
        client.rpush("l", *range(9))
        client.sadd("many", *(f"m{number}" for number in range(scanning.SMALL + 1)))
        before = client.info("locks")["worker_jobs_done"]
        client.execute_command(*line.split())
        assert client.info("locks")["worker_jobs_done"] == before + 1


def test_a_large_value_is_restored_by_a_thread(ours_threaded: str) -> None:
    with redis.Redis.from_url(ours_threaded) as client:
        client.flushall()
        client.rpush("l", "a", "b")
        payload = client.dump("l")
        assert payload is not None
        before = client.info("locks")["worker_jobs_done"]
        client.restore("new", 0, payload)
        assert client.info("locks")["worker_jobs_done"] == before + 1
        assert client.lrange("new", 0, -1) == [b"a", b"b"]


@pytest.mark.parametrize("line", ["ZPOPMIN z 2", "ZMPOP 1 z MAX COUNT 2", "BZMPOP 0 1 z MIN COUNT 2"])
def test_members_are_put_in_order_and_popped_by_two_jobs(ours_threaded: str, line: str) -> None:
    with redis.Redis.from_url(ours_threaded) as client:
        client.flushall()
        client.zadd("z", {"m": 1, "n": 2, "o": 3})
        before = client.info("locks")["worker_jobs_done"]
        reply = client.execute_command(*line.split())
        assert b"n" in str(reply).encode()
        assert client.zcard("z") == 1
        assert client.info("locks")["worker_jobs_done"] == before + 2
