"""The events of a cluster client: counters, and on_reconnect and on_replay with the node that they concern."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from tests.support.client.cluster.clients import Connect, Proxied
from tests.support.client.cluster.model import NODES, TABLE, Model

from penstock.client.cluster.call_bounds import ClusterCounters
from penstock.client.cluster.driver_requests import Logic, NodeBatch, Pause
from penstock.client.cluster.pipeline import PackedPipeline
from penstock.client.cluster.plan import Plan
from penstock.client.cluster.transaction import Transaction
from penstock.client.delivery import Command, Delivery, State
from penstock.client.errors import NotReplayed, OutcomeUnknown
from penstock.client.events import Listeners, Reconnected, Replayed
from penstock.protocol.slots import key_slot
from penstock.testing.cluster import RedisCluster

Events = list[Any]


def listening(seen: Events) -> dict[str, Any]:
    return {"on_reconnect": seen.append, "on_replay": seen.append}


def cut_once(executed: int, answered: int) -> Any:
    cuts = [(executed, answered)]
    return lambda model, batch: cuts.pop() if cuts else None


# -- the logic ------------------------------------------------------------------------------------------------


def test_a_replay_is_told_with_its_commands_and_the_node_that_gets_them_now() -> None:
    def die(model: Model, batch: NodeBatch) -> tuple[int, int] | None:
        if batch.address != NODES[0]:
            return None
        model.owners[key_slot(b"x")] = NODES[1]  # the replica has taken over
        model.down.add(NODES[0])
        return 2, 1

    seen: Events = []
    model = Model(cut=die)
    rules = model.rules(listeners=Listeners(on_replay=seen.append))
    done = ClusterCounters()
    calls = [("SET", "x", "0"), ("SET", "x", "1"), ("SET", "x", "2")]
    assert model.drive(PackedPipeline(model.plan(calls), model.map, rules, done=done).run()) == [b"0", b"1", b"2"]
    assert seen == [Replayed([Command("SET", ("x", "1"), State.WRITTEN)], NODES[1])], (
        "what was not written is no replay"
    )
    assert (done.sent, done.replied, done.replayed, done.failed) == (3, 3, 1, 0)


def test_what_follows_its_slot_is_redirected_and_no_replay() -> None:
    seen: Events = []
    model = Model(owners={key_slot(b"x"): NODES[1]})
    rules = model.rules(listeners=Listeners(on_replay=seen.append))
    done, stale = ClusterCounters(), Model().map
    assert model.drive(PackedPipeline(model.plan([("SET", "x", "0")]), stale, rules, done=done).run()) == [b"0"]
    assert (done.redirected, done.sent, done.replayed) == (1, 1, 0) and seen == []


def test_a_transaction_that_is_sent_again_is_told_as_a_whole() -> None:
    seen: Events = []
    model = Model(cut=cut_once(4, 1))
    rules = model.rules(listeners=Listeners(on_replay=seen.append))
    plan = Plan(TABLE)
    for number in range(2):
        plan.add_on_lane(("SET", "{t}a", str(number)))
    model.answer = lambda node, words, asking: [b"OK"] * 2 if words == [b"EXEC"] else b"QUEUED"  # type: ignore[method-assign]
    done = ClusterCounters()
    assert model.drive(Transaction(rules).execute(plan, model.map, done=done)) == [b"OK"] * 2
    commands = [Command("SET", ("{t}a", str(number)), State.WRITTEN) for number in range(2)]
    assert seen == [Replayed(commands, NODES[0])]
    assert (done.sent, done.replayed, done.replied) == (2, 2, 2)


# -- switching while commands wait to be sent again -----------------------------------------------------------


def lost_then_down(model: Model, batch: NodeBatch) -> tuple[int, int] | None:
    model.down.add(batch.address)
    return 1, 0


def pausing(logic: Logic, at: int, act: Any) -> Logic:
    """The same logic; at its n-th pause something happens."""
    result, pauses = None, 0
    try:
        while True:
            request = logic.send(result)
            if isinstance(request, Pause):
                pauses += 1
                if pauses == at:
                    act()
            result = yield request
    except StopIteration as end:
        return end.value


@pytest.mark.parametrize("is_transaction", [False, True])
def test_a_level_that_is_changed_while_a_command_waits_to_be_sent_again_counts_for_it(is_transaction: bool) -> None:
    """With at-most-once what was written fails; what was not is sent by the new slot map."""
    model = Model(cut=lost_then_down)
    rules = model.rules()

    def change() -> None:
        rules.delivery = Delivery.AT_MOST_ONCE
        model.down.clear()

    plan = Plan(TABLE)
    plan.add_on_lane(("SET", "{t}a", "0"))
    if is_transaction:
        logic: Any = Transaction(rules).execute(plan, model.map)
    else:
        logic = PackedPipeline(plan, model.map, rules).run()
    (result,) = model.drive(pausing(logic, 2, change))
    assert isinstance(result, OutcomeUnknown) and result.state is not State.QUEUED
    assert len(model.batches) == 1, "it was not sent again"


@pytest.mark.parametrize("is_transaction", [False, True])
def test_a_level_that_is_raised_in_flight_does_not_count_for_what_was_handed_over(is_transaction: bool) -> None:
    model = Model()
    rules = model.rules(delivery="at-most-once")

    def cut(model: Model, batch: NodeBatch) -> tuple[int, int]:
        rules.delivery = Delivery.AT_LEAST_ONCE
        return 1, 0

    model.cut = cut
    plan = Plan(TABLE, rules.repeats)
    plan.add_on_lane(("SET", "{t}a", "0"))
    if is_transaction:
        logic: Any = Transaction(rules).execute(plan, model.map)
    else:
        logic = PackedPipeline(plan, model.map, rules).run()
    (result,) = model.drive(logic)
    assert isinstance(result, OutcomeUnknown) and result.state is not State.QUEUED
    assert len(model.batches) == 1, "it was not sent again"


def test_a_filter_that_is_set_while_a_command_waits_to_be_sent_again_counts_for_it() -> None:
    model = Model(cut=lost_then_down)
    rules, done = model.rules(), ClusterCounters()

    def change() -> None:
        rules.replay_filter = lambda command: True
        model.down.clear()

    plan = model.plan([("SET", "x", "0")])
    (result,) = model.drive(pausing(PackedPipeline(plan, model.map, rules, done=done).run(), 1, change))
    assert isinstance(result, NotReplayed) and model.ran == [b"0"]
    assert (done.sent, done.failed, done.filtered) == (1, 1, 1)


def test_what_was_not_written_is_sent_by_the_new_view_after_a_change_to_at_most_once() -> None:
    model = Model(down={NODES[0]})
    rules = model.rules()

    def change() -> None:
        rules.delivery = Delivery.AT_MOST_ONCE
        model.owners[key_slot(b"x")] = NODES[1]

    logic = pausing(PackedPipeline(model.plan([("SET", "x", "0")]), model.map, rules).run(), 1, change)
    assert model.drive(logic) == [b"0"]


# -- a real cluster -------------------------------------------------------------------------------------------


@pytest.fixture
def keys(cluster: RedisCluster) -> Iterator[bytes]:
    return cluster.keys_on(cluster.masters[0])


def test_counters_say_what_was_done(cluster: RedisCluster, client: Any) -> None:
    assert client.counters == ClusterCounters()
    client.set("a", 1)
    client.mget("{t}a", "{t}b")
    with client.pipeline() as pipe:
        pipe.set("a", 2).get("b").dbsize().execute()
    with client.pipeline(transaction=True) as pipe:
        pipe.watch("{t}a")
        pipe.multi()
        pipe.set("{t}a", 1).execute()
    client.execute_many([("GET", "a"), ("LPUSH", "a", 1)], raise_on_error=False)
    counters = client.counters
    assert counters.sent == counters.replied == 1 + 1 + 2 + 3 + 2 + 2, (
        "an error of the server is a reply; dbsize asks three"
    )
    assert counters.refreshes == 1 and counters.redirected == counters.failed == counters.reconnects == 0
    assert counters.buffered_commands == counters.buffered_bytes == 0


def test_a_moved_slot_is_counted(cluster: RedisCluster, client: Any) -> None:
    client.set("{t}a", 0)
    source = cluster.owner(key_slot(b"t"))
    cluster.move_slot(key_slot(b"t"), next(master for master in cluster.masters if master is not source))
    assert client.incr("{t}a") == 1
    with client.pipeline(transaction=True) as pipe:
        assert pipe.incr("{t}a").execute() == [2]
    counters = client.counters
    assert (counters.redirected, counters.sent, counters.replied, counters.replayed) == (1, 3, 3, 0)


@pytest.mark.parametrize("as_pipeline", [False, True])
def test_a_cut_connection_is_told_with_its_node(
    as_pipeline: bool, proxied: Proxied, cluster: RedisCluster, connect_through: Connect
) -> None:
    node, other = cluster.masters[:2]
    where = proxied.remap(node.address)
    key, calm = next(cluster.keys_on(node)), next(cluster.keys_on(other))
    seen: Events = []
    client = connect_through(**listening(seen))
    commands = [("INCR", key), ("INCR", calm)] if as_pipeline else [("INCR", key)]
    client.execute_many(commands)
    proxied.before(node).cut_after_execution(command=b"INCR")
    assert client.execute_many(commands)[0] == 3
    assert [event for event in seen if isinstance(event, Replayed)] == [
        Replayed([Command("INCR", (key,), State.WRITTEN)], where)
    ]
    (back,) = [event for event in seen if isinstance(event, Reconnected)]
    assert back.node == where and back.attempts >= 1 and back.outage >= 0
    counters = client.counters
    assert (counters.replayed, counters.reconnects, counters.failed) == (1, 1, 0)
    assert counters.sent == counters.replied == 2 * len(commands)


def test_filtered_and_failed_commands_are_counted(
    proxied: Proxied, cluster: RedisCluster, keys: Iterator[bytes], connect_through: Connect
) -> None:
    client = connect_through(replay_filter=lambda command: command.name == "INCR")
    key = next(keys)
    client.get(key)
    proxied.before(cluster.masters[0]).cut_after_execution(command=b"INCR")
    with pytest.raises(NotReplayed):
        client.execute_command("INCR", key)
    counters = client.counters
    assert (counters.sent, counters.replied, counters.failed, counters.filtered) == (2, 1, 1, 1)


def test_a_listener_may_use_the_client_and_may_fail(
    proxied: Proxied, cluster: RedisCluster, keys: Iterator[bytes], connect_through: Connect, caplog: Any
) -> None:
    node, seen = cluster.masters[0], []
    first, second = islice(keys, 2)

    def listen(event: Any) -> None:
        if hasattr(client, "execute_many") and not hasattr(client, "real"):  # a task cannot wait in a callback
            seen.append(client.execute_many([("GET", first)]))
        seen.append(event)
        raise RuntimeError("a bug")

    client = connect_through(on_reconnect=listen, on_replay=listen)
    client.set(first, 1)
    proxied.before(node).cut_after_execution(command=b"SET")
    assert client.set(second, 2) is True
    assert any(isinstance(event, Reconnected) for event in seen) and "a listener failed" in caplog.text


def test_a_client_is_not_pickled(client: Any) -> None:
    with pytest.raises(TypeError, match="make one from its arguments"):
        pickle.dumps(getattr(client, "real", client))
