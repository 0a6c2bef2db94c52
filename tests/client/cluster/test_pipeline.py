"""The packed pipeline on a model of a cluster: redirects, order, replays, and what each failure is called."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from tests.support.client.cluster.model import NODES, TABLE, Model

from penstock.client.cluster.driver_requests import Exchange, NodeBatch, Outcome, Refresh, Rules
from penstock.client.cluster.errors import CrossSlotRefused, NotRoutable
from penstock.client.cluster.pipeline import PackedPipeline
from penstock.client.cluster.plan import Plan
from penstock.client.cluster.slot_map import SlotMap
from penstock.client.cluster.strategies import sequential
from penstock.client.cluster.transaction import Transaction
from penstock.client.delivery import Command, Delivery, State
from penstock.client.errors import ExactlyOnceUnavailable, NotReplayed, NotSent, OutcomeUnknown
from penstock.protocol.slots import SLOTS, key_slot

A, B, C = NODES
T = key_slot(b"t")


def run(model: Model, calls: list[tuple[Any, ...]], slot_map: SlotMap | None = None, **rules: Any) -> list[Any]:
    packed = PackedPipeline(model.plan(calls), slot_map or model.map, model.rules(**rules))
    results = model.drive(packed.run())
    assert packed.states == [
        result.state if isinstance(result, NotSent | OutcomeUnknown) else State.REPLIED for result in results
    ]
    return list(results)


def sets(*keys: str) -> list[tuple[str, str, str]]:
    """One SET a key, each named by its position."""
    return [("SET", key, str(position)) for position, key in enumerate(keys)]


# -- packing --------------------------------------------------------------------------------------------------


def test_each_node_gets_one_batch_and_answers_are_in_call_order() -> None:
    model = Model(owners={key_slot(b"y"): B, key_slot(b"z"): C})
    assert run(model, sets("x", "y", "z", "x", "y", "z")) == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert model.batches == [
        (A, [b"SET x 0", b"SET x 3"]),
        (B, [b"SET y 1", b"SET y 4"]),
        (C, [b"SET z 2", b"SET z 5"]),
    ]


@pytest.mark.parametrize("falsy", [0, b"", None, [], False, 0.0])
def test_a_falsy_reply_is_a_reply(falsy: Any) -> None:
    """redis-py's asyncio pipeline ran a DECR again because its reply was 0 and another node was cut."""
    model = Model(owners={key_slot(b"y"): B}, reply=lambda call: falsy)
    cuts = iter([(0, 0)])
    model.cut = lambda model, batch: next(cuts, None) if batch.address == B else None
    assert run(model, sets("x", "y")) == [falsy, falsy]
    assert model.ran == [b"0", b"1"]


# -- redirects ------------------------------------------------------------------------------------------------


def test_moved_commands_are_regrouped_and_resent_as_one_batch() -> None:
    model = Model(owners=dict.fromkeys(range(SLOTS), B))
    stale = SlotMap((A,) * SLOTS, is_covered=True)
    keys = [f"k{n}" for n in range(50)]
    assert run(model, sets(*keys), stale) == [b"%d" % n for n in range(50)]
    assert [(address, len(pieces)) for address, pieces in model.batches] == [(A, 50), (B, 50)]
    assert model.refreshes == 1


def test_asked_commands_are_resent_as_one_batch_with_asking_before_each() -> None:
    model = Model(moving={T: B}, moved={b"{t}1", b"{t}2"})
    assert run(model, sets("{t}1", "{t}2", "{t}3")) == [b"0", b"1", b"2"]
    assert model.batches == [
        (A, [b"SET {t}1 0", b"SET {t}2 1", b"SET {t}3 2"]),
        (B, [b"ASKING", b"SET {t}1 0", b"ASKING", b"SET {t}2 1"]),
    ]
    assert model.refreshes == 0, "ASK says nothing about the map"


def test_tryagain_waits_and_keeps_the_order() -> None:
    """redis-py 8.1: MGET {t}a {t}b, then SET {t}a, on a migrating slot: the MGET saw the SET."""
    model = Model(moving={T: B}, moved={b"{t}b"})

    def finish(model: Model) -> None:
        if model.now > 0.02:
            model.owners, model.moving = {T: B}, {}

    model.between = finish
    assert run(model, [("MGET", "{t}a", "{t}b", "0"), ("SET", "{t}a", "1")]) == [b"0", b"1"]
    assert model.ran == [b"0", b"1"]


