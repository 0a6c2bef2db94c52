"""A node of a shard by itself: its two processes, how they start and end, and an etcd of three members."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.replication.shards import shard
from tests.support.waiting import wait_until

from penstock.cli import serve
from penstock.shard.etcd import Etcd, EtcdAddress
from penstock.shard.records import read_shard
from penstock.testing.etcd import EtcdServer
from penstock.testing.shard import SHARD, ShardNode


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path_factory.mktemp("etcd"), members=3) as etcd:
        yield etcd


def test_an_agent_starts_its_server_again_and_ends_with_it(tmp_path: Path, etcd: EtcdServer) -> None:
    with shard(tmp_path, etcd, count=1, options="") as world:
        node = world.leader
        epoch = node.info()["epoch"]
        node.call("SET", "k", "v")
        server = node.server_pid
        node.signal_server(signal.SIGKILL)
        wait_until(lambda: node.leads and node.info()["epoch"] > epoch)
        assert node.call("GET", "k") == b"v"
        assert node.server_pid != server

        killed = etcd.members[0]
        killed.kill()
        for number in range(20):
            assert world.leader.call("SET", "k", number)
        killed.start(etcd.members)

        for first in range(0, 200_000, 5000):
            node.call("MSET", *(word for number in range(first, first + 5000) for word in (f"k{number}", number)))
        node.signal_agent(signal.SIGTERM)
        assert node.agent is not None and node.agent.wait(60) == 0
        node.agent = None
        with closing(Etcd(EtcdAddress(tuple(etcd.urls.split(","))), 10)) as client:
            snapshot = read_shard(client, SHARD)
        assert (snapshot.leader, snapshot.nodes) == ("", {}), "it has given its lease back"
        assert snapshot.state is not None and [*snapshot.state.in_sync] == [node.name]
        assert len(re.findall("Traceback|internal error", node.log)) == 0, node.log

        lose_the_agent_while_it_loads(node)
        folder = world.nodes[0].folder
        (folder / "appendonlydir" / "shard.json").write_text('{"shard": "other", "node": "n7", "log": "", "epoch": 1}')
        node.start()
        assert node.agent.wait(60) == 1
        assert "belongs to node n7 of shard other" in node.log


def lose_the_agent_while_it_loads(node: ShardNode) -> None:
    """The server ends too. Otherwise it would keep its port, and the next agent could not start one."""
    before = len(node.log)
    node.start()
    server = node.server_pid
    os.kill(server, signal.SIGSTOP)  # before it has read anything
    node.signal_agent(signal.SIGKILL)
    assert node.agent is not None
    node.agent.wait()
    node.agent = None
    os.kill(server, signal.SIGCONT)
    wait_until(lambda: not Path(f"/proc/{server}").exists())
    said = node.log[before:]
    assert "Asked to stop while loading" in said and "storage: loaded" not in said


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("--etcd http://host:2379 --shard orders --node n1", "keeps a log. Set appendonly yes"),
        ("--etcd http://host:2379 --shard orders --appendonly yes", "node must be a name"),
        ("--etcd http://host:2379 --shard a/b --node n1 --appendonly yes", "shard must be a name"),
        ("--etcd host:2379 --shard orders --node n1 --appendonly yes", "not a URL of etcd"),
        ("--etcd http://host --shard orders --node n1 --appendonly yes --bind *", "say with replica-announce-ip"),
        ("--etcd http://host --shard s --node n1 --appendonly yes --replicaof host 1", "replicaof must be empty"),
    ],
)
def test_settings_that_do_not_fit_are_refused(words: str, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve.run(words.split()) == 1
    assert problem in capsys.readouterr().err
