"""Until when a server of a shard may acknowledge anything: the deadline of its lease.

The agent, which is the server's parent, keeps a lease in etcd. After each success it writes down until when this lease
holds for certain: counted from the moment at which it *sent* the request, less a margin. The number is in memory that
the two processes share, so it is current even if the server was busy, or stopped, for a while. The server looks at it
before a write runs and again before replies leave (storage/fenced_writer.py). The clock is one that goes on while the
machine sleeps and that cannot be set.

A server without etcd has no Leadership, and looks at nothing.

Owned by the loop thread, but for the shared numbers.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from collections.abc import Callable
from time import clock_gettime_ns
from typing import TYPE_CHECKING

from penstock.engine.pause import writes
from penstock.protocol.errors import ReadOnly

if TYPE_CHECKING:
    from penstock.engine.declarations import Argv, Command
    from penstock.engine.session import Session

AGENT = "PENSTOCK_AGENT"
"""The variable of the environment with the descriptors that the agent has opened: of its socket, and of the clock."""
LEASED = "leased"
"""The reason for gates at a server of a shard. The fast path has this one itself, for commands that write."""
OVER = (
    "This server may not lead any more: its lease in etcd has run out. Nothing was changed; ask for the leader again."
)
NOT_READY = "This server has just begun to lead, and waits for its replicas. Nothing was changed; try again."
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_SIZE = 16
_DEADLINE, _SIGN_OF_LIFE = 0, 1


def now() -> int:
    """Nanoseconds of the clock that deadlines are counted by."""
    return clock_gettime_ns(_CLOCK)


class SharedClock:
    """Two numbers that the agent and its server share, in a file without a name."""

    def __init__(self, descriptor: int) -> None:
        self._map = mmap.mmap(descriptor, _SIZE)
        self._numbers = memoryview(self._map).cast("q")

    @staticmethod
    def make() -> int:
        """The descriptor of a new one."""
        with tempfile.TemporaryFile() as file:
            file.truncate(_SIZE)
            return os.dup(file.fileno())

    @property
    def deadline(self) -> int:
        """Until when the server may acknowledge; 0 while it may not. The agent sets it."""
        return self._numbers[_DEADLINE]

    @deadline.setter
    def deadline(self, moment: int) -> None:
        self._numbers[_DEADLINE] = moment

    def holds(self) -> bool:
        """Whether it is before the deadline."""
        return self._numbers[_DEADLINE] > clock_gettime_ns(_CLOCK)

    @property
    def sign_of_life(self) -> int:
        """When the server was last known to run. The server sets it."""
        return self._numbers[_SIGN_OF_LIFE]

    @sign_of_life.setter
    def sign_of_life(self, moment: int) -> None:
        self._numbers[_SIGN_OF_LIFE] = moment


class Leadership:
    """See the top of this file."""

    def __init__(self, clock: SharedClock) -> None:
        self.clock = clock
        self.holds = clock.holds  # whether the lease holds for certain
        self.leading = False  # the agent's last order was to lead, and the lease has not run out since
        self.ready = False  # enough replicas were there once since then, or were waited for long enough
        self.on_lapse: Callable[[], None] = lambda: None  # what is to be done when it turns out that the lease is over
        self.on_trouble: Callable[[], None] = lambda: None  # the disk refuses what was written

    @property
    def milliseconds_left(self) -> int:
        """For INFO."""
        return max(self.clock.deadline - now(), 0) // 1_000_000 if self.leading else 0

    def check(self, session: Session, command: Command, argv: Argv) -> None:
        """Refuse a command of a client that may write, if this server may not acknowledge it."""
        if not session.engine.following and writes(session, command, argv):
            self.check_write()

    def check_write(self) -> None:
        """Refuse a write, if this server may not acknowledge it."""
        if not self.leading or not self.holds():
            self.on_lapse()
            raise ReadOnly(OVER)
        if not self.ready:
            raise ReadOnly(NOT_READY)
