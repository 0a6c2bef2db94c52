"""A transaction that changes the role of its server acknowledges, and shows, nothing that the next leader lacks."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.replication.plain_shards import PlainShard
from tests.support.replication.servers import Servers, caught_up, servers
from tests.support.waiting import wait_until

from penstock.protocol.resp import pack
from penstock.testing.shard import size_of_log


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Servers]:
    with servers(tmp_path) as world:
        yield world


@pytest.mark.parametrize("order", ["REPLICAOF 127.0.0.1 1", "FAILOVER"])
def test_a_transaction_that_has_written_does_not_change_the_role(world: Servers, order: str) -> None:
    leader = world.start("leader")
    replica = world.start("replica", leader)
    caught_up(leader, replica)
    with leader.client.pipeline() as transaction:
        transaction.set("k", "new")
        transaction.execute_command(*order.split())
        transaction.set("k", "newer")
        first, second, third = transaction.execute(raise_on_error=False)
    assert first is third is True
    assert "this transaction has written already" in str(second)
    assert leader.info()["role"] == "master"
    caught_up(leader, replica)
    assert replica.client.get("k") == b"newer"


def test_what_a_transaction_has_read_before_is_not_shown_if_replicas_lack_it(tmp_path: Path) -> None:
    with PlainShard(tmp_path, 2, "--replica-acks 1 --min-replicas-max-lag 60") as shard:
        leader, (replica,) = shard.leader, shard.replicas
        leader.call("SET", "k", "old")
        replica.signal(signal.SIGSTOP)
        with (
            socket.create_connection(("127.0.0.1", leader.port), timeout=60) as writer,
            socket.create_connection(("127.0.0.1", leader.port), timeout=60) as operator,
            operator.makefile("rb") as lines,
        ):
            operator.sendall(b"MULTI\r\nGET k\r\nREPLICAOF 127.0.0.1 1\r\n")
            assert [lines.readline() for _ in range(3)] == [b"+OK\r\n", b"+QUEUED\r\n", b"+QUEUED\r\n"]
            before = size_of_log(leader.folder)
            writer.sendall(pack(b"SET", b"k", b"new"))
            wait_until(lambda: size_of_log(leader.folder) > before)  # it has run
            operator.sendall(b"EXEC\r\n")
            assert b"too few replicas have it" in writer.recv(1000)
            assert lines.readline() == b"*2\r\n"
            assert lines.readline().startswith(b"-NOREPLICAS Not enough good replicas to read")
            assert lines.readline() == b"+OK\r\n"
