"""A form of every command that writes, and a server without sockets that replays its log when it starts."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

from tests.support.value_strategies import plain

from penstock.engine.config import Config
from penstock.engine.dispatch import Engine
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError
from penstock.storage.persistence import Persistence
from penstock.testing.clock import ManualClock, ManualTimers

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

NOW = 1_700_000_000  # seconds, when a program begins


class Soon:
    """A loop whose iteration ends when the test says so."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], object]) -> None:
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
