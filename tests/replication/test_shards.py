"""Shards: etcd decides which node leads. Processes are killed and stopped, networks are cut.

One shard of three nodes for all of these tests. Each begins and ends with all nodes in sync, and clients write to all
nodes all the time: with `replica-acks 1`, what was acknowledged must be there at the end.
"""

from __future__ import annotations

import os
import re
import select
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.exceptions import RedisError
from tests.support.replication.shards import Shard, Writers, said, shard
from tests.support.waiting import wait_until

from penstock import Client
from penstock.client.errors import WrongShard
from penstock.engine.directives import DIRECTIVES
from penstock.protocol.resp import pack
from penstock.testing.etcd import EtcdServer
from penstock.testing.shard import size_of_log


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shard")


@pytest.fixture(scope="module")
def etcd(folder: Path) -> Iterator[EtcdServer]:
    with EtcdServer(folder) as etcd:
        yield etcd


@pytest.fixture(scope="module")
def running(folder: Path, etcd: EtcdServer) -> Iterator[Shard]:
    with shard(folder, etcd) as running:
        yield running


@pytest.fixture
def world(running: Shard) -> Iterator[Shard]:
    yield running
    wait_until(running.are_in_sync)
    text = running.logs()
    assert "Traceback" not in text and "internal error" not in text, text


def test_info_and_role_say_who_leads_in_which_epoch(world: Shard) -> None:
    leader = world.leader
    info = leader.info()
    assert (info["shard"], info["node"], info["role"]) == ("orders", leader.name, "master")
    assert info["epoch"] >= 1 and 0 < info["lease_ms_left"] <= 4000
    assert leader.call("ROLE")[0] == b"master"
    for node in world.others(leader):
        wait_until(lambda node=node: node.info().get("master_link_status") == "up")
        assert (node.info()["role"], node.info()["epoch"]) == ("slave", info["epoch"])
        with pytest.raises(redis.ReadOnlyError):
            node.call("SET", "k", 1)
    with pytest.raises(redis.ResponseError, match="etcd decides"):
        leader.call("REPLICAOF", "NO", "ONE")
    for epoch in (info["epoch"] - 1, 0, -1):
        with pytest.raises(redis.ResponseError, match="does not lead shard orders in epoch"):
            leader.call("REPLCONF", "node", "x", "log", "y", "epoch", epoch)
    for wrong in (("node", "a\nb"), ("log", ""), ("epoch", "9" * 5000)):
        with pytest.raises(redis.ResponseError, match=r"REPLCONF|not an integer"):
            leader.call("REPLCONF", *wrong)


def test_two_leaders_are_killed_in_a_row_and_come_back(world: Shard) -> None:
    with Writers(world) as writers:
        for _ in range(2):
            leader = world.leader
            epoch = leader.info()["epoch"]
            leader.signal_server(signal.SIGKILL)
            # On a busy machine its agent may have it back first, and then it leads again.
            wait_until(lambda epoch=epoch: world.leader.info()["epoch"] > epoch)
            writers.wait_for_some()
            writers.check()
        wait_until(world.are_in_sync)


def test_a_client_that_knows_the_nodes_counts_each_of_its_commands_once(world: Shard) -> None:
    servers = ",".join(f"127.0.0.1:{node.port}" for node in world.nodes)
    with Client.from_url(f"penstock://{servers}/orders", delivery="exactly-once", command_timeout=60) as client:
        for number in range(1, 61):
            assert client.incr("counted") == number
            if number % 20 == 0:
                wait_until(world.are_in_sync)
                world.leader.signal_server(signal.SIGKILL)


@pytest.mark.parametrize("level", ["at-most-once", "at-least-once", "exactly-once"])
def test_a_url_that_names_another_shard_is_refused_at_once(world: Shard, level: str) -> None:
    port = world.nodes[0].port
    with (
        Client.from_url(f"penstock://127.0.0.1:{port}/users", delivery=level, command_timeout=60) as client,
        pytest.raises(WrongShard, match=f":{port} is a server of the shard 'orders', and the URL names 'users'"),
    ):
        client.get("counted")


def test_a_server_ends_with_its_agent(world: Shard) -> None:
    leader = world.leader
    server = leader.server_pid
    with Writers(world) as writers:
        leader.signal_agent(signal.SIGKILL)
        assert leader.agent is not None
        leader.agent.wait()
        leader.agent = None
        wait_until(lambda: not Path(f"/proc/{server}").exists())
        wait_until(lambda: world.leader is not leader)
        writers.wait_for_some()
        leader.start()
        wait_until(world.are_in_sync)


