"""The four ways to run a pipeline over a cluster, as logic without I/O; docs/cluster.md says when to use which.

sequential    one command after the other: the order of calls holds over the whole cluster; a round trip each
packed        packed.run(): one batch a node, all at once; the order of calls holds for each key
single-slot   all keys in one slot, so one node: one batch, or one MULTI/EXEC, after WATCH if wanted (transaction.py)
two-step      first every node confirms that it serves the slots and that none of them is moving, then packed
"""

from __future__ import annotations

import enum
import math
from collections.abc import Container, Generator, Mapping, Sequence
from typing import Any

from penstock.client.choice_by_name import chosen
from penstock.client.cluster.call_bounds import ClusterCounters
from penstock.client.cluster.driver_requests import DriverRequest, Exchange, NodeBatch, Outcome, Pause, Refresh, Rules
from penstock.client.cluster.errors import CrossSlotRefused, unsent
from penstock.client.cluster.pipeline import PackedPipeline
from penstock.client.cluster.plan import UNKEYED, Call, Plan
from penstock.client.cluster.routing import CommandTable
from penstock.client.cluster.slot_map import Address, SlotMap, shown
from penstock.client.engine.command_kinds import name_of
from penstock.client.errors import DeliveryError, NotSent
from penstock.protocol.resp import pack


class Strategy(enum.Enum):
    """How a pipeline is run; docs/cluster.md says when to use which."""

    SEQUENTIAL = "sequential"
    PACKED = "packed"
    SINGLE_SLOT = "single-slot"
    TWO_STEP = "two-step"

    @classmethod
    def of(cls, value: Strategy | str) -> Strategy:
        return chosen(cls, value, f"strategy={value!r} is no strategy; the strategies are")


def make_plan(
    calls: Sequence[Call],
    table: CommandTable,
    split: bool,
    slot_map: SlotMap,
    raw: Container[int] | None = None,
    repeats: bool = True,
) -> Plan:
    """All calls in one plan, or an exception and nothing sent; replies to the calls in `raw` are not decoded."""
    plan = Plan(table, repeats)
    plan.add_all(calls, split, slot_map)
    if raw:
        plan.keep_raw(raw)
    return plan


def packed(
    plan: Plan, slot_map: SlotMap, rules: Rules, until: float = math.inf, done: ClusterCounters | None = None
) -> Generator[DriverRequest, Any, list[Any]]:
    """One batch a node; `until` and `done` as for all of these: when the call's time is up, and where it counts what it
    does.
    """
    results = yield from PackedPipeline(plan, slot_map, rules, until, done).run()
    return plan.collect(results)


def sequential(
    calls: Sequence[Call], table: CommandTable, slot_map: SlotMap, rules: Rules, raw: Container[int] = frozenset(),
    split: bool = False, repeats: bool = True, until: float = math.inf, done: ClusterCounters | None = None,
) -> Generator[DriverRequest, Any, list[Any]]:  # fmt: skip
    """One command after the other. The first that ends without a reply ends the pipeline: what follows is not sent."""
    make_plan(calls, table, split, slot_map)  # what must be refused is refused before the first is sent
    done = done or ClusterCounters()
    results: list[Any] = []
    for position, call in enumerate(calls):
        plan = make_plan([call], table, split, slot_map, {0} if position in raw else None, repeats)
        (result,) = yield from packed(plan, slot_map, rules, until, done)
        results.append(result)
        if isinstance(result, DeliveryError):
            text = f"not sent, because command {position + 1} of the pipeline ended without a reply"
            rest = [NotSent(f"{name_of(rest)} was {text}", command=name_of(rest)) for rest in calls[position + 1 :]]
            done.count_results(rest)
            results += rest
            break
        slot_map = yield Refresh(suspect=None)  # what the last command learned
    return results


