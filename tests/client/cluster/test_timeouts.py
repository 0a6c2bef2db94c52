"""command_timeout on every path of a cluster client: waits, redirects, an unknown topology, silence, transactions."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from tests.support.client.clients import SHORT_TIMES, raised, result_of_silence
from tests.support.client.cluster.clients import Connect, Proxied
from tests.support.client.cluster.model import NODES, TABLE, Model

from penstock.client.cluster.call_bounds import Hold
from penstock.client.cluster.core import ClusterCore
from penstock.client.cluster.driver_requests import Exchange, NodeBatch
from penstock.client.cluster.pipeline import PackedPipeline
from penstock.client.cluster.plan import Plan
from penstock.client.cluster.routing import CommandTable
from penstock.client.cluster.slot_map import SlotMap
from penstock.client.cluster.strategies import sequential, two_step
from penstock.client.cluster.transaction import Transaction
from penstock.client.delivery import State
from penstock.client.errors import BufferFull, NoReplyInTime, NotSent, NotSentInTime, OutcomeUnknown
from penstock.protocol.slots import SLOTS
from penstock.testing.cluster import RedisCluster
from penstock.testing.proxy import Fault

SET = ("SET", "{t}a", "0")


def run(model: Model, until: float = 5.0, **rules: Any) -> Any:
    """The result of one SET that has so much time."""
    made = model.rules(patience=1000.0, command_timeout=until, **rules)
    (result,) = model.drive(PackedPipeline(model.plan([SET]), model.map, made, until).run())
    assert model.now == until, "it waited for as long as it had, and no longer"
    return result


# -- the logic, by its own clock ------------------------------------------------------------------------------


@pytest.mark.parametrize("line", ["TRYAGAIN x", "CLUSTERDOWN x", "LOADING x"])
def test_a_refusal_is_waited_out_no_longer_than_the_command_may_take(line: str) -> None:
    model = Model(between=lambda model: line)
    result = run(model)
    assert isinstance(result, redis.RedisError) and result.state is State.REPLIED  # type: ignore[attr-defined]
    assert "its time is up, command_timeout=5" in str(result) and model.ran == []


def test_nodes_that_send_a_command_to_and_fro_have_no_more_than_its_time() -> None:
    model = Model()
    model.answer = lambda node, words, asking: redis.exceptions.AskError(f"1 {NODES[1][0]}:{NODES[1][1]}")  # type: ignore[method-assign]
    assert "its time is up" in str(run(model))


def test_a_dead_node_is_waited_for_no_longer_than_the_command_may_take() -> None:
    result = run(Model(down={NODES[0]}))
    assert isinstance(result, NotSentInTime) and result.state is State.QUEUED and "refused" in str(result)


def test_the_wait_for_an_unserved_slot_ends_at_the_timeout_of_the_command() -> None:
    class Uncovered(Model):
        @property
        def map(self) -> SlotMap:
            return SlotMap((None,) * SLOTS)

    result = run(Uncovered())
    assert isinstance(result, NotSentInTime) and "no node serves slot" in str(result)


def test_what_lost_its_reply_and_finds_no_node_in_time_may_have_run() -> None:
    def cut(model: Model, batch: NodeBatch) -> tuple[int, int]:
        model.down.add(batch.address)
        return 1, 0

    result = run(Model(cut=cut))
    assert (
        isinstance(result, NoReplyInTime) and result.state is State.WRITTEN and isinstance(result, redis.TimeoutError)
    )


def test_a_sequential_pipeline_has_one_time_for_all() -> None:
    model = Model(between=lambda model: "TRYAGAIN x" if model.ran else None)
    rules = model.rules(patience=1000.0)
    calls = [("SET", "{t}a", "0"), ("SET", "{t}a", "1")]
    first, second = model.drive(sequential(calls, TABLE, model.map, rules, until=3.0))
    assert first == b"0" and "its time is up" in str(second) and model.now == 3.0


def test_two_steps_look_at_the_cluster_no_longer_than_they_may_take() -> None:
    model = Model(down={NODES[0]})
    rules = model.rules(patience=1000.0)
    (result,) = model.drive(two_step(model.plan([SET]), model.map, rules, 3.0))
    assert isinstance(result, NotSentInTime) and model.now == 3.0


@pytest.mark.parametrize("line", ["TRYAGAIN x", "CLUSTERDOWN x"])
def test_a_transaction_waits_no_longer_than_it_may(line: str) -> None:
    model = Model(between=lambda model: line)
    plan = Plan(TABLE)
    plan.add_on_lane(SET)
    rules = model.rules(patience=1000.0)
    (result,) = model.drive(Transaction(rules).execute(plan, model.map, 3.0))
    assert isinstance(result, redis.ResponseError) and model.now == 3.0


# -- a real cluster -------------------------------------------------------------------------------------------

LEVELS = ["at-most-once", "at-least-once"]


def late_result(
    client: Any,
    proxied: Proxied,
    arm: Callable[[], Fault],
    call: Callable[[], Any],
    is_too_early: Callable[[Any], bool],
) -> Any:
    """What a call comes to whose time is up when a fault has hit it. On a machine that does not come so far it is tried
    again, with more time.
    """
    rules = getattr(client, "real", client).core.rules
    for seconds in SHORT_TIMES:
        fault, rules.command_timeout = arm(), seconds
        result = call()
        rules.command_timeout = 60.0
        if not is_too_early(result):
            assert fault.wait(60)
            return result
        proxied.clear()
        while isinstance(raised(lambda: client.get("k")), redis.ConnectionError):
            pass
    raise AssertionError(f"{seconds} seconds were too few: {result!r}")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("executed", [False, True])
def test_a_late_reply_is_reported_as_a_timeout(
    level: str, executed: bool, proxied: Proxied, cluster: RedisCluster, connect_through: Connect
) -> None:
    node = cluster.masters[0]
    key = next(cluster.keys_on(node))
    client = connect_through(delivery=level, socket_timeout=60.0)
    client.get(key)
    counted = []

    def incr() -> Any:
        before = client.counters.failed
        error = raised(lambda: client.incr(key))
        counted.append(client.counters.failed - before)
        return error

    late = late_result(
        client, proxied, lambda: proxied.before(node).swallow(command=b"INCRBY", executed=executed), incr,
        lambda error: isinstance(error, NotSent),
    )  # fmt: skip
    assert isinstance(late, NoReplyInTime) and isinstance(late, redis.TimeoutError) and late.state is State.WRITTEN
    proxied.clear()
    assert client.get(key) == (b"1" if executed else None), "and the client goes on"
    assert counted[-1] == 1


@pytest.mark.parametrize(
    ("strategy", "level"),
    [("packed", LEVELS[0]), ("packed", LEVELS[1]), ("sequential", LEVELS[1]), ("single-slot", LEVELS[0]),
     ("transaction", LEVELS[0]), ("transaction", LEVELS[1])],
)  # fmt: skip
def test_each_command_of_a_pipeline_says_how_far_it_came_in_time(
    strategy: str, level: str, proxied: Proxied, cluster: RedisCluster, connect_through: Connect
) -> None:
    node = cluster.masters[0]
    tag = next(cluster.keys_on(node)).decode()
    client = connect_through(delivery=level, socket_timeout=60.0)
    client.get(tag)
    is_transaction = strategy == "transaction"

    def execute() -> Any:
        with client.pipeline(is_transaction, **({} if is_transaction else {"strategy": strategy})) as pipe:
            pipe.set(f"{{{tag}}}a", 1).decr(f"{{{tag}}}b").get(f"{{{tag}}}a")
            return pipe.execute(raise_on_error=False)

    def is_too_early(results: Any) -> bool:
        return isinstance(results[0], NotSent if is_transaction else redis.TimeoutError) or isinstance(
            results[1], NotSent
        )

    results = late_result(
        client, proxied, lambda: proxied.before(node).swallow(command=b"DECRBY"), execute, is_too_early
    )
    late = results if is_transaction else results[1:2] if strategy == "sequential" else results[1:]
    assert all(isinstance(result, NoReplyInTime) and result.state is State.WRITTEN for result in late)
    if not is_transaction:
        assert results[0] is True
    if strategy == "sequential":
        assert isinstance(results[2], NotSent) and results[2].state is State.QUEUED


@pytest.mark.parametrize("level", LEVELS)
def test_a_watched_transaction_ends_in_time(
    level: str, proxied: Proxied, cluster: RedisCluster, connect_through: Connect
) -> None:
    node = cluster.masters[0]
    key = next(cluster.keys_on(node))
    client = connect_through(delivery=level, socket_timeout=60.0)

    def execute() -> Any:
        with client.pipeline(transaction=True) as pipe:
            if raised(lambda: pipe.watch(key)):
                return None
            pipe.multi()
            pipe.incr(key)
            (result,) = pipe.execute(raise_on_error=False)
            return result

    late = late_result(
        client, proxied, lambda: proxied.before(node).swallow(command=b"EXEC"), execute,
        lambda result: result is None or isinstance(result, NotSent),
    )  # fmt: skip
    assert isinstance(late, NoReplyInTime) and late.state is State.WRITTEN


def test_the_wait_for_a_topology_ends_at_the_timeout_of_the_command(
    proxied: Proxied, cluster: RedisCluster, connect_through: Connect
) -> None:
    client = connect_through(socket_timeout=60.0, command_timeout=0.5)
    for node in cluster.nodes:
        proxied.before(node).swallow(command=b"CLUSTER")
    with pytest.raises(NotSentInTime, match="which node owns which slot") as late:
        client.get("k")
    assert late.value.state is State.QUEUED


@pytest.mark.parametrize(("words", "until"), [(("BLPOP", "k", 10), 15.0), (("BLPOP", "k", 0), math.inf)])
def test_a_blocking_command_may_take_its_own_time_besides(words: tuple[Any, ...], until: float) -> None:
    core = ClusterCore("127.0.0.1", 1, command_timeout=5.0)
    core.rules.clock = lambda: 0.0
    core.topology.map = Model().map
    core.topology.table = CommandTable.parse([[b"blpop", -3, [b"write"], 1, -2, 1]])
    logic = core.call(words, {})
    request = logic.send(None)
    assert isinstance(request, Exchange) and request.until == until
    logic.close()


def test_a_command_without_any_time_is_not_sent(cluster: RedisCluster, connect: Connect) -> None:
    client = connect()
    client.get("k")
    getattr(client, "real", client).core.rules.command_timeout = 0.0
    for call in (lambda: client.incr("k"), lambda: client.execute_many([("INCR", "k"), ("INCR", "x")])):
        with pytest.raises(NotSentInTime):
            call()


def test_time_that_is_up_while_waiting_for_room_is_a_full_buffer(connect: Connect) -> None:
    client = connect(max_buffered_commands=1)
    client.get("k")
    core = getattr(client, "real", client).core
    others = Hold(1, 1)
    assert core.bounds.enter(others)
    core.rules.command_timeout = 0.5
    with pytest.raises(BufferFull, match="max_buffered_commands=1"):
        client.get("k")
    core.rules.command_timeout = 60.0
    core.bounds.leave(others)
    assert client.get("k") is None


def test_silence_makes_the_map_doubtful_and_time_that_is_up_does_not(
    proxied: Proxied, cluster: RedisCluster, connect_through: Connect
) -> None:
    node = cluster.masters[0]
    key = next(cluster.keys_on(node))
    silent = connect_through(socket_timeout=60.0, delivery="at-most-once", refresh_interval=0.0)
    silent.get(key)
    fault = proxied.before(node).swallow(command=b"INCRBY")
    with ThreadPoolExecutor(1) as pool, pytest.raises(NoReplyInTime, match="was silent"):
        running = pool.submit(silent.incr, key)
        assert fault.wait(60)
        result_of_silence(silent, running)
    assert proxied.forwarded(b"INCRBY") == 0, "nothing is sent again at the last moment"
    for seconds in SHORT_TIMES:
        proxied.clear()
        late = connect_through(socket_timeout=60.0)
        late.get(key)
        proxied.before(node).swallow(command=b"INCRBY")
        getattr(late, "real", late).core.rules.command_timeout = seconds
        error = raised(lambda client=late: client.incr(key))
        if not isinstance(error, NotSent):
            break
    assert isinstance(error, NoReplyInTime) and "its time is up" in str(error)
    assert proxied.forwarded(b"INCRBY") == 0, "nothing is sent again at the last moment"
    assert (silent.counters.refreshes, late.counters.refreshes) == (2, 1)


def test_unknown_outcomes_are_no_time_outs_unless_time_was_the_reason(
    proxied: Proxied, cluster: RedisCluster, connect_through: Connect
) -> None:
    node = cluster.masters[0]
    key = next(cluster.keys_on(node))
    client = connect_through(delivery="at-most-once")
    proxied.before(node).cut_after_execution(command=b"INCRBY")
    with pytest.raises(OutcomeUnknown) as unknown:
        client.incr(key)
    assert not isinstance(unknown.value, redis.TimeoutError)
