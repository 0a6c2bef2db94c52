"""An etcd that loses its data while a shard runs: no node leads by chance, and an operator says whose data counts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.replication.shards import Shard, said, shard
from tests.support.waiting import wait_until

from penstock.testing.etcd import EtcdServer
from penstock.testing.shard import ShardNode


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path) as etcd:
        yield etcd


@pytest.fixture
def world(tmp_path: Path, etcd: EtcdServer) -> Iterator[Shard]:
    with shard(tmp_path, etcd) as world:
        yield world


def forget(etcd: EtcdServer) -> None:
    etcd.stop()
    for member in etcd.members:
        member.lose_data()
    etcd.start()


def waits(node: ShardNode) -> bool:
    return "there is data of a later one" in node.log


def test_no_node_leads_until_an_operator_says_whose_data_counts(world: Shard, etcd: EtcdServer) -> None:
    first = world.leader
    behind, other = world.others(first)
    behind.stop()
    wait_until(lambda: world.are_in_sync(first, other))
    for number in range(1000):
        first.call("SET", f"k{number}", number)
    forget(etcd)
    behind.start()
    wait_until(lambda: all(map(waits, world.nodes)))
    wait_until(lambda: said(etcd, "status", "orders")[1].count("data of epoch") == 3)
    assert not any(node.writes() for node in world.nodes)
    code, text = said(etcd, "restore", "orders", behind.name)
    assert code == 1 and f"more data than {behind.name} has: " in text
    assert said(etcd, "restore", "orders", "n9") == (
        1,
        "penstock shard: node n9 does not run; these do: n1, n2, n3\n",
    )
    wait_until(lambda: said(etcd, "restore", "orders", other.name)[0] == 0)
    wait_until(world.are_in_sync)
    assert world.leader is other
    assert other.call("DBSIZE") >= 1000 and other.call("GET", "k999") == b"999"
    assert other.info()["epoch"] > 1
    assert said(etcd, "restore", "orders", other.name) == (
        1,
        "penstock shard: etcd has lost nothing that the nodes know: there is nothing to restore\n",
    )


def test_a_new_node_does_not_lead_beside_nodes_that_have_data(world: Shard, etcd: EtcdServer) -> None:
    world.leader.call("SET", "k", 1)
    new, *others = world.nodes
    new.stop()
    new.lose_data()
    forget(etcd)
    wait_until(lambda: all(map(waits, others)))
    new.start()
    wait_until(lambda: waits(new))
    assert not new.leads
    best = next(node for node in others if said(etcd, "restore", "orders", node.name)[0] == 0)
    wait_until(world.are_in_sync)
    assert world.leader is best and new.call("GET", "k") == b"1"


def test_a_folder_of_another_shard_stops_no_leader_for_longer_than_its_node_runs(
    world: Shard, etcd: EtcdServer
) -> None:
    leader = world.leader
    stranger, _ = world.others(leader)
    leader.call("SET", "k", 1)
    stranger.stop()
    (path,) = stranger.folder.rglob("shard.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "epoch": 1000}))
    stranger.start()
    wait_until(lambda: said(etcd, "status", "orders")[1].count("data of epoch 1000") == 1)
    wait_until(lambda: not leader.leads)
    stranger.stop()
    wait_until(lambda: world.leader is not stranger)
    assert world.leader.call("GET", "k") == b"1"
