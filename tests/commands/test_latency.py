"""LATENCY, on ours and on a real Redis."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from tests.support.replies import error_of

from penstock import Server
from penstock.engine.dispatch import Engine
from penstock.engine.observe.latency import SAMPLES
from penstock.engine.session import Session
from penstock.testing.clock import ManualClock


@pytest.fixture
def watched(r: redis.Redis) -> Iterator[redis.Redis]:
    """A client of a server that notes what takes a millisecond."""
    r.config_set("latency-monitor-threshold", 1)
    r.execute_command("LATENCY RESET")
    yield r
    r.config_set("latency-monitor-threshold", 0)
    r.execute_command("LATENCY RESET")


def be_busy(r: redis.Redis, calls: int = 20_000) -> None:
    """Keep the server busy for more than a millisecond."""
    r.eval("for call = 1, ARGV[1] do redis.call('SET', KEYS[1], call) end", 1, "a", calls)


def test_nothing_is_noted_unless_asked_for(r: redis.Redis) -> None:
    be_busy(r)
    assert r.execute_command("LATENCY LATEST") == r.execute_command("LATENCY HISTORY", "command") == []
    assert r.execute_command("LATENCY RESET") == 0
    assert "latency-monitor-threshold" in str(r.execute_command("LATENCY DOCTOR"))


def test_a_slow_command_is_noted_with_its_time_and_the_worst_ever(watched: redis.Redis) -> None:
    be_busy(watched, 60_000)
    be_busy(watched)
    (latest,) = (row for row in watched.execute_command("LATENCY LATEST") if row[0] == b"command")
    assert abs(latest[1] - time.time()) < 60
    assert 1 <= latest[2] <= latest[3]
    history = watched.execute_command("LATENCY HISTORY", "command")
    assert max(milliseconds for _, milliseconds in history) == latest[3]
    assert watched.execute_command("LATENCY RESET", "command", "nothing") == 1
    assert watched.execute_command("LATENCY HISTORY", "command") == []


@pytest.mark.since("7.0")
def test_an_unknown_event_has_no_history_and_a_bad_argument_is_an_error(watched: redis.Redis) -> None:
    assert watched.execute_command("LATENCY HISTORY", "nothing") == []
    assert "unknown subcommand 'FOO'" in error_of(watched, "LATENCY", "FOO")
    assert "wrong number of arguments" in error_of(watched, "LATENCY", "HISTORY")


def test_of_each_second_the_worst_is_kept_and_old_ones_go() -> None:
    engine = Engine(clock=ManualClock(1_000))
    engine.execute(Session(engine), [b"CONFIG", b"SET", b"latency-monitor-threshold", b"2"])
    for milliseconds in (1, 3, 9, 2):
        engine.latency.note("fork", milliseconds * 1_000_000)
    event = engine.latency.events["fork"]
    assert [tuple(sample) for sample in event.samples] == [(1, 9)]
    for second in range(2, SAMPLES + 20):
        engine.clock.now = second * 1000
        engine.latency.note("fork", 2_000_000)
    assert len(event.samples) == SAMPLES and event.worst == 9


def test_forks_are_counted_and_timed(tmp_path: Path) -> None:
    with Server(dir=tmp_path) as server, redis.Redis.from_url(server.url, protocol=2) as client:
        assert client.info("stats")["total_forks"] == 0
        client.bgsave()
        stats = client.info("stats")
    assert stats["total_forks"] == 1 and stats["latest_fork_usec"] > 0
