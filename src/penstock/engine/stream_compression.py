"""When cold nodes of streams are compressed: after they were left alone for a while, when the server has time.

What was just written is read soon, by members of a group and by jobs that come every few seconds, and they are served
better from what is not compressed. So nodes rest first, for one to two times `stream-compression-rest`, and are then
compressed by a thread, or in slices of time where there is only one processor. What rests is bounded by
`stream-compression-backlog` for all streams together: from half of it on a thread takes the oldest, rested or not, and
beyond it every write compresses as much as it adds (types/stream/cooling.py).

Time goes by rounds, so that no node has a clock: a round makes the nodes due that were sealed before the last one.

Owned by the loop thread.
"""

from __future__ import annotations

import threading
import weakref
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from penstock.types.stream.cooling import ALL, Packing
from penstock.types.stream.messages import Messages

if TYPE_CHECKING:
    from penstock.engine.dispatch import Engine

SLICE = 1_000_000
"""Nanoseconds of work before other clients are served."""
BUSY_PAUSE, IDLE_PAUSE = 0.010, 0.001
"""Seconds between two slices, while clients are heard and while they are not."""
PORTION = 16 << 20
"""Bytes of messages that a thread compresses before the loop hears of it again: some ten milliseconds."""
SHARE = 16
"""What a thread makes of a portion takes at most one part in this many of `stream-memory`, or one call of Arrow."""


class Portion:
    """Nodes of a stream that a thread compresses, or the loop if it cannot wait and no thread has begun."""

    __slots__ = ("_claim", "_over", "origin", "packing")

    def __init__(self, messages: Messages, packing: Packing) -> None:
        self.origin = weakref.ref(messages)
        self.packing = packing
        self._claim = threading.Lock()  # the thread that has it compresses
        self._over = threading.Event()

    def run(self) -> None:
        """In a thread, if the loop was not faster."""
        if self._claim.acquire(blocking=False):
            try:
                self.packing.run()
            finally:
                self._over.set()

    def finish(self) -> None:
        """Have no thread at work on it when this returns: it ends after the call that it is in, or this does one."""
        self.packing.stop()
        self.run()
        self._over.wait()