@pytest.mark.parametrize("stopped", ["server", "agent", "both"])
def test_a_leader_that_was_stopped_acknowledges_nothing_afterwards(world: Shard, stopped: str) -> None:
    leader = world.leader
    epoch = leader.info()["epoch"]
    with Writers(world) as writers, socket.create_connection(("127.0.0.1", leader.port), timeout=60) as late:
        late.sendall(pack(b"SET", b"early", b"1"))
        assert late.recv(100) == b"+OK\r\n"
        server = leader.server_pid
        if stopped != "server":
            leader.signal_agent(signal.SIGSTOP)
        if stopped != "agent":
            os.kill(server, signal.SIGSTOP)
            late.sendall(pack(b"SET", b"late", b"1"))
        wait_until(lambda: any(node.info().get("epoch", 0) > epoch and node.leads for node in world.others(leader)))
        writers.wait_for_some()
        if stopped == "agent":
            late.sendall(pack(b"SET", b"late", b"1"))
        os.kill(server, signal.SIGCONT)
        answer = late.recv(100)
        assert answer == b"" or answer.startswith(b"-READONLY"), answer
        leader.signal_agent(signal.SIGCONT)
        wait_until(lambda: leader.info().get("master_link_status") == "up")
    assert world.leader.call("EXISTS", "late") == 0


def test_a_reply_that_was_under_way_does_not_leave_when_the_lease_is_over(world: Shard) -> None:
    """Its replicas have confirmed the change in time. What they said reaches the leader when another one leads."""
    leader = world.leader
    epoch, replicas = leader.info()["epoch"], world.others(leader)
    leader.call("CONFIG", "SET", "in-sync-max-lag", 60_000)
    with socket.create_connection(("127.0.0.1", leader.port), timeout=60) as client:
        for node in replicas:
            node.signal_server(signal.SIGSTOP)
        before = size_of_log(leader.folder)
        client.sendall(pack(b"SET", b"late", b"1"))
        wait_until(lambda: size_of_log(leader.folder) > before)
        server = leader.server_pid
        os.kill(server, signal.SIGSTOP)
        for node in replicas:
            node.signal_server(signal.SIGCONT)
        wait_until(lambda: all(node.call("GET", "late") == b"1" for node in replicas))
        assert not select.select([client], [], [], 0)[0]
        wait_until(lambda: any(node.info().get("epoch", 0) > epoch and node.leads for node in replicas))
        os.kill(server, signal.SIGCONT)
        assert client.recv(100) == b""
    wait_until(lambda: leader.info().get("master_link_status") == "up")
    leader.call("CONFIG", "SET", "in-sync-max-lag", DIRECTIVES["in-sync-max-lag"].default)
    assert world.leader.call("DEL", "late") == 1


def test_without_etcd_writes_are_refused_and_all_comes_back_with_it(world: Shard, etcd: EtcdServer) -> None:
    leader = world.leader
    with Writers(world) as writers:
        leader.call("SET", "k", 1)
        etcd.members[0].kill()
        try:
            wait_until(lambda: leader.info().get("role") == "slave")
            assert leader.call("ROLE")[0] == b"slave"
            for node in world.nodes:
                with pytest.raises(redis.ReadOnlyError):
                    node.call("SET", "k", 2)
                assert node.call("GET", "k") == b"1", "reads are answered"
        finally:
            etcd.start()
        writers.wait_for_some()


def test_a_leader_that_is_cut_off_from_etcd_is_replaced(world: Shard) -> None:
    leader = world.leader
    with Writers(world) as writers:
        for relay in world.to_etcd[leader]:
            relay.cut()
        wait_until(lambda: any(node.leads for node in world.others(leader)))
        wait_until(lambda: leader.info().get("role") == "slave")
        with pytest.raises(redis.ReadOnlyError):
            leader.call("SET", "k", 1)
        writers.wait_for_some()
        for relay in world.to_etcd[leader]:
            relay.mend()
        wait_until(world.are_in_sync)


def test_a_replica_that_is_cut_off_leaves_the_set_and_comes_back(world: Shard) -> None:
    leader = world.leader
    replica, other = world.others(leader)
    with Writers(world) as writers:
        replica.signal_server(signal.SIGSTOP)
        for relay in world.to_etcd[replica]:
            relay.cut()
        wait_until(lambda: world.are_in_sync(leader, other))
        writers.wait_for_some()
        replica.signal_server(signal.SIGCONT)
        for relay in world.to_etcd[replica]:
            relay.mend()
        wait_until(world.are_in_sync)


