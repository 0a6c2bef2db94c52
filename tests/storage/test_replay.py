"""Commands of a log that are run again."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from penstock import commands
from penstock.engine.dispatch import Engine
from penstock.engine.interfaces import LogEntry
from penstock.engine.observe.statistics import CALLS, FAILED, NANOSECONDS
from penstock.storage.files import StorageError
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


@pytest.mark.parametrize(
    "line", [b"REPLICAOF NO ONE", b"CONFIG SET dir /", b"SHUTDOWN", b"QUIT", b"WAIT 1 0", b"OBJECT"]
)
def test_a_batch_with_a_command_that_concerns_the_server_changes_nothing(line: bytes) -> None:
    engine = Engine(clock=ManualClock())
    replay = Replay(engine)
    for _ in range(2):  # also when its name is known
        with pytest.raises(StorageError, match="a log does not hold"):
            replay.run(Path("log"), 0, [[b"SET", b"k", b"v"], line.split()])
    assert engine.keyspace[0].get(b"k") is None


@pytest.mark.parametrize("line", [b"SELECT", b"TAPPLY", b"TAPPLY k", b"SET k", b"XADD"])
def test_a_command_without_its_arguments_fails_in_one_line(line: bytes, caplog: pytest.LogCaptureFixture) -> None:
    replay = Replay(Engine(clock=ManualClock()))
    with caplog.at_level(logging.WARNING):
        replay.run(Path("log"), 0, [line.split()])
    assert replay.failed == [f"wrong number of arguments ({line.split()[0].decode()})"] and not caplog.text
