"""What a cluster client holds and has done: the bounds on what waits for replies, and the counters.

A call enters with what it is about to send and leaves when every command of it is settled, at its end or at the end of its
caller. All calls of all threads and tasks share one ledger; one lock, held for a few additions, keeps it right.

Rejected: the sum of what each connection counts. A command that follows its slot through three nodes is one command, and one that was
lost and sent again somewhere else was not lost.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from penstock.client.batch import WORD_BYTES
from penstock.client.cluster.effects import Rules
from penstock.client.delivery import Counters
from penstock.client.errors import BufferFull, DeliveryError, NotSent

CALL_BYTES = 4900
"""What a call that waits costs beside its commands, its logic and its batches; tests/client/cluster/test_bounds.py measures these."""
COMMAND_BYTES = 130
"""What a command costs beside its words: its places in the plan, its result."""


def held_bytes(packed: Sequence[bytes], words: int) -> int:
    """What commands cost while they are held: each word as it was given, encoded, and once more in what is being written."""
    length = len(packed[0]) if len(packed) == 1 else sum(map(len, packed))
    return CALL_BYTES + len(packed) * COMMAND_BYTES + words * WORD_BYTES + 3 * length


@dataclass(slots=True)
class ClusterCounters(Counters):
    """What a cluster client has done since it was made."""

    redirected: int = 0
    """How often a node sent a command elsewhere (MOVED, ASK)."""
    refreshes: int = 0
    """How often the topology was asked for."""

    def settle(self, results: list[Any]) -> None:
        """Count commands by what they ended with."""
        failed = unsent = 0
        if any(issubclass(kind, DeliveryError) for kind in set(map(type, results))):
            failed = sum(isinstance(result, DeliveryError) for result in results)
            unsent = sum(isinstance(result, NotSent) for result in results)
        self.failed += failed
        self.replied += len(results) - failed
        self.sent += len(results) - unsent

    def add(self, other: ClusterCounters) -> None:
        for name in _NAMES:
            count = getattr(other, name)
            if count:
                setattr(self, name, getattr(self, name) + count)


_NAMES = tuple(field.name for field in fields(ClusterCounters))


class Hold:
    """What one call holds. A call that an interrupt ends between any two steps lets go of it when nobody has this any more."""

    __slots__ = ("_ledger", "count", "is_held", "size")

    def __init__(self, ledger: Ledger, count: int, size: int) -> None:
        self._ledger = ledger
        self.count = count
        """How many commands."""
        self.size = size
        self.is_held = False

    def __del__(self) -> None:
        if self.is_held:
            self._ledger.leave(self)


class Ledger:
    """See the top of this file."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._lock = threading.RLock()  # a Hold may be collected at any time, also in here
        self._counters = ClusterCounters()
        self._waiting: deque[Callable[[], object]] = deque()  # how to wake who waits for room

    @property
    def counters(self) -> ClusterCounters:
        """As of now; a copy."""
        with self._lock:
            return replace(self._counters)

    def enter(self, hold: Hold, wake: Callable[[], object] | None = None) -> bool:
        """Hold so much more, if the bounds allow it; what never would fit is let in when nothing else is held.

        If not, `wake` is called once when there may be room.
        """
        counters, rules = self._counters, self._rules
        with self._lock:
            held = counters.buffered_commands
            if held and (
                held + hold.count > rules.max_buffered_commands
                or counters.buffered_bytes + hold.size > rules.max_buffered_bytes
            ):
                if wake is not None:
                    self._waiting.append(wake)
                return False
            counters.buffered_commands = held + hold.count
            counters.buffered_bytes += hold.size
            hold.is_held = True
            return True

    def leave(self, hold: Hold, done: ClusterCounters | None = None) -> None:
        """A call is over, and this is what it did."""
        with self._lock:
            if done is not None:
                self._counters.add(done)
            waiting = self._let_go(hold)
        _wake(waiting)

    def leave_answered(self, hold: Hold) -> None:
        """As `leave`, for the call that most calls are: one command, written once and answered."""
        counters = self._counters
        with self._lock:
            counters.sent += 1
            counters.replied += 1
            waiting = self._let_go(hold)
        if waiting:
            _wake(waiting)

    def _let_go(self, hold: Hold) -> Iterable[Callable[[], object]]:
        """With the lock held; who is to be woken."""
        if hold.is_held:
            hold.is_held = False
            self._counters.buffered_commands -= hold.count
            self._counters.buffered_bytes -= hold.size
        if not self._waiting:
            return ()
        waiting, self._waiting = self._waiting, deque()
        return waiting

    def after_fork(self) -> None:
        """In a child: whoever held something was left behind, maybe with the lock."""
        self._lock, self._waiting = threading.RLock(), deque()
        self._counters.buffered_commands = self._counters.buffered_bytes = 0

    def reconnected(self) -> None:
        with self._lock:
            self._counters.reconnects += 1

    def full(self) -> BufferFull:
        held, rules = self.counters, self._rules
        return BufferFull(
            f"{held.buffered_commands} commands ({held.buffered_bytes} bytes) are held already; max_buffered_commands="
            f"{rules.max_buffered_commands} and max_buffered_bytes={rules.max_buffered_bytes} allow no more"
        )


def _wake(waiting: Iterable[Callable[[], object]]) -> None:
    for wake in waiting:
        with contextlib.suppress(RuntimeError):  # a loop that has ended
            wake()
