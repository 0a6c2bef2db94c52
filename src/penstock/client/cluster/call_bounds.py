"""The bounds on what a cluster client holds while it waits for replies, and its counters.

A call enters with what it is about to send and leaves when every command of it is finished, or when its caller gives
up. A call that finds no room waits in a queue, and a call that leaves lets in the next ones, in the order of calls:
small calls do not overtake a large one. All calls of all threads and tasks share one CallBounds, under one lock that is
held for a few additions.

A thread can be interrupted between any two steps (KeyboardInterrupt). Leaving twice is leaving once, so a thread that
was interrupted in it leaves again. The queue holds weak references, so a caller that is gone has no place in it. A
thread that an interrupt kept others from waking looks by itself, after PATROL.

Rejected: letting go of what is held when it is collected (`__del__`). An interrupt in there is lost, and every call
would have one. Rejected: the sum of what each connection counts. A command that follows its slot through three nodes is
one command, and one that was lost and sent again somewhere else was not lost.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from penstock.client.cluster.driver_requests import Rules
from penstock.client.delivery import Counters
from penstock.client.engine.batch import WORD_BYTES
from penstock.client.errors import BufferFull, DeliveryError, NotSent

CALL_BYTES = 5150
"""What a call that waits costs beside its commands, its logic and its batches; tests/client/cluster/test_bounds.py
measures these.
"""
COMMAND_BYTES = 130
"""What a command costs beside its words: its places in the plan, its result."""
PATROL = 1.0
"""Seconds after which a waiting call looks whether it was passed over."""


def held_bytes(packed: Sequence[bytes], words: int) -> int:
    """The memory of held commands: each word as it was given, encoded, and once more in what is being
    written.
    """
    length = len(packed[0]) if len(packed) == 1 else sum(map(len, packed))
    return CALL_BYTES + len(packed) * COMMAND_BYTES + words * WORD_BYTES + 3 * length


@dataclass(slots=True)
class ClusterCounters(Counters):
    """What a cluster client has done since it was made."""

    redirected: int = 0
    """How often a node sent a command elsewhere (MOVED, ASK)."""
    refreshes: int = 0
    """How often the topology was asked for."""

    def count_results(self, results: list[Any]) -> None:
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
    """The share of one call in the bounds."""

    __slots__ = ("count", "is_held", "size")

    def __init__(self, count: int, size: int) -> None:
        self.count = count
        """How many commands."""
        self.size = size
        self.is_held = False


class Place:
    """A place in the queue for room; it is given up when it is collected."""

    __slots__ = ("__weakref__", "hold", "wake")

    def __init__(self, hold: Hold, wake: Callable[[], object]) -> None:
        self.hold = hold
        """What the call wants to hold."""
        self.wake = wake
        """Called then; for any thread."""


class CallBounds:
    """See the top of this file."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._lock = threading.RLock()  # whatever is collected while it is held may use this client
        self._counters = ClusterCounters()
        self._queue: deque[weakref.ref[Place]] = deque()

    @property
    def counters(self) -> ClusterCounters:
        """As of now; a copy."""
        with self._lock:
            return replace(self._counters)

    def enter(self, hold: Hold) -> bool:
        """Hold so much more, if the bounds allow it and no call waits; a call that would never fit is let in when
        nothing else is held.
        """
        with self._lock:
            return not self._queue and self._take(hold)

    def queue(self, hold: Hold, wake: Callable[[], object]) -> Place:
        """Wait for room, behind the calls that wait already."""
        place = Place(hold, wake)
        with self._lock:
            self._queue.append(weakref.ref(place))
            self._admit()
        return place

    def patrol(self) -> None:
        """Let in the calls for which there is room."""
        with self._lock:
            self._admit()

    def leave(self, hold: Hold, done: ClusterCounters | None = None) -> None:
        """A call is over, and this is what it did; or it waits for room no longer."""
        with self._lock:
            if done is not None:
                self._counters.add(done)
            self._let_go(hold)

    def leave_answered(self, hold: Hold) -> None:
        """As `leave`, for the most common call: one command, written once and answered."""
        counters = self._counters
        with self._lock:
            counters.sent += 1
            counters.replied += 1
            self._let_go(hold)

    # With the lock held. No call stands between the lines that belong together, so no interrupt comes there.

    def _take(self, hold: Hold) -> bool:
        """Whether it is held now."""
        counters, rules = self._counters, self._rules
        if hold.is_held:
            return True
        held = counters.buffered_commands
        if held and (
            held + hold.count > rules.max_buffered_commands
            or counters.buffered_bytes + hold.size > rules.max_buffered_bytes
        ):
            return False
        counters.buffered_commands = held + hold.count
        counters.buffered_bytes += hold.size
        hold.is_held = True
        return True

    def _let_go(self, hold: Hold) -> None:
        if hold.is_held:
            hold.is_held = False
            self._counters.buffered_commands -= hold.count
            self._counters.buffered_bytes -= hold.size
        if self._queue:
            self._admit()

    def _admit(self) -> None:
        """Admit calls from the front of the queue while there is room."""
        queue = self._queue
        while queue:
            first = queue[0]
            place = first()
            if place is not None:
                if not self._take(place.hold):
                    return
                with contextlib.suppress(RuntimeError):  # woken already; or a loop that has ended
                    place.wake()
            if queue and queue[0] is first:  # what was collected in between may have come here, too
                queue.popleft()

    def after_fork(self) -> None:
        """In a child: the threads that held something, or the lock, are not there."""
        self._lock, self._queue = threading.RLock(), deque()
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
