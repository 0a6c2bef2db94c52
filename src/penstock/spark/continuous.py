"""The streaming flows of a project as queries that stay: what `penstock run --continuous` does after its first run.

Spark's engine for pipelines has only runs that end, and a run has a fixed cost of seconds: files are loaded, a graph is
made and resolved, queries are planned and started. So the engine makes the tables and finds mistakes, and if there are
views, it runs once. Then each streaming flow is started as the engine starts it, by the engine's own object and on the
same checkpoint, with the only difference that its trigger does not end. A batch has the same number and the same query
id either way, so it does not matter to tables and streams which way it came: a process that dies can be followed by a
run of either kind.

A flow that fails is started again, later and later, while the others go on. Materialized views, which are batches, are
recomputed by runs of the engine in between. See docs/design/0010-pipelines.md.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError

from penstock.spark.pipeline_session import PipelineSession
from penstock.spark.problems import Finding, Place, RunFailed, finding
from penstock.spark.progress import Progress
from penstock.spark.runner import Runner, pause_after
from penstock.spark.selection import Selection

LOOK_EVERY = 0.2  # seconds


@dataclass(frozen=True, slots=True)
class Pace:
    """How often things happen, in seconds."""

    trigger: float
    """From the start of a flow's batch to the start of its next."""
    views: float
    """From one recomputation of the materialized views to the next."""


class LiveFlow:
    """A flow that runs until it is stopped."""

    def __init__(self, session: PipelineSession, execution: Any, place: Place | None, trigger: float) -> None:
        self.name = str(execution.displayName())
        self._session = session
        self._execution = execution
        self._place = place
        self._trigger = f"{int(trigger * 1000)} milliseconds"
        self._query: Any = None
        self.attempts = 0
        self.due = 0.0

    def start(self) -> None:
        """Start the query as the engine does, from what the engine made for its run."""
        engine, made = self._session.jvm.org.apache.spark.sql, self._execution
        engine.classic.SparkSession.setActiveSession(made.spark())
        trigger = engine.streaming.Trigger.ProcessingTime(self._trigger)
        execution = self._session.plan(made.graph(), made.updateContext(), made.flow(), trigger)
        execution.executeInternal()
        self._query = execution.getStreamingQuery()

    @property
    def is_running(self) -> bool:
        return self._query is not None and bool(self._query.isActive())

    def failure(self) -> Finding:
        """Why the query is over."""
        if self._query.lastProgress() is not None:
            self.attempts = 0  # it has done something since it was started
        error = self._query.exception()
        return finding(error.get().getMessage() if error.isDefined() else "the query was stopped", self._place)

    def refused(self, error: Py4JJavaError) -> Finding:
        """Why the query could not be started."""
        return finding(str(error.java_exception.getMessage()), self._place)

    def stop(self) -> None:
        """Stop the query. A batch under way is cancelled; when the flow runs again it is repeated, and counts once."""
        if self._query is not None:
            self._query.stop()


class LiveFlows:
    """All flows of a project while they are entered."""

    def __init__(
        self, runner: Runner, session: PipelineSession, progress: Progress, pace: Pace, tell: Callable[[str], None]
    ) -> None:
        self._runner = runner
        self._session = session
        self._progress = progress
        self._pace = pace
        self._tell = tell
        self._flows: list[LiveFlow] = []

    def __enter__(self) -> LiveFlows:
        with self._session.its_end_is_told():
            self._flows = [
                LiveFlow(self._session, each, self._runner.place_of(str(each.displayName())), self._pace.trigger)
                for each in self._runner.streaming
            ]
            for flow in self._flows:
                self._start(flow)
        self._next_views = time.monotonic() + self._pace.views
        self._rows_of_views = self._rows()
        return self

    def __exit__(self, *exc: object) -> None:
        for flow in self._flows:
            if self._session.alive:
                with contextlib.suppress(Py4JError, OSError):
                    flow.stop()

    def watch(self, asked: threading.Event) -> None:
        """Keep the flows running until asked to stop; RunFailed for a mistake that another attempt cannot mend."""
        while not asked.wait(LOOK_EVERY):
            self.look()

    def look(self) -> None:
        with self._session.its_end_is_told():
            for flow in self._flows:
                if flow.due:
                    if time.monotonic() >= flow.due:
                        self._start(flow)
                elif not flow.is_running:
                    self._failed(flow, flow.failure())
        if time.monotonic() >= self._next_views and self._rows() != self._rows_of_views:
            self._recompute_views()

    def _start(self, flow: LiveFlow) -> None:
        flow.due = 0.0
        try:
            flow.start()
        except Py4JJavaError as error:
            self._failed(flow, flow.refused(error))
        else:
            self._progress.event(flow.name, "RUNNING")

    def _failed(self, flow: LiveFlow, why: Finding) -> None:
        self._progress.event(flow.name, "FAILED")
        if why.lasting:
            raise RunFailed(why)
        flow.attempts += 1
        pause = pause_after(flow.attempts)
        flow.due = time.monotonic() + pause
        self._tell(f"{why}; starting the flow again in {pause:.0f} s")

    def _rows(self) -> int:
        return sum(flow.rows for flow in self._progress.flows())

    def _recompute_views(self) -> None:
        self._rows_of_views = self._rows()
        try:
            self._runner.recompute_views()
        except RunFailed as failure:
            if failure.lasting or not self._session.alive:
                raise
            self._tell(f"{failure}; trying again in {self._pace.views:.0f} s")
            self._rows_of_views = -1
        self._next_views = time.monotonic() + self._pace.views


def run_until(
    asked: threading.Event,
    can_stop: Callable[[], None],
    runner: Runner,
    session: PipelineSession,
    progress: Progress,
    selection: Selection,
    pace: Pace,
    tell: Callable[[str], None],
) -> None:
    """Run a project until asked to stop. The first run that succeeds empties the tables that are to be emptied.

    `can_stop` is called when the flows run, and it is looked often whether to stop.
    """
    attempts = 0
    while not asked.is_set():
        try:
            runner.begin(selection)
            break
        except RunFailed as failure:
            if failure.lasting or not session.alive:
                raise
            attempts += 1
            tell(f"{failure}; running again in {pause_after(attempts):.0f} s")
            asked.wait(pause_after(attempts))
    if not asked.is_set():
        with LiveFlows(runner, session, progress, pace, tell) as flows:
            can_stop()
            flows.watch(asked)
