"""Blocks of a snapshot: both twins write the same, and the compiled one copies no memory in a child."""

from __future__ import annotations

import errno
import io
import logging
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.support.raw_client import RawClient
from tests.support.twins import is_compilation_expected, pure_twin

from penstock import Server
from penstock.engine.dispatch import Engine
from penstock.engine.session import Session
from penstock.storage import blocks
from penstock.types.hash import Hash
from penstock.types.list import List
from penstock.types.set import Set
from penstock.types.zset import SortedSet

TWINS = {"chosen": blocks.write_database, "pure": pure_twin(blocks).write_database}


def test_the_end_of_the_interpreter_does_not_wait_for_a_giant_to_be_freed() -> None:
    program = "from penstock.types.list import List; kept = List([b'']) * 1_000_000"
    assert subprocess.run([sys.executable, "-c", program], timeout=120, check=False).returncode == 0


def test_both_twins_write_the_same_bytes(tmp_path: Path) -> None:
    """Lists that wrapped around their blocks, sets with holes, deleted entries, numbers of any size, keys with and
    without an expiry time.
    """
    engine = Engine()
    session = Session(engine)
    keyspace = engine.keyspace
    session.db = db = keyspace[5]
    items = List(b"%d" % number for number in range(300))
    for _ in range(130):
        items.append(items.popleft())
    members = Set(b"%d" % number for number in range(200))
    members.remove_all(b"%d" % number for number in range(0, 200, 3))
    fields = Hash((b"%d" % number, b"v" * number) for number in range(100))
    fields.remove_all(b"%d" % number for number in range(0, 100, 7))
    for number, value in enumerate([0, -1, 1 << 62, -(1 << 63), 1 << 200]):
        db.set(b"int:%d" % number, value)
    db.set(b"large", bytes(range(256)) * 300)
    db.set(b"edited", bytearray(b"x" * 70_000))
    db.set(b"list", items)
    db.set(b"one", List([b""]))
    db.set(b"set", members)
    db.set(b"hash", fields)
    db.set(b"zset", SortedSet({b"a": 1.5, b"b": float("-inf"), b"c": 0.0}))
    for line in ("XADD x 5-1 f v g w", "XADD x 6-0 f v", "XDEL x 5-1", "TWRITE t tag entry", "XADD y MAXLEN 0 1-1 f v"):
        engine.execute(session, line.encode().split())
    engine.execute(session, [b"TSTAGE", b"t", b"token", b"ENTRIES", b"tag", b"entry"])
    for line in (
        "TWRITE plain ENTRIES a 1 b 22 c 333",
        "TRETAIN plain COUNT 2 AGE 5000000 BYTES 70000 COMPACT yes",
        "TWRITE emptied ENTRIES a 1 b 2",
        "TEVICT emptied 2",
        "TWRITE grouped tag entry",
        "TREAD grouped 0 10 GROUP g",
        "TWRITE produced PRODUCER p 1 ENTRIES a 1",
    ):
        engine.execute(session, line.encode().split())
    for number in range(250):
        engine.execute(session, b"XADD many %d-0 f v".replace(b"%d", b"%d" % (number + 1)).split())
        engine.execute(session, [b"TWRITE", b"t2", b"ENTRIES", *[b"tag", b"entry"] * 10])
    keyspace[0].set(b"with a time", b"v")
    keyspace[0].expire_at(b"with a time", 123_456)
    assert b"emptied" in db.data, "an empty stream stays"
    compiled, pure = io.BytesIO(), io.BytesIO()
    for file, write_database in ((compiled, blocks.write_database), (pure, pure_twin(blocks).write_database)):
        writer = blocks.BlockWriter(file, lambda: None)
        for database in keyspace.databases:
            write_database(writer, database)
    assert compiled.getvalue() == pure.getvalue()


def test_the_compiled_twin_is_there_if_it_can_be() -> None:
    assert blocks.COMPILED or not is_compilation_expected()


@pytest.mark.parametrize(
    "kind", ["all types", "keys with an expiry time", "new messages", "small streams", "staged entries"]
)
def test_a_child_that_writes_a_snapshot_copies_next_to_nothing(tmp_path: Path, kind: str) -> None:
    """In a process of its own, whose memory is the data and little else.

    The pure twin counts references, which are beside the data: it copies all of it, and takes memory to write it (1.3
    of the data in all).
    """
    program = subprocess.run(
        [sys.executable, "-c", _COPIES, str(tmp_path), kind], capture_output=True, text=True, timeout=300, check=False
    )
    assert program.returncode == 0, program.stderr
    data, copied = map(int, program.stdout.split())
    assert data > 20 << 20
    assert copied < (0.3 if blocks.COMPILED else 1.6) * data, "0.1 of it is what any child takes"


