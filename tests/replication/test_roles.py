"""A server changes its role: by REPLICAOF and FAILOVER. WAIT, WAITAOF and min-replicas-to-write."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from tests.support.replication.servers import Pair, Servers, caught_up, is_up, servers
from tests.support.server_process import Process
from tests.support.waiting import wait_until

from penstock.protocol.errors import ReplyError
from penstock.protocol.resp import pack
from penstock.server.app import App
from penstock.testing.redis import free_port


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Servers]:
    with servers(tmp_path) as world:
        yield world


def test_a_replica_is_named_by_the_address_that_it_says(world: Servers) -> None:
    one = world.start("one")
    other = world.start("other", one, replica_announce_ip="10.1.2.3", replica_announce_port=4567)
    caught_up(one, other)
    named = one.info()["slave0"]
    assert (named["ip"], named["port"]) == ("10.1.2.3", 4567)
    assert one.client.execute_command("ROLE")[2][0][:2] == [b"10.1.2.3", b"4567"]


def test_a_promoted_replica_takes_writes_and_its_former_leader_follows_it(world: Servers) -> None:
    one = world.start("one")
    other = world.start("other", one)
    one.client.set("k", 1)
    caught_up(one, other)
    other.client.execute_command("REPLICAOF", "NO", "ONE")
    other.client.set("k", 2)
    assert other.info()["role"] == "master"
    one.follow(other)
    caught_up(other, one)
    assert one.client.get("k") == b"2"
    assert other.client.info("stats")["sync_full"] == 0, "it had nothing of its own"
    assert one.client.config_get("replicaof")["replicaof"] == other.address
    assert [each.client.execute_command("HELLO", 3)[b"role"] for each in (one, other)] == [b"replica", b"master"]


def test_what_a_leader_wrote_and_its_successor_never_got_is_put_aside(world: Servers) -> None:
    one = world.start("one")
    other = world.start("other", one)
    caught_up(one, other)
    other.client.execute_command("REPLICAOF", "NO", "ONE")
    one.client.set("lost", "treasure")
    other.client.set("k", 2)
    one.follow(other)
    caught_up(other, one)
    assert one.digest() == other.digest() and one.client.get("lost") is None
    (kept,) = (world.folder("one") / "appendonlydir").glob("*.diverged")
    assert b"treasure" in kept.read_bytes()


def test_a_failover_loses_nothing(world: Servers) -> None:
    one = world.start("one")
    other = world.start("other", one)
    caught_up(one, other)
    acknowledged: list[int] = []

    def write() -> None:
        with redis.Redis(port=one.server.port, retry=None) as client:
            for n in range(1_000_000):
                try:
                    client.set(f"k{n}", n)
                except redis.exceptions.ReadOnlyError:
                    return
                acknowledged.append(n)

    writer = threading.Thread(target=write)
    writer.start()
    wait_until(lambda: len(acknowledged) > 100)
    assert one.client.execute_command("FAILOVER") == b"OK"
    wait_until(lambda: other.info()["role"] == "master")
    writer.join()
    caught_up(other, one)
    assert all(other.client.get(f"k{n}") == b"%d" % n for n in acknowledged)
    assert one.digest() == other.digest()
    assert one.info()["master_failover_state"] == "no-failover"


def test_a_leader_that_hands_over_to_a_server_that_is_gone_leads_again_when_it_is_told_so(world: Servers) -> None:
    one = world.start("one")
    other = world.start("other", one)
    caught_up(one, other)
    address = other.address.split()
    other.server.stop()
    silent = world.start("silent", one, replica_announce_port=address[1])
    caught_up(one, silent)
    one.client.execute_command("FAILOVER", "TO", *address)
    wait_until(lambda: one.info()["master_failover_state"] == "failover-in-progress")
    with pytest.raises(redis.exceptions.ReadOnlyError):
        one.client.set("k", 1)
    with pytest.raises(redis.ResponseError, match="REPLICAOF not allowed while failing over"):
        one.follow(silent)
    one.client.execute_command("FAILOVER", "ABORT")
    assert one.info()["role"] == "master" and one.client.set("k", 2)
    caught_up(one, silent)
    one.client.execute_command("FAILOVER", "TO", *address)
    wait_until(lambda: one.info()["master_failover_state"] == "failover-in-progress")
    one.client.execute_command("REPLICAOF", "NO", "ONE")
    assert one.info()["role"] == "master" and one.client.set("k", 3)


def test_a_leader_hands_over_by_force_to_a_replica_that_lacks_something(tmp_path: Path, world: Servers) -> None:
    one = world.start("one")
    (tmp_path / "process").mkdir()
    process = Process(tmp_path / "process", free_port(), options=f"--replicaof {one.address}")
    try:
        wait_until(lambda: one.client.wait(1, 100) == 1)
        os.kill(process.process.pid, signal.SIGSTOP)
        one.client.set("lost", b"x" * 30_000_000)  # more than sockets hold
        target = ("127.0.0.1", process.port)
        one.client.execute_command("FAILOVER", "TO", *target, "FORCE", "TIMEOUT", 50)
        wait_until(lambda: one.info()["master_failover_state"] != "waiting-for-sync")
        os.kill(process.process.pid, signal.SIGCONT)
        with redis.Redis(port=process.port) as client:
            wait_until(lambda: client.info("replication")["role"] == "master")
            wait_until(lambda: is_up(one))
            assert client.get("lost") is None and one.client.get("lost") is None
    finally:
        process.kill()
    assert list((world.folder("one") / "appendonlydir").glob("*.diverged")), "it is put aside"


def test_a_replica_that_was_stopped_does_not_obey_a_leader_that_has_left_meanwhile(
    tmp_path: Path, world: Servers
) -> None:
    """That leader leads again: FAILOVER ABORT."""
    one = world.start("one")
    (tmp_path / "process").mkdir()
    process = Process(tmp_path / "process", free_port(), options=f"--replicaof {one.address}")
    try:
        with redis.Redis(port=process.port) as client:
            wait_until(lambda: one.client.wait(1, 100) == 1)
            with socket.create_connection(("127.0.0.1", process.port), timeout=60) as leader:
                leader.sendall(pack(b"REPLCONF", b"capa", b"penstock"))
                assert leader.recv(100) == b"+OK\r\n"
                name = "{}:{}".format(*leader.getsockname())
                os.kill(process.process.pid, signal.SIGSTOP)
                leader.sendall(pack(b"PSYNC", b"?", b"0", b"FORCE"))
            os.kill(process.process.pid, signal.SIGCONT)
            wait_until(lambda: name not in {each["addr"] for each in client.client_list()})
            assert client.info("replication")["role"] == "slave"
    finally:
        process.kill()


@pytest.mark.parametrize("leads", [False, True])
def test_a_server_whose_log_was_deleted_changes_its_role_when_it_is_written_anew(world: Servers, leads: bool) -> None:
    """It went on at the beginning of an empty file: replicas copied that, and lost what they had."""
    one = world.start("one")
    other = world.start("other", one)
    one.client.set("k", 1)
    caught_up(one, other)
    changing, words = (one, other.address.split()) if leads else (other, ["NO", "ONE"])

    def lose_the_log_and_change(app: App) -> None:
        """In one turn of the loop, before the server can notice."""
        writer = app.persistence.aof.writer
        assert writer is not None and app.engine.replication is not None
        writer.file.path.unlink()
        with pytest.raises(ReplyError, match="the file of the log was deleted"):
            if leads:
                app.engine.replication.follow(words[0], int(words[1]))
            else:
                app.engine.replication.lead()

    changing.server.call(lose_the_log_and_change)
    wait_until(lambda: changing.client.info("persistence")["aof_rewrites"] == 1)
    if leads:
        other.client.execute_command("REPLICAOF", "NO", "ONE")
    changing.client.execute_command("REPLICAOF", *words)
    if not leads:
        one.follow(other)
    other.client.incr("k")
    caught_up(other, one)
    assert one.client.get("k") == other.client.get("k") == b"2" and one.digest() == other.digest()
    another = world.start("another", other)
    caught_up(other, another)
    assert another.digest() == other.digest()


def blocked(one: Pair, *commands: tuple[object, ...]) -> tuple[list[threading.Thread], list[str]]:
    """Clients that wait in these commands, and what they are answered."""
    answers: list[str] = []

    def wait_for(*argv: object) -> None:
        with redis.Redis(port=one.server.port) as client:
            try:
                answers.append(str(client.execute_command(*argv)))
            except redis.ResponseError as error:
                answers.append(str(error))

    waiting = [threading.Thread(target=wait_for, args=argv) for argv in commands]
    for thread in waiting:
        thread.start()
    wait_until(lambda: one.client.info("clients")["blocked_clients"] == len(commands))
    return waiting, answers


@contextlib.contextmanager
def waiting_failover(one: Pair) -> Iterator[None]:
    """FAILOVER waits for a replica that says nothing."""
    with redis.Redis(port=one.server.port, single_connection_client=True) as silent:
        one.client.set("k", 0)
        silent.execute_command("REPLCONF", "capa", "penstock")
        silent.execute_command("PSYNC", one.info()["master_replid"], 0)
        wait_until(lambda: one.info()["connected_slaves"] == 1)
        one.client.execute_command("FAILOVER")
        yield


def test_a_failover_and_the_pause_of_a_client_do_not_end_each_other(world: Servers) -> None:
    one = world.start("one")
    with waiting_failover(one):
        waiting, answers = blocked(one, ("SET", "k", 1))
        one.client.execute_command("CLIENT", "UNPAUSE")
        assert one.client.get("k") == b"0" and not answers
        one.client.execute_command("CLIENT", "PAUSE", 100_000, "WRITE")
        one.client.execute_command("FAILOVER", "ABORT")
        assert one.client.get("k") == b"0" and not answers
        one.client.execute_command("CLIENT", "UNPAUSE")
        waiting[0].join()
    assert answers == ["True"]


def test_replicaof_is_refused_while_a_failover_waits(world: Servers) -> None:
    one = world.start("one")
    with waiting_failover(one):
        for words in (("NO", "ONE"), ("127.0.0.1", 1)):
            with pytest.raises(redis.ResponseError, match="REPLICAOF not allowed while failing over"):
                one.client.execute_command("REPLICAOF", *words)
        assert one.info()["master_failover_state"] == "waiting-for-sync" and one.info()["role"] == "master"
        one.client.execute_command("FAILOVER", "ABORT")


def test_clients_that_wait_are_told_when_their_server_follows(world: Servers) -> None:
    one, other = world.start("one"), world.start("other")
    commands: list[tuple[object, ...]] = [
        ("BLPOP", "l", 0),
        ("TREAD", "t", 0, 1, "GROUP", "g", "BLOCK", 0),
        ("TREAD", "read", 1, 1, "BLOCK", 0),
        ("XREAD", "BLOCK", 0, "STREAMS", "x", "$"),
        ("WAIT", 5, 0),
        ("WAITAOF", 1, 5, 0),
    ]
    waiting, answers = blocked(one, *commands)
    one.follow(other)
    for thread in waiting:
        thread.join()
    assert len(answers) == len(commands) and all(answer.startswith("UNBLOCKED") for answer in answers), answers
    assert one.client.info("clients")["blocked_clients"] == 0


def test_a_command_that_a_pause_holds_back_runs_when_it_ends_though_its_server_follows_by_then(world: Servers) -> None:
    one, other = world.start("one"), world.start("other")
    one.client.execute_command("CLIENT", "PAUSE", 100_000, "WRITE")
    waiting, answers = blocked(one, ("SET", "k", 1))
    one.follow(other)
    assert one.client.info("clients")["blocked_clients"] == 1 and not answers
    one.client.execute_command("CLIENT", "UNPAUSE")
    waiting[0].join()
    assert "read only replica" in answers[0]


def test_wait_confirms_no_write_that_is_gone_with_a_change_of_roles(world: Servers) -> None:
    one, other = world.start("one"), world.start("other")
    one.client.set("lost", 1)
    waiting, answers = blocked(one, ("WAIT", 1, 0), ("WAITAOF", 0, 1, 0))
    other.client.set("pad", b"x" * 100_000)  # so that offsets say more than those of the write
    one.follow(other)
    last = world.start("last", one)
    caught_up(other, one, last)
    for thread in waiting:
        thread.join()
    assert one.client.get("lost") is None is last.client.get("lost")
    assert all(answer.startswith("UNBLOCKED") for answer in answers), answers


def test_failover_says_why_it_is_not_possible(world: Servers) -> None:
    one = world.start("one")
    for words, error in [
        ((), "requires connected replicas"),
        (("ABORT",), "No failover in progress"),
        (("TO", "127.0.0.1", "x"), "value is not an integer"),
        (("TO", "127.0.0.1"), "syntax"),
        (("TO", "127.0.0.1", 70_000), "requires connected replicas"),
        (("TO", "127.0.0.1", 1, "TO", "127.0.0.1", 1), "syntax"),
        (("TIMEOUT", "x"), "value is not an integer"),
        (("TIMEOUT", 10, "TIMEOUT", 10), "syntax"),
        (("FORCE", "FORCE"), "syntax"),
        (("ABORT", "ABORT"), "syntax"),
        (("TIMEOUT", "0"), "must be greater than 0"),
        (("SOON",), "syntax"),
    ]:
        with pytest.raises(redis.ResponseError, match=error):
            one.client.execute_command("FAILOVER", *words)
    other = world.start("other", one)
    caught_up(one, other)
    with pytest.raises(redis.ResponseError, match="is not a replica"):
        one.client.execute_command("FAILOVER", "TO", "127.0.0.1", 1)
    with pytest.raises(redis.ResponseError, match="requires both a timeout and target"):
        one.client.execute_command("FAILOVER", "TO", "127.0.0.1", 1, "FORCE")
    with pytest.raises(redis.ResponseError, match="WAIT cannot be used with replica instances"):
        other.client.execute_command("WAIT", "x", "y")
    with pytest.raises(redis.ResponseError, match="not valid when server is a replica"):
        other.client.execute_command("FAILOVER")
    one.client.execute_command("FAILOVER", "TO", *other.address.split(), "TIMEOUT", 60_000)
    wait_until(lambda: other.info()["role"] == "master" and is_up(one))


def test_wait_counts_the_replicas_that_have_what_was_written(world: Servers) -> None:
    leader = world.start("leader", appendfsync="always")
    assert leader.client.wait(0, 100) == 0
    assert leader.client.wait(1, 20) == 0, "after the time is over"
    replicas = [world.start(name, leader, appendfsync="always") for name in ("a", "b")]
    caught_up(leader, *replicas)
    for n in range(20):
        leader.client.set("k", n)
        assert leader.client.wait(2, 60_000) == 2
        assert [replica.client.get("k") for replica in replicas] == [b"%d" % n] * 2
    assert leader.client.execute_command("WAITAOF", 1, 2, 60_000) == [1, 2]
    with leader.client.pipeline() as pipe:
        pipe.execute_command("WAIT", 5, 0)
        assert pipe.execute() == [2], "a transaction does not wait"


def test_client_unblock_ends_wait_and_waitaof(world: Servers) -> None:
    one = world.start("one", appendfsync="always")
    one.client.set("k", 1)
    waiting, answers = blocked(one, ("WAIT", 5, 0), ("WAITAOF", 0, 5, 0))
    for row in one.client.client_list():
        assert one.client.client_unblock(row["id"]) == (row["cmd"] in ("wait", "waitaof"))
    for thread in waiting:
        thread.join()
    assert sorted(answers) == ["0", "[1, 0]"]
    waiting, answers = blocked(one, ("WAIT", 5, 0))
    (number,) = [row["id"] for row in one.client.client_list() if row["cmd"] == "wait"]
    assert one.client.client_unblock(number, error=True)
    waiting[0].join()
    assert answers == ["UNBLOCKED client unblocked via CLIENT UNBLOCK"]
    assert one.client.info("clients")["blocked_clients"] == 0


def test_waitaof_waits_for_the_sync_of_every_second(world: Servers) -> None:
    leader = world.start("leader", appendfsync="everysec")
    replica = world.start("replica", leader, appendfsync="everysec")
    caught_up(leader, replica)
    leader.client.set("k", 1)
    assert leader.client.execute_command("WAITAOF", 1, 1, 60_000) == [1, 1]


def test_writes_are_refused_without_enough_replicas(world: Servers) -> None:
    leader = world.start("leader")
    leader.client.config_set("min-replicas-to-write", 1)
    with pytest.raises(redis.ResponseError, match="Not enough good replicas"):
        leader.client.set("k", 1)
    assert leader.client.get("k") is None
    replica = world.start("replica", leader)
    caught_up(leader, replica)

    def writes() -> bool:
        try:
            return bool(leader.client.set("k", 1))
        except redis.ResponseError:
            return False

    wait_until(writes)
    replica.server.stop()
    wait_until(lambda: not writes())


def test_replies_kept_for_exactly_once_survive_a_promotion(world: Servers) -> None:
    one = world.start("one")
    other = world.start("other", one)
    one.client.execute_command("ONCE", "me", 1, 1, "INCR", "n")
    caught_up(one, other)
    other.client.execute_command("REPLICAOF", "NO", "ONE")
    assert other.client.execute_command("ONCE", "me", 1, 1, "INCR", "n") == 1
    assert other.client.get("n") == b"1"


def test_leases_of_a_group_survive_a_promotion(world: Servers) -> None:
    one = world.start("one")
    other = world.start("other", one)
    one.client.execute_command("TWRITE", "t", "ENTRIES", *[word for n in range(10) for word in (b"", b"%d" % n)])
    one.client.execute_command("TREAD", "t", 0, 4, "GROUP", "g", "RETRY", 60_000, 0)
    caught_up(one, other)
    other.client.execute_command("REPLICAOF", "NO", "ONE")
    rest = other.client.execute_command("TREAD", "t", 0, 100, "GROUP", "g")
    assert [bytes(message[-1]) for message in rest] == [b"%d" % n for n in range(4, 10)]


def test_a_server_that_follows_gives_nothing_back_when_a_consumers_connection_ends(world: Servers) -> None:
    one = world.start("one")
    other = world.start("other", one)
    one.client.execute_command("TWRITE", "t", "tag", "entry")
    consumer = redis.Redis(port=one.server.port, single_connection_client=True)
    read = ("TREAD", "t", 0, 1, "GROUP", "g", "RETRY", 60_000, 0)
    consumer.execute_command(*read, "CONSUMER", "ada", "RELEASE")
    caught_up(one, other)
    other.client.execute_command("REPLICAOF", "NO", "ONE")
    one.follow(other)
    number = consumer.client_id()
    consumer.close()
    wait_until(lambda: not one.client.client_list(client_id=[number]))
    caught_up(other, one)
    assert one.digest() == other.digest(), "ada goes on with it at the new leader"
    one.client.execute_command("REPLICAOF", "NO", "ONE")
    assert one.client.execute_command(*read) == []


def test_a_replica_is_told_that_it_follows_a_server_already(world: Servers) -> None:
    one = world.start("one")
    for host, answer in [("Leader.invalid", b"OK"), ("leader.INVALID", b"OK Already connected to specified master")]:
        assert one.client.execute_command("REPLICAOF", host, 1) == answer
    info = one.info()
    assert info["master_host"] == "Leader.invalid", "as it was said first"
    assert info["master_link_down_since_seconds"] == -1, "it was never connected"
    other = world.start("other")
    one.follow(other)
    wait_until(lambda: is_up(one))
    one.client.execute_command("REPLICAOF", "leader.invalid", 1)
    assert one.info()["master_link_down_since_seconds"] >= 0


def test_a_server_cannot_follow_what_is_no_address(world: Servers) -> None:
    one = world.start("one")
    for words in [("", 1), ("a b", 1), ("host", 0), ("host", 70_000), ("host", "x")]:
        with pytest.raises(redis.ResponseError, match="Invalid master"):
            one.client.execute_command("REPLICAOF", *words)
    assert one.client.execute_command("ROLE")[0] == b"master"
