"""Questions to a real cluster that more than one file of tests asks."""

from __future__ import annotations

from penstock.testing.cluster import ClusterNode, RedisCluster


def other_than(cluster: RedisCluster, node: ClusterNode) -> ClusterNode:
    return next(master for master in cluster.masters if master is not node)


def connections(cluster: RedisCluster) -> int:
    return sum(len(node.ask("CLIENT", "LIST", "TYPE", "normal").splitlines()) for node in cluster.masters)
