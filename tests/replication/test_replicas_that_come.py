"""Replicas that come, or come again, while clients wait for replicas (`replica-acks`)."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from tests.support.replication.servers import Pair, Servers, caught_up, servers, takes_writes
from tests.support.waiting import wait_until

from penstock.protocol.resp import pack


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Servers]:
    with servers(tmp_path) as world:
        yield world


def with_a_replica_that_is_stuck(world: Servers) -> tuple[Pair, Callable[[str | None], None]]:
    """A leader whose replica lives and writes nothing more, and the function that sets why."""
    leader = world.start("leader", replica_acks=1, min_replicas_max_lag=100_000)
    replica = world.start("replica", leader)
    caught_up(leader, replica)
    wait_until(lambda: takes_writes(leader))
    writer = replica.server.app.persistence.aof.writer
    assert writer is not None

    def set_trouble(trouble: str | None) -> None:
        replica.server.call(lambda app: setattr(writer, "trouble", trouble))

    set_trouble("No space left on device")
    return leader, set_trouble


@pytest.mark.parametrize("password", ["", "secret"])
def test_a_replica_can_come_while_a_write_waits_for_it(world: Servers, password: str) -> None:
    leader, _ = with_a_replica_that_is_stuck(world)
    if password:
        leader.client.config_set("requirepass", password)
    answers: list[object] = []
    client = threading.Thread(target=lambda: answers.append(leader.client.set("k", 1)))
    client.start()
    wait_until(lambda: leader.server.app.engine.keyspace[0].get(b"k") is not None)
    other = world.start("other", leader, masterauth=password)
    client.join()
    assert answers == [True] and other.client.get("k") == b"1"


def test_a_client_that_names_a_port_is_no_replica_that_others_wait_for(world: Servers) -> None:
    leader, set_trouble = with_a_replica_that_is_stuck(world)
    with socket.create_connection(("127.0.0.1", leader.server.port), timeout=60) as client:
        client.sendall(pack(b"SET", b"k", b"v"))
        wait_until(lambda: leader.server.app.engine.keyspace[0].get(b"k") is not None)
        client.sendall(pack(b"REPLCONF", b"listening-port", b"7") + pack(b"GET", b"k"))
        assert not select.select([client], [], [], 0.3)[0], "its replies wait, in order"
        set_trouble(None)
        with client.makefile("rb") as lines:
            assert [lines.readline() for _ in range(4)] == [b"+OK\r\n", b"+OK\r\n", b"$1\r\n", b"v\r\n"]


def test_a_replica_that_comes_again_counts_once(world: Servers) -> None:
    leader = world.start("leader")
    with contextlib.ExitStack() as stack:
        for run in ("one", "one", "other"):
            replica = stack.enter_context(socket.create_connection(("127.0.0.1", leader.server.port), timeout=60))
            lines = stack.enter_context(replica.makefile("rb"))
            replica.sendall(pack(b"REPLCONF", b"capa", b"penstock", b"run", run.encode()))
            assert lines.readline() == b"+OK\r\n"
            replica.sendall(pack(b"PSYNC", leader.info()["master_replid"].encode(), b"0"))
            assert lines.readline() == b"*2\r\n"
        wait_until(lambda: leader.info()["connected_slaves"] == 2)


def test_a_limit_for_what_waits_for_replicas_lets_them_copy_everything(world: Servers) -> None:
    leader = world.start("leader", client_output_buffer_limit="replica 16kb 0 0")
    leader.client.set("large", bytes(3 << 20))
    with contextlib.suppress(redis.ResponseError):
        leader.client.bgrewriteaof()
    wait_until(lambda: leader.server.app.persistence.aof.size_at_rewrite > 3 << 20)
    replica = world.start("replica", leader)
    caught_up(leader, replica)
    assert replica.client.strlen("large") == 3 << 20


@pytest.mark.parametrize("words", [("appendonly", "yes", "replica-acks", 1), ("replica-acks", 1, "appendonly", "yes")])
def test_what_was_written_before_there_was_a_log_is_not_shown_before_replicas_have_it(
    world: Servers, words: tuple[str | int, ...]
) -> None:
    leader = world.start("leader", appendonly=False)
    leader.client.set("k", 1)
    leader.client.execute_command("CONFIG", "SET", *words)
    with pytest.raises(redis.ResponseError, match="Not enough good replicas to read"):
        leader.client.get("k")
    replica = world.start("replica", leader)
    wait_until(lambda: takes_writes(leader))
    assert leader.client.get("k") == b"1" == replica.client.get("k")
