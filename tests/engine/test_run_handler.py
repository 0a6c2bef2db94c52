"""What follows from running a handler, for each kind of caller."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock import commands
from penstock.engine.declarations import REGISTRY, Argv, Reply
from penstock.engine.dispatch import Engine
from penstock.engine.interfaces import LogEntry
from penstock.engine.observe.statistics import CALLS, FAILED, NANOSECONDS
from penstock.engine.run_handler import AGAIN, CLIENT, INNER, QUEUED, REPLAY, Caller, run_handler
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError
from penstock.testing.clock import ManualClock

commands.load()
CALLERS = {"CLIENT": CLIENT, "AGAIN": AGAIN, "QUEUED": QUEUED, "INNER": INNER, "REPLAY": REPLAY}


class World:
    """An engine whose log is a list."""

    def __init__(self) -> None:
        self.engine = Engine(clock=ManualClock())
        self.logged: list[LogEntry] = []
        self.engine.log = self.logged.extend
        self.session = Session(self.engine)

    def run(self, caller: Caller, *argv: bytes, moment: int | None = None) -> Reply:
        command = REGISTRY.resolve(list(argv))
        return run_handler(self.engine, self.session, command, list(argv), caller, moment=moment)


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("name", CALLERS)
def test_a_change_is_counted_logged_and_noted_as_the_caller_says(world: World, name: str) -> None:
    caller = CALLERS[name]
    assert world.run(caller, b"INCR", b"n") == 1
    counters = world.engine.stats.calls["INCR"]
    assert counters[CALLS] == (name in ("CLIENT", "QUEUED"))
    assert (counters[NANOSECONDS] > 0) == (name in ("CLIENT", "AGAIN", "QUEUED"))
    assert world.engine.stats.commands == (name == "CLIENT")
    assert world.logged == ([(0, [b"INCR", b"n"])] if name in ("CLIENT", "AGAIN") else [])
    assert world.engine.keyspace.dirty == (name != "QUEUED")
    assert world.session.db.get(b"n") == 1


@pytest.mark.parametrize("name", CALLERS)
def test_an_error_is_raised_and_counted_as_the_caller_says(world: World, name: str) -> None:
    world.session.db.set(b"n", b"text")
    with pytest.raises(ReplyError):
        world.run(CALLERS[name], b"INCR", b"n")
    assert world.engine.stats.calls["INCR"][FAILED] == (name in ("CLIENT", "AGAIN", "QUEUED"))
    assert dict(world.engine.stats.errors) == ({"ERR": 1} if name in ("CLIENT", "AGAIN") else {})
    assert world.session.current is None


@pytest.mark.parametrize("name", CALLERS)
def test_keys_that_were_read_are_counted_where_calls_are(world: World, name: str) -> None:
    world.session.db.set(b"there", b"1")
    world.run(CALLERS[name], b"GET", b"there")
    world.run(CALLERS[name], b"GET", b"none")
    expected = 1 if CALLERS[name].counted else 0
    assert (world.engine.stats.hits, world.engine.stats.misses) == (expected, expected)


@pytest.mark.parametrize("name", CALLERS)
def test_the_clock_is_set_back_for_the_handler_alone(world: World, name: str) -> None:
    clock = world.engine.clock
    now = clock.now
    world.run(CALLERS[name], b"SET", b"k", b"v", b"PX", b"500", moment=now - 1000)
    assert world.session.db.expires_at(b"k") == now - 500
    assert clock.now == now
    with pytest.raises(ReplyError):
        world.run(CALLERS[name], b"SET", b"k", b"v", b"PX", b"0", moment=now - 1000)
    assert clock.now == now


def test_a_nested_command_leaves_its_session_to_the_command_around_it(world: World) -> None:
    seen: list[tuple[object, list[Argv] | None]] = []
    outer, inner = REGISTRY.by_name[b"TAPPLY"], REGISTRY.by_name[b"INCR"]
    argv = [b"TAPPLY", b"k"]

    def look(session: Session, words: Argv) -> Reply:
        seen.append((session.current, session.effects))
        return None

    world.session.current, world.session.effects = (outer, argv), [[b"EFFECT"]]
    run_handler(world.engine, world.session, replace(inner, handler=look), [b"INCR", b"n"], INNER)
    assert seen.pop() == ((outer, argv), [[b"EFFECT"]])
    run_handler(world.engine, world.session, inner, [b"INCR", b"n"], CLIENT, look)
    assert seen.pop() == ((inner, [b"INCR", b"n"]), None)
    assert world.session.current == (outer, argv)


def test_what_a_thread_has_taken_is_counted_when_it_is_committed(world: World) -> None:
    counters = world.engine.stats.calls["INCR"]
    command, argv = REGISTRY.by_name[b"INCR"], [b"INCR", b"n"]

    def hand_over(session: Session, words: Argv) -> Reply:
        return world.engine.workers.hold(session, 1, lambda _: 7)

    run_handler(world.engine, world.session, command, argv, CLIENT, hand_over)
    assert counters[CALLS] == 0 and world.session.waiter is not None
    world.engine.blocking.leave(world.session.waiter)
    world.engine.workers.abandon()
    run_handler(world.engine, world.session, command, argv, CLIENT, command.handler, spent=1_000_000)
    assert counters[CALLS] == 1 and counters[NANOSECONDS] >= 1_000_000
