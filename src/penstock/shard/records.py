"""The records of a shard in etcd, and their encoding.

    /penstock/shards/NAME/state         the epoch, its leader, the in-sync set; it stays
    /penstock/shards/NAME/leader        there while the leader's lease holds
    /penstock/shards/NAME/nodes/NODE    there while the node runs: where it is, and how far its log is
    /penstock/shards/NAME/failover      a request to hand over

Everything is JSON. A Snapshot is read whole, and is not changed afterwards.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from penstock.shard.etcd import Etcd, EtcdError, KeyValue

PREFIX = "/penstock/shards/"


def key_of(shard: str, *names: str) -> str:
    """
    >>> key_of("orders", "nodes", "n1")
    '/penstock/shards/orders/nodes/n1'
    """
    return PREFIX + "/".join([shard, *names])


@dataclass(frozen=True, slots=True)
class State:
    """The current or last leader, and the nodes that may lead next."""

    epoch: int
    leader: str
    in_sync: dict[str, str]  # names of nodes, with the ids of their logs
    heir: str = ""  # the node that a leader has handed over to

    def encoded(self) -> str:
        return json.dumps(
            {"epoch": self.epoch, "leader": self.leader, "in_sync": self.in_sync, "heir": self.heir}, sort_keys=True
        )


@dataclass(frozen=True, slots=True)
class Node:
    """A node that runs."""

    host: str
    port: int
    log: str  # the id of its log
    epoch: int = 0  # of the last leader that its log continues
    end: int = 0  # of its log
    standing_for: int = 0  # it follows no leader, its log ends there, and it may lead in this epoch
    lease: int = field(default=0, compare=False)

    def says_the_same_as(self, other: Node) -> bool:
        """Whether it makes no difference to an election which of the two etcd holds."""
        return (self.log, self.standing_for) == (other.log, other.standing_for)

    def encoded(self) -> str:
        names = ("host", "port", "log", "epoch", "end", "standing_for")
        return json.dumps({name: getattr(self, name) for name in names})


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that etcd holds about a shard, at one moment."""

    revision: int  # of etcd
    state: State | None
    state_revision: int  # of the key; 0 if there is none
    leader: str  # the node whose lease holds; empty for none
    leader_revision: int
    leader_lease: int
    nodes: dict[str, Node]
    failover: str | None  # to which node it is to be handed over; empty for any

    @property
    def epoch(self) -> int:
        return self.state.epoch if self.state is not None else 0

    @property
    def is_forgetful(self) -> bool:
        """Whether nodes have data of a later epoch than etcd knows: it has lost what it knew, or part of it."""
        return any(node.epoch > self.epoch for node in self.nodes.values())


def read_shard(etcd: Etcd, shard: str) -> Snapshot:
    """Read a shard; EtcdError if what is there was not written by this program."""
    revision, found = etcd.read(key_of(shard) + "/")
    by_name = {each.key.removeprefix(key_of(shard) + "/"): each for each in found}
    state, leader, failover = by_name.get("state"), by_name.get("leader"), by_name.get("failover")
    try:
        return Snapshot(
            revision,
            State(**_fields(state)) if state is not None else None,
            state.revision if state is not None else 0,
            str(_fields(leader)["node"]) if leader is not None else "",
            leader.revision if leader is not None else 0,
            leader.lease if leader is not None else 0,
            {
                name.removeprefix("nodes/"): Node(**_fields(each), lease=each.lease)
                for name, each in by_name.items()
                if name.startswith("nodes/")
            },
            str(_fields(failover)["to"]) if failover is not None else None,
        )
    except (ValueError, KeyError, TypeError) as error:
        raise EtcdError(f"{key_of(shard)} in etcd is not what this version of Penstock has written: {error}") from None


def _fields(entry: KeyValue) -> dict[str, Any]:
    fields = json.loads(entry.value)
    if not isinstance(fields, dict):
        raise TypeError(f"{entry.key} holds {entry.value[:40]!r}")
    return fields
