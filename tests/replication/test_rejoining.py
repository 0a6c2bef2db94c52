"""A former leader follows its successor: what it wrote alone is put aside, and what both have is not copied again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.replication.servers import Pair, Servers, caught_up, servers
from tests.support.waiting import wait_until

from penstock.storage.check import run_check
from penstock.storage.lineage import Lineage


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Servers]:
    with servers(tmp_path) as world:
        yield world


def pair_that_went_apart(world: Servers) -> tuple[Pair, Pair]:
    """A former leader that has written "alone", and its successor, which has not got it."""
    former = world.start("former")
    successor = world.start("successor", former)
    former.client.set("both", 1)
    caught_up(former, successor)
    successor.client.execute_command("REPLICAOF", "NO", "ONE")
    former.client.set("alone", "treasure")
    successor.client.set("k", 2)
    return former, successor


def diverged(world: Servers, name: str) -> list[Path]:
    return sorted((world.folder(name) / "appendonlydir").glob("*.diverged"))


def rewrite(pair: Pair) -> None:
    pair.client.bgrewriteaof()
    wait_until(lambda: not pair.client.info("persistence")["aof_rewrite_in_progress"])


def test_what_a_leader_wrote_alone_is_put_aside_after_it_was_started_again(world: Servers) -> None:
    former, successor = pair_that_went_apart(world)
    former.server.stop()
    former = world.start("former")
    former.client.set("alone too", "jewels")
    former.follow(successor)
    caught_up(successor, former)
    assert former.digest() == successor.digest()
    (kept,) = diverged(world, "former")
    assert b"treasure" in kept.read_bytes() and b"jewels" in kept.read_bytes()
    assert b"both" not in kept.read_bytes()


def test_what_a_leader_wrote_alone_is_put_aside_after_a_rewrite(world: Servers) -> None:
    former, successor = pair_that_went_apart(world)
    former.client.config_set("repl-backlog-ttl", 1)
    rewrite(former)
    wait_until(lambda: former.info()["repl_backlog_histlen"] == 0)
    former.client.set("alone too", "jewels")
    former.follow(successor)
    caught_up(successor, former)
    base, log = diverged(world, "former")
    assert b"treasure" in base.read_bytes() and b"jewels" in log.read_bytes()
    for path in (base, log):
        assert not run_check(path).damaged, path


def test_a_copy_that_is_begun_many_times_puts_aside_once(world: Servers) -> None:
    former, successor = pair_that_went_apart(world)
    successor.client.execute_command("CONFIG", "SET", "appendonly", "no")  # has nothing to copy
    for _ in range(3):
        former.follow(successor)
        wait_until(lambda: former.client.execute_command("ROLE")[3] == b"connect")
        former.client.execute_command("REPLICAOF", "NO", "ONE")
    assert diverged(world, "former") == []
    successor.client.execute_command("CONFIG", "SET", "appendonly", "yes")


def test_a_leader_that_was_started_again_and_wrote_nothing_alone_copies_nothing(world: Servers) -> None:
    former = world.start("former")
    successor = world.start("successor", former)
    former.client.set("both", 1)
    caught_up(former, successor)
    former.server.stop()
    successor.client.execute_command("REPLICAOF", "NO", "ONE")
    successor.client.set("k", 2)
    former = world.start("former")
    former.follow(successor)
    caught_up(successor, former)
    assert former.digest() == successor.digest()
    assert successor.client.info("stats")["sync_full"] == 0


def test_a_replica_promoted_before_it_has_a_feed_does_not_claim_it() -> None:
    known = Lineage((("a", 0), ("b", 100)))  # its leader was started again at 100
    promoted = known.continued(95)
    assert promoted.common("a", 97, 120) == 95, "from 95 on it has its own bytes"
    assert promoted.common("b", 110, 120) is None
