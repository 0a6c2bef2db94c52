"""The inner loops run a command as `Engine.execute` and `run_handler` do: same reply,
counters, log entries and data.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.twins import pure_twin

from penstock import commands
from penstock.commands import once
from penstock.engine.declarations import Argv
from penstock.engine.dispatch import Engine
from penstock.engine.interfaces import LogEntry
from penstock.engine.leadership import LEASED, Leadership, SharedClock, now
from penstock.engine.observe.statistics import CALLS, FAILED, NANOSECONDS, REJECTED
from penstock.engine.session import Session, Unconfirmed
from penstock.protocol.errors import ReplyError
from penstock.protocol.requests import RequestReader
from penstock.protocol.resp import encode, pack
from penstock.server import inner_loop
from penstock.storage.held_replies import send_all
from penstock.testing.clock import ManualClock
from penstock.types import codec

commands.load()

KINDS = {"chosen": inner_loop.InnerLoop, "pure": pure_twin(inner_loop).InnerLoop}


class Log:
    """A log in memory."""

    pending = False

    def __init__(self) -> None:
        self.entries: list[LogEntry] = []

    def log(self, entries: list[LogEntry]) -> None:
        self.entries += entries

    def append(self, database: int, argv: Argv) -> None:
        self.entries.append((database, argv))

    def hold(self, write: Callable[[bytes], None], replies: list[Any]) -> None:
        raise AssertionError("replies go nowhere here")


LOGS = ["none", "written", "confirmed"]
"""No log; one whose replies stay as they are; one whose replies may become errors."""


def _engine(logging: str, leadership: Leadership | None = None) -> tuple[Engine, Session, Log]:
    engine, log = Engine(clock=ManualClock()), Log()
    engine.leadership = leadership
    engine.require_gates(LEASED, leadership is not None)
    if logging != "none":
        engine.log_to(log, strict=logging == "confirmed")
    return engine, Session(engine), log


def _through_the_loop(
    base: type, chunks: list[bytes], logging: str, leadership: Leadership | None = None
) -> tuple[list[list[bytes]], Engine, Log]:
    engine, session, log = _engine(logging, leadership)

    class Loop(base):  # type: ignore[misc, valid-type]
        sent: ClassVar[list[list[bytes]]] = []  # the pieces of each time

        def execute(self, argv: Argv) -> bool:
            reply, marked = _whole_way(engine, session, argv)
            self.out.append(Unconfirmed(reply) if marked else reply)
            return True

        def fail(self, argv: Argv, error: Exception) -> bytes:
            raise error

        def refuse(self, why: str) -> None:
            raise AssertionError(why)

        def hold(self) -> None:
            raise AssertionError("nothing blocks here")

        def give_way(self) -> None:
            pass

        def flush(self) -> None:
            self.finish()

        def finish(self) -> None:
            if self.out:
                Loop.sent.append(self.out.copy())
            self.out.clear()

    loop: Any = Loop(engine, RequestReader(), set())
    loop.session = session
    for chunk in chunks:
        loop.data_received(chunk)
    return Loop.sent, engine, log


def _whole_way(engine: Engine, session: Session, argv: Argv) -> tuple[bytes, bool]:
    """A reply, and whether it is marked because it acknowledges a change (otherwise the replies of a turn are)."""
    session.unconfirmed = False
    try:
        reply = encode(engine.execute(session, argv), session.protocol)
    except ReplyError as error:
        reply = encode(error, session.protocol)
    return reply, session.unconfirmed and engine.strict


def _facts(engine: Engine) -> dict[str, Any]:
    """What clients and INFO can tell; not the time that it took."""
    stats = engine.stats
    return {
        "tally": stats.tally[0:1] + stats.tally[3:5],  # commands, hits, misses; the input counter depends on the path
        "errors": dict(stats.errors),
        "calls": {
            name: [counters[place] for place in (CALLS, REJECTED, FAILED)]
            for name, counters in stats.calls.items()
            if any(counters)
        },
        "timed": {name for name, counters in stats.calls.items() if counters[NANOSECONDS]},
        "changes": engine.keyspace.dirty,
        "data": {key: codec.dump(value) for key, value in engine.keyspace[0].data.items()},
        "expiry": dict(engine.keyspace[0].expires),
        "once": {
            client: (record.floor, record.top, record.replies, record.bytes)
            for client, record in engine.keyspace.once_records.clients.items()
        },
        "once bytes": engine.keyspace.once_records.bytes,
        "repeated": engine.once.repeated,
    }


def _compare(kind: str, words: list[Argv], logging: str) -> None:
    sent, engine, log = _through_the_loop(KINDS[kind], [pack(*argv) for argv in words], logging)
    other, session, other_log = _engine(logging)
    replies = [(b"".join(pieces), any(type(piece) is Unconfirmed for piece in pieces)) for pieces in sent]
    assert replies == [_whole_way(other, session, argv) for argv in words]
    assert _facts(engine) == _facts(other)
    assert log.entries == other_log.entries
    assert not log.entries or logging != "none"


KEYS, VALUES = [b"a", b"b", b"c"], [b"1", b"x", b"-5", b""]
_key, _value = st.sampled_from(KEYS), st.sampled_from(VALUES)
_NAMES = [
    b"GET", b"SET", b"set", b"INCR", b"DECRBY", b"APPEND", b"STRLEN", b"GETSET", b"GETDEL", b"MGET", b"SETNX", b"DEL",
    b"EXISTS", b"TTL", b"EXPIRE", b"PERSIST", b"TYPE", b"LPUSH", b"RPOP", b"LLEN", b"LRANGE", b"HSET", b"HGET", b"HDEL",
    b"HGETALL", b"SADD", b"SREM", b"SISMEMBER", b"SMEMBERS", b"ZADD", b"ZSCORE", b"ZINCRBY", b"TWRITE", b"TREAD",
]  # fmt: skip
_command = st.builds(
    lambda name, key, rest: [name, key, *rest], st.sampled_from(_NAMES), _key, st.lists(_value, max_size=3)
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("logging", LOGS)
@settings(max_examples=60, deadline=None)
@given(words=st.lists(_command, max_size=25))
def test_both_ways_answer_count_log_and_change_the_same(kind: str, logging: str, words: list[Argv]) -> None:
    _compare(kind, words, logging)


_once = st.builds(
    lambda number, floor, inner: [b"ONCE", b"me", b"%d" % number, b"%d" % floor, *inner],
    st.integers(0, 12),
    st.integers(0, 5),
    _command,
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("logging", LOGS)
@settings(max_examples=60, deadline=None)
@given(words=st.lists(_once | _command, max_size=25), begin=st.booleans())
def test_both_ways_of_once_answer_count_log_keep_and_change_the_same(
    kind: str, logging: str, words: list[Argv], begin: bool
) -> None:
    _compare(kind, [*([[b"ONCEBEGIN", b"me"]] if begin else []), *words], logging)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("logging", LOGS)
def test_the_ways_agree_about_each_kind_of_once(kind: str, logging: str, monkeypatch: pytest.MonkeyPatch) -> None:
    quick: list[Argv] = []
    at_once = once._at_once

    def counted(session: Session, argv: Argv) -> Any:
        reply = at_once(session, argv)
        quick.append(argv)
        return reply

    monkeypatch.setattr(once, "_at_once", counted)
    under = [
        (b"2", b"2", b"SET a 1"),  # a change that is logged as it was sent
        (b"3", b"2", b"SET a 2 EX 100"),  # one that is logged as something else
        (b"3", b"2", b"SET a 2 EX 100"),  # a repeat
        (b"4", b"3", b"DEL none"),  # no change; the floor goes up
        (b"2", b"3", b"SET a 1"),  # below the floor
        (b"5", b"3", b"INCRBY a 5"),
        (b"06", b"3", b"INCR a"),  # a number that is written otherwise
        (b"6", b"+3", b"INCR a"),
        (b"7", b"3", b"GET a"),  # that changes nothing, and is refused
        (b"8", b"3", b"SPOP none"),
        (b"9", b"9", b"TWRITE s tag entry"),
        (b"12", b"10", b"SADD a x y"),
    ]
    words = [[b"ONCE", b"me", number, floor, *inner.split()] for number, floor, inner in under]
    _compare(kind, [[b"ONCEBEGIN", b"me"], *words, [b"ONCE", b"other", b"1", b"1", b"LPUSH", b"a", b"x"]], logging)
    assert len(quick) >= 5, "the comparison is about what the inner loop runs by itself"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("logging", LOGS)
def test_the_ways_agree_about_each_kind_of_outcome(kind: str, logging: str) -> None:
    _compare(
        kind,
        [
            [b"SET", b"a", b"1"],  # a change that is logged as it was sent
            [b"SET", b"a", b"2", b"EX", b"100"],  # one that is logged as something else
            [b"DEL", b"none"],  # none
            [b"GET", b"a"],  # a hit
            [b"GET", b"none"],  # a miss
            [b"MGET", b"a", b"none"],
            [b"LPUSH", b"a", b"x"],  # an error of the handler
            [b"INCR", b"a", b"b"],  # an error before it
            [b"ZADD", b"z", b"NX", b"1", b"m"],
            [b"TWRITE", b"s", b"tag", b"entry"],
            [b"TREAD", b"s", b"1", b"10"],
        ],
        logging,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_replies_that_may_become_errors_say_how_many_they_are(kind: str) -> None:
    words = [[b"TWRITE", b"s", b"tag", b"entry"]] * 3 + [[b"GET", b"none"]]
    [pieces], _, _ = _through_the_loop(KINDS[kind], [b"".join(pack(*argv) for argv in words)], "confirmed")
    assert b"".join(pieces) == b":1\r\n:2\r\n:3\r\n$-1\r\n"
    assert sum(piece.commands for piece in pieces if type(piece) is Unconfirmed) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_log_refuses_becomes_an_error_in_its_place(kind: str) -> None:
    words = [
        [b"SET", b"a", b"1"],
        [b"INCR", b"a"],
        [b"GET", b"a"],
        [b"SET", b"b", b"x"],
        [b"INCR", b"b"],  # fails
        [b"SET", b"c", b"1"],
        [b"HDEL", b"none", b"field"],  # changes nothing
        [b"SET", b"d", b"1"],
        [b"SET", b"e", b"1"],
    ]
    [pieces], _, _ = _through_the_loop(KINDS[kind], [b"".join(pack(*argv) for argv in words)], "confirmed")
    as_it_is, refused = list[bytes](), list[bytes]()
    send_all([(as_it_is.append, pieces)])
    send_all([(refused.append, pieces)], b"-NO\r\n")
    fails = b"-ERR value is not an integer or out of range\r\n"
    assert as_it_is == [b"+OK\r\n:2\r\n$1\r\n2\r\n+OK\r\n%b+OK\r\n:0\r\n+OK\r\n+OK\r\n" % fails]
    assert refused == [b"-NO\r\n-NO\r\n$1\r\n2\r\n-NO\r\n%b-NO\r\n:0\r\n-NO\r\n-NO\r\n" % fails]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pending", [True, False])
def test_a_repeat_acknowledges_the_change_again_while_the_log_has_anything_pending(
    kind: str, pending: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Log, "pending", pending)
    lines = [
        b"ONCEBEGIN me",
        b"ONCE me 2 2 INCR n",
        b"TWRITE s PRODUCER p 1 ENTRIES tag entry",
        b"ONCE me 3 2 TWRITE s PRODUCER p 2 ENTRIES tag entry",
        b"TSTAGE s token ENTRIES tag entry",
        b"TCOMMIT s q 1 token",
    ]
    words = [line.split() for line in lines]
    repeats = [argv for argv in words if argv[0] != b"TSTAGE"] + [
        b"ONCE me 4 2 TWRITE s PRODUCER p 2 ENTRIES tag entry".split()  # a new command that contains a repeat
    ]
    for logging in LOGS:
        _compare(kind, [*words, *repeats], logging)
    sent, _, _ = _through_the_loop(KINDS[kind], [pack(*argv) for argv in [*words, *repeats]], "confirmed")
    marked = [all(type(piece) is Unconfirmed for piece in pieces) for pieces in sent]
    assert marked == [True] * len(words) + [pending] * len(repeats)


@pytest.mark.skipif(not inner_loop.COMPILED, reason="only the compiled loop joins replies")
def test_replies_that_may_become_errors_are_joined() -> None:
    sets = [pack(b"SET", b"a", b"%d" % number) for number in range(3)]
    [pieces], _, _ = _through_the_loop(inner_loop.InnerLoop, [b"".join(sets)], "confirmed")
    assert [(piece, type(piece), piece.commands) for piece in pieces] == [(b"+OK\r\n" * 3, Unconfirmed, 3)]


@pytest.mark.skipif(not inner_loop.COMPILED, reason="only the compiled loop writes to the socket")
def test_what_has_waited_is_written_behind_all_that_was_sent_before() -> None:
    engine, _, _ = _engine("none")
    loop: Any = inner_loop.InnerLoop(engine, RequestReader(), set())
    here, there = socket.socketpair()
    with here, there:
        here.setblocking(False)
        assert loop.send_directly(b"one") == b"one"  # there is no socket
        loop.descriptor = here.fileno()
        assert loop.send_directly(b"two") == b""
        loop.unsent = lambda: 1
        assert loop.send_directly(b"three") == b"three"
        assert there.recv(100) == b"two"
        loop.unsent = lambda: 0
        much = bytes(1 << 24)
        rest = loop.send_directly(much)
        assert 0 < len(rest) < len(much)
        assert loop.send_directly(rest) == rest  # the socket takes no more
        assert engine.stats.output_bytes == len(b"two") + len(much) - len(rest)


@pytest.mark.parametrize("kind", KINDS)
def test_the_fast_path_asks_for_the_lease_of_a_shard(kind: str) -> None:
    words = [[b"SET", b"a", b"1"], [b"TWRITE", b"s", b"", b"x"], [b"TWRITE", b"s", b"", b"y"], [b"GET", b"a"]]
    chunk = b"".join(pack(*argv) for argv in words)
    clock = SharedClock(SharedClock.make())
    leadership = Leadership(clock)
    leadership.leading = leadership.ready = True
    clock.deadline = now() + 10**12
    _, engine, log = _through_the_loop(KINDS[kind], [chunk], "confirmed", leadership)
    assert set(engine.fast) >= {b"SET", b"TWRITE"}
    assert log.entries
    clock.deadline = now()
    [pieces], _, log = _through_the_loop(KINDS[kind], [chunk], "confirmed", leadership)
    assert b"".join(pieces).count(b"-READONLY This server may not lead any more") == 3
    assert b"".join(pieces).endswith(b"$-1\r\n")
    assert not log.entries