@pytest.mark.parametrize(("to_leader", "to_replica"), [(True, True), (True, False), (False, True)])
def test_a_cut_between_the_leader_and_one_replica_concerns_no_other(
    world: Shard, to_leader: bool, to_replica: bool
) -> None:
    leader = world.leader
    epoch = leader.info()["epoch"]
    replica, other = world.others(leader)
    with Writers(world) as writers:
        world.cut_pair(leader, replica, to_leader, to_replica)
        wait_until(lambda: leader.in_sync == sorted([leader.name, other.name]))
        assert leader.info()["epoch"] == epoch
        writers.wait_for_some()
        world.to_node[leader].mend()
        wait_until(world.are_in_sync)


def test_a_write_is_acknowledged_when_each_node_has_it_or_has_left_the_set(world: Shard) -> None:
    leader = world.leader
    lacking, other = world.others(leader)
    with socket.create_connection(("127.0.0.1", leader.port), timeout=60) as client:
        world.cut_pair(leader, lacking)
        client.sendall(pack(b"SET", b"everywhere", b"1"))
        assert client.recv(100) == b"+OK\r\n"
    assert lacking.name not in leader.in_sync, "it may lead next, and would not have the write"
    assert (other.call("GET", "everywhere"), lacking.call("GET", "everywhere")) == (b"1", None)
    world.to_node[leader].mend()
    wait_until(world.are_in_sync)
    assert lacking.call("GET", "everywhere") == b"1"


@pytest.mark.parametrize("seconds", [7200, -7200])
def test_clocks_that_are_set_change_no_leader_and_no_data(world: Shard, seconds: int) -> None:
    leader = world.leader
    epoch = leader.info()["epoch"]
    replica, _ = world.others(leader)
    leader.call("SET", "brief", 1, "EX", 3600)
    with Writers(world) as writers:
        for node in (leader, replica):
            before = node.call("TIME")[0]
            world.clocks[node].set(seconds)
            info = leader.info()
            assert abs(node.call("TIME")[0] - before - seconds) < 1000
            assert info["epoch"] == epoch and 0 < info["lease_ms_left"] <= 4000, "its lease goes by another clock"
            writers.wait_for_some()
            wait_until(world.are_in_sync)
        leader.call("GET", "brief")  # deletes what has expired, before its time is to come again
        world.clocks[leader].set(0)
        if seconds > 0:
            assert leader.call("EXISTS", "brief") == 0, "its leader's clock was past its time"
        leader.signal_server(signal.SIGKILL)
        wait_until(lambda: world.leader.info()["epoch"] > epoch)
        writers.wait_for_some()
        world.clocks[replica].set(0)
    wait_until(world.are_in_sync)
    assert len({node.call("EXISTS", "brief") for node in world.nodes}) == 1


def test_a_leader_that_is_killed_while_it_rewrites_its_log_loses_nothing(world: Shard) -> None:
    leader = world.leader
    epoch = leader.info()["epoch"]
    leader.call("SET", "ballast", "x" * (4 << 20))
    with Writers(world) as writers:
        leader.call("BGREWRITEAOF")
        leader.signal_server(signal.SIGKILL)
        wait_until(lambda: world.leader.info()["epoch"] > epoch)
        writers.wait_for_some()
        world.leader.call("DEL", "ballast")
        wait_until(world.are_in_sync)


def test_what_only_the_deposed_leader_has_is_put_aside(world: Shard) -> None:
    leader = world.leader
    world.to_node[leader].cut()
    with leader.client(seconds=1) as client, pytest.raises(RedisError):
        client.set("unconfirmed", "x" * 100)
    leader.signal_server(signal.SIGKILL)
    wait_until(lambda: any(node.leads for node in world.others(leader)))
    world.to_node[leader].mend()
    wait_until(world.are_in_sync)
    assert world.leader.call("EXISTS", "unconfirmed") == 0
    kept = (leader.folder / "appendonlydir").glob("*.diverged")  # more than one if its copy was interrupted
    assert any(b"unconfirmed" in path.read_bytes() for path in kept)


def test_a_change_that_only_the_leader_has_is_not_shown(world: Shard) -> None:
    leader = world.leader
    leader.call("SET", "k", "confirmed")
    world.to_node[leader].cut()
    with leader.client() as client:
        with pytest.raises(RedisError, match="too few replicas have it"):
            client.set("k", "unconfirmed")
        wait_until(lambda: leader.info().get("role"))  # INFO is answered
        for words in (["GET", "k"], ["EXISTS", "k"], ["EVAL", "return redis.call('GET', 'k')", "0"], ["SET", "k", "x"]):
            with pytest.raises(redis.ResponseError, match=r"NOREPLICAS|READONLY"):
                client.execute_command(*words)
    wait_until(lambda: any(node.leads for node in world.others(leader)))
    world.to_node[leader].mend()
    wait_until(world.are_in_sync)
    assert leader.call("GET", "k") == world.leader.call("GET", "k") == b"confirmed"


