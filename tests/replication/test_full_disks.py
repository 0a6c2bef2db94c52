"""A full disk at a leader or a replica: nothing is claimed that is not so, and all goes on when there is room."""

from __future__ import annotations

import contextlib
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from tests.support.server_process import Process
from tests.support.waiting import wait_until

from penstock.protocol.resp import pack
from penstock.testing.redis import free_port

SETTINGS = "--appendfsync everysec --auto-aof-rewrite-percentage 0 --hz 100 --stop-writes-on-bgsave-error no"


class Limited:
    """A server in a process of its own whose files may not grow beyond a limit that can be set."""

    def __init__(self, folder: Path, leader: Limited | None = None) -> None:
        folder.mkdir()
        self.folder = folder / "appendonlydir"
        following = f" --replicaof 127.0.0.1 {leader.process.port}" if leader is not None else ""
        self.process = Process(folder, free_port(), options=SETTINGS + following)
        self.client = redis.Redis(port=self.process.port, retry=None)

    def allow(self, more: int | None) -> None:
        """Let the log grow by so many bytes; None for any number."""
        log = max(self.folder.glob("*.incr.aof"), key=lambda path: path.stat().st_mtime_ns)
        limit = log.stat().st_size + more if more is not None else resource.RLIM_INFINITY
        resource.prlimit(self.process.process.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    def info(self) -> dict[str, object]:
        return dict(self.client.info("replication"))

    def close(self) -> None:
        self.client.close()
        self.process.kill()


@pytest.fixture
def both(tmp_path: Path) -> Iterator[tuple[Limited, Limited]]:
    """A leader and a replica that has everything."""
    with contextlib.ExitStack() as stack:
        leader = Limited(tmp_path / "leader")
        stack.callback(leader.close)
        replica = Limited(tmp_path / "replica", leader)
        stack.callback(replica.close)
        wait_until(lambda: has_everything(leader, replica))
        yield leader, replica


def has_everything(leader: Limited, replica: Limited) -> bool:
    end = leader.info()["master_repl_offset"]
    follower = replica.info()
    return follower["master_link_status"] == "up" and follower["slave_repl_offset"] == end


def test_wait_does_not_count_what_the_leaders_disk_refuses(both: tuple[Limited, Limited]) -> None:
    leader, replica = both
    leader.allow(10)
    with leader.client.client() as client:  # one connection
        with pytest.raises(redis.ResponseError, match="MISCONF Errors writing to the AOF file: File too large"):
            client.set("k", "x" * 1000)
        replicas = client.wait(1, 300)
    assert leader.client.get("k") is not None and replica.client.get("k") is None
    assert replicas == 0
    leader.allow(None)
    assert leader.client.wait(1, 60_000) == 1, "the log has it when there is room again"
    assert replica.client.get("k") == b"x" * 1000

    leader.client.config_set("replica-acks", 1)
    wait_until(lambda: leader.client.set("probe", 1))
    leader.allow(10)
    with pytest.raises(redis.ResponseError, match="NOREPLICAS The change was made here"):
        leader.client.set("k", "y" * 1000)
    assert replica.client.get("k") == b"x" * 1000, "no log has the change, so it is not acknowledged"
    with pytest.raises(redis.ResponseError, match="Not enough good replicas to read"):
        leader.client.get("k")  # nor shown
    with pytest.raises(redis.ResponseError, match="MISCONF Errors writing to the AOF file: File too large"):
        leader.client.set("k", "z")
    leader.allow(None)
    wait_until(lambda: replica.client.get("k") == b"y" * 1000)
    assert leader.client.get("k") == b"y" * 1000


def test_a_message_waits_for_a_change_before_it_that_the_leaders_disk_refuses(both: tuple[Limited, Limited]) -> None:
    leader, replica = both
    with replica.client.pubsub() as subscriber:
        subscriber.subscribe("news")
        assert subscriber.get_message(timeout=60)["type"] == "subscribe"
        leader.allow(10)
        with pytest.raises(redis.ResponseError, match="MISCONF"):
            leader.client.set("k", "x" * 1000)
        leader.client.publish("news", "hello")
        assert leader.client.wait(1, 300) == 0
        leader.allow(None)
        assert subscriber.get_message(timeout=60)["data"] == b"hello"
        assert replica.client.get("k") == b"x" * 1000


def test_what_the_disk_refuses_is_not_shown_though_replicas_come_and_settings_change(
    both: tuple[Limited, Limited],
) -> None:
    leader, replica = both
    client = leader.client

    def is_hidden() -> bool:
        try:
            client.get("k")
        except redis.ResponseError as error:
            return "Not enough good replicas to read" in str(error)
        return False

    def lacks_a_replica() -> bool:
        with pytest.raises(redis.ResponseError) as error:
            client.set("k", 1)
        return "Not enough good replicas to write" in str(error.value)

    leader.allow(10)
    with pytest.raises(redis.ResponseError, match="MISCONF"):
        client.set("k", "x" * 1000)
    assert not is_hidden()
    client.config_set("replica-acks", 1)
    wait_until(is_hidden)
    replica.client.execute_command("REPLICAOF", "NO", "ONE")
    wait_until(lacks_a_replica)
    replica.client.execute_command("REPLICAOF", "127.0.0.1", leader.process.port)
    wait_until(lambda: not lacks_a_replica())
    assert is_hidden(), "the replica lacks it still"
    client.config_set("replica-acks", 0)
    wait_until(lambda: not is_hidden())
    client.config_set("replica-acks", 1)
    wait_until(is_hidden)
    leader.allow(None)
    wait_until(lambda: not is_hidden())
    assert client.get("k") == b"x" * 1000
    replica.client.execute_command("REPLICAOF", "NO", "ONE")
    assert replica.client.get("k") == b"x" * 1000


def test_what_the_disk_refuses_is_shown_to_no_client_that_asked_before(both: tuple[Limited, Limited]) -> None:
    leader, _ = both
    leader.client.config_set("replica-acks", 1)
    wait_until(lambda: leader.client.xadd("x", {"f": "v"}, id="1-1"))
    with contextlib.ExitStack() as stack:

        def connected(*words: str) -> socket.socket:
            link = stack.enter_context(socket.create_connection(("127.0.0.1", leader.process.port), timeout=60))
            link.sendall(pack(*map(str.encode, words)))
            return link

        monitor = connected("MONITOR")
        assert monitor.recv(100) == b"+OK\r\n"
        waiting = connected("XREAD", "BLOCK", "0", "STREAMS", "x", "$")
        assert b"XREAD" in monitor.recv(1000)
        leader.allow(10)
        writer = connected("XADD", "x", "2-2", "f", "y" * 1000)
        assert b"NOREPLICAS The change was made here" in writer.recv(1000)
        for link in (monitor, waiting):
            assert link.recv(1000) == b"", "it is about a change that no log has"


def test_a_replica_confirms_no_more_than_its_log_has(both: tuple[Limited, Limited]) -> None:
    leader, replica = both
    replica.allow(10)
    leader.client.set("k", "x" * 1000)
    wait_until(lambda: replica.client.get("k") is not None)
    assert leader.client.wait(1, 2500) == 0, "its memory has it, its log has not; it said more than once what it has"
    assert leader.client.info("replication")["slave0"]["offset"] < leader.info()["master_repl_offset"]
    replica.allow(None)
    assert leader.client.wait(1, 60_000) == 1


def test_a_replica_that_connects_again_while_its_disk_is_full_takes_no_change_twice(
    both: tuple[Limited, Limited],
) -> None:
    leader, replica = both
    replica.allow(10)
    leader.client.incr("n")
    wait_until(lambda: replica.client.get("n") == b"1")  # its memory has it, its log has not
    leader.client.execute_command("CLIENT", "KILL", "TYPE", "replica")
    leader.client.incr("n")
    time.sleep(0.5)  # it would be connected again by now
    replica.allow(None)
    wait_until(lambda: has_everything(leader, replica))
    assert replica.client.get("n") == b"2"
    leader.client.incr("n")
    wait_until(lambda: has_everything(leader, replica))
    logs = [b"".join(path.read_bytes() for path in sorted(each.folder.glob("*.incr.aof"))) for each in both]
    assert logs[0] == logs[1]


def test_a_leader_whose_disk_is_full_goes_on_leading_when_it_cannot_hand_over(both: tuple[Limited, Limited]) -> None:
    leader, replica = both
    leader.allow(10)
    with pytest.raises(redis.ResponseError, match="File too large"):
        leader.client.set("k", "x" * 1000)
    leader.client.execute_command("FAILOVER", "TO", "127.0.0.1", replica.process.port, "FORCE", "TIMEOUT", 100)
    wait_until(lambda: leader.info()["master_failover_state"] == "no-failover")
    assert leader.info()["role"] == "master"
    leader.allow(None)
    wait_until(lambda: has_everything(leader, replica) and replica.client.get("k") == b"x" * 1000)
    assert leader.client.set("k", 1), "nothing is paused any more"


def test_a_replica_that_cannot_be_promoted_follows_on(both: tuple[Limited, Limited]) -> None:
    leader, replica = both
    replica.allow(10)
    leader.client.set("k", "x" * 1000)
    wait_until(lambda: replica.client.get("k") is not None)
    with pytest.raises(redis.ResponseError, match="log cannot be written"):
        replica.client.execute_command("REPLICAOF", "NO", "ONE")
    assert replica.client.execute_command("ROLE")[0] == b"slave"
    replica.allow(None)
    leader.client.set("k", 2)
    wait_until(lambda: has_everything(leader, replica))
    assert replica.client.get("k") == b"2"
    replica.client.execute_command("REPLICAOF", "NO", "ONE")
    assert replica.client.set("k", 3)
