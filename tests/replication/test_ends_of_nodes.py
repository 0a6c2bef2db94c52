"""A node of a shard that is told to end does so in time, also if its server is stopped or its disk is full."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from tests.support.replication.shards import Writers, shard
from tests.support.waiting import wait_until

from penstock.testing.etcd import EtcdServer
from penstock.testing.shard import ShardNode

AT_ONCE = "--shard-stop-timeout 1"
NOT_WRITTEN = (
    r"ending, with (\d+) bytes of changes that (\S+) does not have \(.*File too large.*\); no client was told that "
    r"they are kept\. Make room there, and start this node again"
)


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path) as etcd:
        yield etcd


def exit_code(node: ShardNode) -> int:
    """Of the agent, which was told to end, or its server; both have ended then."""
    assert node.agent is not None
    server = node.server_pid
    code = node.agent.wait(60)
    node.agent = None
    assert not Path(f"/proc/{server}").exists()
    return code


def fill_the_disk(node: ShardNode) -> None:
    """From now on there is something that its log does not have. Its client is told so."""
    node.call("SET", "ballast", "x" * 100_000)  # the limit holds for the file of its messages too
    node.limit_files(0)
    with pytest.raises(redis.ResponseError, match="MISCONF"):
        node.call("SET", "k", 2)
    wait_until(lambda: "the log cannot be written" in node.log)


def test_an_agent_ends_a_server_that_stands_still(tmp_path: Path, etcd: EtcdServer) -> None:
    with shard(tmp_path, etcd, count=1, options=AT_ONCE) as world:
        node = world.leader
        node.call("SET", "k", 1)
        node.signal_server(signal.SIGSTOP)
        node.signal_agent(signal.SIGTERM)
        assert exit_code(node) == 1
        assert "the server has not ended for 6 seconds (shard-stop-timeout): killing it" in node.log
        node.start()
        assert world.leader.call("GET", "k") == b"1"


def test_a_node_with_a_full_disk_ends_and_says_what_is_not_written(tmp_path: Path, etcd: EtcdServer) -> None:
    with shard(tmp_path, etcd, count=1, options=AT_ONCE) as world:
        node = world.leader
        node.call("SET", "k", 1)
        fill_the_disk(node)
        node.signal_agent(signal.SIGTERM)
        assert exit_code(node) == 1
        left = re.search(NOT_WRITTEN, node.log)
        assert left is not None and int(left[1]) > 0 and Path(left[2]).exists(), node.log
        node.start()
        assert world.leader.call("GET", "k") == b"1"


def test_a_node_whose_disk_has_room_again_in_time_ends_with_everything(tmp_path: Path, etcd: EtcdServer) -> None:
    with shard(tmp_path, etcd, count=1, options="") as world:
        node = world.leader
        fill_the_disk(node)
        node.signal_agent(signal.SIGTERM)
        wait_until(lambda: "this server tries for 60 seconds, and ends" in node.log)
        node.limit_files(None)
        assert exit_code(node) == 0
        node.start()
        assert world.leader.call("GET", "k") == b"2"


def test_a_node_that_is_shut_down_with_a_full_disk_is_not_started_again(tmp_path: Path, etcd: EtcdServer) -> None:
    with shard(tmp_path, etcd, count=1, options="") as world:
        node = world.leader
        fill_the_disk(node)
        with pytest.raises(redis.ResponseError, match="Errors trying to SHUTDOWN"):
            node.call("SHUTDOWN")
        with pytest.raises(redis.ConnectionError):
            node.call("SHUTDOWN", "FORCE")
        assert exit_code(node) == 1


def test_a_leader_with_a_full_disk_ends_and_nothing_acknowledged_is_lost(tmp_path: Path, etcd: EtcdServer) -> None:
    with shard(tmp_path, etcd, options=f"--replica-acks 1 {AT_ONCE}") as world, Writers(world) as writers:
        leader = world.leader
        leader.call("SET", "ballast", "x" * 100_000)
        leader.limit_files(0)
        wait_until(lambda: "the log cannot be written" in leader.log)
        leader.signal_agent(signal.SIGTERM)
        assert exit_code(leader) == 1
        assert "no client was told that they are kept. Make room there" in leader.log
        wait_until(lambda: any(node.leads for node in world.others(leader)))
        writers.wait_for_some()
        leader.start()
        wait_until(world.are_in_sync)
