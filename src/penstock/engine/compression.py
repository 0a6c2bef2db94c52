"""When cold nodes of streams are compressed: after they were left alone for a while, when the server has time.

What was just written is read soon, by members of a group and by jobs that come every few seconds, and they are served
better from what is not compressed. So nodes rest first, for one to two times `stream-compression-rest`, and are then
compressed in slices of time. What rests is bounded by `stream-compression-backlog` for all streams together; beyond it
every write compresses as much as it adds (types/stream/cooling.py).

Time goes by rounds, so that no node has a clock: a round makes the nodes due that were sealed before the last one.

Owned by the loop thread.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from penstock.types.stream.log import STORAGE, Log

if TYPE_CHECKING:
    from penstock.engine.dispatch import Engine

SLICE = 1_000_000
"""Nanoseconds that are worked before clients have their turn."""
BUSY_PAUSE, IDLE_PAUSE = 0.010, 0.001
"""Seconds between two slices, while clients are heard and while they are not."""


class Compression:
    """See the top of this file."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._resting: WeakKeyDictionary[Log, int] = (
            WeakKeyDictionary()
        )  # logs, and the node they had come to last round
        self._due: WeakKeyDictionary[Log, int] = WeakKeyDictionary()  # logs, and the node before which all are due
        self._round_planned = self._slice_planned = False
        self._heard = 0  # bytes of input when a slice was planned
        engine.config.on_change("stream-compression-backlog", lambda _: self._share_backlog())
        self._share_backlog()
        for name, attribute in (("stream-compression", "compression"), ("stream-hot-nodes", "hot_nodes")):
            setattr(STORAGE, attribute, engine.config[name])
            engine.config.on_change(name, partial(setattr, STORAGE, attribute))

    def later(self, log: Log) -> None:
        """Something was written: compress what cools of it, in time."""
        if log.cooling.unsettled and log not in self._resting:
            self._resting[log] = log.lowest if self._round_planned else log.active.number
            self._share_backlog()
            self._plan_round()

    def now(self) -> bool:
        """Compress all that waits, because memory is short; whether there was anything."""
        waiting = list(self._resting)
        for log in waiting:
            while log.settle():
                pass
        self._resting.clear()
        self._due.clear()
        self._share_backlog()
        return bool(waiting)

    def _forget(self, log: Log) -> None:
        del self._resting[log]
        self._share_backlog()

    def _share_backlog(self) -> None:
        STORAGE.backlog = self._engine.config.stream_compression_backlog // max(len(self._resting), 1)

    def _plan_round(self) -> None:
        if self._resting and not self._round_planned:
            self._round_planned = True
            rest = self._engine.config.stream_compression_rest / 1000
            self._engine.timers.call_later(max(rest, BUSY_PAUSE), self._round)

    def _round(self) -> None:
        self._round_planned = False
        for log, sealed in list(self._resting.items()):
            if not log.cooling.unsettled:  # it was compressed by a write, or evicted
                self._forget(log)
                continue
            if sealed > log.lowest:
                self._due[log] = sealed
            self._resting[log] = log.active.number
        self._plan_slice(BUSY_PAUSE)
        self._plan_round()

    def _plan_slice(self, pause: float) -> None:
        if self._due and not self._slice_planned:
            self._slice_planned = True
            self._heard = self._engine.stats.input_bytes
            self._engine.timers.call_later(pause, self._slice)

    def _slice(self) -> None:
        """Compress for a slice of time, or only one node if clients have been heard since the last one."""
        self._slice_planned = False
        idle = self._heard == self._engine.stats.input_bytes
        until = perf_counter_ns() + (SLICE if idle else 0)
        for log, sealed in list(self._due.items()):
            more = log.settle(sealed)
            while more and perf_counter_ns() < until:
                more = log.settle(sealed)
            if not more:
                del self._due[log]
                if not log.cooling.unsettled:
                    self._forget(log)
            if perf_counter_ns() >= until:
                break
        self._plan_slice(IDLE_PAUSE if idle else BUSY_PAUSE)