def test_a_command_of_several_keys_holds_only_what_conflicts_with_it() -> None:
    model = Model()
    calls = [
        ("MGET", "{t}a", "{t}b", "0"),
        ("MGET", "{t}a", "{t}c", "1"),  # both only read
        ("SET", "{t}d", "2"),  # no key in common
        ("SET", "{t}a", "3"),  # conflicts, and closes the gate
        ("SET", "{t}e", "4"),
        ("SET", "other", "5"),  # another slot
    ]
    assert run(model, calls) == [b"%d" % n for n in range(6)]
    first, second = model.batches
    assert first == (A, [b"MGET {t}a {t}b 0", b"MGET {t}a {t}c 1", b"SET {t}d 2", b"SET other 5"])
    assert second == (A, [b"SET {t}a 3", b"SET {t}e 4"])


def test_what_has_moved_follows_as_soon_as_its_node_has_answered() -> None:
    """Not after a round: the first node's commands are with their new owner before the second node is heard."""
    keys = ["x", "y", "x", "{t}a"]
    model = Model(owners={key_slot(b"x"): B, key_slot(b"y"): C, T: B})
    stale = SlotMap(tuple(B if slot == T else A for slot in range(SLOTS)), is_covered=True)
    packed = PackedPipeline(model.plan(sets(*keys)), stale, model.rules())
    logic = packed.run()
    exchange = next(logic)
    assert isinstance(exchange, Exchange) and exchange.then is not None
    first, second = exchange.batches
    assert [(batch.address, batch.indices) for batch in (first, second)] == [(A, [0, 1, 2]), (B, [3])]
    followers = exchange.then(first, model.exchange(first))
    assert [(batch.address, batch.indices) for batch in followers] == [(B, [0, 2]), (C, [1])]
    for batch in (*followers, second):
        assert exchange.then(batch, model.exchange(batch)) == []
    assert packed.results == [b"0", b"1", b"2", b"3"], "without a second round"
    assert isinstance(logic.send([]), Refresh), "for the next pipeline"


def test_a_slot_that_moves_on_while_it_is_refused_is_followed_as_a_whole() -> None:
    model = Model(owners={key_slot(b"x"): C})
    places = iter(["b:2", "c:3"])
    model.between = lambda model: f"MOVED {key_slot(b'x')} {next(places)}" if len(model.batches) == 1 else None
    assert run(model, sets("x", "x"), SlotMap((A,) * SLOTS, is_covered=True)) == [b"0", b"1"]
    assert model.batches[1:] == [(C, [b"SET x 0", b"SET x 1"])] and model.ran == [b"0", b"1"]


def test_what_has_moved_twice_waits_for_the_next_round() -> None:
    model = Model(owners={key_slot(b"x"): C})
    model.between = lambda model: f"MOVED {key_slot(b'x')} b:2" if len(model.batches) == 1 else None
    assert run(model, sets("x"), SlotMap((A,) * SLOTS, is_covered=True)) == [b"0"]
    assert [address for address, _ in model.batches] == [A, B, C] and model.refreshes == 1


def test_what_followed_as_a_whole_and_failed_then_says_why_it_failed_last() -> None:
    model = Model()
    model.between = lambda model: f"MOVED {key_slot(b'x')} b:2" if len(model.batches) == 1 else "TRYAGAIN later"
    (error,) = run(model, sets("x"))
    assert str(error) == "later (nothing moved for 30 s)" and len(model.batches) > 3
    model = Model(down={B})
    model.between = lambda model: f"MOVED {key_slot(b'x')} b:2"
    (error,) = run(model, sets("x"))
    assert isinstance(error, NotSent) and "nothing moved for 30 s (refused)" in str(error)


def test_what_was_to_run_on_one_node_and_is_refused_there_says_nothing_about_the_map() -> None:
    plan = Plan(TABLE)
    plan.add_pinned(("GET", "x", "0"), [A], list)
    model = Model(owners=dict.fromkeys(range(SLOTS), B))
    (error,) = model.drive(PackedPipeline(plan, model.map, model.rules()).run())
    assert isinstance(error, redis.exceptions.MovedError) and error.slot_id == key_slot(b"x")
    assert model.refreshes == 0


