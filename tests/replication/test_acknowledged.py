"""replica-acks: a change is acknowledged when so many replicas have it in their logs, and shown to no client before."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from tests.support.replication.servers import Servers, caught_up, servers
from tests.support.server_process import Process
from tests.support.waiting import wait_until

from penstock.protocol.resp import pack
from penstock.testing.redis import free_port
from penstock.testing.shard import size_of_log


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Servers]:
    with servers(tmp_path) as world:
        yield world


def writes(client: redis.Redis) -> bool:
    try:
        return bool(client.set("probe", 1))
    except redis.ResponseError:
        return False


@pytest.mark.parametrize("policy", ["everysec", "always"])
def test_what_is_acknowledged_is_in_the_replicas_log(world: Servers, policy: str) -> None:
    leader = world.start("leader", appendfsync=policy)
    replica = world.start("replica", leader, appendfsync=policy)
    caught_up(leader, replica)
    leader.client.config_set("replica-acks", 1)
    wait_until(lambda: writes(leader.client))
    for n in range(100):
        leader.client.set("k", n)
        assert replica.client.get("k") == b"%d" % n
    with leader.client.pipeline(transaction=False) as pipe:
        for _ in range(50):
            pipe.incr("n")
        assert pipe.execute() == list(range(1, 51))
    assert replica.client.get("n") == b"50"


def test_writes_are_refused_without_so_many_replicas(world: Servers) -> None:
    leader = world.start("leader", replica_acks=1)
    with pytest.raises(redis.ResponseError, match="Not enough good replicas"):
        leader.client.set("k", 1)
    replica = world.start("replica", leader)
    caught_up(leader, replica)
    wait_until(lambda: writes(leader.client))
    replica.server.stop()
    wait_until(lambda: not writes(leader.client))
    leader.client.config_set("replica-acks", 0)
    wait_until(lambda: writes(leader.client))


def test_a_replica_that_lives_and_does_not_get_on_holds_clients_up_for_a_while_only(world: Servers) -> None:
    leader = world.start("leader", replica_acks=1, min_replicas_max_lag=1)
    replica = world.start("replica", leader)
    caught_up(leader, replica)
    wait_until(lambda: writes(leader.client))

    def refuse(trouble: str | None) -> None:
        """The disk of the replica is full, or has room again."""
        writer = replica.server.app.persistence.aof.writer
        assert writer is not None
        replica.server.call(lambda app: setattr(writer, "trouble", trouble))

    refuse("No space left on device")
    with pytest.raises(redis.ResponseError, match="too few replicas have it"):
        leader.client.set("k", 1)
    assert leader.client.get("k") == b"1", "reads go on"
    with pytest.raises(redis.ResponseError, match="Not enough good replicas"):
        leader.client.set("k", 2)
    leader.client.config_set("min-replicas-max-lag", 60)
    wait_until(lambda: not leader.server.app.engine.lacks_replicas)
    answers: list[bytes | None] = []
    reader = threading.Thread(target=lambda: answers.append(leader.client.get("k")))
    reader.start()
    reader.join(0.3)
    assert answers == [], "the leader has its replica again, and shows no change that this one lacks"
    refuse(None)
    reader.join()
    assert answers == [b"1"] == [replica.client.get("k")]
    wait_until(lambda: writes(leader.client))
    caught_up(leader, replica)


def test_no_client_sees_what_was_written_before_replies_waited_for_replicas(world: Servers) -> None:
    leader = world.start("leader", min_replicas_max_lag=60)
    replica = world.start("replica", leader)
    caught_up(leader, replica)
    writer = replica.server.app.persistence.aof.writer
    assert writer is not None
    replica.server.call(lambda app: setattr(writer, "trouble", "No space left on device"))
    leader.client.set("k", 1)
    leader.client.config_set("replica-acks", 1)
    with socket.create_connection(("127.0.0.1", leader.server.port), timeout=60) as reader:
        reader.sendall(pack(b"GET", b"k"))
        assert not select.select([reader], [], [], 0.3)[0], "the replica lacks it"
        replica.server.call(lambda app: setattr(writer, "trouble", None))
        assert reader.recv(100) == b"$1\r\n1\r\n"
    assert replica.client.get("k") == b"1"


@contextmanager
def a_leader_and_its_replica(folder: Path) -> Iterator[tuple[Process, Process]]:
    """Two processes that have k = old."""
    (folder / "one").mkdir()
    (folder / "other").mkdir()
    one = Process(folder / "one", free_port(), options="--replica-acks 1 --min-replicas-max-lag 60")
    other = Process(folder / "other", free_port(), options=f"--replicaof 127.0.0.1 {one.port}")
    try:
        with redis.Redis(port=one.port) as client:
            wait_until(lambda: writes(client))
            client.set("k", "old")
        yield one, other
    finally:
        one.kill()
        other.kill()


def test_no_client_sees_what_a_replica_does_not_have_yet(tmp_path: Path) -> None:
    with a_leader_and_its_replica(tmp_path) as (one, other):
        os.kill(other.process.pid, signal.SIGSTOP)
        answers: list[object] = []

        def ask(*words: str) -> None:
            with redis.Redis(port=one.port, retry=None) as client:
                try:
                    answers.append(client.execute_command(*words))
                except redis.RedisError as error:
                    answers.append(str(error))

        writer = threading.Thread(target=ask, args=("SET", "k", "new"))
        writer.start()
        reader = threading.Thread(target=ask, args=("GET", "k"))
        writer.join(0.3)
        reader.start()
        reader.join(0.3)
        assert answers == [], "the write is not acknowledged, and a read waits behind it"
        os.kill(other.process.pid, signal.SIGCONT)
        writer.join()
        reader.join()
        assert sorted(map(repr, answers)) == sorted(map(repr, [True, b"new"]))
        os.kill(other.process.pid, signal.SIGSTOP)
        writer = threading.Thread(target=ask, args=("SET", "k", "newer"))
        before = size_of_log(tmp_path / "one")
        writer.start()
        wait_until(lambda: size_of_log(tmp_path / "one") > before)  # it has run
        other.process.kill()
        writer.join()
        assert "too few replicas have it" in str(answers[-1]), "it may or may not be lost: the client knows"


def test_a_repeat_is_not_acknowledged_before_a_replica_has_the_change(tmp_path: Path) -> None:
    with (
        a_leader_and_its_replica(tmp_path) as (one, other),
        socket.create_connection(("127.0.0.1", one.port), timeout=60) as first,
        socket.create_connection(("127.0.0.1", one.port), timeout=60) as second,
    ):
        os.kill(other.process.pid, signal.SIGSTOP)
        before = size_of_log(tmp_path / "one")
        first.sendall(pack(b"TWRITE", b"s", b"PRODUCER", b"p", b"1", b"ENTRIES", b"tag", b"entry"))
        wait_until(lambda: size_of_log(tmp_path / "one") > before)  # it has run
        second.sendall(pack(b"TWRITE", b"s", b"PRODUCER", b"p", b"1", b"ENTRIES", b"tag", b"entry"))
        assert not select.select([first, second], [], [], 0.2)[0]
        other.process.kill()
        assert [link.recv(100)[:12] for link in (first, second)] == [b"-NOREPLICAS "] * 2


def test_a_leader_that_follows_another_answers_no_read_with_what_its_replica_lacks(tmp_path: Path) -> None:
    with a_leader_and_its_replica(tmp_path) as (one, other):
        os.kill(other.process.pid, signal.SIGSTOP)
        with (
            socket.create_connection(("127.0.0.1", one.port), timeout=60) as writer,
            socket.create_connection(("127.0.0.1", one.port), timeout=60) as reader,
        ):
            writer.sendall(pack(b"SET", b"k", b"new"))
            assert not select.select([writer], [], [], 0.2)[0]
            reader.sendall(pack(b"GET", b"k"))
            assert not select.select([reader], [], [], 0.2)[0]
            writer.sendall(pack(b"REPLICAOF", b"127.0.0.1", b"%d" % free_port()))
            answer = reader.recv(100)
            assert answer == b"", "the next leader may lack it"
            assert b"too few replicas have it" in writer.recv(1000)
