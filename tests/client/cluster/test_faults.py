"""A real cluster through fault proxies: what each level makes of a connection that fails at the worst moment.

What other clients did then, and ours does instead, is in tests/client/test_peers.py.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import pytest
from tests.support.client.clients import result_of_silence
from tests.support.client.cluster.clients import Connect, Proxied

from penstock.client.cluster.errors import WatchLost
from penstock.client.delivery import Command, State
from penstock.client.errors import NotReplayed, NotSent, OutcomeUnknown
from penstock.protocol.slots import key_slot
from penstock.testing.cluster import RedisCluster
from penstock.testing.proxy import Fault, FaultProxy


def value(cluster: RedisCluster, key: bytes) -> int:
    """What the cluster holds, asked at the node itself."""
    return int(cluster.owner(key_slot(key)).ask("GET", key) or 0)


def test_filtered_commands_fail_and_others_are_repeated(
    proxied: Proxied, cluster: RedisCluster, connect_through: Connect
) -> None:
    node = cluster.masters[0]
    counted, plain = islice(cluster.keys_on(node), 2)
    client = connect_through(replay_filter=lambda command: command.name == "INCR")
    proxied.before(node).cut_after_execution(command=b"SET")
    with client.pipeline() as pipe:
        pipe.execute_command("SET", plain, "v").execute_command("INCR", counted)
        written, filtered = pipe.execute(raise_on_error=False)
    assert written is True
    assert isinstance(filtered, NotReplayed) and filtered.state is State.WRITTEN
    assert value(cluster, counted) <= 1


def test_a_filter_sees_what_a_single_servers_client_shows_and_one_that_fails_lets_nothing_through(
    proxied: Proxied, cluster: RedisCluster, connect_through: Connect
) -> None:
    node = cluster.masters[0]
    key, other = islice(cluster.keys_on(node), 2)
    seen: list[Command] = []

    def broken(command: Command) -> bool:
        seen.append(command)
        raise KeyError("a bug")

    client = connect_through(replay_filter=broken)
    proxied.before(node).cut_after_execution(command=b"INCR")
    with client.pipeline() as pipe:
        results = pipe.set(other, "v").execute_command("INCR", key).execute(raise_on_error=False)
    assert isinstance(results[1], NotReplayed) and "a bug" in str(results[1]) and value(cluster, key) == 1
    assert Command("INCR", (key,), State.WRITTEN) in seen


def test_a_level_that_is_changed_counts_at_once(
    proxied: Proxied, cluster: RedisCluster, connect_through: Connect
) -> None:
    node = cluster.masters[0]
    key = next(cluster.keys_on(node))
    client = connect_through()
    getattr(client, "real", client).delivery = "at-most-once"
    proxied.before(node).cut_after_execution(command=b"INCR")
    with pytest.raises(OutcomeUnknown):
        client.execute_command("INCR", key)
    getattr(client, "real", client).delivery = "at-least-once"
    proxied.before(node).cut_after_execution(command=b"INCR")
    assert client.execute_command("INCR", key) == 3


@pytest.mark.parametrize("count", [1, 2])
def test_a_level_that_is_raised_in_flight_does_not_count_for_what_was_handed_over(
    proxied: Proxied, cluster: RedisCluster, connect_through: Connect, count: int
) -> None:
    node = cluster.masters[0]
    key = next(cluster.keys_on(node))
    client = connect_through(delivery="at-most-once")
    client.ping()
    fault = proxied.before(node).swallow(command=b"INCR", nth=count, executed=True)
    with ThreadPoolExecutor(1) as pool:
        if count == 1:
            running = pool.submit(client.execute_command, "INCR", key)
        else:
            running = pool.submit(client.execute_many, [("INCR", key)] * count)
        assert fault.wait(60)
        while value(cluster, key) < count:
            pass
        getattr(client, "real", client).delivery = "at-least-once"
        proxied.before(node).cut_connections()
        with pytest.raises(OutcomeUnknown):
            running.result()
    assert value(cluster, key) == count


def test_shutdown_is_not_repeated_after_a_reconnect(
    proxied: Proxied, cluster: RedisCluster, connect_through: Connect
) -> None:
    node = cluster.masters[0]
    client = connect_through()
    client.ping()
    proxied.before(node).cut_before_forwarding(command=b"SHUTDOWN")
    with pytest.raises(NotReplayed, match="SHUTDOWN"):
        client.execute_command("SHUTDOWN", "NOSAVE", node=proxied.remap(node.address))
    assert node.is_running


# -- every fault, every level ---------------------------------------------------------------------------------

FAULTS: dict[str, tuple[Callable[[FaultProxy], Fault], int, bool]] = {
    # name: (fault, how often the server runs the command before the client notices, whether it notices only that
    # nothing comes)
    "cut before forwarding": (lambda proxy: proxy.cut_before_forwarding(b"INCR"), 0, False),
    "cut in the request": (lambda proxy: proxy.cut_mid_request(9, b"INCR"), 0, False),
    "cut after execution": (lambda proxy: proxy.cut_after_execution(b"INCR"), 1, False),
    "cut in the reply": (lambda proxy: proxy.cut_mid_reply(2, b"INCR"), 1, False),
    "nonsense for a reply": (lambda proxy: proxy.replace_reply(b"\x00?\r\n", b"INCR"), 1, False),
    "silence before execution": (lambda proxy: proxy.swallow(b"INCR"), 0, True),
    "silence after execution": (lambda proxy: proxy.swallow(b"INCR", executed=True), 1, True),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_at_each_level(name: str, proxied: Proxied, cluster: RedisCluster, connect_through: Connect) -> None:
    arm, ran, is_silent = FAULTS[name]
    node = cluster.masters[0]
    careful, stubborn = islice(cluster.keys_on(node), 2)
    once = connect_through(delivery="at-most-once", socket_timeout=60)
    least = connect_through(delivery="at-least-once", socket_timeout=60)

    def incr(client: Any, key: bytes) -> Any:
        fault = arm(proxied.before(node))
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(client.execute_command, "INCR", key)
            assert fault.wait(60)
            return result_of_silence(client, running) if is_silent else running.result()

    with pytest.raises(OutcomeUnknown) as unknown:
        incr(once, careful)
    assert unknown.value.state is State.WRITTEN
    assert value(cluster, careful) == ran
    assert incr(least, stubborn) == ran + 1
    assert value(cluster, stubborn) == ran + 1


@pytest.mark.parametrize("level", ["at-most-once", "at-least-once"])
def test_a_node_that_cannot_be_reached_leaves_commands_unsent(
    level: str, proxied: Proxied, cluster: RedisCluster, connect_through: Connect
) -> None:
    reachable, unreachable = cluster.masters[:2]
    here, there = next(cluster.keys_on(reachable)), next(cluster.keys_on(unreachable))
    client = connect_through(delivery=level, patience=0.3)
    proxied.before(unreachable).refuse_connections()
    with client.pipeline() as pipe:
        pipe.execute_command("INCR", here).execute_command("INCR", there).execute_command("INCR", here)
        with pytest.raises(NotSent) as error:
            pipe.execute()
    assert error.value.states == [State.REPLIED, State.QUEUED, State.REPLIED]
    assert error.value.replies[0] == 1 and error.value.replies[2] == 2
    assert "command 2 (INCR) of the pipeline" in str(error.value)
    assert value(cluster, there) == 0


@pytest.mark.parametrize("level", ["at-most-once", "at-least-once"])
def test_a_transaction_is_repeated_whole_or_not_at_all(
    level: str, proxied: Proxied, cluster: RedisCluster, connect_through: Connect
) -> None:
    """redis-py 8.1 ran a whole MULTI/EXEC twice."""
    node = cluster.masters[0]
    tag = next(cluster.keys_on(node))
    keys = [b"{%s}%d" % (tag, number) for number in range(2)]
    client = connect_through(delivery=level)
    proxied.before(node).cut_after_execution(command=b"EXEC")
    with client.pipeline(transaction=True) as pipe:
        pipe.execute_command("INCR", keys[0]).execute_command("INCR", keys[1])
        results = pipe.execute(raise_on_error=False)
    if level == "at-least-once":
        assert results == [2, 2]
        assert [int(node.ask("GET", key)) for key in keys] == [2, 2]
    else:
        assert {(type(result), result.state) for result in results} == {(OutcomeUnknown, State.WRITTEN)}
        assert [int(node.ask("GET", key)) for key in keys] == [1, 1]


def test_a_write_between_watch_and_multi_may_have_run(
    proxied: Proxied, cluster: RedisCluster, connect_through: Connect
) -> None:
    node = cluster.masters[0]
    key = next(cluster.keys_on(node))
    client = connect_through()
    with client.pipeline(transaction=True) as pipe:
        pipe.watch(key)
        proxied.before(node).cut_after_execution(command=b"INCR")
        with pytest.raises(OutcomeUnknown) as unknown:
            pipe.execute_command("INCR", key)
        assert unknown.value.state is State.WRITTEN
        with pytest.raises(WatchLost):
            pipe.get(key)
    with client.pipeline(transaction=True) as pipe:
        pipe.watch(key)
        proxied.before(node).cut_after_execution(command=b"GET")
        with pytest.raises(WatchLost):
            pipe.get(key)
    assert value(cluster, key) == 1


def test_many_clients_with_old_maps_ask_for_the_topology_once(
    proxied: Proxied, cluster: RedisCluster, connect_through: Connect
) -> None:
    """redis-py#4074: every thread asks at once."""
    source, target = cluster.masters[:2]
    key = next(cluster.keys_on(source))
    client = connect_through(refresh_interval=60.0)
    assert client.get(key) is None
    cluster.move_slot(key_slot(key), target)
    before = proxied.forwarded(b"CLUSTER")
    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(lambda _: client.get(key), range(64))) == {None}
    assert proxied.forwarded(b"CLUSTER") - before <= 1