def test_a_batch_with_another_refusal_waits_for_the_next_round() -> None:
    """The slot may be closed for a while: nothing of it may go ahead."""
    model = Model(owners={key_slot(b"x"): B, key_slot(b"y"): B})
    answers = iter([None, "CLUSTERDOWN wait"])
    model.between = lambda model: next(answers, None)
    assert run(model, sets("x", "y", "x"), SlotMap((A,) * SLOTS, is_covered=True)) == [b"0", b"1", b"2"]
    assert model.batches[0] == (A, [b"SET x 0", b"SET y 1", b"SET x 2"])
    assert model.batches[1] == (B, [b"SET x 0", b"SET x 2"])


def test_commands_of_a_slot_never_go_to_two_nodes_in_one_round() -> None:
    """The first is asked away; the last, which the source would take, waits until it is done."""
    model = Model(moving={T: B}, moved={b"{t}a"})
    calls = [("SET", "{t}a", "0"), ("MGET", "{t}b", "{t}c", "1"), ("SET", "{t}b", "2")]
    assert run(model, calls) == [b"0", b"1", b"2"]
    assert model.batches == [
        (A, [b"SET {t}a 0", b"MGET {t}b {t}c 1"]),
        (B, [b"ASKING", b"SET {t}a 0"]),
        (A, [b"SET {t}b 2"]),
    ]


def test_a_command_that_was_overtaken_fails_instead_of_running_late() -> None:
    """The node refused the first and ran the second, because its state changed in between."""
    model = Model()
    answers = iter(["CLUSTERDOWN The cluster is down", None])
    model.between = lambda model: next(answers, None)
    results = run(model, sets("x", "x"))
    assert isinstance(results[0], redis.exceptions.ClusterDownError)
    assert "called later on the same key, ran before it" in str(results[0])
    assert results[1] == b"1"
    assert model.ran == [b"1"]


def test_a_command_that_was_overtaken_in_a_replay_fails_with_its_outcome_unknown() -> None:
    """All three ran and lost their replies; sent again, the second is refused and the third runs: it must
    not run a third time late.
    """
    model = Model()
    answers = iter([None, None, None, None, "CLUSTERDOWN The cluster is down", None])
    model.between = lambda model: next(answers, None)
    model.cut = lambda model, batch: (3, 0) if len(model.batches) == 1 else None
    results = run(model, sets("x", "x", "x"))
    assert model.ran == [b"0", b"1", b"2", b"0", b"2"], "the last value is that of the last call"
    assert (results[0], results[2]) == (b"0", b"2")
    assert isinstance(results[1], OutcomeUnknown)
    assert results[1].state is State.WRITTEN, "it may have run, and has: nobody calls it refused"
    assert "called later on the same key, ran before it" in str(results[1])


@pytest.mark.parametrize(
    "line", ["CLUSTERDOWN down", "LOADING wait", "READONLY replica", "MASTERDOWN link", "TRYAGAIN keys"]
)
def test_a_passing_refusal_is_waited_out_at_every_level(line: str) -> None:
    for level in (Delivery.AT_MOST_ONCE, Delivery.AT_LEAST_ONCE):
        model = Model()
        answers = iter([line, line, line])
        model.between = lambda model, answers=answers: next(answers, None)  # type: ignore[misc]
        assert run(model, sets("x"), delivery=level) == [b"0"]
        assert model.ran == [b"0"]
        assert model.now > 0, "it waited"


@pytest.mark.parametrize("level", list(Delivery)[:2])
def test_what_a_node_unblocks_because_it_is_no_master_any_more_is_sent_again(level: Delivery) -> None:
    answers = iter(["UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)"])
    model = Model(between=lambda model: next(answers, None))
    assert run(model, sets("x"), delivery=level) == [b"0"] and model.refreshes == 1
    model = Model(between=lambda model: "UNBLOCKED client unblocked via CLIENT UNBLOCK")
    (error,) = run(model, sets("x"), delivery=level)
    assert isinstance(error, redis.ResponseError) and len(model.batches) == 1, "somebody wanted the caller to know"


def test_a_quarrel_between_two_nodes_ends_with_the_budget() -> None:
    model = Model()
    turns = iter(range(1000))
    model.between = lambda model: f"MOVED {key_slot(b'x')} {'ab'[next(turns) % 2]}:{next(turns) % 2 + 1}"
    (result,) = run(model, sets("x"))
    assert isinstance(result, redis.exceptions.MovedError)
    assert "nothing moved for 30 s" in str(result)
    assert model.now >= 30 and len(model.batches) < 100, "from the third time on it waits"


