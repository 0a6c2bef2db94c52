"""The slot map, and which nodes are asked for it."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.client.cluster.driver_requests import Exchange, Outcome, Rules
from penstock.client.cluster.errors import NoTopology
from penstock.client.cluster.slot_map import Address, SlotMap, parse_slots
from penstock.client.cluster.topology import Topology
from penstock.protocol.slots import SLOTS

A, B, C = ("a", 1), ("b", 2), ("c", 3)
ROWS = [[0, 99, [b"a", 1, b"id"], [b"c", 3, b"id"]], [100, SLOTS - 1, [b"b", 2, b"id"]]]
COMMAND = [[b"get", 2, [b"readonly"], 1, 1, 1]]


def test_a_map_says_who_owns_and_who_follows() -> None:
    slot_map = parse_slots(ROWS, A)
    assert (slot_map.owners[99], slot_map.owners[100]) == (A, B)
    assert slot_map.masters == (A, B) and slot_map.nodes == (A, B, C)
    assert slot_map.is_covered


def test_a_move_makes_a_new_map_and_leaves_the_old_one() -> None:
    old = parse_slots(ROWS, A, epoch=3)
    new = old.with_moves({5: B, 6: C})
    assert (new.owners[5], new.owners[6], new.owners[7]) == (B, C, A)
    assert old.owners[5] == A
    assert new.epoch == 3


def test_slots_without_an_owner_are_seen() -> None:
    slot_map = parse_slots(ROWS[:1], A)
    assert not slot_map.is_covered and slot_map.owners[100] is None


def test_hosts_that_a_node_does_not_know_are_its_own() -> None:
    for unknown in (b"", None, b"?"):
        assert parse_slots([[0, 1, [unknown, 7, b"id"]]], ("asked", 1)).owners[0] == ("asked", 7)


def test_addresses_are_remapped_everywhere() -> None:
    slot_map = parse_slots(ROWS, A, remap=lambda address: (address[0] + ".outside", address[1]))
    assert slot_map.nodes == (("a.outside", 1), ("b.outside", 2), ("c.outside", 3))


@pytest.mark.parametrize("reply", [b"OK", [[0]], [[0, 1, b"x"]], [[0, 1, [b"h", b"port"]]], [[0, SLOTS, [b"h", 1]]], 5])
def test_nonsense_is_refused(reply: Any) -> None:
    with pytest.raises(ValueError, match="a:1 answered CLUSTER SLOTS with"):
        parse_slots(reply, A)


# -- who is asked ---------------------------------------------------------------------------------------------


class World:
    """Nodes that answer, or do not."""

    def __init__(self, *alive: Address) -> None:
        self.alive = set(alive)
        self.asked: list[Address] = []
        self.now = 100.0
        self.rows: Any = ROWS

    def topology(self, **changes: Any) -> Topology:
        return Topology([A, B, C], Rules(clock=lambda: self.now, **changes))

    def refresh(self, topology: Topology, moves: dict[int, Address] | None = None) -> SlotMap:
        logic = topology.refresh(moves or {})
        result: Any = None
        try:
            while True:
                request = logic.send(result)
                assert isinstance(request, Exchange)
                (batch,) = request.batches
                self.asked.append(batch.address)
                replies = [self.rows, COMMAND][: len(batch.pieces)]
                alive = batch.address in self.alive
                result = [Outcome(replies) if alive else Outcome([], OSError("dead"), connected=False)]
        except StopIteration as end:
            slot_map: SlotMap = end.value
            return slot_map


def test_one_node_after_the_other_is_asked_until_one_knows() -> None:
    world = World(C)
    topology = world.topology()
    assert world.refresh(topology).masters == (A, B)
    assert world.asked == [A, B, C]
    assert topology.table is not None and topology.table.route(("GET", "k")).slot is not None


def test_an_unknown_topology_is_an_error_only_at_the_start() -> None:
    world = World()
    topology = world.topology()
    with pytest.raises(NoTopology, match="a:1: dead; b:2: dead; c:3: dead"):
        world.refresh(topology)
    world.alive = {A}
    first = world.refresh(topology)
    world.alive = set()
    assert world.refresh(topology) is first, "an old map is better than none"
    assert world.refresh(topology, {7: C}).owners[7] == C


def test_the_node_that_moved_named_is_asked_first() -> None:
    world = World(A, B, C)
    topology = world.topology()
    world.refresh(topology)
    world.asked.clear()
    assert world.refresh(topology, {7: C}).owners[7] == C, "it knows better than the map that was answered"
    assert world.asked == [C]


def test_a_map_is_not_asked_for_twice() -> None:
    world = World(A)
    topology = world.topology(refresh_interval=1.0)
    assert not topology.is_fresh(None), "there is none yet"
    first = world.refresh(topology)
    assert topology.is_fresh(first), "it was asked for a moment ago"
    world.now += 2.0
    assert not topology.is_fresh(first)
    second = world.refresh(topology)
    world.now += 2.0
    assert topology.is_fresh(first), "there is a newer one than that"
    assert not topology.is_fresh(second)
    topology.learn({7: C})
    assert not topology.is_fresh(second), "one moved slot does not make a map new"


def test_a_node_that_knows_of_no_master_is_passed_over() -> None:
    world = World(A)
    world.rows = []
    with pytest.raises(NoTopology, match="it knows of no master"):
        world.refresh(world.topology())
