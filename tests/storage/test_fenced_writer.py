"""Replies of a leader leave while its lease holds, and are lost with their connections when it is over."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.engine.leadership import Leadership, SharedClock, now
from penstock.engine.session import LOST
from penstock.storage.fenced_writer import FencedWriter
from penstock.storage.writer import LogFile

HOUR = 3_600_000_000_000


class Loop:
    """Runs what is to come next when it is told to."""

    def __init__(self) -> None:
        self._next: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], object]) -> None:
        self._next.append(callback)

    call_soon_threadsafe = call_soon

    def turn(self) -> None:
        callbacks, self._next = self._next, []
        for callback in callbacks:
            callback()


@pytest.fixture
def leadership() -> Leadership:
    descriptor = SharedClock.make()
    leadership = Leadership(SharedClock(descriptor))
    os.close(descriptor)
    leadership.leading = True
    leadership.clock.deadline = now() + HOUR
    return leadership


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def writer(tmp_path: Path, leadership: Leadership, loop: Loop) -> Iterator[FencedWriter]:
    writer = FencedWriter(leadership, LogFile(tmp_path / "log"), loop, "no")
    yield writer
    writer.close()


def test_a_reply_that_waits_for_nothing_leaves_at_once_while_the_lease_holds(
    writer: FencedWriter, leadership: Leadership
) -> None:
    sent: list[bytes] = []
    assert writer.pending, "every reply comes here"
    writer.hold(sent.append, [b"+a\r\n", b"+b\r\n"])
    assert sent == [b"+a\r\n+b\r\n"]
    leadership.clock.deadline = now() - 1
    writer.hold(sent.append, [b"+late\r\n"])
    assert sent[1:] == [LOST] and sent[1] is LOST


def test_a_reply_that_waited_for_the_log_is_lost_if_the_lease_is_over_then(
    writer: FencedWriter, leadership: Leadership, loop: Loop
) -> None:
    sent: list[bytes] = []
    writer.append(0, [b"SET", b"k", b"v"])
    writer.hold(sent.append, [b"+OK\r\n"])
    assert sent == []
    leadership.clock.deadline = 0
    lapses: list[bool] = []
    leadership.on_lapse = lambda: lapses.append(True)
    loop.turn()
    assert sent == [LOST] and not lapses
    loop.turn()
    assert lapses, "the server is told that it does not lead any more"


def test_a_reply_that_replicas_confirm_too_late_is_lost(
    writer: FencedWriter, leadership: Leadership, loop: Loop
) -> None:
    sent: list[bytes] = []
    writer.confirmed_by_replicas = True
    writer.append(0, [b"SET", b"k", b"v"])
    writer.hold(sent.append, [b"+OK\r\n"])
    loop.turn()
    assert sent == []
    writer.confirm(writer.file.end)
    assert sent == [b"+OK\r\n"]
    writer.append(0, [b"SET", b"k", b"w"])
    writer.hold(sent.append, [b"+OK\r\n"])
    loop.turn()
    leadership.leading = False
    writer.hold(sent.append, [b"+not before the reply that is owed\r\n"])
    writer.confirm(writer.file.end)
    assert sent[1:] == [LOST, LOST]
    writer.hold(sent.append, [b"+a read\r\n"])
    assert sent[3:] == [b"+a read\r\n"], "nothing is owed, and it acknowledges nothing"