def test_a_leader_that_no_node_can_reach_hands_over(world: Shard) -> None:
    leader = world.leader
    with Writers(world) as writers:
        world.to_node[leader].cut()
        wait_until(lambda: any(node.leads for node in world.others(leader)))
        writers.wait_for_some()
        world.to_node[leader].mend()
        wait_until(world.are_in_sync)


def test_a_leader_whose_disk_is_full_hands_over(world: Shard) -> None:
    leader = world.leader
    with Writers(world) as writers, socket.create_connection(("127.0.0.1", leader.port), timeout=60) as idle:
        idle.sendall(pack(b"PING"))
        assert idle.recv(100) == b"+PONG\r\n"
        leader.limit_files(0)
        assert idle.recv(100) == b"", "a client that asks on would read what no log has"
        wait_until(lambda: any(node.leads for node in world.others(leader)))
        writers.wait_for_some()
        with pytest.raises(redis.ResponseError, match="NOREPLICAS"):
            leader.call("EXISTS", "probe")  # its memory has what no log has
        with pytest.raises(redis.ReadOnlyError):
            leader.call("SET", "k", 1)
        leader.limit_files(None)
        wait_until(world.are_in_sync)
    assert len(re.findall("the log cannot be written to its end", leader.log)) < 10


def test_a_node_whose_disk_is_full_does_not_stand_for_election(world: Shard) -> None:
    leader = world.leader
    epoch = leader.info()["epoch"]
    first = max(world.others(leader), key=lambda node: node.name)  # of nodes that are equally far
    first.limit_files(-1 << 40)
    leader.signal_server(signal.SIGKILL)
    wait_until(lambda: any(node.leads for node in world.others(first)))
    first.limit_files(None)
    assert world.leader.info()["epoch"] <= epoch + 2


def test_failover_hands_over_to_the_replica_that_is_named(world: Shard) -> None:
    leader = world.leader
    replica, _ = world.others(leader)
    with Writers(world) as writers:
        leader.call("FAILOVER", "TO", "127.0.0.1", world.to_node[replica].port)
        wait_until(lambda: world.leader is replica)
        writers.wait_for_some()


def test_the_command_line_shows_who_leads_and_hands_over(world: Shard, etcd: EtcdServer) -> None:
    leader = world.leader
    replica, _ = world.others(leader)
    code, text = said(etcd, "status", "orders")
    assert code == 0 and f"epoch {leader.info()['epoch']}, led by {leader.name}" in text
    assert re.search(rf"{replica.name} +127.0.0.1:{world.to_node[replica].port} +in sync", text)
    assert said(etcd, "failover", "orders", "--to", "nowhere")[0] == 1
    assert said(etcd, "remove", "orders", replica.name) == (
        1,
        f"penstock shard: node {replica.name} runs; stop it first\n",
    )
    assert said(etcd, "status", "unknown") == (1, "penstock shard: etcd knows no shard unknown\n")
    with Writers(world) as writers:
        code, text = said(etcd, "failover", "orders", "--to", replica.name)
        assert code == 0 and text.startswith(f"{replica.name} leads shard orders in epoch ")
        assert world.leader is replica
        writers.wait_for_some()


def test_writes_are_refused_when_too_few_nodes_are_in_sync(world: Shard, etcd: EtcdServer) -> None:
    leader = world.leader
    replicas = world.others(leader)
    with Writers(world):
        for replica in replicas:
            replica.stop()

        def refuses() -> bool:
            with pytest.raises(RedisError) as error:
                leader.call("SET", "k", 1)
            return "Not enough good replicas" in str(error.value)

        wait_until(refuses)
        for name in leader.in_sync:
            if name != leader.name:  # their leases have yet to run out
                wait_until(lambda name=name: said(etcd, "remove", "orders", name)[0] == 0)
        wait_until(lambda: leader.in_sync == [leader.name])
        name = replicas[0].name
        removed_again = f"no node {name} is in sync, so none was removed; in sync: {leader.name}\n"
        wait_until(lambda: said(etcd, "remove", "orders", name) == (0, removed_again))
        for replica in replicas:
            replica.start()
        wait_until(world.are_in_sync)
