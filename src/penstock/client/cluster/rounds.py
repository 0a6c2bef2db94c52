"""Chooses the commands of a pipeline for the next round, and the node of each.

All commands of a slot go to one node in one round, in call order; a command behind one that has to wait, waits too. A
command with several keys may be told TRYAGAIN while a later one on the same key would run, so it closes the gate of its
slot until its reply is there. The usual round, everything to the owner of its slot, costs a few look-ups a command.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from penstock.client.cluster.driver_requests import NodeBatch, Rules
from penstock.client.cluster.plan import UNKEYED, Plan
from penstock.client.cluster.routing import Route
from penstock.client.cluster.slot_map import Address, SlotMap
from penstock.protocol.resp import pack

ASKING = pack(b"ASKING")
ALONG = -1
"""In the place of a command's index: a piece that is sent along with the commands, such as ASKING."""


class RoundPlanner:
    """See the top of this file."""

    def __init__(self, plan: Plan, slot_map: SlotMap, rules: Rules) -> None:
        self._plan = plan
        self._rules = rules
        self.map = slot_map
        self.asks: dict[int, Address] = {}
        """Where a node has asked to send a command, in the next round only."""
        self._wake: dict[int, float] = {}  # slots that must wait
        self._avoided: set[Address] = set()  # replicas that did not serve a read
        self._written: set[int] = set()  # slots that were written to, when reads may go to replicas
        self._turn = 0  # which master gets commands without a key
        # No question of order or place, as long as nothing goes wrong: one key each, of a slot, from its master.
        self.is_plain = not (plan.several or plan.pinned or plan.raw or plan.has_unkeyed or rules.read_from_replicas)

    def pause(self, slot: int, seconds: float) -> None:
        """Send nothing of this slot for so long."""
        if seconds > 0.0:
            self._wake[slot] = max(self._wake.get(slot, 0.0), self._rules.clock() + seconds)

    def next_wake(self, pending: Sequence[int], now: float) -> float:
        """When the first of these commands may be sent."""
        return min(self._wake.get(self._plan.slots[index], now) for index in pending)

    def avoid_replica(self, batch: NodeBatch) -> None:
        """Read from another node: the master, or a replica that a newer map names."""
        if batch.from_replica:
            self._avoided.add(batch.address)

    def use_another_master(self) -> None:
        """For commands without a key."""
        self._turn += 1

    def next_round(self, pending: Sequence[int]) -> tuple[list[NodeBatch], list[int]]:
        """The batches of the next round, and commands whose slots no node serves."""
        if self.is_plain and not self.asks and not self._wake and self.map.is_covered:
            return self._plain_round(pending), []
        return self._careful_round(pending, self._rules.clock())

    def _plain_round(self, pending: Sequence[int]) -> list[NodeBatch]:
        """The common case, also after a reshard: everything to the owner of its slot. A few look-ups a command."""
        slots, owners, packed = self._plan.slots, self.map.owners, self._plan.packed
        groups: dict[int, list[int]] = defaultdict(list)  # by identity, which is quicker to hash than an address
        for index in pending:
            groups[id(owners[slots[index]])].append(index)
        batches = []
        for group in groups.values():
            owner = owners[slots[group[0]]]
            assert owner is not None  # the map is covered
            batches.append(NodeBatch(owner, [packed[index] for index in group], group, patience=self._plan.patience))
        return batches

    def _careful_round(self, pending: Sequence[int], now: float) -> tuple[list[NodeBatch], list[int]]:
        """Every pending command whose turn it is: nothing before it in its slot waits, goes elsewhere or conflicts."""
        plan, slots = self._plan, self._plan.slots
        batches: dict[tuple[Address, bool], NodeBatch] = {}
        heads: dict[int, tuple[Address, bool, bool]] = {}  # where the slot's commands go in this round
        gates: dict[int, _Gate] = {}  # of slots that have a command of several keys on its way
        closed = {slot for slot, until in self._wake.items() if until > now}
        uncovered: list[int] = []
        for index in pending:
            slot = slots[index]
            if slot in closed:
                continue
            destination = self._destination(index)
            if destination is None:
                closed.add(slot)
                uncovered.append(index)
                continue
            gate = gates.get(slot)
            if heads.setdefault(slot, destination) != destination or (gate and gate.holds_back(plan.route(index))):
                closed.add(slot)
                continue
            if index in plan.several:
                gates.setdefault(slot, _Gate()).add(plan.route(index))
            address, asking, from_replica = destination
            batch = batches.get((address, from_replica))
            if batch is None:
                batch = batches[address, from_replica] = NodeBatch(address, [], [], from_replica, plan.patience)
            if asking:
                del self.asks[index]
                batch.pieces.append(ASKING)
                batch.indices.append(ALONG)
            if index in plan.raw:
                batch.raw |= {len(batch.pieces)}
            batch.pieces.append(plan.packed[index])
            batch.indices.append(index)
        return list(batches.values()), uncovered

    def _destination(self, index: int) -> tuple[Address, bool, bool] | None:
        """(address, with ASKING, from a replica); None if no node serves the slot."""
        slot = self._plan.slots[index]
        if index in self._plan.pinned:
            return (self._plan.pinned[index], False, False)
        if index in self.asks:
            return (self.asks[index], True, False)
        owner = self._any_master() if slot == UNKEYED else self.map.owners[slot]
        if owner is None:
            return None
        if self._rules.read_from_replicas and slot != UNKEYED:
            # A read sees what this pipeline wrote before it only if the master answers it.
            if slot in self._written or not self._plan.route(index).reads:
                self._written.add(slot)
            elif replicas := [node for node in self.map.replicas.get(owner, ()) if node not in self._avoided]:
                return (replicas[slot % len(replicas)], False, True)
        return (owner, False, False)

    def _any_master(self) -> Address | None:
        masters = self.map.masters
        return masters[self._turn % len(masters)] if masters else None


class _Gate:
    """The keys of a slot that commands of several keys, on their way, read and write."""

    __slots__ = ("_reads", "_writes")

    def __init__(self) -> None:
        self._reads: set[bytes] = set()
        self._writes: set[bytes] = set()

    def add(self, route: Route) -> None:
        (self._reads if route.reads else self._writes).update(route.keys)

    def holds_back(self, route: Route) -> bool:
        """Whether this command could tell that it ran before one of them."""
        return not self._writes.isdisjoint(route.keys) or (not route.reads and not self._reads.isdisjoint(route.keys))
