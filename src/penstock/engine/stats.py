"""Counters for INFO, and the slow log. Owned by the loop thread."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.engine.clock import Clock
from penstock.engine.spec import Argv

if TYPE_CHECKING:
    from penstock.engine.session import Session

MAX_SHOWN_ARGUMENTS = 32
MAX_SHOWN_LENGTH = 128


@dataclass(frozen=True, slots=True)
class SlowCommand:
    """A row of the slow log."""

    id: int
    time: int  # seconds since 1970
    microseconds: int
    argv: list[bytes]
    peer: str
    name: bytes


class Stats:
    """See the top of this file."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.started = time.time()
        self.commands = 0
        self.connections = 0
        self.rejected_connections = 0
        self.input_bytes = 0
        self.output_bytes = 0
        self.slow_threshold = 10_000  # microseconds; a huge number turns the slow log off
        self.slow: deque[SlowCommand] = deque(maxlen=128)
        self._slow_id = 0

    def remember_slow(self, session: Session, argv: Argv, microseconds: int) -> None:
        """Keep a slow command, its arguments cut to what a person wants to see."""
        shown = [_shorten(arg) for arg in argv[:MAX_SHOWN_ARGUMENTS]]
        if len(argv) > MAX_SHOWN_ARGUMENTS:
            shown[-1] = b"... (%d more arguments)" % (len(argv) - MAX_SHOWN_ARGUMENTS + 1)
        self.slow.appendleft(
            SlowCommand(self._slow_id, self._clock.now // 1000, microseconds, shown, session.peer, session.name)
        )
        self._slow_id += 1


def _shorten(arg: bytes) -> bytes:
    if len(arg) <= MAX_SHOWN_LENGTH:
        return bytes(arg)
    return arg[:MAX_SHOWN_LENGTH] + b"... (%d more bytes)" % (len(arg) - MAX_SHOWN_LENGTH)
