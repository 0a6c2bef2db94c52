"""Commands of a log that are run again."""

from __future__ import annotations

from pathlib import Path

from penstock import commands
from penstock.engine.dispatch import Engine
from penstock.engine.interfaces import LogEntry
from penstock.engine.observe.statistics import CALLS, FAILED, NANOSECONDS
from penstock.storage.replay import Replay
from penstock.testing.clock import ManualClock

commands.load()


def test_what_is_run_again_counts_as_a_change_and_as_nothing_else() -> None:
    engine, logged = Engine(clock=ManualClock()), list[LogEntry]()
    engine.log = logged.extend
    replay = Replay(engine)
    for _ in range(2):  # the second time the name is known
        replay.run(Path("log"), 0, [[b"INCR", b"n"], [b"INCR", b"n"]])
        replay.run(Path("log"), 0, [[b"SET", b"text", b"x"], [b"INCR", b"text"]])
    counters = engine.stats.calls["INCR"]
    assert (counters[CALLS], counters[NANOSECONDS], counters[FAILED]) == (0, 0, 0)
    assert (engine.stats.commands, dict(engine.stats.errors), logged) == (0, {}, [])
    assert engine.keyspace.dirty == 6
    assert engine.keyspace[0].get(b"n") == 4
    assert len(replay.failed) == 2
