"""Single calls, which share connections, on a real cluster that refuses them, changes under them, or dies."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import pytest
import redis
from tests.support.background import in_background
from tests.support.client.cluster.clients import Connect, Proxied
from tests.support.client.cluster.model import Model
from tests.support.client.cluster.nodes import other_than

import penstock
from penstock.client.cluster.pipeline import PackedPipeline
from penstock.client.delivery import State
from penstock.client.errors import NotSent, OutcomeUnknown
from penstock.protocol.slots import key_slot
from penstock.testing.cluster import RedisCluster

T = key_slot(b"t")
REFUSALS = [
    "TRYAGAIN Multiple keys",
    "CLUSTERDOWN The cluster is down",
    "LOADING Redis is loading",
    "MASTERDOWN x",
    "READONLY x",
]
LEVELS = ["at-most-once", "at-least-once"]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("line", REFUSALS)
def test_a_refused_call_is_made_again_at_every_level(
    line: str, level: str, proxied: Proxied, cluster: RedisCluster, connect_through: Connect
) -> None:
    node = cluster.masters[0]
    first, second = islice(cluster.keys_on(node), 2)
    client = connect_through(delivery=level)
    for call in (
        lambda: client.set(first, "v"),
        lambda: client.execute_many([("SET", first, "v"), ("SET", second, "v")]),
    ):
        fault = proxied.before(node).replace_reply(f"-{line}\r\n".encode(), b"SET")
        assert call() in (True, [b"OK", b"OK"])
        assert fault.has_fired
    assert client.counters.failed == client.counters.replayed == 0


def test_asked_calls_of_many_threads_go_to_the_target_and_the_map_stays_as_it_is(cluster: RedisCluster) -> None:
    keys = [b"{t}%d" % number for number in range(20)]
    target = other_than(cluster, cluster.owner(T))
    with penstock.Cluster(startup_nodes=cluster.addresses) as client:
        client.mset(dict.fromkeys(keys, 0))
        source = cluster.half_migrate(T, target, keys[:10])
        with ThreadPoolExecutor(20) as pool:
            for number in range(1, 6):
                assert list(pool.map(client.incr, keys)) == [number] * 20
        assert client.slot_map.owners[T] == source.address, "ASK says nothing about the slot"
        assert client.counters.redirected == 50
        cluster.finish_migration(T, target)
        assert client.incr(keys[0]) == 6
        assert client.slot_map.owners[T] == target.address, "MOVED does"


def test_a_call_over_both_sides_of_a_migration_waits_for_its_end(cluster: RedisCluster, client: Any) -> None:
    client.mset({"{t}a": 1, "{t}b": 2})
    target = other_than(cluster, cluster.owner(T))
    cluster.half_migrate(T, target, [b"{t}a"])
    with in_background(lambda: cluster.finish_migration(T, target)):
        assert client.mget("{t}a", "{t}b") == [b"1", b"2"]


@pytest.mark.parametrize("level", LEVELS)
def test_redirects_can_be_turned_off(level: str, cluster: RedisCluster, connect: Connect) -> None:
    """patience=0 follows no redirect: the refusal is the result."""
    client = connect(patience=0, delivery=level)
    client.set("{t}a", 0)
    target = other_than(cluster, cluster.owner(T))
    cluster.half_migrate(T, target, [b"{t}a"])
    with pytest.raises(redis.exceptions.AskError) as asked:
        client.incr("{t}a")
    cluster.finish_migration(T, target)
    with pytest.raises(redis.exceptions.MovedError) as moved:
        client.incr("{t}a")
    assert asked.value.state is moved.value.state is State.REPLIED  # type: ignore[attr-defined]
    assert client.incr("{t}a") == 1, "what MOVED said is known to the next call"


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("as_pipeline", [False, True])
def test_what_was_written_to_a_master_that_dies_is_cancelled_or_runs_at_its_successor(
    as_pipeline: bool, level: str, cluster: RedisCluster, connect: Connect
) -> None:
    """The level decides what is sent again, by the new slot map."""
    client = connect(delivery=level)
    victim, other = cluster.masters[:2]
    lost, kept = next(cluster.keys_on(victim)), next(cluster.keys_on(other))
    commands = [("INCR", lost), ("INCR", kept)] if as_pipeline else [("INCR", lost)]
    client.execute_many([("GET", lost), ("GET", kept)])

    def die() -> None:
        while b" flags=b " not in victim.ask("CLIENT", "LIST"):
            pass
        cluster.kill(victim)
        cluster.fail_over(victim)

    victim.ask("CLIENT", "PAUSE", 60_000, "WRITE")  # what writes is received, and waits
    with in_background(die):
        results = client.execute_many(commands, raise_on_error=False)
    if as_pipeline:
        assert results[1] == 1, "another node's command is finished"
    if level == "at-most-once":
        assert isinstance(results[0], OutcomeUnknown) and results[0].state is State.WRITTEN
    else:
        assert results[0] == 1
    assert client.execute_many([("INCR", lost)]) == [1 if level == "at-most-once" else 2]


def test_a_pipeline_that_is_half_written_says_which_half(
    proxied: Proxied, cluster: RedisCluster, connect_through: Connect
) -> None:
    """Cancelled is what was written; what was not is executed by the new view."""
    node = cluster.masters[0]
    client = connect_through(delivery="at-most-once")
    keys = list(islice(cluster.keys_on(node), 100))
    client.get(keys[0])
    proxied.before(node).cut_after_execution(command=b"SET", nth=20)
    results = client.execute_many([("SET", key, b"x" * 500_000) for key in keys], raise_on_error=False)
    kinds = ["ran" if result == b"OK" else "unsent" if isinstance(result, NotSent) else "unknown" for result in results]
    assert kinds.count("unsent") == 0 and 1 <= kinds.count("unknown") < 80
    assert kinds[-1] == "ran", "what had not been written went out on a new connection"
    for key, kind in zip(keys, kinds, strict=True):
        if kind == "ran":
            assert node.ask("EXISTS", key) == 1


def test_a_reply_that_cannot_be_decoded_fails_its_call_alone(connect: Connect) -> None:
    client = connect(decode_responses=True)
    client.set("{t}bad", b"\xff\xfe")
    with pytest.raises(UnicodeDecodeError) as bad:
        client.get("{t}bad")
    assert bad.value.state is State.REPLIED  # type: ignore[attr-defined]
    assert client.get("{t}none") is None


def test_what_cannot_be_encoded_is_never_held(client: Any) -> None:
    client.get("k")
    with pytest.raises(redis.DataError) as refused:
        client.set("k", object())
    assert refused.value.state is State.QUEUED  # type: ignore[attr-defined]
    assert client.counters.sent == 1 and client.counters.buffered_commands == 0


def test_reads_of_many_threads_share_a_connection_to_the_replica(proxied: Proxied, cluster: RedisCluster) -> None:
    master = cluster.masters[0]
    keys = list(islice(cluster.keys_on(master), 20))
    options: dict[str, Any] = {"startup_nodes": proxied.addresses, "address_remap": proxied.remap}
    cluster.wait_until_listed()
    with penstock.Cluster(read_from_replicas=True, **options) as client, ThreadPoolExecutor(20) as pool:
        client.ping()
        assert list(pool.map(client.get, keys * 5)) == [None] * 100
        assert client.set(keys[0], 1) is True
    replica = proxied.before(cluster.replica_of(master))
    assert replica.forwarded[b"GET"] == 100 and replica.forwarded[b"READONLY"] == 1


def test_links_to_nodes_that_have_left_are_closed(cluster: RedisCluster, client: Any) -> None:
    client.execute_many(
        [("GET", f"k{number}") for number in range(200)]
    )  # shared ones for topology, own ones for these
    real = getattr(client, "real", client)
    pool, topology = real._pool, real.core.topology
    gone = topology.map.masters[0]
    forget = pool.forget_departed if hasattr(pool, "forget_departed") else pool.forget
    known = topology.addresses - {gone}
    client.get(next(cluster.keys_on(next(node for node in cluster.nodes if node.address == gone))))
    assert any(key[0] == gone for key in pool._shared) and any(key[0] == gone for key in pool._idle)
    client.do(lambda: forget(known)) if hasattr(client, "do") else forget(known)
    assert not any(key[0] == gone for table in (pool._shared, pool._idle) for key in table)
    assert gone not in pool._clients and gone not in pool._open
    assert client.execute_many([("GET", f"k{number}") for number in range(200)]) == [None] * 200, (
        "and opened when needed"
    )


@pytest.mark.parametrize("line", ["MOVED 1 b:2", "ASK 1 b:2"])
def test_no_patience_follows_nothing(line: str) -> None:
    model = Model(between=lambda model: line)
    (result,) = model.drive(PackedPipeline(model.plan([("SET", "x", "0")]), model.map, model.rules(patience=0)).run())
    assert isinstance(result, redis.exceptions.AskError) and len(model.batches) == 1