_COPIES = """
import os, sys
from pathlib import Path
from penstock import commands; commands.load()
from penstock.engine.dispatch import Engine
from penstock.engine.keyspace import allocators
from penstock.engine.session import Session
from penstock.storage import snapshot
from penstock.storage.child import Child
from penstock.types.hash import Hash
from penstock.types.list import List
from penstock.types.set import Set
from penstock.types.xstream import XStream
from penstock.types.zset import SortedSet

folder = Path(sys.argv[1])
session = Session(engine := Engine())
keyspace = engine.keyspace
db, count, before = keyspace[0], allocators.find(), 0
session.db = db

def run(*words):
    engine.execute(session, [str(word).encode() for word in words])

before = count.in_use()
for n in range(80_000 if sys.argv[2] == "keys with an expiry time" else 0):
    run("SET", f"key {n}", f"a value that is not large {n}")
    run("EXPIRE", f"key {n}", 1000 + n)
    run("SET", f"another key {n}", f"a value that is not large {n}")
    run("SET", f"another key {n}", f"a value that is not large {n}", "EX", 1000 + n)
for n in range(200 if sys.argv[2] == "new messages" else 0):
    run("TWRITE", f"stream {n}", "ENTRIES", *[word for m in range(900) for word in ("tag", f"an entry {n} {m}")])
for n in range(5 if sys.argv[2] == "new messages" else 0):
    run("TWRITE", f"large {n}", "ENTRIES", *[word for m in range(5000) for word in ("tag", f"{n} {m} {'x' * 400}")])
for n in range(15_000 if sys.argv[2] == "small streams" else 0):
    run("TWRITE", f"stream {n}", "ENTRIES", "tag", f"entry {n}", "tag", "another")
for n in range(60 if sys.argv[2] == "staged entries" else 0):
    entries = [word for m in range(1000) for word in ("tag", f"{n} {m} {'x' * 400}")]
    run("TSTAGE", "stream", f"token {n}", "ENTRIES", *entries)
for n in range(3000 if sys.argv[2] == "all types" else 0):
    db.set(b"string:%d" % n, b"value %0500d" % n)
    db.set(b"hash:%d" % n, Hash((b"field%d" % m, b"value%d" % m) for m in range(10)))
    db.set(b"list:%d" % n, List(b"element %d:%d" % (n, m) for m in range(20)))
    db.set(b"set:%d" % n, Set(b"member %d:%d" % (n, m) for m in range(20)))
    db.set(b"zset:%d" % n, SortedSet({b"member %d:%d" % (n, m): n + m / 7 for m in range(20)}))
    stream = XStream()
    for m in range(20):
        stream.append((n + 1, m), (b"field", b"value %d" % m))
    db.set(b"stream:%d" % n, stream)
data = count.in_use() - before

def write(file, go_on):
    snapshot.write(file, keyspace, go_on)
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    [line] = [line for line in lines if line.startswith("Private_Dirty")]
    (folder / "copied").write_text(str(int(line.split()[1]) * 1024))

child = Child(folder / "snapshot", write)
os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
assert child.poll() == ""
print(data, (folder / "copied").read_text(), flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("twin", TWINS)
def test_a_value_that_no_block_can_hold_is_named(twin: str) -> None:
    engine = Engine()
    for number in range(5):
        engine.keyspace[0].set(b"small:%d" % number, Set([b"a"]))
    engine.keyspace[0].set(b"giant", Set(b"%d" % number for number in range(1000)))
    writer = blocks.BlockWriter(io.BytesIO(), lambda: None)
    writer.largest_value = 1000
    with pytest.raises(OSError, match=r"the value of key b'giant' has \d+ bytes when packed") as raised:
        TWINS[twin](writer, engine.keyspace[0])
    assert raised.value.errno == errno.EFBIG


def test_the_largest_value_leaves_room_for_the_rest_of_its_block() -> None:
    """What is written with 32 bits: the lengths of all keys and of all values of a block."""
    rest = blocks.BYTES_A_BLOCK + 8 * blocks.KEYS_A_BLOCK + 100
    assert blocks.LARGEST_VALUE + rest < 1 << 32


@pytest.mark.parametrize("words", ["SAVE", "BGSAVE", "BGREWRITEAOF"])
def test_what_writes_a_snapshot_says_which_value_is_too_large(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(blocks, "LARGEST_VALUE", 1000)
    with (
        Server(dir=tmp_path, appendonly="yes", save="3600 1000000") as server,
        RawClient(server.port) as client,
        caplog.at_level(logging.WARNING),
    ):
        client.command("SADD", "giant", *map(str, range(1000)))
        assert client.read() == 1000
        answer = client.ask(words)
        if words == "SAVE":
            assert "the value of key b'giant' has" in answer
        field = b"aof_last_bgrewrite_status:err" if words == "BGREWRITEAOF" else b"rdb_last_bgsave_status:err"
        deadline = time.monotonic() + 60
        while field not in client.ask("INFO persistence"):
            assert time.monotonic() < deadline, "it did not fail"
            time.sleep(0.01)
        assert "the value of key b'giant' has" in caplog.text
        assert client.ask("SCARD giant") == 1000
        client.ask("DEL giant")  # so that the server can stop in order
