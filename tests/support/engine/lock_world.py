"""An engine with worker threads whose loop, clock and slow commands go on only when a test says so."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue

from penstock import commands
from penstock.engine.config import Config
from penstock.engine.declarations import REGISTRY, Access, Argv, Flag, Reply, command, key, keys
from penstock.engine.directives import DIRECTIVES
from penstock.engine.dispatch import Engine
from penstock.engine.interfaces import LogEntry
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError
from penstock.protocol.resp import NO_REPLY, encode
from penstock.testing.clock import ManualClock, ManualTimers
from penstock.types.set import Set

commands.load()

MUCH = 1 << 40
PATIENCE = 60


class Slow:
    """Decides when the slow commands below are done, and sees what they saw."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.begun = SimpleQueue[str]()

    def wait(self, name: str) -> None:
        self.begun.put(name)
        assert self.go.wait(PATIENCE)


@contextmanager
def slow_commands() -> Iterator[Slow]:
    """Commands that work in a thread.

    SLOW.READ key, SLOW.COPY key, SLOW.WALK key, SLOW.STORE destination source [source ...], SLOW.FAIL key.
    """
    slow = Slow()
    before = REGISTRY.saved()

    @command("SLOW.READ", arity=2, flags=Flag.READONLY | Flag.FAST, keys=key(1, Access.READ), group="set")
    def slow_read(session: Session, argv: Argv) -> Reply:
        """Answer the members."""
        found = session.db.find(argv[1], Set) or Set()

        def compute() -> list[bytes]:
            slow.wait("read")
            return sorted(found)

        return session.aside(MUCH, compute)

    @command("SLOW.COPY", arity=2, flags=Flag.READONLY, keys=key(1, Access.READ), group="set")
    def slow_copy(session: Session, argv: Argv) -> Reply:
        """Answer the members, from a copy."""
        found = sorted(session.db.find(argv[1], Set) or Set())

        def compute() -> list[bytes]:
            slow.wait("copy")
            return found

        return session.aside(MUCH, compute, lock=False)

    store = key(1, Access.WRITE) + keys(2, -1, Access.READ)

    @command("SLOW.STORE", arity=-3, flags=Flag.WRITE | Flag.DENYOOM, keys=store, group="set")
    def slow_store(session: Session, argv: Argv) -> Reply:
        """Store the union."""
        found = [session.db.find(name, Set) or Set() for name in argv[2:]]

        def compute() -> Set:
            slow.wait("store")
            return Set(set().union(*found))

        def commit(result: Set) -> int:
            if result:
                session.db.set(argv[1], result)
            else:
                session.db.delete(argv[1])
            return len(result)

        return session.aside(sum(map(len, found)) and MUCH, compute, commit)

    @command("SLOW.WALK", arity=2, flags=Flag.READONLY, keys=key(1, Access.READ), group="generic")
    def slow_walk(session: Session, argv: Argv) -> Reply:
        """Answer all elements of a value of any type, after a stop at the first one."""
        found = session.db.get(argv[1])

        def compute() -> list[bytes]:
            elements = iter(found)
            first = next(elements)
            slow.wait("walk")
            return sorted([first, *elements])

        return session.aside(MUCH, compute)

    @command("SLOW.FAIL", arity=2, flags=Flag.WRITE, keys=key(1, Access.UPDATE), group="set")
    def slow_fail(session: Session, argv: Argv) -> Reply:
        """Break."""

        def compute() -> None:
            slow.wait("fail")
            raise ZeroDivisionError("a bug")

        return session.aside(MUCH, compute)

    try:
        yield slow
    finally:
        slow.go.set()
        REGISTRY.restore(before)


class Client:
    """A session, and everything it was sent. It stands for its own output, and is its own connection."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.session = Session(world.engine, self)
        world.engine.sessions[self.session.id] = self.session
        self.sent: list[bytes] = []

    def send(self, data: bytes) -> None:
        self.sent.append(data)

    def close(self, after_reply: bool) -> None:
        self.session.closing = True

    def buffered(self) -> tuple[int, int]:
        return 0, 0

    def resume(self) -> None:
        self.world.soon.append(self._go_on)

    def _go_on(self) -> None:
        if self.session.waiter is None and self.session.postponed is not None and not self.session.closing:
            argv, self.session.postponed = self.session.postponed, None
            self._execute(argv)

    def _execute(self, argv: Argv) -> None:
        engine = self.world.engine
        try:
            reply = engine.execute(self.session, argv)
        except ReplyError as error:
            reply = error
        if reply is not NO_REPLY:
            self.send(encode(reply, self.session.protocol))
        self.session.update_plain()
        engine.blocking.serve()

    def run(self, *lines: str) -> list[bytes]:
        """What it is sent for some commands; nothing for one that waits."""
        before = len(self.sent)
        for line in lines:
            self._execute(line.encode().split())
        return self.sent[before:]

    @property
    def waits(self) -> bool:
        return self.session.waiter is not None

    def leave(self) -> None:
        self.session.closing = True
        self.world.engine.forget(self.session)


class World:
    """See the top of this file. `soon` is what the loop is to call next; `step` waits for a thread and calls it all."""

    def __init__(self, threads: int = 2) -> None:
        self.clock = ManualClock()
        self.timers = ManualTimers(self.clock)
        config = Config()
        config.load("worker-threads", [str(threads)])
        self.engine = Engine(config, clock=self.clock, timers=self.timers)
        self.logged: list[Argv] = []
        self.engine.log = self._log
        self.soon: list[Callable[[], None]] = []
        self._delivered: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.engine.workers.start(self._delivered.put)

    def _log(self, entries: list[LogEntry]) -> None:
        self.logged += [argv for _, argv in entries]

    def configure(self, name: str, value: str) -> None:
        self.engine.config.change([(DIRECTIVES[name], value)])

    def client(self, *lines: str) -> Client:
        client = Client(self)
        client.run(*lines)
        return client

    def step(self, jobs: int = 1) -> None:
        """Wait until so many threads are done, and go on with everything that follows."""
        for _ in range(jobs):
            self._delivered.get(timeout=PATIENCE)()
        self.go_on()

    def pass_time(self, milliseconds: int) -> None:
        self.timers.advance(milliseconds)
        self.go_on()

    def go_on(self) -> None:
        """What the loop would call, in order; a client that goes on may make others go on."""
        while self.soon:
            self.soon.pop(0)()
        self.check()

    def check(self) -> None:
        locks = self.engine.lock_gate.locks
        locks.check(database.locked for database in self.engine.keyspace.databases)
        assert len(self.engine.workers.jobs) or not locks.read_locks + locks.write_locks

    def close(self) -> None:
        self.engine.workers.stop()
