"""Compaction of messages that lie in files: a thread reads some nodes ahead, and the loop compacts them in its slices.

One stream at a time has nodes that were read ahead, so that they take little memory however many streams compact. When
it has used them up, the next stream that needs a file has its turn. A stream that does not come back for its nodes,
because it was deleted or stopped compacting, loses them after PATIENCE.

Without threads, files are read in place.

Owned by the loop thread.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.engine.stream_history import fetch_what_is_there
from penstock.types.stream.compaction import Compacted, compact, upcoming
from penstock.types.stream.messages import Messages, Place
from penstock.types.stream.segments import Identity
from penstock.types.stream.stored_nodes import with_fetched

if TYPE_CHECKING:
    from penstock.engine.dispatch import Engine

AHEAD = 16
"""Nodes that are read ahead."""
AHEAD_BYTES = 8 << 20
"""Bytes of messages after which no more are."""
PATIENCE = 1000
"""Milliseconds that nodes wait for their stream."""


class ColdCompaction:
    """See the top of this file."""

    def __init__(self, engine: Engine, go_on: Callable[[], None]) -> None:
        self._engine = engine
        self._go_on = go_on  # called when a thread has read what a stream waits for
        self._messages: weakref.ref[Messages] | None = None  # whose turn it is
        self._payloads: dict[Identity, bytes | None] = {}  # None for what is lost
        self._since = 0  # when they came, by the clock of leases
        self._reading = False
        self._others_wait = False

    def step(self, messages: Messages) -> Compacted | None:
        """Index, rewrite or forget one node; None if that must wait for a file, and `go_on` will be called."""
        for place in upcoming(messages, 1):
            if self._is_turn_of(messages) and place[0].identity(place[1]) in self._payloads:
                return self._compact(messages, place)
            if self._must_wait(messages) or self._read(messages):
                return None
        return compact(messages, nodes=1)

    def _must_wait(self, messages: Messages) -> bool:
        """Whether another stream has its turn, or waits for it longer than this one."""
        if self._is_turn_of(messages):
            if self._others_wait and not self._reading:
                self._others_wait = False
                self._go_on()  # others come before this one then
                return True
            return self._reading
        self._others_wait = self._reading or (bool(self._payloads) and not self._is_forgotten())
        return self._others_wait

    def _compact(self, messages: Messages, place: Place) -> Compacted:
        """A step that needs this node; if the node is lost, the step says so."""
        payload = self._payloads.pop(place[0].identity(place[1]))
        if payload is None:
            return compact(messages, nodes=1)
        evicted = messages.compactor.evicted if messages.compactor is not None else None
        if evicted and evicted[0].stored == place:
            evicted[0].take_fetched(payload)
        with with_fetched(messages, [(place, payload)]):
            return compact(messages, nodes=1)

    def _is_turn_of(self, messages: Messages) -> bool:
        return self._messages is not None and self._messages() is messages

    def _is_forgotten(self) -> bool:
        return self._engine.clock.lease_time() - self._since >= PATIENCE

    def _read(self, messages: Messages) -> bool:
        chosen = next_portion(messages)
        found: dict[Identity, bytes | None] = {}

        def over() -> None:
            self._reading = False
            self._payloads, self._since = found, self._engine.clock.lease_time()
            self._go_on()

        self._reading = self._engine.workers.in_background(
            lambda: found.update(fetch_what_is_there(chosen)), over, for_disk=True
        )
        self._messages, self._payloads = weakref.ref(messages), {}
        return self._reading


def next_portion(messages: Messages) -> list[Place]:
    """The nodes in files that the next steps of compaction will read, as far as they are read ahead."""
    chosen: list[Place] = []
    room = AHEAD_BYTES
    for segment, at in upcoming(messages, AHEAD):
        if room > 0:
            chosen.append((segment, at))
            room -= segment.raws[at]
    return chosen
