"""The in-sync set: whatever happens to nodes and to requests to etcd, its members have all that was acknowledged."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.replication.in_sync import InSync, Members

NODES = ("b", "c", "d")
LAG = 1.0


@dataclass(eq=False)
class Following:
    """What a leader knows of a replica that is connected (replication/link.py)."""

    node: str
    log: str
    acknowledged: int
    goal: int
    goal_set: float
    position: int
    session: Any = field(default_factory=lambda: SimpleNamespace(closing=False))
    online: bool = True


class Feed:
    """What the set asks of a leader's links (replication/replicas.py): time and the feed are what the test says."""

    def __init__(self) -> None:
        self.links: dict[str, Following] = {}
        self.end = 10
        self.time = 0.0

    def now(self) -> float:
        return self.time


class World(RuleBasedStateMachine):
    """A leader `a`, three nodes that come and go, and an etcd that answers late, wrongly addressed, or not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.feed = Feed()
        self.logs = {"b": ("b0", 10), "c": ("c0", 7), "d": ("d0", 10)}  # the id and the end of each log
        self.held: Members = {"a": "a0", "b": "b0", "c": "c0"}  # by etcd
        self.revision = 1
        self.asked: tuple[Members, int] | None = None  # on its way to etcd, with the revision that it requires
        self.adrift: list[tuple[Members, int]] = []  # requests that were given up, and may still arrive
        self.acknowledged = 5  # by an earlier leader; `c` has yet to get the rest
        self.wanted = 1
        self.set = InSync(self.feed, "a", dict(self.held), lambda: self.wanted, lambda: LAG, self.ask)  # type: ignore[arg-type]

    def ask(self, wish: Members) -> None:
        assert self.asked is None, "one at a time"
        self.asked = (dict(wish), self.revision)

    def run(self, request: tuple[Members, int]) -> bool:
        wish, revision = request
        if revision != self.revision:
            return False
        self.held, self.revision = wish, self.revision + 1
        return True

    # -- the leader and its nodes -------------------------------------------------------------------------------

    @rule(behind=st.sets(st.sampled_from(NODES)))
    def write_and_acknowledge(self, behind: set[str]) -> None:
        self.feed.end += 5
        for node, link in self.feed.links.items():
            link.position = self.feed.end
            if node not in behind:
                self.logs[node] = (link.log, self.feed.end)
                link.acknowledged = self.feed.end
        offset = self.set.offset()
        if offset is not None:
            self.acknowledged = max(self.acknowledged, offset)

    @rule(node=st.sampled_from(NODES))
    def connect(self, node: str) -> None:
        log, end = self.logs[node]
        self.feed.links[node] = Following(node, log, 0, 0, self.feed.time, self.feed.end)
        self.logs[node] = (log, min(end, self.feed.end))

    @rule(node=st.sampled_from(NODES))
    def disconnect(self, node: str) -> None:
        self.feed.links.pop(node, None)
        self.set.look()

    @rule(node=st.sampled_from(NODES))
    def copy_everything_from_the_leader(self, node: str) -> None:
        """It has nothing at first, under a new id."""
        log, _ = self.logs[node]
        self.logs[node] = (f"{node}{int(log[1:]) + 1}", 0)
        self.feed.links.pop(node, None)
        self.connect(node)

    @rule(seconds=st.sampled_from([0.1, 0.6, 1.5]))
    def time_passes(self, seconds: float) -> None:
        self.feed.time += seconds
        for link in self.feed.links.values():
            if link.acknowledged >= link.goal:
                link.goal, link.goal_set = self.feed.end, self.feed.time
        self.set.look()

    @rule(wanted=st.integers(1, 2))
    def replica_acks_change(self, wanted: int) -> None:
        self.wanted = wanted

    # -- etcd -------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.asked is not None)
    @rule(answer=st.sampled_from(["done", "done, and the answer is lost", "lost", "late"]))
    def etcd_is_asked(self, answer: str) -> None:
        assert self.asked is not None
        request, self.asked = self.asked, None
        done = answer.startswith("done") and self.run(request)
        if answer == "late":
            self.adrift.append(request)
        self.set.answered(request[0] if done and answer == "done" else None)

    @precondition(lambda self: bool(self.adrift))
    @rule()
    def a_late_request_arrives(self) -> None:
        self.run(self.adrift.pop(0))

    @rule(node=st.sampled_from(NODES))
    def an_operator_removes_a_node(self, node: str) -> None:
        if self.asked is None and not self.adrift and self.held == self.set.members and node in self.held:
            self.held = {name: log for name, log in self.held.items() if name != node}
            self.revision += 1
            self.set.removed([node])

    # -- what must hold ---------------------------------------------------------------------------------------

    @invariant()
    def members_have_all_that_was_acknowledged(self) -> None:
        for node, log in self.held.items():
            if node != "a" and self.logs[node][0] == log:
                assert self.logs[node][1] >= self.acknowledged, f"{node} may lead, and lacks something"


TestInSync = World.TestCase
TestInSync.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("answer", ["done, and the answer is lost", "late"])
def test_a_node_that_etcd_may_have_added_is_waited_for_until_a_later_answer(answer: str) -> None:
    world = World()
    for node in NODES:
        world.connect(node)
    world.write_and_acknowledge(set())
    world.time_passes(0.1)
    assert world.asked == ({"a": "a0", "b": "b0", "c": "c0", "d": "d0"}, 1)
    world.etcd_is_asked(answer)
    world.disconnect("d")
    if answer == "late":
        world.a_late_request_arrives()
    world.write_and_acknowledge(set())
    world.members_have_all_that_was_acknowledged()
    assert world.acknowledged < world.feed.end
    world.time_passes(0.1)
    while world.asked is not None:  # once more, if it requires a revision that is gone
        world.etcd_is_asked("done")
        world.time_passes(0.1)
    assert "d" not in world.held
    world.write_and_acknowledge(set())
    assert world.acknowledged == world.feed.end


def test_a_node_that_is_gone_is_waited_for_until_etcd_has_removed_it() -> None:
    world = World()
    world.connect("b")
    world.connect("c")
    world.time_passes(0.1)
    world.disconnect("c")
    assert world.asked == ({"a": "a0", "b": "b0"}, 1)
    world.write_and_acknowledge(set())
    assert world.acknowledged == 5
    world.etcd_is_asked("done")
    world.write_and_acknowledge(set())
    assert world.acknowledged == world.feed.end


def test_the_last_nodes_that_are_wanted_stay_in_the_set_when_they_are_gone() -> None:
    world = World()
    world.connect("b")
    world.connect("c")
    world.time_passes(0.1)
    world.disconnect("b")
    world.etcd_is_asked("done")
    world.disconnect("c")
    world.time_passes(1.5)
    assert world.asked is None and world.held == {"a": "a0", "c": "c0"}
    world.write_and_acknowledge(set())
    assert world.acknowledged == 5


def test_what_an_earlier_leader_left_is_confirmed_when_all_members_have_it() -> None:
    world = World()
    world.connect("b")
    world.connect("c")
    world.feed.links["b"].acknowledged, world.feed.links["c"].acknowledged = 10, 7
    assert world.set.offset() == 7
    world.feed.links["c"].acknowledged = 10
    assert world.set.offset() == 10
