"""What becomes of flows that fail while they run continuously. Queries that are real, and killed: test_run.py."""

from __future__ import annotations

import contextlib
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.spark import continuous, runner
from penstock.spark.continuous import LiveFlows, Pace, run_until
from penstock.spark.problems import Finding, RunFailed
from penstock.spark.progress import _unseen
from penstock.spark.selection import Selection

PASSING, LASTING = Finding("the server is away"), Finding("there is no such column", lasting=True)


class FakeFlow:
    """A flow whose query ends when the test says so."""

    def __init__(self, session: Any, execution: Any, place: Any, trigger: float) -> None:
        self.name, self.attempts, self.due = execution.displayName(), 0, 0.0
        self.starts = 0
        self.is_running = False
        self.why = PASSING

    def start(self) -> None:
        self.starts += 1
        self.is_running = True

    def failure(self) -> Finding:
        return self.why

    def stop(self) -> None:
        self.is_running = False


class World:
    """A runner, a session and a progress that only take notes."""

    def __init__(self, *failures: Finding) -> None:
        self.alive = True
        self.failures = list(failures)
        self.ran: list[Selection] = []
        self.told: list[str] = []
        self.states: list[tuple[str, str]] = []
        self.streaming = [SimpleNamespace(displayName=lambda name=name: name) for name in ("a", "b")]
        self.recomputed = 0
        self.rows = 0

    def begin(self, selection: Selection) -> None:
        self.ran.append(selection)
        if self.failures:
            raise RunFailed(self.failures.pop(0))

    def place_of(self, flow: str) -> None:
        return None

    def its_end_is_told(self) -> contextlib.nullcontext[None]:
        return contextlib.nullcontext()

    def recompute_views(self) -> None:
        self.recomputed += 1

    def event(self, flow: str, state: str) -> None:
        self.states.append((flow, state))

    def flows(self) -> list[Any]:
        return [SimpleNamespace(rows=self.rows)]

    def live(self, views: float = 1000.0) -> LiveFlows:
        this: Any = self
        return LiveFlows(this, this, this, Pace(1.0, views), self.told.append)

    def run_until(self, asked: threading.Event) -> None:
        this: Any = self
        selection, pace = Selection(full_refresh=["t"]), Pace(1.0, 1000.0)
        run_until(asked, lambda: self.told.append("can stop"), this, this, this, selection, pace, self.told.append)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(continuous, "LiveFlow", FakeFlow)
    monkeypatch.setattr(runner, "FIRST_PAUSE", 0.0)


def test_a_flow_that_fails_is_started_again_while_the_others_go_on() -> None:
    world = World()
    with world.live() as live:
        first, second = (flow for flow in live._flows if isinstance(flow, FakeFlow))
        first.is_running = False
        live.look()
        live.look()
        assert (first.starts, first.is_running, second.starts) == (2, True, 1)
    assert not first.is_running and not second.is_running, "they are stopped in the end"
    assert world.told == ["the server is away; starting the flow again in 0 s"]
    assert world.states[-2:] == [("a", "FAILED"), ("a", "RUNNING")]


def test_a_mistake_that_no_attempt_can_mend_ends_all_flows() -> None:
    world = World()
    with pytest.raises(RunFailed, match="no such column"), world.live() as live:
        first, second = (flow for flow in live._flows if isinstance(flow, FakeFlow))
        first.is_running, first.why = False, LASTING
        live.look()
    assert not second.is_running


def test_a_first_run_that_fails_is_repeated_with_what_is_to_be_emptied() -> None:
    world, asked = World(PASSING, PASSING), threading.Event()
    asked.wait = lambda timeout=None: (len(world.ran) > 2 and not asked.set()) or asked.is_set()  # type: ignore[method-assign]
    world.run_until(asked)
    assert [each.full_refresh for each in world.ran] == [["t"], ["t"], ["t"]]
    assert world.told == [*["the server is away; running again in 0 s"] * 2, "can stop"]
    with pytest.raises(RunFailed):
        World(LASTING).run_until(threading.Event())


def test_views_are_recomputed_only_when_rows_came() -> None:
    world = World()
    with world.live(views=0.0) as live:
        live.look()
        assert world.recomputed == 0
        world.rows = 5
        live.look()
        live.look()
    assert world.recomputed == 1


def test_a_batch_is_counted_after_a_report_of_waiting_with_its_number() -> None:
    def report(timestamp: str, number: int) -> Any:
        return SimpleNamespace(timestamp=lambda: timestamp, batchId=lambda: number)

    first, waiting, second = report("00:00:01.000Z", 0), report("00:00:02.000Z", 1), report("00:00:02.500Z", 1)
    assert _unseen([first, waiting], "") == [waiting, first]
    assert _unseen([first, waiting, second], waiting.timestamp()) == [second]