class Compression:
    """See the top of this file."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._storage = engine.keyspace.stream_storage
        self._resting: WeakKeyDictionary[Messages, int] = (
            WeakKeyDictionary()
        )  # messages of streams, and the node they had come to last round
        self._due: WeakKeyDictionary[Messages, int] = (
            WeakKeyDictionary()
        )  # the same, and the node before which all are due
        self.in_background = engine.workers.in_background
        self._away: Portion | None = None  # with a thread
        self._round_planned = self._slice_planned = False
        self._heard = 0  # bytes of input when a slice was planned
        engine.config.on_change("stream-compression-backlog", lambda _: self._share_backlog())
        self._share_backlog()
        for name, attribute in (("stream-compression", "compression"), ("stream-hot-nodes", "hot_nodes")):
            setattr(self._storage, attribute, engine.config[name])
            engine.config.on_change(name, partial(setattr, self._storage, attribute))

    def later(self, messages: Messages) -> None:
        """Something was written: compress its cold nodes later."""
        if not messages.cooling.has_deferred:
            return
        if messages not in self._resting:
            self._resting[messages] = messages.lowest if self._round_planned else messages.active.number
            self._share_backlog()
            self._plan_round()
        if self._away is None and _is_pressed(messages):
            self._hand_over(messages)

    @property
    def in_flight(self) -> int:
        """Bytes that a thread may make of the messages that it compresses, and which are in memory beside them."""
        return self._away.packing.most if self._away is not None else 0

    def now(self) -> bool:
        """Compress all that waits, because memory is short; whether there was anything."""
        waiting = list(self._resting)
        for messages in waiting:
            messages.cooling.recall()  # a thread may be held up, and the memory is needed now
            while messages.cooling.do_deferred():
                pass
        self._resting.clear()
        self._due.clear()
        self._share_backlog()
        return bool(waiting)

    def hurry(self, messages: Messages, size: int) -> None:
        """Memory is short: compress nodes of a stream now, about so many bytes, rested or not; 0 leaves it to a thread.

        Where no thread takes them, a slice of the loop does.
        """
        if not size and (self._away is not None or self._hand_over(messages)):
            return
        portion = self._away
        if size and portion is not None and portion.origin() is messages:
            waiting = messages.cooling.waiting
            try:
                portion.finish()  # rather than compress the same nodes twice, in twice the memory
            finally:
                messages.cooling.unpack(portion.packing)
            size -= waiting - messages.cooling.waiting
        until = perf_counter_ns() + SLICE
        while (size > 0 or perf_counter_ns() < until) and messages.cooling.has_deferred:
            waiting = messages.cooling.waiting
            if not messages.cooling.do_deferred():
                return
            size -= waiting - messages.cooling.waiting

    def _forget(self, messages: Messages) -> None:
        self._resting.pop(messages, None)  # a write may have compressed it, or history, and a round forgotten it
        self._share_backlog()

    def _share_backlog(self) -> None:
        backlog = self._engine.config.stream_compression_backlog
        if self._storage.most is not None:
            backlog = min(backlog, self._storage.most // 2)  # what waits cannot go to a file
        self._storage.backlog = backlog // max(len(self._resting), 1)

    @property
    def _room(self) -> int:
        """Bytes that a thread may make of the next portion."""
        most = self._storage.most
        return ALL if most is None else most // SHARE

    def _plan_round(self) -> None:
        if self._resting and not self._round_planned:
            self._round_planned = True
            rest = self._engine.config.stream_compression_rest / 1000
            self._engine.timers.call_later(max(rest, BUSY_PAUSE), self._round)

    def _round(self) -> None:
        self._round_planned = False
        for messages, sealed in list(self._resting.items()):
            if not messages.cooling.has_deferred:  # it was compressed by a write, or evicted
                self._forget(messages)
                continue
            if sealed > messages.lowest:
                self._due[messages] = sealed
            self._resting[messages] = messages.active.number
        self._plan_slice(BUSY_PAUSE)
        self._plan_round()

    def _plan_slice(self, pause: float) -> None:
        if self._due and not self._slice_planned and self._away is None:
            self._slice_planned = True
            self._heard = self._engine.stats.input_bytes
            self._engine.timers.call_later(pause, self._slice)

    def _slice(self) -> None:
        """Have a thread compress, or do it here for a slice of time, or only one node if
        clients have been heard since.
        """
        self._slice_planned = False
        idle = self._heard == self._engine.stats.input_bytes
        until = perf_counter_ns() + (SLICE if idle else 0)
        for messages, sealed in list(self._due.items()):
            if self._away is not None or self._hand_over(messages, sealed):
                return
            more = messages.cooling.do_deferred(sealed)
            while more and perf_counter_ns() < until:
                more = messages.cooling.do_deferred(sealed)
            if not more:
                del self._due[messages]
                if not messages.cooling.has_deferred:
                    self._forget(messages)
            if perf_counter_ns() >= until:
                break
        self._plan_slice(IDLE_PAUSE if idle else BUSY_PAUSE)

    def _hand_over(self, messages: Messages, before: int = ALL) -> bool:
        """Give a thread a portion of the nodes, those before a number if one is given; whether it has one."""
        packing = messages.cooling.pack(PORTION, before, self._room)
        if packing is not None:
            portion = Portion(messages, packing)
            if self.in_background(portion.run, partial(self._take_back, portion)):
                self._away = portion
            else:
                messages.cooling.recall()
        return self._away is not None

    def _take_back(self, portion: Portion) -> None:
        """A thread is done with a portion; the stream may be gone since."""
        self._away = None
        messages = portion.origin()
        if messages is not None:
            if not messages.cooling.unpack(portion.packing):
                messages.cooling.do_deferred()  # what failed there should fail here too, and not for ever
            elif _is_pressed(messages):
                self._hand_over(messages)
        self._plan_slice(IDLE_PAUSE)


def _is_pressed(messages: Messages) -> bool:
    """Whether half of the backlog waits."""
    return 2 * messages.cooling.waiting > messages.storage.backlog
