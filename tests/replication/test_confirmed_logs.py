"""replica-acks: what replicas have confirmed waits for nothing more, and is shown also while replicas are too few."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from tests.support.replication.plain_shards import PlainShard
from tests.support.replication.servers import Pair, Servers, caught_up, servers, takes_writes
from tests.support.waiting import wait_until

from penstock.protocol.resp import pack
from penstock.testing.shard import size_of_log


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Servers]:
    with servers(tmp_path) as world:
        yield world


def refuses(replica: Pair, trouble: str | None) -> None:
    """The disk of a replica is full, or has room again; its process gives signs of life."""
    writer = replica.server.app.persistence.aof.writer
    assert writer is not None
    replica.server.call(lambda app: setattr(writer, "trouble", trouble))


def rewrite_log(leader: Pair) -> None:
    """BGREWRITEAOF, and wait until it is done."""
    before = leader.server.app.engine.stats.forks
    with contextlib.suppress(redis.ResponseError):  # it is at work already
        leader.client.bgrewriteaof()
    wait_until(
        lambda: (
            leader.server.app.engine.stats.forks > before
            and not leader.client.info("persistence")["aof_rewrite_in_progress"]
        )
    )


@pytest.mark.parametrize("policy", ["everysec", "always"])
def test_reads_are_answered_after_a_rewrite_of_the_log_though_replicas_are_too_few(world: Servers, policy: str) -> None:
    leader = world.start("leader", replica_acks=1, appendfsync=policy)
    replica = world.start("replica", leader)
    caught_up(leader, replica)
    wait_until(lambda: takes_writes(leader))
    leader.client.set("k", "value")
    replica.server.stop()
    wait_until(lambda: not takes_writes(leader))
    rewrite_log(leader)
    assert leader.client.get("k") == b"value", "the replica had all that there is"


def test_a_replica_that_does_not_get_on_is_given_up_though_no_lag_is_too_much(world: Servers) -> None:
    leader = world.start("leader", replica_acks=1, min_replicas_max_lag=0, repl_timeout=2, repl_ping_replica_period=1)
    replica = world.start("replica", leader)
    caught_up(leader, replica)
    wait_until(lambda: takes_writes(leader))
    refuses(replica, "No space left on device")
    with pytest.raises(redis.ResponseError, match="too few replicas have it"):
        leader.client.set("k", 1)
    other = world.start("other", leader)
    wait_until(lambda: takes_writes(leader))
    assert other.client.get("k") == b"1"


def test_the_log_is_not_turned_off_while_replicas_have_to_confirm_it(world: Servers) -> None:
    leader = world.start("leader", replica_acks=1)
    replica = world.start("replica", leader)
    caught_up(leader, replica)
    wait_until(lambda: takes_writes(leader))
    with pytest.raises(redis.ResponseError, match="CONFIG SET replica-acks 0 first"):
        leader.client.config_set("appendonly", "no")
    leader.client.set("k", 1)
    assert replica.client.get("k") == b"1"
    assert leader.client.config_set("appendonly", "no", "replica-acks", 0)
    assert takes_writes(leader)


def test_a_command_that_waits_does_not_write_while_replicas_are_too_few(world: Servers) -> None:
    leader = world.start("leader", replica_acks=1, stream_max_pending=1)
    replica = world.start("replica", leader)
    caught_up(leader, replica)
    wait_until(lambda: takes_writes(leader))
    leader.client.execute_command("TWRITE", "s", "ENTRIES", "tag", "one", "tag", "two")
    read = ("TREAD", "s", 0, 1, "GROUP", "g", "RETRY", 600_000, 0)
    leader.client.execute_command(*read)
    answers: list[object] = []
    member = threading.Thread(target=lambda: answers.append(leader.client.execute_command(*read, "BLOCK", 0)))
    member.start()
    wait_until(lambda: leader.client.info("clients")["blocked_clients"] == 1)
    replica.server.stop()
    wait_until(lambda: not takes_writes(leader))
    leader.client.config_set("stream-max-pending", 100)
    assert leader.client.exists("s") and answers == []
    again = world.start("replica", leader)
    member.join()
    assert answers == [[[2, b"tag", b"two"]]]
    caught_up(leader, again)


def test_a_former_leader_that_starts_as_a_replica_does_not_show_what_its_leader_lacks(tmp_path: Path) -> None:
    with PlainShard(tmp_path, 2, "--replica-acks 1 --min-replicas-max-lag 60") as shard:
        former, (other,) = shard.leader, shard.replicas
        former.call("SET", "k", "old")
        other.signal(signal.SIGSTOP)
        with socket.create_connection(("127.0.0.1", former.port), timeout=60) as writer:
            before = size_of_log(former.folder)
            writer.sendall(pack(b"SET", b"k", b"new"))
            wait_until(lambda: size_of_log(former.folder) > before)  # it has run
            former.kill()
            other.kill()
        former.start(other)
        for _ in range(2):
            with pytest.raises(redis.ResponseError, match="Not enough good replicas to read"):
                former.call("GET", "k")
            former.kill()
            former.start(other)
        other.start()
        other.call("CONFIG", "SET", "replica-acks", 0)
        wait_until(lambda: former.info()["master_link_status"] == "up")
        assert former.call("GET", "k") == b"old" == other.call("GET", "k")
        former.kill()
        other.kill()
        former.start(other)
        assert former.call("GET", "k") == b"old", "a replica that starts shows what it had of its leader"
