"""Chooses the next leader. Pure: it decides from the state in etcd.

Only nodes of the in-sync set may lead: each of them has everything that was acknowledged. Those that run take part:
each stops following, so that its log does not grow any more, and says in etcd where its log ends. When all have done
so, or after PATIENCE, the furthest one takes the lead with a transaction, which fails if another was quicker. The
order of the nodes is a matter of taste only; safety is in the set and in the transaction.

An etcd that has lost its data does not know who has everything. No node leads then: that an operator says which node's
data counts (`penstock shard restore`) is better than to lose what was acknowledged.
"""

from __future__ import annotations

from penstock.shard.records import Node, Snapshot, State

PATIENCE = 0.5
"""Seconds that nodes have for saying where their logs end, and after that for taking the lead."""


def candidates(snapshot: Snapshot) -> dict[str, Node]:
    """The nodes that run and may lead."""
    state = snapshot.state
    if state is None or not state.in_sync:  # a new shard, or one whose data was given up
        return snapshot.nodes
    return {name: node for name, node in snapshot.nodes.items() if state.in_sync.get(name) == node.log}


def may_take_the_lead(snapshot: Snapshot, me: str, waited: float) -> bool:
    """Whether this node should try to lead now, `waited` seconds after it saw that there is no leader."""
    if snapshot.leader or snapshot.is_forgetful:
        return False
    able, epoch = candidates(snapshot), snapshot.epoch + 1
    ready = {name: node for name, node in able.items() if node.standing_for == epoch}
    if me not in ready:
        return False
    if len(ready) < len(able) and waited < PATIENCE:
        return False
    heir = snapshot.state.heir if snapshot.state is not None else ""
    best = max(ready, key=lambda name: (name == heir, ready[name].epoch, ready[name].end, name))
    return best == me or waited >= 2 * PATIENCE


def next_state(snapshot: Snapshot, me: str, wanted: int) -> State:
    """The state in etcd when this node leads.

    Nodes of the in-sync set that do not run leave it, if `wanted` others are left: a write would wait for them.
    """
    able = candidates(snapshot)
    log = snapshot.nodes[me].log
    if snapshot.state is None or not snapshot.state.in_sync:
        return State(snapshot.epoch + 1, me, {me: log})
    running = {name: node.log for name, node in able.items()}
    in_sync = running if len(running) - 1 >= wanted else {**snapshot.state.in_sync, me: log}
    return State(snapshot.epoch + 1, me, in_sync)
