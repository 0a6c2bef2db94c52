"""Our cluster clients have the methods of redis-py's; those that they have not are listed here, with the reasons."""

from __future__ import annotations

from typing import Any

import pytest
import redis
import redis.asyncio
from tests.support.client.cluster.clients import Connect

import penstock
from penstock import aio
from penstock.client.cluster.errors import NotRoutable
from penstock.client.errors import NotSent
from penstock.protocol.slots import key_slot
from penstock.testing.cluster import RedisCluster

ROUTING = "a table of redis-py's routing; ours comes from the server's COMMAND"
RETRIES = "one budget in time takes the place of counted retries: patience"
PASSED = "an option of the constructor, in core.rules or core.connection"
INTERNAL = "a step of redis-py's own connections"
ABSENT = {
    **dict.fromkeys(
        [
            "ALL_NODES", "CLUSTER_COMMANDS_RESPONSE_CALLBACKS", "COMMAND_FLAGS", "DEFAULT_NODE", "NODE_FLAGS",
            "PRIMARIES", "RANDOM", "REPLICAS", "RESULT_CALLBACKS", "SEARCH_COMMANDS", "command_flags",
            "commands_parser", "determine_slot", "get_special_nodes", "node_flags", "nodes_manager",
            "response_callbacks", "result_callbacks", "get_random_primary_node", "get_random_primary_or_all_nodes",
        ],
        ROUTING,
    ),
    **dict.fromkeys(
        [
            "ERRORS_ALLOW_RETRY", "RedisClusterRequestTTL", "reinitialize_counter", "reinitialize_steps", "retry",
            "set_retry",
        ],
        RETRIES,
    ),
    **dict.fromkeys(["connection_kwargs", "encoder", "maint_notifications_config", "read_from_replicas"], PASSED),
    **dict.fromkeys(["on_connect", "load_external_module"], INTERNAL),
    **dict.fromkeys(["replace_default_node", "set_default_node"], "there is no node that commands prefer; use node="),
    **dict.fromkeys(
        ["cluster_bumpepoch", "cluster_flushslots", "cluster_delslotsrange"],
        "redis-py refuses the first two and sends the third to any node: use node_client",
    ),
    **dict.fromkeys(
        ["himport_discard", "himport_discard_all", "himport_prepare", "himport_registry"],
        "what redis-py sends for them depends on its own connections",
    ),
    "keyspace_notifications": "needs redis-py's own cluster client; subscribe through node_client of each master",
    "disconnect_connection_pools": "close() ends all connections",
    "close": "aclose() in asyncio; redis-py's close is deprecated there",
}  # fmt: skip


def _public(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")}


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(penstock.Cluster, redis.RedisCluster), (aio.Cluster, redis.asyncio.RedisCluster)],
)
def test_a_method_of_redis_pys_cluster_is_here_or_has_a_reason(ours: type, theirs: type) -> None:
    missing = _public(theirs) - _public(ours)
    assert missing - ABSENT.keys() == set()


def test_every_reason_is_about_a_method_that_is_missing() -> None:
    missing = _public(redis.RedisCluster) - _public(penstock.Cluster)
    missing |= _public(redis.asyncio.RedisCluster) - _public(aio.Cluster)
    assert ABSENT.keys() - missing == set()


def test_nodes_are_named_as_redis_py_names_them(connect: Connect, cluster: RedisCluster) -> None:
    cluster.wait_until_listed()
    client = connect()
    client.set("k", "v")
    owner = cluster.owner(key_slot(b"k"))
    masters = {node.address for node in cluster.masters}
    assert {(node.host, node.port) for node in client.get_primaries()} == masters
    assert {(node.host, node.port) for node in client.get_nodes()} == set(cluster.addresses)
    assert {node.server_type for node in client.get_replicas()} == {"replica"}
    assert len(client.get_nodes()) == len(client.get_primaries()) + len(client.get_replicas())
    found = client.get_node_from_key("k")
    assert (found.host, found.port) == owner.address
    replica = client.get_node_from_key("k", replica=True)
    assert (replica.host, replica.port) == cluster.replica_of(owner).address
    assert client.get_node(*owner.address) == client.get_node(node_name=found.name) == found
    assert client.get_node("127.0.0.1", 1) is None
    assert client.get_default_node() in client.get_primaries()
    assert client.get_random_node() in client.get_nodes()


def test_administration_goes_to_the_node_that_it_concerns(client: Any, cluster: RedisCluster) -> None:
    client.set("{k}1", "v")
    slot = client.keyslot("{k}1")
    owner = client.get_node_from_key("{k}1")
    assert client.cluster_countkeysinslot(slot) >= 1
    assert "{k}1" in client.cluster_get_keys_in_slot(slot, 1000)
    assert client.cluster_keyslot("{k}1") == slot
    assert client.cluster_info()["cluster_state"] == "ok"
    assert client.cluster_setslot_stable(slot)
    ids = client.cluster_myid("primaries")
    assert set(ids) == {node.name for node in client.get_primaries()}
    assert client.cluster_myid(owner) == ids[owner.name]
    assert {name.rpartition("@")[0] or name for name in client.cluster_nodes()} >= {owner.name}
    assert client.cluster_slots()


def test_keys_of_many_slots_are_read_and_written_at_once(client: Any) -> None:
    names = [f"key:{number}" for number in range(50)]
    assert client.mset_nonatomic({name: number for number, name in enumerate(names)})
    assert client.mget_nonatomic(names) == [b"%d" % number for number in range(50)]
    assert client.mget_nonatomic(names[0], "none") == [b"0", None]


def test_replies_are_converted_by_a_function_of_ones_own(client: Any) -> None:
    client.set_response_callback("GET", lambda reply, **options: ("got", reply))
    client.set("k", "v")
    assert client.get("k") == ("got", b"v")


def test_a_node_is_watched(cluster: RedisCluster) -> None:
    with penstock.Cluster(*cluster.addresses[0]) as client, client.monitor(client.get_node_from_key("k")) as watching:
        client.get("k")
        assert any("GET" in watching.next_command()["command"] for _ in range(10))


def test_asyncio_says_that_the_nodes_are_not_known_yet() -> None:
    with pytest.raises(NotSent, match="await initialize"):
        aio.Cluster("127.0.0.1", 1).get_nodes()


@pytest.mark.parametrize("name", ["consumer", "producer", "follow"])
@pytest.mark.parametrize("kind", [penstock.Cluster, aio.Cluster])
def test_what_needs_penstock_streams_names_the_client_that_has_them(kind: Any, name: str) -> None:
    with pytest.raises(NotRoutable, match=rf"penstock\.Client\(host, port\)\.{name}\("):
        getattr(kind("127.0.0.1", 7000), name)("clicks", "billing")
