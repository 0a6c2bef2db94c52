"""The promises of the packed pipeline under random topologies, migrations, refusals and cuts, against the
model's log.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.client.cluster.model import NODES, TABLE, Model

from penstock.client.cluster.driver_requests import NodeBatch
from penstock.client.cluster.errors import REFUSALS
from penstock.client.cluster.pipeline import PENDING, PackedPipeline
from penstock.client.cluster.plan import Plan
from penstock.client.cluster.routing import CommandTable
from penstock.client.cluster.slot_map import SlotMap
from penstock.client.cluster.strategies import packed, sequential
from penstock.client.delivery import Delivery, State
from penstock.client.errors import DeliveryError, NotSent, OutcomeUnknown
from penstock.protocol.slots import SLOTS, key_slot

TAGS = [b"t", b"u"]
KEYS = [b"{%s}%d" % (tag, number) for tag in TAGS for number in range(2)]
FALSY: list[Any] = [0, b"", None, [], False]

nodes = st.sampled_from(NODES)
keys = st.sampled_from(KEYS)


@st.composite
def calls(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    """Up to a dozen commands of one or several keys, few enough keys that they meet."""
    made: list[tuple[Any, ...]] = []
    for number in range(draw(st.integers(1, 12))):
        name = draw(st.sampled_from(["SET", "GET", "MSET", "MGET"]))
        key = draw(keys)
        others = [k for k in KEYS if k[:3] == key[:3] and k != key]
        several = draw(st.lists(st.sampled_from(others), max_size=2, unique=True)) if name in ("MSET", "MGET") else []
        made.append((name, key, *several, b"%d" % number))
    return made


@st.composite
def events(draw: st.DrawFn) -> str | tuple[str, Any, Any]:
    """What may happen between two commands."""
    kind = draw(st.sampled_from(["none", "none", "begin", "key", "finish", "undo", "refuse", "refuse"]))
    return (kind, draw(st.sampled_from(TAGS)), draw(nodes) if kind == "begin" else draw(keys))


REFUSAL_LINES = ["TRYAGAIN x", "CLUSTERDOWN x", "LOADING x", "READONLY x"]


def happening(model: Model, script: list[Any]) -> Any:
    """A `between` that plays the script, one event a command, then brings every migration to its end."""
    lines = iter(REFUSAL_LINES * 100)

    def between(model: Model) -> str | None:
        if not script:
            for slot, target in model.moving.items():
                model.owners[slot] = target
            model.moving.clear()
            return None
        kind, tag, what = script.pop()
        slot = key_slot(tag)
        if kind == "begin" and slot not in model.moving and what != model.owners.get(slot, NODES[0]):
            model.moving[slot] = what
            model.moved -= {key for key in KEYS if key_slot(key) == slot}
        elif kind == "key" and key_slot(what) in model.moving:
            model.moved.add(what)
        elif kind == "finish" and slot in model.moving:
            model.owners[slot] = model.moving.pop(slot)
        elif kind == "undo" and slot in model.moving:
            del model.moving[slot]
        elif kind == "refuse":
            return next(lines)
        return None

    return between


def conflict(first: tuple[Any, ...], second: tuple[Any, ...]) -> bool:
    both_read = {first[0], second[0]} <= {"GET", "MGET"}
    return not both_read and not set(first[1:-1]).isdisjoint(second[1:-1])


def check(model: Model, made: list[tuple[Any, ...]], results: list[Any], level: Delivery, cuts: bool) -> None:
    times = {call: model.ran.count(call) for call in (made_call[-1] for made_call in made)}
    last = {call: position for position, call in enumerate(model.ran)}
    for made_call, result in zip(made, results, strict=True):
        call = made_call[-1]
        assert result is not PENDING
        if level is Delivery.AT_MOST_ONCE or not cuts:
            assert times[call] <= 1, "it ran twice"
        if isinstance(result, NotSent) or result.__class__ in REFUSALS:
            assert times[call] == 0, "it ran, and we said that it did not"
        elif not isinstance(result, DeliveryError):
            assert times[call] >= 1 and result == model.replies[call], "a reply that is not its own"
    for position, earlier in enumerate(made):
        for place, later in enumerate(made[position + 1 :], position + 1):
            if not conflict(earlier, later) or earlier[-1] not in last or later[-1] not in last:
                continue
            if last[earlier[-1]] > last[later[-1]]:
                # Allowed in one case: both ran, were cut off and sent again; the later one was refused this time while
                # one after it ran. It must not run late, so its only run stays before the earlier one's second, and its
                # error says so. A command that was answered has no such case: every conflicting command that was called
                # before it ran before it.
                assert is_overtaken(results[place]), "order of commands on one key"


def is_overtaken(result: Any) -> bool:
    return isinstance(result, OutcomeUnknown) and "called later on the same key, ran before it" in str(result)


@settings(max_examples=200, deadline=None)
@given(
    made=calls(),
    owners=st.dictionaries(st.sampled_from([key_slot(tag) for tag in TAGS]), nodes),
    believed=st.dictionaries(st.sampled_from([key_slot(tag) for tag in TAGS]), nodes),
    script=st.lists(events(), max_size=40),
    cuts=st.lists(st.none() | st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=5),
    falsy=st.sampled_from(FALSY),
    level=st.sampled_from([Delivery.AT_MOST_ONCE, Delivery.AT_LEAST_ONCE]),
)
def test_whatever_happens_the_promises_hold(
    made: list[tuple[Any, ...]],
    owners: dict[int, Any],
    believed: dict[int, Any],
    script: list[Any],
    cuts: list[tuple[int, int] | None],
    falsy: Any,
    level: Delivery,
) -> None:
    model = Model(owners=dict(owners), reply=lambda call: falsy if int(call) % 2 else call)
    model.between = happening(model, list(script))
    remaining = list(cuts)

    def cut(model: Model, batch: NodeBatch) -> tuple[int, int] | None:
        where = remaining.pop() if remaining else None
        if where is None:
            return None
        executed = min(where[0], len(batch.pieces))
        return executed, min(where[1], executed)

    model.cut = cut
    stale = SlotMap(tuple(believed.get(slot, NODES[0]) for slot in range(SLOTS)), is_covered=True)
    rules = model.rules(delivery=level)
    run = PackedPipeline(model.plan(made), stale, rules)
    results = model.drive(run.run())
    check(model, made, results, level, any(where is not None for where in cuts))
    for result, state in zip(results, run.states, strict=True):
        assert (state is State.REPLIED) == (not isinstance(result, DeliveryError))


@settings(max_examples=30, deadline=None)
@given(made=calls(), script=st.lists(events(), max_size=20))
def test_a_sequential_pipeline_keeps_the_order_over_all_slots(made: list[tuple[Any, ...]], script: list[Any]) -> None:
    model = Model()
    model.between = happening(model, list(script))
    results = model.drive(sequential(made, TABLE, model.map, model.rules()))
    done = [call[-1] for call, result in zip(made, results, strict=True) if not isinstance(result, Exception)]
    assert model.ran == done == [call[-1] for call in made]


@settings(max_examples=100, deadline=None)
@given(
    name=st.sampled_from(["MGET", "MSET", "DEL", "EXISTS"]),
    chosen=st.lists(st.text(alphabet="abcdefg", min_size=1, max_size=2), min_size=2, max_size=8),
)
def test_split_commands_give_what_whole_ones_would(name: str, chosen: list[str]) -> None:
    model = Model(owners={slot: NODES[slot % 3] for slot in range(SLOTS)})
    table = CommandTable.parse(
        [[n, -2, [], 1, -1, 2 if n == b"mset" else 1] for n in (b"mget", b"mset", b"del", b"exists")]
    )
    values: dict[bytes, bytes] = {}

    def answer(node: Any, words: list[bytes], asking: bool) -> Any:
        asked = words[0].decode()
        assert {model.owners[key_slot(key)] for key in words[1 :: 2 if asked == "MSET" else 1]} == {node}
        if asked == "MGET":
            return [b"v" + key for key in words[1:]]
        if asked == "MSET":
            values.update(zip(words[1::2], words[2::2], strict=True))
            return b"OK"
        return len(words) - 1

    model.answer = answer  # type: ignore[method-assign]
    arguments = [word for key in chosen for word in ([key, "v" + key] if name == "MSET" else [key])]
    plan = Plan(table)
    plan.add_all([("MGET", "x"), (name, *arguments), ("EXISTS", "x")], True, model.map)
    _, result, _ = model.drive(packed(plan, model.map, model.rules()))
    whole = {"MGET": [b"v" + key.encode() for key in chosen], "MSET": b"OK"}.get(name, len(chosen))
    assert result == whole
    if name == "MSET":
        assert values == {key.encode(): b"v" + key.encode() for key in chosen}
