"""Two ends joined by a fake link: a ConnectionCore, and a server that runs what has arrived whole, can be cut anywhere,
and forgets nothing.

The server counts every execution of every command, so that a test can say "never twice" and "never lost". It knows
ONCE.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import hiredis
import redis

from penstock.client.delivery import ServerContact, Settings
from penstock.client.engine.batch import Batch
from penstock.client.engine.command_kinds import Kind, kind_of
from penstock.client.engine.connection import ConnectionCore
from penstock.client.engine.encoding import pack, pack_many

_MORE = object()
READONLY = b"-READONLY You can't write against a read only replica.\r\n"
NOREPLICAS = b"-NOREPLICAS The change was made here, but too few replicas have it.\r\n"

COMMAND_TABLE = b"*5\r\n" + b"".join(
    b"*3\r\n$%d\r\n%b\r\n:-1\r\n*1\r\n+%b\r\n" % (len(name), name, flag)
    for name, flag in (
        (b"incr", b"write"),
        (b"get", b"readonly"),
        (b"once", b"write"),
        (b"oncebegin", b"write"),
        (b"exec", b"noscript"),
    )
)


def single(*arguments: Any) -> Batch:
    kind = kind_of(arguments)
    notable = {0: kind} if kind in (Kind.SESSION, Kind.TRANSACTION) else None
    batch = Batch(arguments, pack(arguments))
    batch.notable = notable
    return batch


def many(*commands: tuple[Any, ...]) -> Batch:
    notable = {i: kind_of(c) for i, c in enumerate(commands) if kind_of(c) in (Kind.SESSION, Kind.TRANSACTION)}
    batch = Batch.of(commands, pack_many(commands))
    batch.notable = notable or None
    return batch


def transaction(*commands: tuple[Any, ...]) -> Batch:
    whole = [("MULTI",), *commands, ("EXEC",)]
    batch = Batch.of(whole, pack_many(whole))
    batch.atomic, batch.notable = True, {0: Kind.TRANSACTION}
    return batch


class ScriptedServer:
    """INCR n answers how often n was incremented; GET n the same without running it; anything else answers OK."""

    def __init__(self) -> None:
        self.runs: Counter[bytes] = Counter()
        self.log: list[tuple[bytes, ...]] = []
        self.kept: dict[tuple[bytes, bytes], bytes] = {}
        self.known: set[bytes] = set()
        self.met = 0  # clients that began, those that have ended included
        self.has_once = True
        self.is_old = False  # it knows no options of ONCEBEGIN, and no ONCEEND
        self.refuses_clients = False
        self.is_forgetful = False
        self.is_loading = False
        self.is_replica = False
        self.lacks_replicas = False  # it runs writes, and cannot say that they will last
        self.connect()

    def connect(self) -> None:
        self._reader = hiredis.Reader(notEnoughData=_MORE)
        self._queue: list[list[bytes]] | None = None

    def feed(self, data: bytes) -> bytes:
        """Run what is whole by now and answer it."""
        self._reader.feed(data)
        replies = []
        while (argv := self._reader.gets()) is not _MORE:
            reply = self._answer(argv)
            replies.append(NOREPLICAS if self.lacks_replicas and b"INCR" in argv else reply)
        return b"".join(replies)

    def _answer(self, argv: list[bytes]) -> bytes:
        name = argv[0]
        if name == b"MULTI":
            self._queue, self._is_aborted = [], False
            return b"+OK\r\n"
        if name == b"EXEC":
            assert self._queue is not None, "EXEC outside of a transaction"
            queue, self._queue = self._queue, None
            if self._is_aborted:
                return b"-EXECABORT Transaction discarded because of previous errors.\r\n"
            return b"*%d\r\n" % len(queue) + b"".join(self._run(queued) for queued in queue)
        if self._queue is not None:
            if self.is_replica and b"INCR" in argv:
                self._is_aborted = True
                return READONLY
            self._queue.append(argv)
            return b"+QUEUED\r\n"
        return self._run(argv)

    def _run(self, argv: list[bytes]) -> bytes:
        if self.is_loading:
            return b"-LOADING the data set is not there yet\r\n"
        if argv[0] == b"PING":
            return b"+PONG\r\n"
        if argv[0] == b"ROLE":
            return b"*1\r\n$5\r\nslave\r\n" if self.is_replica else b"*1\r\n$6\r\nmaster\r\n"
        if argv[0] == b"COMMAND":
            return COMMAND_TABLE if self.has_once else b"*0\r\n"
        if self.is_replica and argv[0] in (b"INCR", b"ONCE", b"ONCEBEGIN", b"ONCEEND"):
            return READONLY
        if argv[0] in (b"ONCEBEGIN", b"ONCEEND"):
            return self._meet(argv)
        if argv[0] == b"ONCE":
            key = (argv[1], argv[2])
            if self.is_forgetful or (argv[1] not in self.known and argv[3] != b"1"):
                return b"-ONCEUNKNOWN nothing is known of this client\r\n"
            self.known.add(argv[1])
            if key not in self.kept:
                self.kept[key] = self._run(argv[4:])
            return self.kept[key]
        self.log.append(tuple(argv))
        if argv[0] == b"INCR":
            self.runs[argv[1]] += 1
        if argv[0] in (b"INCR", b"GET"):
            return b":%d\r\n" % self.runs[argv[1]]
        return b"+OK\r\n"

    def _meet(self, argv: list[bytes]) -> bytes:
        """ONCEBEGIN and ONCEEND; a new server tells its table of commands by a digest."""
        if not self.has_once or (self.is_old and (argv[0] == b"ONCEEND" or len(argv) > 2)):
            return b"-ERR unknown command, or wrong number of arguments\r\n"
        if argv[0] == b"ONCEEND":
            self.known.difference_update(argv[1:])
            return b":%d\r\n" % len(argv[1:])
        if self.refuses_clients:
            return b"-ONCEFULL no room\r\n"
        self.met += argv[1] not in self.known
        self.known.add(argv[1])
        if b"WITHINFO" not in argv:
            return b"+OK\r\n"
        return b"*4\r\n$8\r\ncommands\r\n$8\r\nscripted\r\n$17\r\nonce-idle-timeout\r\n:3600000\r\n"


class World:
    """A core, a server, and the bytes between them."""

    def __init__(self, contact: ServerContact | None = None, encoding: str | None = None, **settings: Any) -> None:
        self.now = 1000.0
        self.settings = Settings(**settings)
        self.core = ConnectionCore(self.settings, jitter=lambda: 1.0, contact=contact, encoding=encoding)
        self.server = ScriptedServer()
        self.upstream = b""  # written by the core, not yet at the server
        self.downstream = b""  # answered by the server, not yet at the core
        self.finished: list[Batch] = []

    def submit(self, batch: Batch) -> Batch:
        self.core.submit(batch, self.now)
        self.collect()
        return batch

    def collect(self) -> None:
        self.finished += self.core.pending.take_finished()

    def connect(self, server: tuple[str, int] | None = None) -> None:
        self.upstream = self.downstream = b""
        self.server.connect()
        self.core.connecting()
        self.core.connected(self.now, server=server)
        self.collect()

    def write(self, limit: int | None = None) -> int:
        """Have the engine write, at most `limit` bytes of its output."""
        data = self.upstream_rest + self.core.output()
        part = data[:limit]
        self.core.writer.begin_write(len(part))
        self.core.writer.end_write(len(part))
        self._rest = data[len(part) :]
        self.upstream += part
        return len(part)

    _rest = b""

    @property
    def upstream_rest(self) -> bytes:
        rest, self._rest = self._rest, b""
        return rest

    def serve(self, limit: int | None = None) -> None:
        part, self.upstream = self.upstream[:limit], self.upstream[len(self.upstream[:limit]) :]
        self.downstream += self.server.feed(part)

    def read(self, limit: int | None = None, is_the_end: bool = False) -> None:
        """Let the core read; `is_the_end`: it must then give the connection up."""
        part, self.downstream = self.downstream[:limit], self.downstream[len(self.downstream[:limit]) :]
        if part:
            assert self.core.received(part, self.now) is is_the_end
            self.collect()

    def cut(self) -> None:
        self._rest = b""
        self.upstream = self.downstream = b""
        self.core.lost(redis.ConnectionError("cut"), self.now)
        self.collect()

    def run_until_idle(self) -> None:
        """Let everything finish: reconnect if wanted, write, serve and read until nothing moves."""
        for _ in range(1000):
            if self.core.connect_at is not None:
                self.now = max(self.now, self.core.connect_at)
                self.connect()
            before = (self.write(), len(self.upstream), len(self.downstream))
            self.serve()
            self.read()
            if before == (0, 0, 0) and self.core.connect_at is None:
                return
        raise AssertionError("it never becomes idle")
