"""A full disk at a leader or a replica: nothing is claimed that is not so, and all goes on when there is room."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from tests.support.server_process import Process
from tests.support.waiting import wait_until

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
    with pytest.raises(redis.ResponseError, match="MISCONF Errors writing to the AOF file: File too large"):
        leader.client.set("k", "z")
    leader.allow(None)
    wait_until(lambda: replica.client.get("k") == b"y" * 1000)


def test_a_replica_confirms_no_more_than_its_log_has(both: tuple[Limited, Limited]) -> None:
    leader, replica = both
    replica.allow(10)
    leader.client.set("k", "x" * 1000)
    wait_until(lambda: replica.client.get("k") is not None)
    assert leader.client.wait(1, 2500) == 0, "its memory has it, its log has not; it said more than once what it has"
    assert leader.client.info("replication")["slave0"]["offset"] < leader.info()["master_repl_offset"]
    replica.allow(None)
    assert leader.client.wait(1, 60_000) == 1


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