def test_patience_ends_what_is_refused_all_the_time() -> None:
    model = Model(between=lambda model: "CLUSTERDOWN down")
    (result,) = run(model, sets("x"), patience=5.0)
    assert isinstance(result, redis.exceptions.ClusterDownError)
    assert 5.0 <= model.now < 7.0


class _Failover(Model):
    """Node a is dead, and after 20.4 s, as long as Redis takes with its default of cluster-node-timeout, b
    has taken over.
    """

    def exchange(self, batch: NodeBatch) -> Outcome:
        if self.now >= 20.4:
            self.owners = {key_slot(b"x"): B}
        return super().exchange(batch)

    @property
    def map(self) -> SlotMap:
        if self.now >= 20.4:
            self.owners = {key_slot(b"x"): B}
        return super().map


@pytest.mark.parametrize("chance", [0.0, 1.0])
@pytest.mark.parametrize("how", ["refused", "dead", "transaction"])
def test_a_failover_that_takes_less_than_patience_shows_no_error(how: str, chance: float) -> None:
    model = _Failover() if how == "refused" else _Failover(down={A})
    if how == "refused":
        model.between = lambda model: "CLUSTERDOWN down" if model.now < 20.4 else None
    rules = Rules(clock=lambda: model.now, jitter=lambda: chance)
    if how == "transaction":
        plan = Plan(TABLE)
        plan.add_on_lane(("SET", "x", "0"))
        model.answer = lambda node, words, asking: [b"0"] if words == [b"EXEC"] else b"QUEUED"  # type: ignore[method-assign]
        logic: Any = Transaction(rules).execute(plan, model.map)
    else:
        logic = PackedPipeline(model.plan(sets("x")), model.map, rules).run()
    assert model.drive(logic) == [b"0"] and 20.4 <= model.now < 23.0


def test_an_empty_host_in_a_redirect_is_the_node_that_answered() -> None:
    model = Model(owners={key_slot(b"x"): ("a", 9)})
    model.between = lambda model: f"MOVED {key_slot(b'x')} :9" if len(model.batches) == 1 else None
    assert run(model, sets("x"), SlotMap((A,) * SLOTS, is_covered=True)) == [b"0"]
    assert model.batches[1][0] == ("a", 9)


def test_addresses_of_redirects_are_remapped() -> None:
    model = Model(owners={key_slot(b"x"): B})
    model.between = lambda model: f"MOVED {key_slot(b'x')} inside:1" if len(model.batches) == 1 else None
    assert run(model, sets("x"), SlotMap((A,) * SLOTS, is_covered=True), address_remap={("inside", 1): B}.get) == [b"0"]


# -- connections that fail ------------------------------------------------------------------------------------


def cut_once(executed: int, answered: int) -> Any:
    cuts = iter([(executed, answered)])
    return lambda model, batch: next(cuts, None)


def test_at_least_once_repeats_only_what_has_no_reply() -> None:
    """redis-py 8.1 reran 100 of 100 INCRs, 50 of them answered, after one cut."""
    model = Model(cut=cut_once(100, 50))
    assert run(model, sets(*["x"] * 100)) == [b"%d" % n for n in range(100)]
    assert model.ran == [b"%d" % n for n in (*range(100), *range(50, 100))]


def test_at_most_once_repeats_nothing_that_was_written() -> None:
    model = Model(cut=cut_once(70, 50))
    results = run(model, sets(*["x"] * 100), delivery=Delivery.AT_MOST_ONCE)
    assert model.ran == [b"%d" % n for n in range(100)], "each at most once; what was not written went out later"
    assert results[:50] == [b"%d" % n for n in range(50)]
    assert all(isinstance(result, OutcomeUnknown) and result.state is State.WRITTEN for result in results[50:70])
    assert results[70:] == [b"%d" % n for n in range(70, 100)]


def test_the_replay_filter_makes_what_it_keeps_fail() -> None:
    seen: list[Command] = []

    def keep_second(command: Command) -> bool:
        seen.append(command)
        return command.arguments[-1] == "1"

    model = Model(cut=cut_once(2, 0))
    results = run(model, sets("x", "x", "x"), replay_filter=keep_second)
    assert results[0] == b"0" and results[2] == b"2"
    assert isinstance(results[1], NotReplayed) and results[1].state is State.WRITTEN
    assert [command.state for command in seen] == [State.WRITTEN, State.WRITTEN], (
        "what was not written is not asked about"
    )
    assert model.ran == [b"0", b"1", b"0", b"2"]


