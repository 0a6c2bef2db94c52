"""The memory that commands take beyond their arguments is declared, and refused before they run if maxmemory has no
room.

Each command that may grow memory has an example here in which little input takes as much memory as possible. The memory
is measured where Python and Arrow allocate, so that nothing depends on malloc.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress

import pyarrow as pa
import pytest
from tests.support.engine.lock_world import PATIENCE, Slow, World

from penstock.commands.dumping import to_payload
from penstock.engine.declarations import REGISTRY, Argv, Flag
from penstock.engine.observe.statistics import REJECTED
from penstock.protocol.errors import ReplyError
from penstock.types.hash import Hash
from penstock.types.list import List
from penstock.types.set import Set
from penstock.types.zset import SortedSet

MEGABYTE = 1 << 20
COUNT = 10_000
SLACK = 64 << 10
"""Bytes that any command may take: a table that happens to grow, statistics, the first use of something."""


def _zeros() -> bytes:
    """An Arrow stream that unpacks to 4 MB."""
    schema = pa.schema([("tag", pa.binary()), ("entry", pa.binary())])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        columns = [pa.array([b"t"] * 4), pa.array([bytes(MEGABYTE)] * 4)]
        writer.write_batch(pa.record_batch(columns, schema=schema))
    return sink.getvalue().to_pybytes()


ZEROS = _zeros()
PAYLOADS = {
    "list": to_payload(List(b"x" for _ in range(COUNT))),
    "set": to_payload(Set(b"%d" % number for number in range(COUNT))),
    "hash": to_payload(Hash((b"%d" % number, b"") for number in range(COUNT))),
    "zset": to_payload(SortedSet({b"%d" % number: float(number) for number in range(COUNT)})),
}

EXAMPLES: dict[str, list[list[str | bytes]]] = {
    # Each of these keeps its arguments, whatever the key held.
    "SET": [["new", "v"], ["string", "v"]],
    "SETNX": [["new", "v"]],
    "SETEX": [["string", "100", "v"]],
    "PSETEX": [["string", "100000", "v"]],
    "GETSET": [["new", "v"]],
    "MSET": [["new", "v", "string", "w"]],
    "MSETNX": [["new", "v", "newer", "w"]],
    "INCR": [["new"]],
    "DECR": [["new"]],
    "INCRBY": [["new", "9000000000000000000"]],
    "DECRBY": [["new", "9000000000000000000"]],
    "INCRBYFLOAT": [["new", "1e4000"], ["new", "1.5"]],
    "LPUSH": [["list", "e"]],
    "RPUSH": [["list", "e"]],
    "LPUSHX": [["list", "e"]],
    "RPUSHX": [["list", "e"]],
    "LMOVE": [["list", "new", "LEFT", "LEFT"]],
    "RPOPLPUSH": [["list", "new"]],
    "BLMOVE": [["list", "new", "LEFT", "LEFT", "0"]],
    "BRPOPLPUSH": [["list", "new", "0"]],
    "LSET": [["list", "100", "e"]],
    "LINSERT": [["list", "BEFORE", "e7", "e"]],
    "ZADD": [["zset", "5", "m1"], ["zset", "INCR", "5", "new"]],
    "ZINCRBY": [["zset", "5", "new"]],
    "HSET": [["hash", "new", "v"]],
    "HMSET": [["hash", "new", "v"]],
    "HSETNX": [["hash", "new", "v"]],
    "HINCRBY": [["hash", "new", "5"]],
    "HINCRBYFLOAT": [["hash", "new", "5"]],
    "SADD": [["set", "new"]],
    "XADD": [["xstream", "*", "f", "v"]],
    "XSETID": [["xstream", "9000000000000-0"]],
    "TCOMMIT": [["stream", "producer", "1", "token"]],
    # These may take more.
    "APPEND": [["string", "x"], ["edited", "x"]],
    "SETRANGE": [["new", "3000000", "x"], ["string", "5", "x"], ["edited", "3000000", "x"]],
    "SETBIT": [["new", "30000000", "1"], ["string", "5", "1"], ["edited", "30000000", "0"]],
    "BITFIELD": [["new", "SET", "u8", "30000000", "1"], ["string", "INCRBY", "u8", "#2000000", "1"]],
    "BITOP": [["NOT", "new", "string"], ["OR", "new", "string", "edited"]],
    "COPY": [[kind, "new"] for kind in ("string", "edited", "list", "set", "hash", "zset", "xstream", "stream")],
    "RESTORE": [["new", "0", payload] for payload in PAYLOADS.values()],
    "SINTERSTORE": [["new", "set", "set"]],
    "SUNIONSTORE": [["new", "set", "set2"]],
    "SDIFFSTORE": [["new", "set", "set2"]],
    "ZRANGESTORE": [
        ["new", "zset", "0", "-1"], ["new", "zset", "-inf", "inf", "BYSCORE"], ["new", "zset", "-", "+", "BYLEX"],
        ["new", "zset", "0", "inf", "BYSCORE", "LIMIT", "0", "9000"],
    ],
    "ZUNIONSTORE": [["new", "2", "zset", "set"]],
    "ZINTERSTORE": [["new", "2", "zset", "zset"]],
    "ZDIFFSTORE": [["new", "2", "zset", "set2"]],
    "SORT": [
        ["list", "BY", "nosort", "STORE", "new"], ["list", "ALPHA", "GET", "#", "GET", "#", "STORE", "new"],
        ["list", "ALPHA", "LIMIT", "0", "10", "STORE", "new"],
    ],
    "TWRITE": [["stream", "tag", "entry"], ["stream", "FORMAT", "ARROW", ZEROS]],
    "TGIVEUP": [["stream", "g", "1-1000"]],
    "TSCHEMA SET": [
        ["stream", ", ".join(f"f{number} array<int>" for number in range(2000))],
        ["new", ", ".join(f"f{number} int" for number in range(2000))],
    ],
    "TSTAGE": [["stream", "token", "ENTRIES", "tag", "entry"], ["stream", "token2", "ARROW", ZEROS]],
    "FUNCTION LOAD": [["#!lua name=mine\n"]],
    "FUNCTION RESTORE": [["payload"]],
}  # fmt: skip

MAY_GROW = sorted(command.name for command in REGISTRY.walk() if Flag.DENYOOM in command.flags)


def _words(name: str, words: list[str | bytes]) -> Argv:
    return [word.encode() if isinstance(word, str) else word for word in [*name.split(), *words]]


@pytest.fixture(scope="module")
def full() -> Iterator[World]:
    """A world with a large value of each type."""
    world = World()
    session = world.client().session
    tracemalloc.start()
    for argv in (
        _words("RPUSH", ["list", *(f"e{number}" for number in range(COUNT))]),
        _words("SADD", ["set", *(f"m{number}" for number in range(COUNT))]),
        _words("SADD", ["set2", *(f"n{number}" for number in range(COUNT))]),
        _words("HSET", ["hash", *(f"f{number}" for number in range(COUNT))]),
        _words("ZADD", ["zset", *(word for number in range(COUNT) for word in (str(number), f"m{number}"))]),
        _words("TWRITE", ["stream", "ENTRIES", *["tag", "entry"] * 2500]),
        _words("TREAD", ["stream", "0", "1000", "GROUP", "g", "RETRY", "1000000", "0", "DEADLETTER", "dead"]),
        _words("TSTAGE", ["stream", "token", "ENTRIES", *["tag", "entry"] * 10]),
        *(_words("XADD", ["xstream", f"{number}-1", "f", "v"]) for number in range(1, 2000)),
    ):  # fmt: skip
        world.engine.execute(session, argv)
    world.engine.memory.limit = 1 << 50  # so that commands are asked
    yield world
    tracemalloc.stop()
    world.close()


def _held() -> int:
    return tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes()


def test_every_command_that_may_grow_memory_has_an_example() -> None:
    assert sorted(EXAMPLES) == MAY_GROW


@pytest.mark.parametrize("name", EXAMPLES)
def test_no_command_takes_more_than_it_declares(full: World, name: str) -> None:
    engine = full.engine
    for words in EXAMPLES[name]:
        session = full.client().session
        session.may_block = False  # nothing in a thread
        for line in (
            ["DEL", "new", "newer"],
            ["SET", "string", bytes(MEGABYTE)],
            ["SETRANGE", "edited", str(MEGABYTE), "x"],
        ):
            engine.execute(session, _words("", line))
        argv = _words(name, words)
        declared = engine.growth(session, REGISTRY.resolve(argv), argv)
        before = _held()
        with suppress(ReplyError):
            engine.execute(session, argv)
        taken = _held() - before
        assert taken <= declared + 2 * sum(map(len, argv)) + SLACK, (words[:2], taken, declared)


# -- what the limit makes of it -------------------------------------------------------------------------------

ROOM = 24 << 20
LARGE = (32 << 20) - 1
OOM = b"-OOM command not allowed when used memory > 'maxmemory'.\r\n"


@pytest.fixture
def limited(world: World) -> World:
    """A world with room for a string half as long as LARGE, and not for a second one."""
    gc.collect()
    world.engine.memory.measure()
    world.engine.memory.measure()
    world.configure("maxmemory", str(world.engine.memory.used_memory + ROOM))
    return world


def _size(world: World) -> int:
    """Bytes of all strings."""
    return sum(len(value) for value in world.engine.keyspace[0].data.values())


def test_a_string_that_does_not_fit_is_refused_before_it_is_made(limited: World) -> None:
    for line in (f"SETRANGE k {LARGE} x", f"SETBIT k {8 * LARGE} 1", f"BITFIELD k SET u8 {8 * LARGE} 1"):
        assert limited.client().run(line) == [OOM]
    assert _size(limited) == 0
    assert limited.engine.stats.calls["SETRANGE"][REJECTED] == 1
    assert limited.logged == []


def test_what_fits_once_does_not_fit_twice(limited: World) -> None:
    client = limited.client()
    assert client.run(*(f"SETRANGE k{number} {LARGE // 2} x" for number in range(10))) == [b":16777216\r\n"] + [OOM] * 9
    client.run("DEL k0")
    assert client.run(f"SETRANGE k1 {LARGE // 2} x") == [b":16777216\r\n"], "the room that DEL made is found at once"


def test_what_is_made_of_a_large_string_must_fit(limited: World) -> None:
    client = limited.client(f"SETRANGE a {LARGE // 2} x")
    assert client.run("BITOP NOT b a", "BITOP OR b a none", "COPY a b") == [OOM] * 3
    assert client.run("APPEND a x") == [b":16777217\r\n"], "it is edited where it is"


def test_a_string_that_two_keys_share_is_counted_when_one_is_edited(limited: World) -> None:
    client = limited.client()
    limited.engine.execute(client.session, _words("SET", ["a", bytes(LARGE // 2)]))
    assert client.run("COPY a b", "APPEND b x", "GETRANGE b 0 0") == [b":1\r\n", OOM, b"$1\r\n\0\r\n"]


def test_a_transaction_goes_on_behind_a_command_that_does_not_fit(limited: World) -> None:
    client = limited.client("MULTI", f"SETRANGE a {LARGE // 2} x", f"SETRANGE b {LARGE // 2} x", "DEL a")
    client.run(f"SETRANGE c {LARGE // 2} x")
    assert client.run("EXEC") == [b"*4\r\n:16777216\r\n" + OOM + b":1\r\n:16777216\r\n"]


def test_a_script_that_has_written_is_refused_what_does_not_fit(limited: World) -> None:
    client = limited.client()
    session = client.session
    words = ["redis.call('set',KEYS[1],1) return redis.call('setrange',KEYS[1],ARGV[1],'x')", "1", "k", str(LARGE)]
    with pytest.raises(ReplyError, match=r"^OOM command not allowed"):
        limited.engine.execute(session, _words("EVAL", words))
    assert limited.engine.keyspace[0].data == {b"k": b"1"}
    words[0] = "#!lua flags=allow-oom\n" + words[0]
    limited.engine.execute(session, _words("EVAL", words))
    assert _size(limited) == LARGE + 1


def test_what_lazy_has_queued_is_reserved(limited: World) -> None:
    client = limited.client()
    enqueued = b"+LAZY-ENQUEUED\r\n"
    assert client.run(f"LAZY SETRANGE a {LARGE} x", "LAZY STRLEN a")[0] == OOM
    assert client.run(f"LAZY SETRANGE a {LARGE // 2} x") == [enqueued]
    assert limited.engine.memory.reserved > LARGE // 2
    assert client.run(f"LAZY SETRANGE b {LARGE // 2} x") == [OOM]
    assert limited.engine.memory.reserved == 0, "what was queued ran, in case it would free some"
    assert client.run("DEL a", f"LAZY SETRANGE b {LARGE // 2} x", "STRLEN b") == [b":1\r\n", enqueued, b":16777216\r\n"]


def test_once_is_refused_and_not_kept(limited: World) -> None:
    client = limited.client("ONCEBEGIN me")
    command = f"ONCE me 2 2 SETRANGE a {LARGE // 2} x"
    client.run(f"SETRANGE b {LARGE // 2} x")
    assert client.run(command) == [OOM]
    assert client.run("DEL b", command) == [b":1\r\n", b":16777216\r\n"]


def test_what_a_thread_is_making_is_reserved(world: World, slow: Slow) -> None:
    store = REGISTRY.by_name[b"SLOW.STORE"]
    store.grows = lambda session, argv: LARGE // 2
    one = world.client("SADD s a")
    world.engine.memory.measure()
    world.configure("maxmemory", str(world.engine.memory.used_memory + ROOM))
    assert one.run("SLOW.STORE d s") == []
    assert slow.begun.get(timeout=PATIENCE) == "store"
    assert world.engine.memory.reserved == LARGE // 2
    assert world.client().run(f"SETRANGE k {LARGE // 2} x") == [OOM]
    slow.go.set()
    world.step()
    assert one.sent[-1] == b":1\r\n"
    assert world.engine.memory.reserved == 0
    assert world.client().run(f"SETRANGE k {LARGE // 2} x") == [b":16777216\r\n"]


def test_sort_is_refused_copies_that_do_not_fit(limited: World) -> None:
    client = limited.client("SETRANGE w_a 4194303 x", "RPUSH l a a a a a a a a a a")
    assert client.run("SORT l BY nosort GET w_* STORE d") == [OOM]
    assert client.run("EXISTS d", "SORT l BY nosort LIMIT 0 2 GET w_* STORE d") == [b":0\r\n", b":2\r\n"]
