"""A real cluster that changes under its clients: slots move, masters die, replicas take over."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
import redis
from tests.support.background import in_background
from tests.support.client.cluster.clients import Connect, Proxied
from tests.support.client.cluster.nodes import other_than

from penstock.client.cluster.errors import CrossSlotRefused, WatchLost
from penstock.client.cluster.slot_map import SlotMap
from penstock.client.delivery import State
from penstock.client.errors import NotSent
from penstock.protocol.slots import key_slot
from penstock.testing.cluster import ClusterNode, RedisCluster

T = key_slot(b"t")


def as_text(reply: Any) -> str:
    return reply if isinstance(reply, str) else reply.decode()


# -- slots that move ------------------------------------------------------------------------------------------


def test_a_pipeline_whose_every_slot_has_moved_needs_no_more_connections(cluster: RedisCluster, client: Any) -> None:
    """What follows its slots to a node waits for the connection that is in use there."""
    commands = [("SET", f"key:{number % 300}", number) for number in range(3000)]
    assert client.execute_many(commands) == [b"OK"] * 3000
    known = client.core.topology.map
    following = dict(zip(known.masters, known.masters[1:] + known.masters[:1], strict=True))
    owners = tuple(following[owner] for owner in known.owners)
    client.core.topology.map = SlotMap(owners, known.replicas, known.epoch, is_covered=True)
    assert client.execute_many(commands) == [b"OK"] * 3000
    assert client.execute_many([("GET", f"key:{number}") for number in range(300)]) == [
        b"%d" % (2700 + number) for number in range(300)
    ]
    assert [len(idle) for idle in client._pool._idle.values()] == [1] * len(known.masters)


@pytest.mark.parametrize("strategy", ["sequential", "packed", "two-step"])
def test_every_strategy_follows_a_moved_slot(strategy: str, cluster: RedisCluster, client: Any) -> None:
    source = cluster.owner(T)
    client.set("{t}a", 0)
    cluster.move_slot(T, other_than(cluster, source))
    with client.pipeline(strategy=strategy) as pipe:
        pipe.incr("{t}a").incr("elsewhere").incr("{t}a").get("{t}a")
        assert pipe.execute() == [1, 1, 2, b"2"]


def test_asked_commands_run_at_the_target_and_others_at_the_source(cluster: RedisCluster, client: Any) -> None:
    keys = [b"{t}%d" % number for number in range(10)]
    client.mset(dict.fromkeys(keys, 0))
    target = other_than(cluster, cluster.owner(T))
    source = cluster.half_migrate(T, target, keys[:5])
    with client.pipeline() as pipe:
        for key in keys * 2:
            pipe.incr(key)
        assert pipe.execute() == [1] * 10 + [2] * 10
    assert [int(source.ask("GET", key)) for key in keys[5:]] == [2] * 5
    cluster.finish_migration(T, target)
    assert [int(target.ask("GET", key)) for key in keys] == [2] * 10


def test_a_pipeline_runs_once_while_slots_move_back_and_forth(cluster: RedisCluster, connect: Connect) -> None:
    client = connect(delivery="at-most-once")
    keys = [f"{{t}}{number}" for number in range(20)] + [f"k{number}" for number in range(80)]
    home = cluster.owner(T)
    away = other_than(cluster, home)

    def move() -> None:
        for target in (away, home) * 3:
            cluster.move_slot(T, target)

    rounds = 0
    with in_background(move) as mover:
        while rounds < 5 or mover.is_alive():
            with client.pipeline() as pipe:
                for key in keys:
                    pipe.incr(key)
                rounds += 1
                assert pipe.execute() == [rounds] * 100


def test_a_transaction_follows_its_slot(cluster: RedisCluster, client: Any) -> None:
    client.set("{t}a", 0)
    source = cluster.owner(T)
    target = other_than(cluster, source)
    cluster.half_migrate(T, target, [b"{t}a"])
    with client.pipeline(transaction=True) as pipe:
        assert pipe.incr("{t}a").incr("{t}a").execute() == [1, 2], "asked away while queueing"
    cluster.finish_migration(T, target)
    with client.pipeline(transaction=True) as pipe:
        assert pipe.incr("{t}a").get("{t}a").execute() == [3, b"3"], "moved"


def test_what_is_watched_is_lost_with_its_slot_and_nothing_runs(cluster: RedisCluster, client: Any) -> None:
    client.set("{t}a", 0)
    with client.pipeline(transaction=True) as pipe:
        pipe.watch("{t}a")
        assert pipe.get("{t}a") == b"0"
        cluster.move_slot(T, other_than(cluster, cluster.owner(T)))
        pipe.multi()
        pipe.incr("{t}a")
        with pytest.raises(WatchLost) as lost:
            pipe.execute()
    assert lost.value.state is State.QUEUED and isinstance(lost.value, redis.WatchError)
    assert client.get("{t}a") == b"0"


def test_two_steps_send_nothing_while_a_slot_moves(cluster: RedisCluster, connect: Connect) -> None:
    client = connect()
    client.mset({"{t}a": 0, "{t}b": 0})
    rules = getattr(client, "real", client).core.rules
    rules.patience = 0.2
    target = other_than(cluster, cluster.owner(T))
    cluster.half_migrate(T, target, [b"{t}a"])
    calls = [("INCR", "elsewhere"), ("INCR", "{t}b")]
    with client.pipeline(strategy="two-step") as pipe:
        for call in calls:
            pipe.execute_command(*call)
        results = pipe.execute(raise_on_error=False)
    assert all(isinstance(result, NotSent) and "migrating" in str(result) for result in results)
    rules.patience = 30.0
    assert client.get("elsewhere") is None
    cluster.finish_migration(T, target)
    with client.pipeline(strategy="two-step") as pipe:
        for call in calls:
            pipe.execute_command(*call)
        assert pipe.execute() == [1, 1]


# -- nodes that die -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["at-most-once", "at-least-once"])
def test_a_pipeline_waits_until_the_replica_has_taken_over(level: str, cluster: RedisCluster, connect: Connect) -> None:
    client = connect(delivery=level)
    victim, other = cluster.masters[:2]
    lost, kept = next(cluster.keys_on(victim)), next(cluster.keys_on(other))
    client.set(lost, 0)
    cluster.kill(victim)
    with in_background(lambda: cluster.fail_over(victim)), client.pipeline() as pipe:
        pipe.set(lost, 1).incr(kept).incr(lost).incr(kept)
        assert pipe.execute() == [True, 1, 2, 2]


def test_a_killed_master_takes_the_watch_along(cluster: RedisCluster, client: Any) -> None:
    victim = cluster.masters[0]
    key = next(cluster.keys_on(victim))
    with client.pipeline(transaction=True) as pipe:
        pipe.watch(key)
        cluster.kill(victim)
        pipe.multi()
        pipe.set(key, 1)
        results = pipe.execute(raise_on_error=False)
    assert all(isinstance(result, redis.ConnectionError) for result in results)
    promoted = cluster.fail_over(victim)
    assert promoted.ask("GET", key) is None
    assert client.set(key, 2) is True


def test_transactions_are_tried_again_until_nobody_interferes(cluster: RedisCluster, client: Any) -> None:
    client.set("{t}n", 0)
    attempts: list[int] = []

    def raise_by_one(pipe: Any) -> None:
        attempts.append(1)
        if len(attempts) == 1:
            cluster.owner(T).ask("SET", "{t}n", 10)
        pipe.multi()
        pipe.incr("{t}n")

    assert client.transaction(raise_by_one, "{t}n") == [11]
    assert len(attempts) == 2


# -- replicas -------------------------------------------------------------------------------------------------


def test_reads_go_to_replicas_unless_the_pipeline_wrote_before(
    proxied: Proxied, cluster: RedisCluster, connect_through: Connect
) -> None:
    master = cluster.masters[0]
    replica = cluster.replica_of(master)
    read, written = islice(cluster.keys_on(master), 2)
    master.ask("SET", read, "v")
    replica_caught_up(master, replica, read)
    cluster.wait_until_listed()
    client = connect_through(read_from_replicas=True)
    with client.pipeline() as pipe:
        assert pipe.get(read).set(written, "w").get(written).execute() == [b"v", True, b"w"]
    assert proxied.before(replica).forwarded[b"GET"] == 1
    assert proxied.before(master).forwarded[b"GET"] == 1


def test_a_dead_replica_is_replaced_by_the_master(cluster: RedisCluster, connect: Connect) -> None:
    master = cluster.masters[0]
    key = next(cluster.keys_on(master))
    cluster.wait_until_listed()
    client = connect(read_from_replicas=True)
    client.set(key, "v")
    cluster.kill(cluster.replica_of(master))
    assert client.get(key) == b"v"


def replica_caught_up(master: ClusterNode, replica: ClusterNode, key: bytes) -> None:
    """Write until the replica has confirmed it."""
    with redis.Redis(port=master.port, single_connection_client=True) as connection:
        connection.set(key, "v")
        assert connection.execute_command("WAIT", 1, 10_000) == 1


def test_a_pipeline_of_one_slot_refuses_a_second(client: Any) -> None:
    with client.pipeline(strategy="single-slot") as pipe:
        assert pipe.set("{t}a", 1).get("{t}a").execute() == [True, b"1"]
        pipe.set("{t}a", 2).set("{u}a", 2)
        with pytest.raises(CrossSlotRefused, match="a single-slot pipeline has keys in several slots"):
            pipe.execute()
    assert client.get("{t}a") == b"1"


# -- masters that step down -----------------------------------------------------------------------------------


def test_a_blocking_command_outlives_a_planned_failover(cluster: RedisCluster, connect: Connect) -> None:
    client = connect(delivery="at-most-once")
    master = cluster.masters[0]
    key = next(cluster.keys_on(master))
    results: list[Any] = []
    with in_background(lambda: results.append(client.blpop(key, 120))):
        while "blocked_clients:1" not in as_text(master.ask("INFO", "clients")):
            pass
        cluster.fail_over(master)
        client.rpush(key, "item")
    assert [tuple(result) for result in results] == [(key, b"item")]
