"""Clients, threads, LAZY commands, expiry, flushes and forks in any order: a replay of the log gives the same memory.

The test plays the threads and decides which runs next, so every interleaving is possible and reproducible. In every
case no client waits for ever, no lock is left, and the log agrees with memory.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.support.engine.lock_world import Client, World, slow_commands

from penstock.engine.concurrency.workers import Job
from penstock.engine.declarations import REGISTRY, Argv
from penstock.engine.dispatch import Engine
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError
from penstock.testing.clock import ManualClock

NAMES = st.sampled_from(["a", "b", "c"])
MEMBERS = st.sampled_from(["1", "2", "3"])
LINES = st.one_of(
    st.builds("SADD {} {}".format, NAMES, MEMBERS),
    st.builds("SREM {} {}".format, NAMES, MEMBERS),
    st.builds("SMOVE {} {} {}".format, NAMES, NAMES, MEMBERS),
    st.builds("SUNIONSTORE {} {} {}".format, NAMES, NAMES, NAMES),
    st.builds("SPOP {}".format, NAMES),
    st.builds("RENAME {} {}".format, NAMES, NAMES),
    st.builds("COPY {} {} DB 1 REPLACE".format, NAMES, NAMES),
    st.builds("DEL {}".format, NAMES),
    st.builds("PEXPIRE {} 100".format, NAMES),
    st.builds("SCARD {}".format, NAMES),
    st.builds("SLOW.READ {}".format, NAMES),
    st.builds("SLOW.STORE {} {} {}".format, NAMES, NAMES, NAMES),
    st.builds("SLOW.STORE {} {}".format, NAMES, NAMES),
    st.builds("EVAL return{{redis.call('SADD',KEYS[1],9)}} 1 {}".format, NAMES),
    st.builds("LAZY SADD {} {}".format, NAMES, MEMBERS),
    st.builds("LAZY SLOW.STORE {} {} {}".format, NAMES, NAMES, NAMES),
    st.builds("LAZY SMOVE {} {} {}".format, NAMES, NAMES, MEMBERS),
    st.builds("EVAL return{{redis.pcall('SADD','{}',8)}} 0".format, NAMES),
    st.sampled_from(["KEYS *", "FLUSHDB", "FLUSHALL", "SWAPDB 0 1", "SELECT 0", "SELECT 1"]),
)


class Interleavings(RuleBasedStateMachine):
    """Four clients, of which some wait; jobs that the test runs when it likes."""

    @initialize()
    def begin(self) -> None:
        self.commands = slow_commands()
        self.slow = self.commands.__enter__()
        self.slow.go.set()
        self.world = World()
        self.entries: list[tuple[int, Argv]] = []
        self.world.engine.log = self.entries.extend
        self.jobs: list[Job] = []
        self.world.engine.workers._submit = self.jobs.append  # type: ignore[method-assign]
        self.clients = [self.world.client() for _ in range(4)]
        for name in "abc":
            self.clients[0].run(f"SADD {name} 1 2")

    def _free(self) -> list[Client]:
        return [client for client in self.clients if not client.waits]

    @precondition(lambda self: self._free())
    @rule(data=st.data(), line=LINES)
    def send(self, data: st.DataObject, line: str) -> None:
        data.draw(st.sampled_from(self._free())).run(line)
        self.world.go_on()

    @precondition(lambda self: self._free())
    @rule(data=st.data(), lines=st.lists(LINES, min_size=1, max_size=4))
    def send_transaction(self, data: st.DataObject, lines: list[str]) -> None:
        data.draw(st.sampled_from(self._free())).run("MULTI", *lines, "EXEC")
        self.world.go_on()

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        """A thread does its part; the loop does not know yet."""
        job = data.draw(st.sampled_from(self.jobs))
        if job.result is None:
            job.run()

    @precondition(lambda self: any(job.result is not None for job in self.jobs))
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        """The loop learns that a thread is done."""
        self._finish(data.draw(st.sampled_from([job for job in self.jobs if job.result is not None])))

    def _finish(self, job: Job) -> None:
        self.jobs.remove(job)
        self.world.engine.workers._finished(job)
        self.world.go_on()

    @rule(data=st.data())
    def go_away(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self.clients))
        client.leave()
        self.world.go_on()
        self.clients[self.clients.index(client)] = self.world.client()

    @rule(milliseconds=st.sampled_from([1, 60, 6000]), active=st.booleans())
    def pass_time(self, milliseconds: int, active: bool) -> None:
        self.world.pass_time(milliseconds)
        if active:
            self.world.engine.keyspace.expire_cycle()

    @rule()
    def fork(self) -> None:
        if self.world.engine.lock_gate.may_fork():
            self.world.engine.lock_gate.reopen()
            self.world.go_on()

    @invariant()
    def consistent(self) -> None:
        if hasattr(self, "world"):
            self.world.check()
            self.world.engine.lazy.check()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        engine = self.world.engine
        try:
            engine.lock_gate.reopen()
            self.world.go_on()
            while self.jobs:
                job = self.jobs[0]
                if job.result is None:
                    job.run()
                self._finish(job)
            assert not any(client.waits for client in self.clients), "a client waits for ever"
            engine.lazy.drain()
            assert not engine.busy_names.table, "a lock was left"
            for database in engine.keyspace.databases:
                database.check()
            assert contents(engine) == contents(replayed(self.entries))
        finally:
            self.world.close()
            self.commands.__exit__(None, None, None)


def replayed(entries: list[tuple[int, Argv]]) -> Engine:
    """An engine that ran the log as a server does when it starts."""
    engine = Engine(clock=ManualClock(0))
    engine.loading, engine.keyspace.expiring = True, False
    session = Session(engine)
    session.may_block = False
    for index, argv in entries:
        session.db = engine.keyspace[index]
        command = REGISTRY.find(argv)
        assert command is not None
        try:
            engine.call(session, command, argv)
        except ReplyError as error:
            raise AssertionError(f"{argv} was logged and fails: {error}") from error
    return engine


def contents(engine: Engine) -> list[dict[bytes, Any]]:
    return [dict(database.data) for database in engine.keyspace.databases[:2]]


Interleavings.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestInterleavings = Interleavings.TestCase
