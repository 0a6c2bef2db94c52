"""What is logged gives what was done: memory after a random program of writes is memory after a restart from its log.

Every command that writes has a line here, and `test_every_command_that_writes_has_a_line` keeps it so: what a command
logs instead of itself (an absolute time, the members that chance took) is easily wrong and never seen until a restart.
Streams have a log of their own making and their own test of it, tests/commands/test_streams.py; so has LAZY.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.value_strategies import plain

from penstock import commands
from penstock.commands.dumping import to_payload
from penstock.engine.config import Config
from penstock.engine.declarations import REGISTRY
from penstock.engine.dispatch import Engine
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError
from penstock.storage.persistence import Persistence
from penstock.testing.clock import ManualClock, ManualTimers

commands.load()

PROGRAMS = 12
STEPS = 600

# {x} is drawn by WORDS; [a|b] is one of a and b. Times in {ms} and {seconds} are short or long, {date} gone or to come.
LINES = """
APPEND {k} {v}                                   | BITFIELD {k} SET u8 {n} 200
BITFIELD {k} OVERFLOW FAIL INCRBY i5 #1 {n}      | BITOP [AND|OR|XOR] {k} {k} {k}
BLMOVE {k} {k} {side} {side} 1                   | BLMPOP 1 2 {k} {k} {side} COUNT 2
BLPOP {k} {k} 1                                  | BRPOP {k} {k} 1
BRPOPLPUSH {k} {k} 1                             | BZMPOP 1 2 {k} {k} [MIN|MAX] COUNT 2
BZPOPMAX {k} {k} 1                               | BZPOPMIN {k} {k} 1
COPY {k} {k} DB {db} [REPLACE|]                  | DECR {k}
DECRBY {k} {n}                                   | DEL {k} {k}
EXPIRE {k} {seconds} [NX|XX|GT|LT|]              | EXPIREAT {k} {date} [NX|XX|GT|LT|]
PEXPIRE {k} {ms} [NX|XX|GT|LT|]                  | PEXPIREAT {k} {date}000 [NX|XX|GT|LT|]
FLUSHALL                                         | FLUSHDB
GETDEL {k}                                       | GETEX {k} [PERSIST|PX {ms}|EX {seconds}|EXAT {date}]
GETSET {k} {v}                                   | HDEL {k} {m} {m}
HINCRBY {k} {m} {n}                              | HINCRBYFLOAT {k} {m} {float}
HMSET {k} {m} {v} {m} {v}                        | HSET {k} {m} {v}
HSETNX {k} {m} {v}                               | INCR {k}
INCRBY {k} {n}                                   | INCRBYFLOAT {k} {float}
LINSERT {k} [BEFORE|AFTER] {v} {v}               | LMOVE {k} {k} {side} {side}
LMPOP 2 {k} {k} {side} COUNT 2                   | LPOP {k} [{n}|]
LPUSH {k} {v} {v}                                | LPUSHX {k} {v}
LREM {k} {n} {v}                                 | LSET {k} {n} {v}
LTRIM {k} {n} {n}                                | MOVE {k} {db}
MSET {k} {v} {k} {v}                             | MSETNX {k} {v} {k} {v}
PERSIST {k}                                      | PSETEX {k} {ms} {v}
RENAME {k} {k}                                   | RENAMENX {k} {k}
RESTORE {k} [0|{ms}] {dump} [REPLACE|]           | RESTORE {k} {date}000 {dump} REPLACE ABSTTL
RPOP {k} [{n}|]                                  | RPOPLPUSH {k} {k}
RPUSH {k} {v} {v}                                | RPUSHX {k} {v}
SADD {k} {m} {m} {m}                             | SDIFFSTORE {k} {k} {k}
SET {k} {v} [NX|XX|GET|]                         | SET {k} {v} [KEEPTTL|PX {ms}|EX {seconds}|PXAT {date}000|EXAT {date}]
SETBIT {k} 33 [0|1]                              | SETEX {k} {seconds} {v}
SETNX {k} {v}                                    | SETRANGE {k} {n} {v}
SINTERSTORE {k} {k} {k}                          | SMOVE {k} {k} {m}
SORT {k} ALPHA STORE {k}                         | SPOP {k} [{n}|]
SREM {k} {m} {m}                                 | SUNIONSTORE {k} {k} {k}
SWAPDB {db} {db}                                 | UNLINK {k} {k}
XADD {k} [*|5-*] {m} {v}                         | XADD {k} MAXLEN [=|~] 2 * {m} {v}
XDEL {k} 5-1 5-2                                 | XSETID {k} 99999999999999-1
XTRIM {k} MAXLEN 1                               | XADD {k} NOMKSTREAM * {m} {v}
ZADD {k} [NX|XX|GT|LT|CH|] {score} {m} {score} {m} | ZADD {k} INCR {score} {m}
ZDIFFSTORE {k} 2 {k} {k}                         | ZINCRBY {k} {score} {m}
ZINTERSTORE {k} 2 {k} {k} WEIGHTS 2 0.3          | ZUNIONSTORE {k} 2 {k} {k} AGGREGATE [SUM|MIN|MAX]
ZMPOP 2 {k} {k} [MIN|MAX] COUNT 2                | ZPOPMAX {k} [{n}|]
ZPOPMIN {k} [{n}|]                               | ZRANGESTORE {k} {k} -inf 2 BYSCORE
ZREM {k} {m} {m}                                 | ZREMRANGEBYLEX {k} - (b
ZREMRANGEBYRANK {k} {n} {n}                      | ZREMRANGEBYSCORE {k} -inf {score}
"""


FORMS = [form.strip() for line in LINES.strip().splitlines() for form in re.split(r"\s\|\s", line)]
RARE = ("FLUSHALL", "FLUSHDB", "SWAPDB")
NOW = 1_700_000_000  # seconds, when a program begins


class Program:
    """Commands drawn from FORMS. Few names and values, so that they meet."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.dumps = [to_payload(b"first")]
        self._words: dict[str, Callable[[], bytes]] = {
            "k": self._one_of(b"a", b"b", b"c", b"d", b"e"),
            "m": self._one_of(b"x", b"y", b"z", b"1", b"2"),
            "v": self._one_of(b"", b"x", b"y", b"1", b"-3", b"2.5", b"\r\n", b"\x00\xff", b"9223372036854775807"),
            "n": self._one_of(b"-2", b"-1", b"0", b"1", b"2", b"5"),
            "db": self._one_of(b"0", b"1", b"2"),
            "float": self._one_of(b"0.1", b"1.7", b"-3", b"1e17"),
            "score": self._one_of(b"1", b"-1", b"0.1", b"inf", b"1e-5"),
            "side": self._one_of(b"LEFT", b"RIGHT"),
            "ms": self._one_of(b"1", b"30", b"500000", b"900000"),
            "seconds": self._one_of(b"-1", b"1", b"500", b"900"),
            "date": self._one_of(b"5000", b"%d" % (NOW + 400), b"%d" % (NOW + 800)),
            "dump": lambda: self.chance.choice(self.dumps),
        }

    def _one_of(self, *words: bytes) -> Callable[[], bytes]:
        return lambda: self.chance.choice(words)

    def command(self) -> list[bytes]:
        form = self.chance.choice(FORMS)
        if form.startswith(RARE) and self.chance.random() < 0.8:
            return self.command()
        form = re.sub(r"\[([^]]*)]", lambda found: self.chance.choice(found[1].split("|")), form)
        return [self._word(word) for word in form.split()]

    def _word(self, word: str) -> bytes:
        pieces = re.split(r"{(\w+)}", word)
        return b"".join(self._words[piece]() if at % 2 else piece.encode() for at, piece in enumerate(pieces))


class Soon:
    """A loop whose iteration ends when the test says so."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)

    call_soon_threadsafe = call_soon


class Life:
    """A server without sockets, from its start to its end."""

    def __init__(self, folder: Path, clock: ManualClock, timers: ManualTimers | None = None) -> None:
        config = Config()
        for name, value in {"dir": str(folder), "appendonly": "yes", "save": ""}.items():
            config.load(name, [value])
        self.engine = Engine(config, clock, timers)
        self.persistence = Persistence(self.engine, Soon(), stop=lambda: None)
        asyncio.run(self.persistence.start())
        self.session = Session(self.engine)
        self.session.may_block = False

    def run(self, argv: list[bytes]) -> object:
        try:
            return self.engine.execute(self.session, argv)
        except ReplyError:
            return None

    @property
    def data(self) -> dict[tuple[int, bytes], object]:
        return {
            (database.index, key): (plain(database.data[key]), database.expires.get(key))
            for database in self.engine.keyspace.databases
            for key in database.live_keys()
        }


def test_every_command_that_writes_has_a_line() -> None:
    named = {form.split()[0].encode() for form in FORMS}
    writing = {name for name, command in REGISTRY.by_name.items() if command.writes and command.group != "stream"}
    assert named == writing - {b"LAZY", b"ONCE", b"ONCEBEGIN"}, "these have test_lazy_invariant.py and test_once.py"


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_memory_after_a_program_is_memory_after_a_restart(
    tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    program, clock = Program(seed), ManualClock(NOW * 1000)
    life = Life(tmp_path, clock)
    for step in range(STEPS):
        argv = program.command()
        shape = program.chance.random()
        if shape < 0.1:
            words = ",".join(f"ARGV[{number + 1}]" for number in range(len(argv)))
            script = f"redis.pcall({words}) return redis.pcall({words})"
            life.run([b"EVAL", script.encode(), b"0", *argv])
        elif shape < 0.2:
            for queued in ([b"MULTI"], argv, program.command(), [b"EXEC"]):
                life.run(queued)
        else:
            life.run(argv)
        if shape > 0.97:
            clock.advance(program.chance.choice([1, 50, 2000]))
            life.engine.keyspace.expire_cycle()
        if shape > 0.95:
            life.run([b"SELECT", program.chance.choice([b"0", b"1", b"2"])])
            dump = life.run([b"DUMP", program.chance.choice([b"a", b"b", b"c"])])
            program.dumps += [dump] if isinstance(dump, bytes) else []
        if step % 150 == 149:
            before = life.data
            life.persistence.close()
            life = Life(tmp_path, clock)
            assert life.data == before, f"after step {step}"
    life.persistence.close()
    assert "failed when replayed" not in caplog.text
