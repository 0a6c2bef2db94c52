"""Commands that may change nothing: which of them count as a change and break a WATCH, on ours and on a real Redis."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from tests.support.raw_client import RawClient

from penstock.engine.clock import Clock
from penstock.engine.dispatch import Engine
from penstock.engine.session import Session
from penstock.protocol.resp import pack

SETUP = [
    "SET s abc", "SET n 5", "RPUSH l a b c", "SADD t a b", "SADD t2 a c", "ZADD z 1 a 2 b", "HSET h f v g 2",
    "XADD x 1-1 f v", "XADD x 2-1 f v", "SET e v EX 1000", "RPUSH one a", "SADD sone a", "SET bits \x01",
]  # fmt: skip
WATCHED = ["s", "n", "l", "t", "t2", "z", "h", "x", "e", "one", "sone", "bits", "nokey", "nokey2", "q"]

TABLE = [
    # command, whether it counts as a change, the watched keys that it breaks
    ("SMOVE t t2 a", True, "t"),
    ("SMOVE t t a", False, ""),
    ("SMOVE t nokey zz", False, ""),
    ("SMOVE nokey t a", False, ""),
    ("SETBIT bits 7 1", False, ""),
    ("SETBIT bits 6 0", False, ""),
    ("SETBIT s 100 0", True, "s"),
    ("SETBIT nokey 5 0", True, "nokey"),
    ("BITFIELD bits SET u8 0 1", False, ""),
    ("BITFIELD bits SET u8 0 2", True, "bits"),
    ("BITFIELD bits SET u8 64 0", True, "bits"),
    ("BITFIELD nokey SET u8 0 0", True, "nokey"),
    ("BITFIELD bits INCRBY u8 0 0", False, ""),
    ("BITFIELD bits OVERFLOW FAIL INCRBY u8 0 300", False, ""),
    ("BITFIELD bits OVERFLOW FAIL INCRBY u8 0 255", False, ""),
    ("BITFIELD bits GET u8 0", False, ""),
    ("BITFIELD nokey GET u8 0", False, ""),
    ("BITFIELD_RO bits GET u8 0", False, ""),
    ("XSETID x 2-1", True, ""),
    ("XSETID x 5-1", True, ""),
    ("XSETID x 2-1 ENTRIESADDED 2 MAXDELETEDID 0-0", True, ""),
    ("SWAPDB 0 0", True, ""),
    ("SWAPDB 0 1", True, "s n l t t2 z h x e one sone bits"),
    ("SET s abc", True, "s"),
    ("SET s abc KEEPTTL", True, "s"),
    ("SET s q NX", False, ""),
    ("SET nokey q XX", False, ""),
    ("SETNX s q", False, ""),
    ("MSETNX s 1 q 2", False, ""),
    ("MSET s abc", True, "s"),
    ("APPEND s ''", True, "s"),
    ("APPEND nokey ''", True, "nokey"),
    ("SETRANGE s 0 ''", False, ""),
    ("SETRANGE nokey 0 ''", False, ""),
    ("SETRANGE s 0 abc", True, "s"),
    ("GETSET s abc", True, "s"),
    ("GETEX s", False, ""),
    ("GETEX s PERSIST", False, ""),
    ("GETEX e PERSIST", True, "e"),
    ("GETEX e EX 100", True, "e"),
    ("GETDEL nokey", False, ""),
    ("INCRBY n 0", True, "n"),
    ("DECRBY n 0", True, "n"),
    ("INCRBYFLOAT n 0", True, "n"),
    ("HINCRBY h g 0", True, "h"),
    ("HINCRBYFLOAT h g 0", True, "h"),
    ("ZINCRBY z 0 a", False, ""),
    ("ZADD z 1 a", False, ""),
    ("ZADD z NX 5 a", False, ""),
    ("ZADD z XX 5 nomember", False, ""),
    ("ZADD z GT 0 a", False, ""),
    ("ZADD z INCR 0 a", False, ""),
    ("ZADD z NX INCR 5 a", False, ""),
    ("HSET h f v", True, "h"),
    ("HSETNX h f w", False, ""),
    ("HDEL h nofield", False, ""),
    ("HDEL nokey f", False, ""),
    ("SADD t a", False, ""),
    ("SREM t zz", False, ""),
    ("SPOP nokey", False, ""),
    ("SPOP t 0", False, ""),
    ("ZREM z zz", False, ""),
    ("ZPOPMIN nokey", False, ""),
    ("ZPOPMIN z 0", False, ""),
    ("ZREMRANGEBYSCORE z 10 20", False, ""),
    ("ZREMRANGEBYRANK z 10 20", False, ""),
    ("ZREMRANGEBYLEX z [x [y", False, ""),
    ("LREM l 0 zz", False, ""),
    ("LTRIM l 0 -1", False, "l"),
    ("LTRIM nokey 0 1", False, ""),
    ("LSET l 0 a", True, "l"),
    ("LINSERT l BEFORE zz q", False, ""),
    ("LINSERT nokey BEFORE a q", False, ""),
    ("LPUSHX nokey a", False, ""),
    ("RPUSHX nokey a", False, ""),
    ("LPOP nokey", False, ""),
    ("LPOP l 0", False, ""),
    ("LMPOP 1 nokey LEFT", False, ""),
    ("RPOPLPUSH nokey l", False, ""),
    ("RPOPLPUSH one one", True, "one"),
    ("LMOVE one one LEFT RIGHT", True, "one"),
    ("LMOVE l l LEFT LEFT", True, "l"),
    ("LMOVE nokey l LEFT LEFT", False, ""),
    ("DEL nokey", False, ""),
    ("UNLINK nokey", False, ""),
    ("RENAME s s", False, ""),
    ("RENAMENX s n", False, ""),
    ("RENAMENX s s", False, ""),
    ("COPY s n", False, ""),
    ("COPY nokey q", False, ""),
    ("COPY s n REPLACE", True, "n"),
    ("MOVE nokey 1", False, ""),
    ("EXPIRE nokey 10", False, ""),
    ("EXPIRE s 1000 XX", False, ""),
    ("EXPIRE e 5000 NX", False, ""),
    ("EXPIRE e 10 GT", False, ""),
    ("EXPIRE e 1000", True, "e"),
    ("EXPIRE s -1", True, "s"),
    ("PERSIST s", False, ""),
    ("PERSIST e", True, "e"),
    ("TOUCH s", False, ""),
    ("SORT l", False, ""),
    ("SORT l ALPHA STORE l", True, "l"),
    ("SORT nokey STORE nokey2", False, ""),
    ("SORT nokey STORE s", True, "s"),
    ("SINTERSTORE nokey2 nokey", False, ""),
    ("SINTERSTORE s nokey", True, "s"),
    ("SINTERSTORE t t", True, "t"),
    ("SUNIONSTORE t t", True, "t"),
    ("SDIFFSTORE nokey2 t t", False, ""),
    ("ZUNIONSTORE nokey2 1 nokey", False, ""),
    ("ZUNIONSTORE s 1 nokey", True, "s"),
    ("ZRANGESTORE nokey2 nokey 0 -1", False, ""),
    ("ZRANGESTORE s nokey 0 -1", True, "s"),
    ("BITOP OR nokey2 nokey", False, ""),
    ("BITOP OR s nokey", True, "s"),
    ("XADD nokey NOMKSTREAM * f v", False, ""),
    ("XDEL x 9-9", False, ""),
    ("XDEL nokey 1-1", False, ""),
    ("XTRIM x MAXLEN 100", False, ""),
    ("XTRIM nokey MAXLEN 100", False, ""),
    ("XTRIM x MAXLEN 0", True, "x"),
    ("XADD x MAXLEN 2 3-1 f v", True, "x"),
    ("FLUSHDB", True, "s n l t t2 z h x e one sone bits"),
    ("FLUSHALL", True, "s n l t t2 z h x e one sone bits"),
    ("HGET h f", False, ""),
    ("GET s", False, ""),
    ("EVAL return(1) 0", False, ""),
    ("PUBLISH c x", False, ""),
    ("SPUBLISH c x", False, ""),
    ("SETEX s 100 abc", True, "s"),
    ("PSETEX s 100000 abc", True, "s"),
    ("BLPOP nokey 0.01", False, ""),
    ("BLMOVE nokey l LEFT LEFT 0.01", False, ""),
    ("ZMPOP 1 nokey MIN", False, ""),
    ("XREAD STREAMS x 0", False, ""),
    ("LMPOP 1 l LEFT COUNT 1", True, "l"),
    ("SPOP sone", True, "sone"),
    ("SREM sone a", True, "sone"),
    ("LPOP one", True, "one"),
    ("GETDEL s", True, "s"),
    ("HDEL h f g", True, "h"),
    ("ZREM z a b", True, "z"),
    ("EXPIREAT s 1", True, "s"),
    ("PEXPIRE e 1000000", True, "e"),
    ("SET s v PXAT 1", True, "s"),
    ("SET e v EXAT 1", True, "e"),
    ("GETEX e EXAT 1", True, "e"),
    ("HRANDFIELD h", False, ""),
    ("SRANDMEMBER t", False, ""),
    ("SDIFFSTORE t t nokey", True, "t"),
    ("ZDIFFSTORE z 1 z", True, "z"),
    ("ZINTERSTORE z 1 z", True, "z"),
    ("ZINTERSTORE s 2 z nokey", True, "s"),
]  # fmt: skip


def words(command: str) -> list[bytes]:
    return [b"" if word == "''" else word.encode("latin-1") for word in command.split(" ")]


@pytest.fixture
def watchers(peer: str) -> Iterator[dict[str, RawClient]]:
    """A client for each watched key."""
    port = int(peer.rpartition(":")[2].partition("/")[0])
    with contextlib.ExitStack() as stack:
        yield {name: stack.enter_context(RawClient(port)) for name in WATCHED}


def broken_by(client: RawClient, watchers: dict[str, RawClient], command: str) -> tuple[bool, str]:
    """Whether a command counts as a change, and the watched keys that it breaks."""
    client.send(b"".join(pack(*words(step)) for step in ("FLUSHALL", *SETUP)))
    for _ in range(len(SETUP) + 1):
        client.read()
    for name, watcher in watchers.items():
        assert watcher.ask(f"WATCH {name}") == b"OK"
    before = changes_of(client)
    client.command(*words(command))
    client.read()
    changed = changes_of(client) != before
    for watcher in watchers.values():
        watcher.send(pack(b"MULTI") + pack(b"EXEC"))
        watcher.read()
    return changed, " ".join(name for name, watcher in watchers.items() if watcher.read() is None)


def changes_of(client: RawClient) -> int:
    (line,) = (line for line in client.ask("INFO persistence").split() if line.startswith(b"rdb_changes"))
    return int(line.partition(b":")[2])


@pytest.mark.since("7.0")
def test_what_changes_nothing_breaks_no_watch_unless_it_does_in_redis(
    watchers: dict[str, RawClient], peer: str
) -> None:
    with RawClient(int(peer.rpartition(":")[2].partition("/")[0])) as client:
        found = {command: broken_by(client, watchers, command) for command, _, _ in TABLE}
    expected = {command: (changes, breaks) for command, changes, breaks in TABLE}
    assert {command: result for command, result in found.items() if result != expected[command]} == {}


def test_swapdb_that_brings_an_expired_key_breaks_no_watch() -> None:
    clock = Clock()
    engine = Engine(clock=clock)
    here, there = Session(engine), Session(engine)
    there.db = engine.keyspace[1]
    engine.execute(there, [b"SET", b"k", b"v", b"PX", b"1000"])
    engine.execute(here, [b"WATCH", b"k"])
    clock.now += 2000
    engine.execute(there, [b"SWAPDB", b"0", b"1"])
    assert not here.watch_broken
    engine.execute(there, [b"SET", b"k", b"w"])
    engine.execute(there, [b"SWAPDB", b"0", b"1"])
    assert here.watch_broken
