"""Passive execution of LAZY: the oldest commands run in slices when no bytes came for a while, or when they are too
old.

Rejected: taking a random key, because one command could wait for ever.

Owned by the loop thread.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING

from penstock.engine.concurrency.lazy_counts import Counts
from penstock.engine.concurrency.lazy_order import Order
from penstock.engine.concurrency.lazy_runner import Runner

if TYPE_CHECKING:
    from penstock.engine.dispatch import Engine

QUIET = 0.005
"""Seconds without a byte from any client after which the server counts as idle."""
SLICE = 1_000_000
"""Nanoseconds that passive execution works before other clients are served."""


class PassiveRuns:
    """See the top of this file."""

    def __init__(self, engine: Engine, order: Order, runner: Runner, counts: Counts) -> None:
        self._engine = engine
        self._pending = order.pending
        self._runner = runner
        self._counts = counts
        self._timer: object | None = None
        self._idle = False
        self._input_seen = -1  # stats.input_bytes when it was last looked at
        runner.on_thread_done = self.plan
        for name in ("lazy-queue-enabled", "lazy-max-age"):
            engine.config.on_change(name, lambda _: self._replan())

    @property
    def enabled(self) -> bool:
        return bool(self._engine.config.lazy_queue_enabled)

    @property
    def oldest_age(self) -> int:
        """Milliseconds that the oldest has been waiting."""
        return self._engine.clock.lease_time() - next(iter(self._pending.values())).since if self._pending else 0

    def _replan(self) -> None:
        self._engine.timers.cancel(self._timer)
        self._timer = None
        self.plan()

    def plan(self) -> None:
        """Plan the next look at the queue."""
        if self._timer is not None or not self._pending or self._runner.are_threads_busy():
            return
        max_age = self._engine.config.lazy_max_age
        if self.enabled:
            delay = 0.0 if self._idle else QUIET
        elif max_age:
            delay = max((max_age - self.oldest_age) / 1000, QUIET)  # what is old already waits for a lock
        else:
            return
        self._timer = self._engine.timers.call_later(delay, self.look)

    def look(self) -> None:
        """Work for a slice if the server is idle, or if something has waited too long."""
        engine = self._engine
        self._timer = None
        engine.clock.refresh()
        received = engine.stats.input_bytes
        self._idle = self.enabled and received == self._input_seen
        self._input_seen = received
        max_age = engine.config.lazy_max_age
        until = perf_counter_ns() + SLICE
        while (
            self._pending
            and (self._idle or (max_age and self.oldest_age >= max_age))
            and not self._runner.are_threads_busy()
        ):
            queued = next(iter(self._pending.values()))
            self._runner.begin(queued)
            if queued.number not in self._pending:
                self._counts.ran_passively += 1
            elif queued.job is None:
                self._idle = False  # locks are held: try a little later
                break
            if perf_counter_ns() >= until:
                break
        self._idle = self._idle and bool(self._pending)
        self.plan()
        if engine.keyspace.ready:
            engine.blocking.serve()
