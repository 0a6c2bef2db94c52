"""Which node leads next: from what etcd holds to a decision."""

from __future__ import annotations

from penstock.shard.election import PATIENCE, candidates, may_take_the_lead, next_state
from penstock.shard.records import Node, Snapshot, State


def node(name: str, end: int = 100, epoch: int = 3, standing_for: int = 4, log: str = "") -> Node:
    return Node("host", 1, log or f"log of {name}", epoch, end, standing_for)


def snapshot(nodes: dict[str, Node], in_sync: str = "a b c", leader: str = "", heir: str = "") -> Snapshot:
    state = State(3, "a", {name: f"log of {name}" for name in in_sync.split()}, heir)
    return Snapshot(1, state, 1, leader, 1 if leader else 0, 0, nodes, None)


def leaders(shard: Snapshot, waited: float = 0.0) -> list[str]:
    return [name for name in "abcd" if may_take_the_lead(shard, name, waited)]


def test_the_furthest_node_leads_when_all_have_said_how_far_they_are() -> None:
    shard = snapshot({"b": node("b", 100), "c": node("c", 120)})
    assert leaders(shard) == ["c"]
    assert leaders(snapshot({"b": node("b", 100), "c": node("c", 120, standing_for=0)})) == []


def test_a_log_of_a_later_epoch_is_further_however_long_the_other_is() -> None:
    assert leaders(snapshot({"b": node("b", 100), "c": node("c", 900, epoch=2)})) == ["b"]


def test_a_node_that_says_nothing_is_waited_for_a_while_only() -> None:
    shard = snapshot({"b": node("b", 100), "c": node("c", 120, standing_for=3)})
    assert leaders(shard, PATIENCE) == ["b"]


def test_any_node_that_may_lead_does_if_the_furthest_one_does_not() -> None:
    assert leaders(snapshot({"b": node("b", 100), "c": node("c", 120)}), 2 * PATIENCE) == ["b", "c"]


def test_only_nodes_in_sync_with_the_log_they_had_may_lead() -> None:
    shard = snapshot({"b": node("b", log="another"), "c": node("c", 1), "d": node("d", 999)})
    assert leaders(shard, 2 * PATIENCE) == ["c"]
    assert leaders(snapshot({"d": node("d")}), 2 * PATIENCE) == []


def test_no_node_takes_the_lead_from_another() -> None:
    assert leaders(snapshot({"b": node("b"), "c": node("c")}, leader="a"), 2 * PATIENCE) == []


def test_the_node_that_was_handed_over_to_comes_first() -> None:
    nodes = {"a": node("a", 120), "b": node("b", 120), "c": node("c", 120)}
    assert leaders(snapshot(nodes, heir="b")) == ["b"]


def test_any_node_leads_a_new_shard_or_one_whose_data_was_given_up() -> None:
    new = Snapshot(1, None, 0, "", 0, 0, {"b": node("b", epoch=0, standing_for=1)}, None)
    assert leaders(new) == ["b"]
    assert next_state(new, "b", 1) == State(1, "b", {"b": "log of b"})
    assert leaders(snapshot({"d": node("d")}, in_sync="")) == ["d"]


def test_no_node_leads_if_etcd_knows_less_than_the_nodes() -> None:
    nodes = {"b": node("b", epoch=0, standing_for=1), "c": node("c", standing_for=1)}
    assert leaders(Snapshot(1, None, 0, "", 0, 0, nodes, None), 2 * PATIENCE) == []
    assert leaders(snapshot({"b": node("b"), "c": node("c", epoch=4)}), 2 * PATIENCE) == []


def test_nodes_that_do_not_run_leave_the_set_if_enough_are_left() -> None:
    shard = snapshot({"b": node("b"), "c": node("c")})
    assert set(candidates(shard)) == {"b", "c"}
    assert sorted(next_state(shard, "b", 1).in_sync) == ["b", "c"]
    assert sorted(next_state(shard, "b", 2).in_sync) == ["a", "b", "c"]
    assert next_state(shard, "b", 1).epoch == 4
