"""The slow log: the latest commands that took longer than a threshold. Owned by the loop thread.

The server's inner loop times some of its commands (statistics.py): one in sixteen, and each that may take long because
it has many arguments or a value to walk. A threshold so low that the others could reach it turns that short way off.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.engine.declarations import Argv

if TYPE_CHECKING:
    from penstock.engine.dispatch import Engine
    from penstock.engine.session import Session

MAX_SHOWN_ARGUMENTS = 32
MAX_SHOWN_LENGTH = 128
NEVER = 1 << 63
QUICKEST_TIMED = 1000
"""Microseconds; commands on the fast path are taken to stay below this."""


@dataclass(frozen=True, slots=True)
class SlowCommand:
    """A row of the slow log."""

    id: int
    time: int  # seconds since 1970
    microseconds: int
    argv: list[bytes]
    peer: str
    name: bytes


class SlowLog:
    """See the top of this file."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._next_id = 0
        self.threshold = NEVER  # nanoseconds
        self.rows: deque[SlowCommand] = deque()  # the latest first
        config = engine.config
        config.on_change("slowlog-log-slower-than", self._set_threshold)
        config.on_change("slowlog-max-len", self._set_length)
        self._set_threshold(config.slowlog_log_slower_than)
        self._set_length(config.slowlog_max_len)

    @property
    def last_id(self) -> int:
        """The number of the last command that was slow; -1 if there was none."""
        return self._next_id - 1

    def _set_threshold(self, microseconds: int) -> None:
        self.threshold = microseconds * 1000 if microseconds >= 0 else NEVER
        self._engine.require_gates("slowlog", 0 <= microseconds < QUICKEST_TIMED)

    def _set_length(self, length: int) -> None:
        self.rows = deque(list(self.rows)[:length], maxlen=min(length, 1 << 31))

    def remember(self, session: Session, argv: Argv, took: int) -> None:
        """Keep a command that took so many nanoseconds, its arguments cut to what a person wants to see."""
        shown = [_shorten(arg) for arg in argv[:MAX_SHOWN_ARGUMENTS]]
        if len(argv) > MAX_SHOWN_ARGUMENTS:
            shown[-1] = b"... (%d more arguments)" % (len(argv) - MAX_SHOWN_ARGUMENTS + 1)
        now = self._engine.clock.now // 1000
        self.rows.appendleft(SlowCommand(self._next_id, now, took // 1000, shown, session.peer, session.name))
        self._next_id += 1


def _shorten(arg: bytes) -> bytes:
    if len(arg) <= MAX_SHOWN_LENGTH:
        return bytes(arg)
    return arg[:MAX_SHOWN_LENGTH] + b"... (%d more bytes)" % (len(arg) - MAX_SHOWN_LENGTH)
