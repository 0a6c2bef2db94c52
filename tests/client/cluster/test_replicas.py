"""Reads from replicas when the map is old and the master dead."""

from __future__ import annotations

import penstock
from penstock.testing.cluster import RedisCluster


def test_a_read_finds_the_replica_of_a_dead_master_though_the_map_names_it_the_other_way_round() -> None:
    """The two have changed places, which the client does not know; then the one that it takes for the
    replica dies, for good.
    """
    with RedisCluster(cluster_node_timeout="15000") as cluster:
        cluster.wait_until_listed()
        before = cluster.masters[0]
        key = next(cluster.keys_on(before))
        with penstock.Cluster(startup_nodes=cluster.addresses, read_from_replicas=True) as client:
            client.set(key, "v")
            after = cluster.fail_over(before)
            cluster.kill(after)  # no replica takes over: the others notice only after fifteen seconds
            assert client.get(key) == b"v"
            with client.pipeline() as pipe:
                assert pipe.get(key).strlen(key).execute() == [b"v", 1]
