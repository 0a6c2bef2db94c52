"""The cluster on demand does to its clients what a real one does, because it is one."""

from __future__ import annotations

from itertools import islice

import pytest
import redis

from penstock.protocol.slots import SLOTS, key_slot
from penstock.testing.cluster import RedisCluster
from penstock.testing.redis import find_redis

SLOT = key_slot(b"{t}")


def error(cluster_node: object, *words: str | bytes) -> str:
    with pytest.raises(redis.ResponseError) as caught:
        cluster_node.ask(*words)  # type: ignore[attr-defined]
    return type(caught.value).__name__


def test_three_masters_share_the_slots_and_have_a_replica_each(cluster: RedisCluster) -> None:
    masters = cluster.masters
    assert len(masters) == 3 and len(cluster.nodes) == 6
    assert len(masters[0].slots()) == SLOTS
    replicas = {cluster.replica_of(master) for master in masters}
    assert replicas == set(cluster.nodes) - set(masters)


def test_mending_gives_each_master_a_replica_again(cluster: RedisCluster) -> None:
    first, second, _ = cluster.masters
    stray = cluster.replica_of(first)
    stray.ask("CLUSTER", "REPLICATE", second.id)
    cluster.wait_until_ok()
    cluster.mend()
    test_three_masters_share_the_slots_and_have_a_replica_each(cluster)


def test_keys_of_a_node_are_taken_by_that_node(cluster: RedisCluster) -> None:
    for master in cluster.masters:
        for key in islice(cluster.keys_on(master), 5):
            assert master.ask("SET", key, "v") == b"OK"


def test_a_half_migrated_slot_answers_ask_and_tryagain(cluster: RedisCluster) -> None:
    source = cluster.owner(SLOT)
    target = next(master for master in cluster.masters if master is not source)
    source.ask("MSET", "{t}a", "1", "{t}b", "2")
    assert cluster.half_migrate(SLOT, target, keys=[b"{t}a"]) is source
    assert error(source, "GET", "{t}a") == "AskError"
    assert source.ask("GET", "{t}b") == b"2"
    # Before 7.0 it is the target that says TRYAGAIN, after the ASK.
    both = "TryAgainError" if find_redis().version >= (7,) else "AskError"
    assert error(source, "MGET", "{t}a", "{t}b") == both
    assert error(target, "GET", "{t}a") == "MovedError"

    cluster.undo_migration(SLOT, target)
    assert source.ask("MGET", "{t}a", "{t}b") == [b"1", b"2"]

    cluster.half_migrate(SLOT, target, keys=[b"{t}b"])
    cluster.finish_migration(SLOT, target)
    assert cluster.owner(SLOT) is target
    assert target.ask("MGET", "{t}a", "{t}b") == [b"1", b"2"]
    assert error(source, "GET", "{t}a") == "MovedError"


def test_a_moved_slot_takes_its_keys_along(cluster: RedisCluster) -> None:
    source = cluster.owner(SLOT)
    target = next(master for master in cluster.masters if master is not source)
    source.ask("SET", "{t}a", "1")
    cluster.move_slot(SLOT, target)
    assert target.ask("GET", "{t}a") == b"1"
    with pytest.raises(ValueError, match="already"):
        cluster.move_slot(SLOT, target)


def test_a_killed_master_is_replaced_and_comes_back_as_a_replica(cluster: RedisCluster) -> None:
    master = cluster.masters[0]
    key = next(cluster.keys_on(master))
    master.ask("SET", key, "v")
    assert master.ask("WAIT", 1, 5000) == 1
    cluster.kill(master)
    assert master.address not in cluster.addresses
    promoted = cluster.fail_over(master)
    assert promoted.ask("GET", key) == b"v"
    cluster.restart(master)
    assert not master.is_master
    assert cluster.replica_of(promoted) is master


def test_a_living_master_hands_over(cluster: RedisCluster) -> None:
    master = cluster.masters[0]
    promoted = cluster.fail_over(master)
    assert promoted.is_master and not master.is_master
    assert cluster.replica_of(promoted) is master


def test_mending_brings_back_the_dead_and_closes_migrations(cluster: RedisCluster) -> None:
    source = cluster.owner(SLOT)
    target = next(master for master in cluster.masters if master is not source)
    source.ask("SET", "{t}a", "1")
    cluster.half_migrate(SLOT, target, keys=[b"{t}a"])
    victim = cluster.replica_of(source)
    cluster.kill(victim)
    cluster.mend()
    assert victim.is_running
    assert source.ask("GET", "{t}a") is None


def test_a_cluster_without_masters_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 master"):
        RedisCluster(masters=0)
