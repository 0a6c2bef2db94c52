"""What a server of ours does beside plain commands, seen at a replica, and after the replica was promoted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from tests.support.replication.servers import Pair, caught_up, servers


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Pair, Pair]]:
    with servers(tmp_path) as world:
        leader = world.start("leader", worker_threshold=1)
        yield leader, world.start("replica", leader)


def promoted(leader: Pair, replica: Pair) -> redis.Redis:
    caught_up(leader, replica)
    replica.client.execute_command("REPLICAOF", "NO", "ONE")
    return replica.client


def test_what_was_queued_lazily_is_done_at_the_next_leader(pair: tuple[Pair, Pair]) -> None:
    leader, replica = pair
    with leader.client.pipeline(transaction=False) as pipe:
        for number in range(100):
            pipe.execute_command("LAZY", "SADD", "lazy", number)
        pipe.execute()
    assert promoted(leader, replica).scard("lazy") == 100


def test_what_threads_and_transactions_did_is_at_the_replica(pair: tuple[Pair, Pair]) -> None:
    leader, replica = pair
    leader.client.sadd("one", *range(1000))
    leader.client.sadd("other", *range(500, 1500))
    assert leader.client.sinterstore("both", "one", "other") == 500
    with leader.client.pipeline() as pipe:
        pipe.set("unit", 1).execute_command("SELECT", 3).set("unit", 3).execute()
    with redis.Redis(port=leader.server.port, db=4) as client:
        client.set("gone", 1)
        client.flushdb()
        client.set("here", 1)
    caught_up(leader, replica)
    assert replica.digest() == leader.digest()
    assert replica.client.scard("both") == 500
    leader.client.flushall()
    caught_up(leader, replica)
    assert replica.client.info("keyspace") == {}


def test_no_reader_of_a_replica_sees_half_a_transaction(pair: tuple[Pair, Pair]) -> None:
    leader, replica = pair
    caught_up(leader, replica)
    for number in range(1, 200):
        with leader.client.pipeline() as pipe:
            pipe.set("a", number).set("b", number).execute()
        seen = replica.client.mget("a", "b")
        assert seen[0] == seen[1]


def test_producers_and_stages_are_known_after_a_promotion(pair: tuple[Pair, Pair]) -> None:
    leader, replica = pair
    write = ("TWRITE", "t", "PRODUCER", "p", 1, "ENTRIES", "tag", "entry")
    first = leader.client.execute_command(*write)
    leader.client.execute_command("TSTAGE", "t", "token", "ENTRIES", "tag", "staged")
    client = promoted(leader, replica)
    assert client.execute_command(*write) == first, "it was written before"
    client.execute_command("TCOMMIT", "t", "q", 1, "token")
    read = client.execute_command("TREAD", "t", 1, 10)
    assert [bytes(message[-1]) for message in read] == [b"entry", b"staged"]


def test_users_are_not_replicated(pair: tuple[Pair, Pair]) -> None:
    leader, replica = pair
    leader.client.acl_setuser("bob", enabled=True, passwords=["+secret"], categories=["+@all"])
    leader.client.set("k", 1)
    caught_up(leader, replica)
    assert leader.client.acl_users() == ["bob", "default"]
    assert replica.client.acl_users() == ["default"]
