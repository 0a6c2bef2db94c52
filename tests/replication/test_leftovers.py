"""Nothing is kept for replicas longer than they need it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.replication.servers import Servers, caught_up, servers
from tests.support.waiting import wait_until


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Servers]:
    with servers(tmp_path) as world:
        yield world


def test_files_of_history_that_a_replica_has_copied_can_go(world: Servers) -> None:
    settings = {"stream_memory": 200_000, "stream_hot_nodes": 1, "stream_compression_rest": 0}
    leader = world.start("leader", **settings)

    def rewrite() -> None:
        leader.client.bgrewriteaof()
        wait_until(lambda: not leader.client.info("persistence")["aof_rewrite_in_progress"])

    for _ in range(10):
        words = [word for n in range(1000) for word in (b"", b"%d" % n + b"x" * 50)]
        leader.client.execute_command("TWRITE", "t", "ENTRIES", *words)
    wait_until(lambda: leader.client.info("persistence")["history_files"] > 0)
    rewrite()
    replica = world.start("replica", leader, **settings)
    caught_up(leader, replica)
    leader.client.delete("t")
    rewrite()
    wait_until(lambda: not list((world.folder("leader") / "history").glob("*.arrow")))


def test_a_part_of_a_copy_is_removed_when_it_is_not_wanted_any_more(world: Servers) -> None:
    one = world.start("one")
    folder = world.folder("one") / "appendonlydir"
    (folder / "temp-copy-0a-0-100.base").write_bytes(b"part")
    one.follow(world.start("other", appendonly=False))
    one.client.execute_command("REPLICAOF", "NO", "ONE")
    assert not list(folder.glob("temp-*"))
