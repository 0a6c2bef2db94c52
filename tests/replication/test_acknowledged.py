"""replica-acks: a change is acknowledged when so many replicas have it in their logs, and shown to no client before."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from tests.support.replication.plain_shards import PlainShard
from tests.support.replication.servers import Servers, caught_up, servers
from tests.support.server_process import Process
from tests.support.waiting import wait_until

from penstock.protocol.resp import pack
from penstock.server.app import App
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
    with pytest.raises(redis.ResponseError, match="Not enough good replicas to read"):
        leader.client.get("k")
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


@pytest.mark.parametrize("before", [[], ["SET a 1"]])
def test_a_write_behind_config_set_replica_acks_is_not_acknowledged_without_replicas(
    world: Servers, before: list[str]
) -> None:
    leader = world.start("leader")
    commands = [*before, "CONFIG SET replica-acks 1", "SET b 2"]
    replies = b""
    with socket.create_connection(("127.0.0.1", leader.server.port), timeout=60) as client:
        client.sendall("".join(f"{command}\r\n" for command in commands).encode())
        while b"NOREPLICAS" not in replies and (data := client.recv(1000)):
            replies += data
            assert replies.count(b"+OK") < len(commands)
    with pytest.raises(redis.ResponseError, match="Not enough good replicas to read"):
        leader.client.get("b")


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


def test_a_change_that_its_replica_may_lack_is_not_shown_before_a_replica_has_it(tmp_path: Path) -> None:
    with PlainShard(tmp_path, 2) as shard:
        leader, (replica,) = shard.leader, shard.replicas

        def is_hidden() -> bool:
            with pytest.raises(redis.ResponseError) as error:
                leader.call("GET", "k")
            return "Not enough good replicas to read" in str(error.value)

        replica.signal(signal.SIGSTOP)
        with socket.create_connection(("127.0.0.1", leader.port), timeout=60) as writer:
            before = size_of_log(leader.folder)
            writer.sendall(pack(b"SET", b"k", b"new"))
            wait_until(lambda: size_of_log(leader.folder) > before)  # it has run
            replica.kill()
            assert b"too few replicas have it" in writer.recv(1000)
        assert is_hidden()
        leader.kill()
        leader.start()
        assert is_hidden(), "a server that starts does not know what its replicas have"

        replica.start(leader)
        wait_until(shard.takes_writes)
        assert leader.call("GET", "k") == b"new"
        replica.kill()
        wait_until(lambda: not shard.takes_writes())
        assert leader.call("GET", "k") == b"new", "the replica had all that it shows"


def test_reads_are_answered_when_replica_acks_is_met_and_min_replicas_to_write_is_not(tmp_path: Path) -> None:
    with PlainShard(tmp_path, 3, "--replica-acks 1 --min-replicas-to-write 2 --min-replicas-max-lag 60") as shard:
        leader, (one, other) = shard.leader, shard.replicas
        for replica in shard.replicas:
            replica.signal(signal.SIGSTOP)
        with socket.create_connection(("127.0.0.1", leader.port), timeout=60) as writer:
            before = size_of_log(leader.folder)
            writer.sendall(pack(b"SET", b"k", b"new"))
            wait_until(lambda: size_of_log(leader.folder) > before)  # it has run
            other.kill()
            assert not select.select([writer], [], [], 0.5)[0], "it waits for one replica"
            one.signal(signal.SIGCONT)
            assert writer.recv(100) == b"+OK\r\n"
        assert leader.call("GET", "k") == b"new" == one.call("GET", "k")
        assert not shard.takes_writes()


def test_a_replica_copies_everything_from_a_leader_that_hides_changes(tmp_path: Path) -> None:
    with PlainShard(tmp_path, 2) as shard:
        leader, (replica,) = shard.leader, shard.replicas
        leader.call("SET", "k", "value")
        leader.call("SET", "large", os.urandom(8 << 20))
        leader.rewrite_log()  # what a replica copies is the base
        wait_until(lambda: not leader.call("INFO", "persistence")["aof_rewrite_in_progress"])
        replica.kill()
        shutil.rmtree(replica.folder / "appendonlydir")
        leader.kill()
        leader.start()  # it does not know what its replicas have
        with pytest.raises(redis.ResponseError, match="Not enough good replicas to read"):
            leader.call("GET", "k")
        replica.start(leader)
        wait_until(shard.takes_writes)
        assert leader.call("GET", "k") == b"value" == replica.call("GET", "k")


def test_a_leader_that_stops_leading_does_not_show_what_its_replica_lacks(tmp_path: Path) -> None:
    with PlainShard(tmp_path, 2, "--replica-acks 1 --min-replicas-max-lag 60") as shard:
        leader, (replica,) = shard.leader, shard.replicas
        leader.call("SET", "k", "old")
        replica.signal(signal.SIGSTOP)
        with (
            socket.create_connection(("127.0.0.1", leader.port), timeout=60) as writer,
            socket.create_connection(("127.0.0.1", leader.port), timeout=60) as operator,
        ):
            before = size_of_log(leader.folder)
            writer.sendall(pack(b"SET", b"k", b"new"))
            wait_until(lambda: size_of_log(leader.folder) > before)  # it has run
            operator.sendall(pack(b"REPLICAOF", b"127.0.0.1", b"1"))
            assert b"too few replicas have it" in writer.recv(1000)

        def is_hidden() -> bool:
            with contextlib.suppress(redis.ResponseError):
                return leader.call("GET", "k") is None
            return True

        assert is_hidden()
        leader.call("REPLICAOF", "NO", "ONE")
        assert is_hidden()
        replica.signal(signal.SIGCONT)
        wait_until(lambda: not is_hidden())
        assert leader.call("GET", "k") == b"new" == replica.call("GET", "k")
        wait_until(shard.takes_writes)


def test_reads_are_answered_without_replicas_though_keys_and_messages_expire(tmp_path: Path) -> None:
    with PlainShard(tmp_path, 2) as shard:
        leader, (replica,) = shard.leader, shard.replicas
        leader.call("SET", "k", "value")
        life = 2000
        while True:
            leader.call("TWRITE", "s", "tag", "message")
            leader.call("SET", "short", "value", "PX", life)
            leader.call("TRETAIN", "s", "AGE", life)
            replica.kill()
            wait_until(lambda: not shard.takes_writes())
            expired = leader.call("INFO", "stats")["expired_keys"]
            with contextlib.suppress(redis.ResponseError):
                if leader.call("GET", "short") is not None:
                    break
            replica.start(leader)  # the machine was too slow: it went while there was a replica
            wait_until(shard.takes_writes)
            leader.call("DEL", "s")
            life *= 4
        wait_until(lambda: leader.call("GET", "short") is None)
        time.sleep(0.5)  # for what happens by itself ten times a second
        assert leader.call("GET", "k") == b"value"
        assert leader.call("TREAD", "s", 1, 10) == [[1, b"tag", b"message"]]
        replica.start(leader)
        wait_until(shard.takes_writes)
        wait_until(lambda: leader.call("INFO", "stats")["expired_keys"] == expired + 1)
        wait_until(lambda: leader.call("TREAD", "s", 1, 10) == [None])


def test_reads_are_answered_without_replicas_though_a_consumer_goes_away(tmp_path: Path) -> None:
    with PlainShard(tmp_path, 2) as shard:
        leader, (replica,) = shard.leader, shard.replicas
        leader.call("TWRITE", "s", "tag", "message")
        read = ("TREAD", "s", 0, 1, "GROUP", "g", "RETRY", 60_000, 0)
        consumer = redis.Redis(port=leader.port, single_connection_client=True)
        consumer.execute_command(*read, "CONSUMER", "ada", "RELEASE")
        replica.kill()
        wait_until(lambda: not shard.takes_writes())
        consumer.close()
        time.sleep(0.5)  # for what happens by itself ten times a second
        assert leader.call("TREAD", "s", 1, 10) == [[1, b"tag", b"message"]]
        replica.start(leader)
        wait_until(shard.takes_writes)
        assert leader.call(*read, "BLOCK", 60_000) == [[1, b"tag", b"message"]], "it was given back then"


@pytest.mark.parametrize("problem", ["replicas", "disk"])
def test_a_reply_that_is_on_its_way_when_changes_are_hidden_is_lost(world: Servers, problem: str) -> None:
    leader = world.start("leader", min_replicas_max_lag=60)
    replica = world.start("replica", leader)
    caught_up(leader, replica)
    leader.client.config_set("replica-acks", 1)
    wait_until(lambda: writes(leader.client))
    writer = replica.server.app.persistence.aof.writer
    assert writer is not None
    replica.server.call(lambda app: setattr(writer, "trouble", "No space left on device"))
    with socket.create_connection(("127.0.0.1", leader.server.port), timeout=60) as reader:
        reader.sendall(pack(b"CLIENT", b"SETNAME", b"reader"))
        assert reader.recv(100) == b"+OK\r\n"

        def reply_and_hide(app: App) -> None:
            """As a thread does whose read has just ended."""
            (session,) = [session for session in app.engine.sessions.values() if session.name == b"reader"]
            log = app.persistence.aof.writer
            assert log is not None
            log.log([(0, [b"SET", b"k", b"new"])])
            if problem == "disk":
                session.output.send(b"$3\r\nnew\r\n")
                log._in_trouble(OSError(28, "No space left on device"))
                log._release(failed=True)
            else:
                log.flush()
                session.output.send(b"$3\r\nnew\r\n")
                app.replication._unconfirmed.give_up_waiting()

        leader.server.call(reply_and_hide)
        assert reader.recv(100) == b""


def test_a_lone_server_shows_what_it_has_if_it_is_told_to_wait_for_no_replica(world: Servers) -> None:
    leader = world.start("leader")
    leader.client.set("k", 1)
    leader.client.config_set("replica-acks", 1)

    def is_hidden() -> bool:
        try:
            return leader.client.get("k") is None
        except redis.ResponseError:
            return True

    wait_until(is_hidden)
    leader.client.config_set("min-replicas-to-write", 1)
    leader.client.config_set("replica-acks", 0)
    wait_until(lambda: not is_hidden())
    assert leader.client.get("k") == b"1"


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