def single_slot(plan: Plan) -> int:
    """The one slot of a plan; CrossSlotRefused if there are several."""
    slots = {slot: index for index, slot in enumerate(plan.slots) if slot != UNKEYED}
    if len(slots) > 1:
        keys = {plan.route(index).keys[0]: slot for slot, index in slots.items()}
        raise CrossSlotRefused("a single-slot pipeline", keys)
    return next(iter(slots), UNKEYED)


# -- two steps ------------------------------------------------------------------------------------------------

_NODES = pack(b"CLUSTER", b"NODES")
_INFO = pack(b"CLUSTER", b"INFO")


def two_step(
    plan: Plan, slot_map: SlotMap, rules: Rules, until: float = math.inf, done: ClusterCounters | None = None
) -> Generator[DriverRequest, Any, list[Any]]:
    """Ask every node concerned whether it serves its slots and none of them moves; send only when all say yes.

    Between the two steps a migration may begin all the same; what is then redirected is handled as in a packed
    pipeline.
    """
    started, attempt = rules.clock(), 0
    while True:
        wanted: dict[Address, set[int]] = {}
        doubts = []
        for slot in set(plan.slots) - {UNKEYED}:
            owner = slot_map.owners[slot]
            if owner is None:
                doubts.append(f"no node serves slot {slot}")
            else:
                wanted.setdefault(owner, set()).add(slot)
        outcomes: list[Outcome] = yield Exchange(
            [NodeBatch(address, [_NODES, _INFO], [-1, -1]) for address in wanted], until=until
        )
        doubts += [
            doubt
            for (address, slots), outcome in zip(wanted.items(), outcomes, strict=True)
            if (doubt := _doubt(address, slots, outcome))
        ]
        if not doubts:
            return (yield from packed(plan, slot_map, rules, until, done))
        attempt += 1
        now = rules.clock()
        if now - started >= rules.patience or now >= until:
            why = f"the cluster was not at rest after {attempt} looks at it: {'; '.join(doubts[:3])}"
            names = [name_of(call) for call in plan.commands]
            results = [unsent(f"{name} was not sent: {why}", name, None, is_late=now >= until) for name in names]
            (done or ClusterCounters()).count_results(results)
            return plan.collect(results)
        slot_map = yield Refresh(suspect=slot_map, until=until)
        yield Pause(min(rules.backoff(attempt), until - rules.clock()))


def _doubt(address: Address, slots: set[int], outcome: Outcome) -> str:
    """The reason not to send commands for these slots to this node; empty if there is none."""
    where = shown(address)
    if outcome.error is not None:
        return f"{where}: {outcome.error}"
    for reply in outcome.replies:
        if isinstance(reply, Exception):
            return f"{where}: {reply}"
    nodes, info = (reply if isinstance(reply, str) else reply.decode() for reply in outcome.replies)
    if "cluster_state:ok" not in info:
        return f"{where} says that the cluster is down"
    owned, moving = _own_slots(nodes)
    if open_slots := slots & moving.keys():
        return f"{where}: slot {min(open_slots)} is {moving[min(open_slots)]}"
    if missing := slots - owned:
        return f"{where} does not serve slot {min(missing)}"
    return ""


def _own_slots(nodes: str) -> tuple[set[int], Mapping[int, str]]:
    """From CLUSTER NODES: the slots of the node that answered, and those that it gives or takes.

    >>> _own_slots("5f17 127.0.0.1:7000@17000 myself,master - 0 0 1 connected 0-2 9 [77->-9ab2] [93-<-4c1d]")
    ({0, 1, 2, 9}, {77: 'migrating', 93: 'importing'})
    """
    mine = next((line for line in nodes.splitlines() if "myself" in line.split()[2]), "")
    owned: set[int] = set()
    moving: dict[int, str] = {}
    for word in mine.split()[8:]:
        if word.startswith("["):
            slot, _, direction = word[1:].partition("-")
            moving[int(slot)] = "migrating" if direction.startswith(">") else "importing"
        else:
            first, _, last = word.partition("-")
            owned.update(range(int(first), int(last or first) + 1))
    return owned, moving
