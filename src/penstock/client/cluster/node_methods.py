"""redis-py's methods for nodes and for the administration of a cluster, so that a program may change one import.

Questions about nodes are answered from the slot map that the client has. CLUSTER commands are redis-py's own methods,
except those about one slot, which go to the node that serves it. tests/client/cluster/test_methods.py lists what
RedisCluster has and this client has not, with the reasons.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from redis.cluster import PRIMARY, REPLICA, ClusterNode
from redis.commands.cluster import ClusterManagementCommands

from penstock.client.cluster.core import ClusterCore
from penstock.client.cluster.errors import NotRoutable
from penstock.client.cluster.slot_map import Address, SlotMap


class NodeMethods(ABC):
    """For both cluster clients."""

    core: ClusterCore
    execute_command: Callable[..., Any]
    node_client: Callable[[Address], Any]

    @abstractmethod
    def _known_map(self) -> SlotMap:
        """The slot map, without waiting for it where that needs an `await`."""

    def get_primaries(self) -> list[ClusterNode]:
        """The masters, in the order of their first slots."""
        return [_node(address, PRIMARY) for address in self._known_map().masters]

    def get_replicas(self) -> list[ClusterNode]:
        """The replicas of all masters."""
        return [node for node in self.get_nodes() if node.server_type == REPLICA]

    def get_nodes(self) -> list[ClusterNode]:
        """All nodes, masters first."""
        slot_map = self._known_map()
        masters = set(slot_map.masters)
        return [_node(address, PRIMARY if address in masters else REPLICA) for address in slot_map.nodes]

    def get_node(
        self, host: str | None = None, port: int | None = None, node_name: str | None = None
    ) -> ClusterNode | None:
        """A node by its address or its name, "host:port"; None if the cluster has no such node."""
        name = node_name if node_name is not None else f"{host}:{port}"
        return next((node for node in self.get_nodes() if node.name == name), None)

    def get_default_node(self) -> ClusterNode:
        """The node that gets commands for no particular node: the first master."""
        return self.get_primaries()[0]

    def get_random_node(self) -> ClusterNode:
        return random.choice(self.get_nodes())

    def get_nodes_from_slot(self, slot: int) -> list[ClusterNode]:
        """The master of a slot, and its replicas."""
        master = self._owner(slot)
        replicas = self._known_map().replicas.get(master, ())
        return [_node(master, PRIMARY), *(_node(address, REPLICA) for address in replicas)]

    def get_node_from_key(self, key: Any, replica: bool = False) -> ClusterNode | None:
        """The master of a key, or the first of its replicas; None if it has none."""
        nodes = self.get_nodes_from_slot(self.core.slot_of(key))
        return nodes[0] if not replica else nodes[1] if len(nodes) > 1 else None

    def get_redis_connection(self, node: ClusterNode) -> Any:
        """redis-py's client of one node."""
        return self.node_client((node.host, node.port))

    def get_connection_kwargs(self) -> dict[str, Any]:
        """The options of connections to nodes."""
        return dict(self.core.connection)

    def set_response_callback(self, command: str, callback: Callable[..., Any]) -> None:
        """Convert the replies of a command with a function of your own."""
        self.core.response_callbacks[command.upper()] = callback

    def _owner(self, slot: int) -> Address:
        address = self._known_map().owners[slot]
        if address is None:
            raise NotRoutable(f"no node serves slot {slot}")
        return address

    # -- administration: redis-py's methods -----------------------------------------------------------------------

    cluster_addslots = ClusterManagementCommands.cluster_addslots
    cluster_addslotsrange = ClusterManagementCommands.cluster_addslotsrange
    cluster_count_failure_report = ClusterManagementCommands.cluster_count_failure_report
    cluster_failover = ClusterManagementCommands.cluster_failover
    cluster_info = ClusterManagementCommands.cluster_info
    cluster_keyslot = ClusterManagementCommands.cluster_keyslot
    cluster_links = ClusterManagementCommands.cluster_links
    cluster_meet = ClusterManagementCommands.cluster_meet
    cluster_myid = ClusterManagementCommands.cluster_myid
    cluster_myshardid = ClusterManagementCommands.cluster_myshardid
    cluster_nodes = ClusterManagementCommands.cluster_nodes
    cluster_replicas = ClusterManagementCommands.cluster_replicas
    cluster_replicate = ClusterManagementCommands.cluster_replicate
    cluster_reset = ClusterManagementCommands.cluster_reset
    cluster_save_config = ClusterManagementCommands.cluster_save_config
    cluster_set_config_epoch = ClusterManagementCommands.cluster_set_config_epoch
    cluster_setslot = ClusterManagementCommands.cluster_setslot
    cluster_shards = ClusterManagementCommands.cluster_shards
    cluster_slots = ClusterManagementCommands.cluster_slots

    # -- administration: commands for the node of one slot ----------------------------------------------------------

    def cluster_countkeysinslot(self, slot_id: int) -> Any:
        """How many keys the node of a slot has in it."""
        return self.execute_command("CLUSTER COUNTKEYSINSLOT", slot_id, node=self._owner(slot_id))

    def cluster_get_keys_in_slot(self, slot: int, num_keys: int) -> Any:
        """Keys of a slot, at most so many, from its node."""
        return self.execute_command("CLUSTER GETKEYSINSLOT", slot, num_keys, node=self._owner(slot))

    def cluster_setslot_stable(self, slot_id: int) -> Any:
        """End the state importing or migrating of a slot, at its node."""
        return self.execute_command("CLUSTER SETSLOT", slot_id, "STABLE", node=self._owner(slot_id))

    def cluster_delslots(self, *slots: int) -> Any:
        """Take slots from the node that serves the first of them."""
        return self.execute_command("CLUSTER DELSLOTS", *slots, node=self._owner(slots[0]))


def _node(address: Address, kind: str) -> ClusterNode:
    return ClusterNode(*address, server_type=kind)  # type: ignore[no-untyped-call]
