"""Both versions of the inner loop, compiled and pure, do the same."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import stream_reading
from tests.support.twins import is_compilation_expected, pure_twin

from penstock import commands
from penstock.engine.concurrency.locks import Want
from penstock.engine.declarations import REGISTRY, Handler
from penstock.engine.directives import DIRECTIVES
from penstock.engine.dispatch import Engine
from penstock.engine.fast_path import FastCommand
from penstock.engine.observe.histograms import BUCKET_OF
from penstock.engine.observe.statistics import (
    BUCKETS,
    CALLS,
    FAILED,
    MANY_ARGUMENTS,
    NANOSECONDS,
    REJECTED,
    SAMPLE,
    UNTIMED,
    Calls,
)
from penstock.engine.session import Session
from penstock.protocol.requests import RequestReader
from penstock.protocol.resp import RawPieces, encode, pack
from penstock.server import inner_loop
from penstock.testing.clock import ManualClock

commands.load()


def _loop(base: type) -> Any:
    """A loop of this kind on an engine of its own; its slow path is `engine.execute`, and its bugs are visible."""

    class Loop(base):  # type: ignore[misc, valid-type]
        def execute(self, argv: list[bytes]) -> bool:
            self.others_seen.append(argv[0])
            self.out.append(b"+whole way\r\n")
            return True

        def fail(self, argv: list[bytes], error: Exception) -> bytes:
            return b"-ERR bug\r\n"

        def refuse(self, why: str) -> None:
            self.out.append(b"-" + why.encode() + b"\r\n")

        def hold(self, data: bytes) -> None:
            self.held = True
            self.reader.feed(data)

        def give_way(self) -> None:
            self.gave_way += 1

        def flush(self) -> None:
            self.finish()

        def finish(self) -> None:
            self.sent += b"".join(self.out)
            self.out.clear()

    engine = Engine(clock=ManualClock())
    loop = Loop(engine, RequestReader(), set())
    loop.session = Session(engine)
    loop.others_seen, loop.sent, loop.held, loop.gave_way = [], b"", False, 0
    return loop


def _fast(handler: Handler, words: int) -> FastCommand:
    """A command with so many words that only the inner loop knows it; counted by itself, and logged as GET if it is
    slow.
    """
    return FastCommand(REGISTRY.by_name[b"GET"], handler, low=words, high=words, counters=Calls()["GET"])


KINDS = {"chosen": inner_loop.InnerLoop, "pure": pure_twin(inner_loop).InnerLoop}


def test_the_compiled_loop_is_built_where_there_is_a_compiler() -> None:
    assert is_compilation_expected() == inner_loop.COMPILED, (
        "the extension was not built although it could be; try: make clean test"
    )


def test_pure_can_be_chosen_by_the_environment() -> None:
    code = "from penstock.server import inner_loop; print(inner_loop.COMPILED)"
    output = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PENSTOCK_PURE": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert output.strip() == "False"


@pytest.mark.parametrize("kind", KINDS)
def test_replies_come_in_order_whichever_way_a_command_takes(kind: str) -> None:
    loop = _loop(KINDS[kind])
    loop.data_received(
        pack(b"SET", b"a", b"1") + pack(b"INCR", b"a") + pack(b"PING") + pack(b"GET", b"a") + pack(b"GET", b"none")
        + pack(b"GET") + pack(b"LPUSH", b"a", b"x") + pack(b"set", b"b", b"x" * 20000) + pack(b"GET", b"b")
    )  # fmt: skip
    assert loop.sent == (
        b"+OK\r\n:2\r\n+whole way\r\n$1\r\n2\r\n$-1\r\n-ERR wrong number of arguments for 'get' command\r\n"
        b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n+OK\r\n" + encode(b"x" * 20000)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_large_value_leaves_from_where_it_is_and_in_its_place(kind: str) -> None:
    loop = _loop(KINDS[kind])
    large = b"x" * (inner_loop.WORTH_COPYING + 1)
    handed: list[Any] = []
    loop.flush = loop.finish = lambda: (handed.extend(loop.out), loop.out.clear())
    loop.data_received(pack(b"SET", b"k", large) + pack(b"SET", b"small", b"1"))
    loop.data_received((pack(b"GET", b"small") + pack(b"GET", b"k")) * 5 + pack(b"GET", b"small"))
    small, whole = b"$1\r\n1\r\n", b"$%d\r\n%b\r\n" % (len(large), large)
    assert b"".join(handed) == b"+OK\r\n+OK\r\n" + (small + whole) * 5 + small
    kept = loop.session.db.get(b"k")
    assert sum(piece is kept for piece in handed) == 5


@pytest.mark.parametrize("kind", KINDS)
def test_a_reply_in_pieces_leaves_whole_and_in_its_place(kind: str) -> None:
    loop = _loop(KINDS[kind])
    sizes = [0, 1, 8191, 8192, 8193, inner_loop.WORTH_COPYING + 1, 5, inner_loop.RELIEF, 7]
    whole = bytes(range(256)) * 2000
    pieces = [b"*1000\r\n", *(memoryview(whole)[at : at + size] for at, size in enumerate(sizes)), b"\r\n"]
    loop.engine.fast = {**loop.engine.fast, b"PIECES": _fast(lambda session, argv: RawPieces(pieces), 1)}
    loop.data_received((pack(b"INCR", b"a") + pack(b"PIECES")) * 3 + pack(b"GET", b"a"))
    assert loop.sent == b"".join(b":%d\r\n" % n + b"".join(pieces) for n in (1, 2, 3)) + b"$1\r\n3\r\n"


@pytest.mark.parametrize("logged", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_plain_read_of_a_stream_is_quick_and_one_with_options_takes_the_whole_way(kind: str, logged: bool) -> None:
    loop = _loop(KINDS[kind])
    if logged:  # under `always` no write uses the inner loop
        loop.engine.log_to(Unlogged(), strict=True)
    stream = loop.session.db.obtain_stream(b"s")
    stream.messages.append_many(1, [b"tag"] * 2500, [b"entry"] * 2500)
    reads = [
        (b"s", b"1", b"2500"),
        (b"s", b"999", b"3"),
        (b"s", b"2500", b"9"),
        (b"s", b"$", b"9"),
        (b"none", b"1", b"9"),
    ]
    for read in reads:
        loop.data_received(pack(b"TREAD", *read))
    whole = b"".join(b"*3\r\n:%d\r\n$3\r\ntag\r\n$5\r\nentry\r\n" % n for n in range(1, 2501))
    some = [
        whole,
        stream_reading.read(stream.messages, 999, 3)[0],
        stream_reading.read(stream.messages, 2500, 1)[0],
        b"",
        b"",
    ]
    counts = [2500, 3, 1, 0, 0]
    assert loop.sent == b"".join(b"*%d\r\n%b" % found for found in zip(counts, some, strict=True))
    assert loop.others_seen == []
    loop.sent = b""
    loop.data_received(pack(b"TREAD", b"s", b"1") + pack(b"tread", b"s", b"x", b"1") + pack(b"TREAD", b"s", b"0", b"1"))
    assert [line[:30] for line in loop.sent.split(b"\r\n")] == [
        b"-ERR wrong number of arguments", b"-ERR offset is not an integer ", b"-ERR offset must be at least 1", b"",
    ]  # fmt: skip
    loop.data_received(
        pack(b"TREAD", b"s", b"1", b"1", b"BLOCK", b"0") + pack(b"TREAD", b"s", b"1", b"1", b"GROUP", b"g")
    )
    assert loop.others_seen == [b"TREAD", b"TREAD"]
    calls = loop.engine.stats.calls["TREAD"]
    assert (calls[CALLS], calls[FAILED], calls[REJECTED], calls[UNTIMED]) == (7, 2, 1, 0)
    assert (loop.engine.stats.hits, loop.engine.stats.misses) == (6, 1)


class Unlogged:
    """engine.interfaces.Commit, of a log that nothing is written to."""

    pending = False

    def log(self, entries: list[Any]) -> None:
        raise AssertionError(entries)

    def append(self, database: int, argv: list[bytes]) -> None:
        raise AssertionError(argv)

    def hold(self, write: Any, replies: list[Any]) -> None:
        raise AssertionError(replies)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_runs_while_held_back(kind: str) -> None:
    loop = _loop(KINDS[kind])
    loop.held_back = True
    loop.data_received(pack(b"INCR", b"a"))
    assert loop.held and loop.sent == b""
    loop.held_back = False
    loop.run()
    assert loop.sent == b":1\r\n"


@pytest.mark.parametrize("kind", KINDS)
def test_a_command_that_names_a_locked_key_takes_the_whole_way_and_others_do_not(kind: str) -> None:
    loop = _loop(KINDS[kind])
    database = loop.engine.keyspace[0]
    loop.engine.lock_gate.locks.take("owner", [Want(database.locked, b"k", False)], 0)
    loop.data_received(pack(b"SET", b"a", b"1") + pack(b"MSET", b"b", b"1", b"k", b"1") + pack(b"INCR", b"a"))
    loop.data_received(pack(b"GET", b"k"))
    assert loop.sent == b"+OK\r\n+whole way\r\n:2\r\n+whole way\r\n"
    loop.engine.lock_gate.locks.release("owner")
    loop.data_received(pack(b"GET", b"k"))
    assert loop.sent.endswith(b"\r\n$-1\r\n")


@pytest.mark.parametrize("kind", KINDS)
def test_while_a_command_is_queued_only_those_that_touch_its_keys_take_the_whole_way(kind: str) -> None:
    loop = _loop(KINDS[kind])
    engine = loop.engine
    engine.execute(Session(engine), [b"LAZY", b"SUNIONSTORE", b"r", b"s"])
    loop.data_received(pack(b"SET", b"a", b"1") + pack(b"GET", b"r") + pack(b"INCR", b"a") + pack(b"SADD", b"s", b"x"))
    loop.data_received(pack(b"MOVE", b"a", b"1"))  # it looks at another database
    assert loop.sent == b"+OK\r\n+whole way\r\n:2\r\n+whole way\r\n+whole way\r\n"
    engine.lazy.drain()
    loop.data_received(pack(b"SADD", b"s", b"x"))
    assert loop.sent.endswith(b"way\r\n:1\r\n")


@pytest.mark.parametrize("kind", KINDS)
def test_a_fast_command_with_work_for_a_thread_takes_the_whole_way(kind: str) -> None:
    loop = _loop(KINDS[kind])
    loop.engine.workers.start(lambda callback: None)

    def large(session: Session, argv: list[bytes]) -> object:
        return session.aside(int(argv[1]), lambda: b"done")

    loop.engine.fast = {**loop.engine.fast, b"LARGE": _fast(large, 2)}
    loop.data_received(pack(b"LARGE", b"5") + pack(b"LARGE", b"5000000") + pack(b"INCR", b"a"))
    assert loop.sent == b"$4\r\ndone\r\n+whole way\r\n:1\r\n"
    assert loop.others_seen == [b"LARGE"]
    assert loop.engine.stats.commands == 2, "the other one is counted where it is run"


@pytest.mark.parametrize("kind", KINDS)
def test_a_bug_in_a_handler_is_a_reply(kind: str) -> None:
    loop = _loop(KINDS[kind])

    def broken(session: Session, argv: list[bytes]) -> None:
        raise ZeroDivisionError

    loop.engine.fast = {**loop.engine.fast, b"BROKEN": _fast(broken, 1)}
    loop.data_received(pack(b"BROKEN") + pack(b"INCR", b"a"))
    assert loop.sent == b"-ERR bug\r\n:1\r\n"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", [0, 1023, 1024, -1, 2**63 - 1, -(2**63)])
def test_integers_of_every_size_are_encoded(kind: str, number: int) -> None:
    loop = _loop(KINDS[kind])
    loop.engine.fast = {b"N": _fast(lambda session, argv: number, 1)}
    loop.data_received(pack(b"N"))
    assert loop.sent == b":%d\r\n" % number


@pytest.mark.parametrize("kind", KINDS)
def test_replies_to_a_socket_come_whole_and_in_order_when_it_takes_only_part(kind: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        loop = _loop(KINDS[kind])
        loop.descriptor = ours.fileno()
        value = bytes(range(256)) * 4096
        loop.data_received(pack(b"SET", b"a", value))
        loop.data_received(pack(b"GET", b"a") * 3)
        got = b""
        with contextlib.suppress(BlockingIOError):
            theirs.setblocking(False)
            while True:
                got += theirs.recv(1 << 20)
        assert got + loop.sent == b"+OK\r\n" + 3 * encode(value)
        assert loop.sent, "the socket took everything: this test wants one that does not"


def _hear(loop: Any, ours: socket.socket) -> int:
    """What a transport does with a socket: pass on what has come, in chunks; how many there were."""
    chunks = 0
    with contextlib.suppress(BlockingIOError):
        while data := ours.recv(1 << 14):
            chunks += 1
            loop.data_received(data)
    return chunks


def _written(theirs: socket.socket) -> bytes:
    """What the loop wrote to the socket itself."""
    with contextlib.suppress(BlockingIOError):
        return theirs.recv(1 << 16)
    return b""


LONG = 1 << 16  # bytes of an argument that the compiled loop receives itself
sizes = st.sampled_from([0, 1, LONG - 1, LONG, LONG + 1, 80_000, 3 * LONG, 5 << 20]) | st.integers(0, 4 * LONG)


@pytest.mark.parametrize("kind", KINDS)
@given(st.lists(sizes, min_size=1, max_size=5), st.lists(st.sampled_from([1, 2, 999, 70_000, 3 << 20]), min_size=1))
@settings(max_examples=60, deadline=None)
def test_long_arguments_arrive_whole_however_the_socket_gives_them(
    kind: str, lengths: list[int], portions: list[int]
) -> None:
    contents = [bytes([number]) * length for number, length in enumerate(lengths, 1)]
    data = b"".join(pack(b"SET", b"%d" % number, value) for number, value in enumerate(contents))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        loop = _loop(KINDS[kind])
        loop.descriptor = ours.fileno()
        at = turn = 0
        while at < len(data):
            with contextlib.suppress(BlockingIOError):
                # Small portions are of interest at both ends of an argument; all of it would take for ever.
                portion = portions[turn % len(portions)] if turn < 64 else 1 << 16
                at, turn = at + theirs.send(data[at : at + portion]), turn + 1
            _hear(loop, ours)
        assert _written(theirs) + loop.sent == b"+OK\r\n" * len(lengths)
        assert [*loop.engine.keyspace[0].data.values()] == contents
        assert loop.engine.stats.input_bytes == len(data)


def test_a_long_argument_is_spared_the_way_through_the_transport_and_what_follows_it_is_not() -> None:
    value = bytes(range(256)) * 400  # with space to spare in a socket
    behind = pack(b"INCR", b"n")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.sendall(pack(b"SET", b"a", value) + behind)
        loop = _loop(inner_loop.InnerLoop)
        loop.descriptor = ours.fileno()
        loop.data_received(ours.recv(100))
        rest = ours.recv(1 << 20)
        assert rest == behind or not inner_loop.COMPILED
        loop.data_received(rest)
        assert loop.engine.keyspace[0].data == {b"a": value, b"n": 1}


values = st.binary(max_size=12) | st.sampled_from([b"*1234567\r\n", b"\r\n*", b"*", b"$5\r\n"])
pipelines = st.lists(
    st.one_of(
        st.tuples(st.just(b"SET"), st.sampled_from([b"a", b"b"]), values),
        st.tuples(st.just(b"GET"), st.sampled_from([b"a", b"b"])),
        st.tuples(st.just(b"LPUSH"), st.just(b"l"), values),
        st.tuples(st.sampled_from([b"PING", b"get", b"nonsense"])),
    ),
    min_size=1,
    max_size=12,
)


@given(pipelines, st.lists(st.integers(1, 40), min_size=1, max_size=30))
@settings(max_examples=150, deadline=None)
def test_chunks_do_not_matter_and_both_agree(pipeline: list[tuple[bytes, ...]], cuts: list[int]) -> None:
    data = b"".join(pack(*argv) for argv in pipeline)
    whole = _loop(KINDS["pure"])
    whole.data_received(data)
    for base in KINDS.values():
        loop = _loop(base)
        at = turn = 0
        while at < len(data):
            size = cuts[turn % len(cuts)]
            loop.data_received(data[at : at + size])
            at, turn = at + size, turn + 1
        assert loop.sent == whole.sent
        assert loop.others_seen == whole.others_seen
        assert loop.engine.keyspace[0].data == whole.engine.keyspace[0].data


writes = st.one_of(
    st.tuples(st.sampled_from([b"TWRITE", b"twrite"]), st.sampled_from([b"s", b"t", b"text"]), values, values),
    st.tuples(st.just(b"TWRITE"), st.just(b"s"), st.just(b"ENTRIES"), values, values),
    st.sampled_from([(b"TWRITE", b"s"), (b"SET", b"text", b"x"), (b"PING",), (b"DEL", b"s")]),
)


@given(st.lists(writes, max_size=40), st.integers(1, 300), st.booleans())
@settings(max_examples=150, deadline=None)
def test_writes_that_run_together_are_as_if_one_came_after_the_other(
    pipeline: list[tuple[bytes, ...]], size: int, broken: bool
) -> None:
    data = b"".join(pack(*argv) for argv in pipeline) + b"*1\r\n:1\r\n" * broken
    single = _loop(KINDS["pure"])
    together = _loop(KINDS["chosen"])
    single.data_received(data or b"\r\n")
    for at in range(0, len(data), size):
        if b"-Protocol" not in together.sent:
            together.data_received(data[at : at + size])
    assert together.sent == (single.sent if data else b"")
    assert together.engine.keyspace.dirty == single.engine.keyspace.dirty
    assert together.engine.stats.commands == single.engine.stats.commands
    calls = [{name: counts[CALLS] for name, counts in loop.engine.stats.calls.items()} for loop in (single, together)]
    assert calls[0] == calls[1]
    for key in (b"s", b"t"):
        streams = [loop.engine.keyspace[0].data.get(key) for loop in (single, together)]
        assert len({stream and stream.dump() for stream in streams}) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_of_writes_wakes_readers_and_seals_nodes(kind: str) -> None:
    loop = _loop(KINDS[kind])
    woken: list[int] = []
    loop.engine.blocking.serve = lambda: (woken.append(1), loop.engine.keyspace.ready.clear())
    loop.engine.keyspace[0].observed.of(b"s").waiters[object()] = None
    loop.data_received(pack(b"TWRITE", b"s", b"tag", b"entry") * 2500)
    assert loop.sent == b"".join(b":%d\r\n" % offset for offset in range(1, 2501))
    assert woken
    loop.engine.keyspace[0].data[b"s"].check()


# -- what INFO and CLIENT LIST show -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_calls_failures_and_refusals_are_counted_a_command(kind: str) -> None:
    loop = _loop(KINDS[kind])
    loop.data_received(
        pack(b"SET", b"a", b"x") * 3 + pack(b"set", b"a", b"x") + pack(b"INCR", b"a") + pack(b"GET") + pack(b"PING")
        + pack(b"TWRITE", b"s", b"tag", b"entry") * 50 + pack(b"TWRITE", b"a", b"tag", b"entry") * 5
    )  # fmt: skip
    stats = loop.engine.stats
    counted = {name: (each[CALLS], each[REJECTED], each[FAILED]) for name, each in stats.calls.items() if any(each)}
    assert counted == {"SET": (4, 0, 0), "INCR": (1, 0, 1), "GET": (0, 1, 0), "TWRITE": (55, 0, 5)}
    assert stats.commands == 4 + 1 + 55, "one that was refused was not processed"
    assert stats.errors == {"ERR": 2, "WRONGTYPE": 5}
    stats.reset()
    loop.data_received(pack(b"SET", b"a", b"x"))
    assert (stats.calls["SET"][CALLS], stats.calls["INCR"][CALLS], stats.commands) == (1, 0, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_hits_and_misses_are_those_of_keys_that_are_read(kind: str) -> None:
    loop = _loop(KINDS[kind])
    stats = loop.engine.stats

    def counts_of(*argv: bytes) -> tuple[int, int]:
        stats.reset()
        loop.data_received(pack(*argv))
        return stats.hits, stats.misses

    loop.data_received(
        pack(b"SET", b"a", b"") + pack(b"HSET", b"h", b"f", b"1") + pack(b"SET", b"old", b"1", b"PX", b"5")
    )
    loop.engine.clock.advance(10)
    assert counts_of(b"GET", b"a") == (1, 0), "an empty string is there"
    assert counts_of(b"GET", b"h") == (1, 0), "of another type, but there"
    assert counts_of(b"GET", b"old") == (0, 1)
    assert counts_of(b"HGET", b"h", b"other") == (1, 0)
    assert counts_of(b"HGET", b"none", b"other") == (0, 1)
    assert counts_of(b"MGET", b"a", b"none", b"h", b"none") == (2, 2)
    assert counts_of(b"TTL", b"none") == (0, 1)
    assert counts_of(b"GET") == counts_of(b"WATCH", b"a") == counts_of(b"SET", b"a", b"x") == (0, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_one_call_in_some_is_timed_and_stands_for_the_others(kind: str) -> None:
    loop = _loop(KINDS[kind])
    counters = loop.engine.stats.calls["GET"]
    times = []
    for call in range(1, 10 * SAMPLE):
        loop.data_received(pack(b"GET", b"a"))
        times.append(counters[NANOSECONDS])
        assert counters[UNTIMED] == max(call - SAMPLE, 0) % SAMPLE
    assert times == sorted(times) and len(set(times)) <= SAMPLE + 9, "only what is timed adds to it"
    assert sum(counters[BUCKETS:]) == 10 * SAMPLE - 1 - counters[UNTIMED], "each call is in a bucket, or will be"
    assert counters[BUCKETS:][BUCKET_OF[times[0].bit_length()]] > 0
    many = loop.engine.stats.calls["MGET"]
    loop.data_received(pack(b"MGET", b"a") * (SAMPLE + 1) + pack(b"MGET", *[b"a"] * MANY_ARGUMENTS))
    assert many[UNTIMED] == 1, "one with many arguments stands for itself alone"


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_that_may_take_long_and_does_is_in_the_slow_log(kind: str) -> None:
    loop = _loop(KINDS[kind])

    def slow(session: Session, argv: list[bytes]) -> int:
        until = time.perf_counter_ns() + 12_000_000
        while time.perf_counter_ns() < until:
            pass
        return 1

    loop.engine.fast = {b"HGETALL": loop.engine.fast[b"HGETALL"]._replace(handler=slow)}
    loop.engine.config.change([(DIRECTIVES["latency-monitor-threshold"], "5")])
    for _ in range(SAMPLE + 2):  # not one in some is timed, but every one
        loop.data_received(pack(b"HGETALL", b"a"))
    rows = loop.engine.slow_log.rows
    assert len(rows) == SAMPLE + 2
    assert rows[0].argv == [b"HGETALL", b"a"] and rows[0].microseconds >= 12_000
    assert loop.engine.latency.events["command"].worst >= 12


@pytest.mark.parametrize("kind", KINDS)
def test_a_session_knows_its_last_command_whichever_way_it_took(kind: str) -> None:
    loop = _loop(KINDS[kind])
    loop.data_received(pack(b"SET", b"a", b"x") + pack(b"GET", b"a"))
    assert loop.session.last_command == "GET"
    loop.data_received(pack(b"mget", b"a"))
    assert "cmd=mget " in loop.session.describe()


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_whose_input_fills_a_read_gives_way_to_others(kind: str) -> None:
    loop = _loop(KINDS[kind])
    data = pack(b"SET", b"key", b"value") * (inner_loop.WHOLE_READ // 20)
    loop.data_received(data[: inner_loop.WHOLE_READ - 1])
    assert loop.gave_way == 0
    loop.data_received(data[: inner_loop.WHOLE_READ])
    assert loop.gave_way == 1