def test_a_dead_node_is_replaced_by_the_new_view() -> None:
    for level in (Delivery.AT_MOST_ONCE, Delivery.AT_LEAST_ONCE):
        model = Model(down={A})
        stale = model.map
        model.owners = dict.fromkeys(range(SLOTS), B)
        assert run(model, sets("x", "y"), stale, delivery=level) == [b"0", b"1"]
        assert model.refreshes == 1


def test_what_was_never_sent_says_so() -> None:
    model = Model(down={A})
    (result,) = run(model, sets("x"), patience=3.0)
    assert isinstance(result, NotSent) and result.state is State.QUEUED
    assert isinstance(result.__cause__, ConnectionRefusedError)


def test_what_may_have_run_says_so_when_the_budget_ends() -> None:
    model = Model(cut=cut_once(1, 0))

    def die(model: Model) -> None:
        model.down.add(A)

    model.between = die
    (result,) = run(model, sets("x"), patience=3.0)
    assert isinstance(result, OutcomeUnknown) and result.state is State.WRITTEN


def test_commands_for_an_unserved_slot_wait_and_then_fail() -> None:
    owners = list(Model().map.owners)
    owners[key_slot(b"x")] = None
    model = Model()
    assert run(model, sets("x"), SlotMap(tuple(owners))) == [b"0"], "served again after a refresh"
    assert model.refreshes == 1


# -- one after the other --------------------------------------------------------------------------------------


def test_a_sequential_pipeline_stops_at_the_first_command_without_a_reply() -> None:
    model = Model(owners={key_slot(b"y"): B})
    model.cut = lambda model, batch: (1, 0) if batch.address == B else None
    rules = model.rules(delivery=Delivery.AT_MOST_ONCE)
    results = model.drive(sequential(sets("x", "y", "x"), TABLE, model.map, rules))
    assert results[0] == b"0"
    assert isinstance(results[1], OutcomeUnknown)
    assert isinstance(results[2], NotSent) and "command 2 of the pipeline ended without a reply" in str(results[2])
    assert model.ran == [b"0", b"1"]


def test_a_sequential_pipeline_is_refused_before_its_first_command_is_sent() -> None:
    model = Model()
    with pytest.raises(CrossSlotRefused):
        model.drive(sequential([("SET", "x", "0"), ("MSET", "x", "y", "1")], TABLE, model.map, model.rules()))
    assert model.ran == []


# -- what is refused ------------------------------------------------------------------------------------------


def test_keys_of_several_slots_are_refused_by_name_before_anything_is_sent() -> None:
    with pytest.raises(CrossSlotRefused, match=r"command 2: MGET has keys in several slots .*split=True"):
        Model().plan([("SET", "x", "0"), ("MGET", "x", "y", "1")])


@pytest.mark.parametrize(
    ("call", "remedy"),
    [
        (("MULTI",), "transaction=True"),
        (("WATCH", "k"), "transaction=True"),
        (("SUBSCRIBE", "c"), "pubsub()"),
        (("SELECT", 1), "argument of Cluster"),
        (("WAIT", 1, 0), "name a node"),
        (("SCAN", 0), "scan_iter()"),
    ],
)
def test_what_belongs_to_one_connection_is_refused_with_the_remedy(call: tuple[Any, ...], remedy: str) -> None:
    with pytest.raises(NotRoutable, match=rf"{call[0]} makes no sense for a whole cluster: .*") as refused:
        Model().plan([call])
    assert remedy in str(refused.value)


def test_what_cannot_be_encoded_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(redis.DataError, match="dict"):
        Model().plan([("SET", "x", "0"), ("SET", "y", {})])


def test_a_number_that_python_does_not_show_is_refused_and_takes_nothing_down() -> None:
    """hiredis 3.5 ends the process at it."""
    with pytest.raises(redis.DataError, match="digits"):
        Model().plan([("SET", "x", 10**5000)])


def test_exactly_once_is_refused_with_the_reason() -> None:
    with pytest.raises(ExactlyOnceUnavailable, match="ONCE on every node"):
        Model().rules(delivery="exactly-once")
