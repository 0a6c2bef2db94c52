"""What other clients did, measured, and what ours does instead: one row for each case, every level, sync and asyncio.

In each a connection is cut after the server has executed and before the client has the reply; where nothing is said the
peers ran with their defaults. Levels are at most once, at least once, and, where the server is ours, exactly once.

    what was sent                                              what the peer did
    1. `incr`                                                  redis-py 8.1 ran it twice, silently
    2. a MULTI/EXEC pipeline                                   redis-py 8.1 ran the whole transaction twice
    3. a cluster pipeline, 100 INCR, 50 of them answered       redis-py 8.1 ran all 100 twice
    4. a cluster pipeline, DECR answered 0, another node cut   redis-py 8.1 (asyncio) ran the DECR again
    5. MGET {t}a {t}b, then SET {t}a, the slot migrating       redis-py 8.1: the MGET saw the SET
    6. `incr`                                                  coredis 6.9 ran it twice
    7. `incr`                                                  valkey-glide 2.5: an error, and never a replay

Users met them in redis-py#261, #977, #3554, #3559 (1, 2), #3804 (3); that "not sent" and "sent, unknown" must be told
apart is StackExchange.Redis#1864; a client that reconnects and replays nothing, as in 7, is lettuce#1310 and #3072.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import pytest
import redis
from tests.support.client import clients
from tests.support.client.cluster import clients as cluster_clients
from tests.support.client.cluster.clients import Proxied

from penstock import State
from penstock.client.errors import NotReplayed, NotSent, OutcomeUnknown
from penstock.protocol.slots import key_slot
from penstock.testing.cluster import RedisCluster
from penstock.testing.proxy import FaultProxy

MOST, LEAST, EXACTLY = "at-most-once", "at-least-once", "exactly-once"

Connect = Callable[..., Any]


@pytest.fixture(params=["sync", "aio"])
def flavour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def connect(flavour: str, proxy: FaultProxy) -> Iterator[Connect]:
    """Make a client of our server, through the proxy."""
    with ExitStack() as stack:

        def make(level: str, **options: Any) -> Any:
            url = f"redis://127.0.0.1:{proxy.port}/0"
            client = clients.MAKERS[flavour](url, delivery=level, backoff_base=0.01, backoff_cap=0.05, **options)
            stack.enter_context(closing(client))
            client.ping()  # so that what follows finds a connection
            return client

        yield make


@pytest.fixture
def proxied(cluster: RedisCluster) -> Iterator[Proxied]:
    with closing(Proxied(cluster)) as made:
        yield made


@pytest.fixture
def connect_cluster(flavour: str, proxied: Proxied) -> Iterator[Connect]:
    """Make a client of a real cluster, through a proxy a node."""
    with ExitStack() as stack:

        def make(level: str) -> Any:
            options = {"startup_nodes": proxied.addresses, "address_remap": proxied.remap, "delivery": level}
            return stack.enter_context(closing(cluster_clients.MAKERS[flavour](**options)))

        yield make


def on_node(cluster: RedisCluster, key: bytes) -> int:
    """What the cluster holds, asked at the node itself."""
    return int(cluster.owner(key_slot(key)).ask("GET", key) or 0)


def wire_name(name: bytes, level: str) -> bytes:
    """How a write travels at a level."""
    return b"ONCE" if level == EXACTLY else name


# -- 1, 6, 7: incr --------------------------------------------------------------------------------------------


def test_incr_at_most_once_is_an_unknown_outcome_and_ran_once(
    connect: Connect, proxy: FaultProxy, witness: redis.Redis
) -> None:
    client = connect(MOST)
    proxy.cut_after_execution(b"INCRBY")
    with pytest.raises(OutcomeUnknown) as unknown:
        client.incr("n")
    assert unknown.value.state is State.WRITTEN and unknown.value.command == "INCRBY"
    assert witness.get("n") == b"1" and proxy.forwarded[b"INCRBY"] == 1


def test_incr_at_most_once_that_was_not_sent_says_so(connect: Connect, proxy: FaultProxy, witness: redis.Redis) -> None:
    client = connect(MOST)
    proxy.refuse_connections()
    proxy.cut_connections()
    failures = []
    for _ in range(3):
        with pytest.raises((NotSent, OutcomeUnknown)) as failure:
            client.incr("n")
        failures.append(failure.value)
    assert isinstance(failures[-1], NotSent) and failures[-1].state is State.QUEUED
    assert witness.get("n") is None and proxy.forwarded[b"INCRBY"] == 0


def test_incr_at_least_once_runs_again_because_that_was_asked_for_and_is_told(
    connect: Connect, proxy: FaultProxy, witness: redis.Redis
) -> None:
    seen: list[Any] = []
    client = connect(LEAST, on_replay=seen.append)
    proxy.cut_after_execution(b"INCRBY")
    assert client.incr("n") == 2 and witness.get("n") == b"2"
    assert [command.name for event in seen for command in event.commands] == ["INCRBY"], "not silently"


def test_incr_at_least_once_with_a_filter_is_an_error_and_no_replay(
    connect: Connect, proxy: FaultProxy, witness: redis.Redis
) -> None:
    """Row 7's outcome, for those commands that it is right for."""
    client = connect(LEAST, replay_filter=lambda command: command.name == "INCRBY")
    proxy.cut_after_execution(b"INCRBY")
    with pytest.raises(NotReplayed) as filtered:
        client.incr("n")
    assert filtered.value.state is State.WRITTEN and witness.get("n") == b"1"
    proxy.cut_after_execution(b"SET")
    assert client.set("other", 1) is True


def test_incr_exactly_once_runs_once_and_is_answered(connect: Connect, proxy: FaultProxy, witness: redis.Redis) -> None:
    client = connect(EXACTLY)
    proxy.cut_after_execution(b"ONCE")
    assert client.incr("n") == 1 and witness.get("n") == b"1"
    assert proxy.forwarded[b"ONCE"] == 2, "it was sent twice, and ran once"


# -- 2: a transaction -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("level", "ran"), [(MOST, 1), (LEAST, 2), (EXACTLY, 1)])
def test_a_transaction(level: str, ran: int, connect: Connect, proxy: FaultProxy, witness: redis.Redis) -> None:
    client = connect(level)
    fault = proxy.cut_after_execution(b"EXEC")
    pipe = client.pipeline()
    pipe.incr("a")
    pipe.incrby("b", 5)
    if level == MOST:
        with pytest.raises(OutcomeUnknown) as unknown:
            pipe.execute()
        assert list(unknown.value.states) == [State.WRITTEN] * 2
    else:
        assert pipe.execute() == [ran, 5 * ran]
    assert fault.has_fired and witness.mget("a", "b") == [b"%d" % ran, b"%d" % (5 * ran)]


# -- 3: a pipeline, half of it answered -----------------------------------------------------------------------


def hundred(pipe: Any, key: Any) -> list[Any]:
    for _ in range(100):
        pipe.execute_command("INCR", key)
    return list(pipe.execute(raise_on_error=False))


def check_hundred(results: list[Any], level: str, value: int) -> None:
    """Fifty were answered and never run again; what became of the others is the level's to say."""
    assert results[:50] == list(range(1, 51))
    if level == MOST:
        assert {(type(result), result.state) for result in results[50:]} == {(OutcomeUnknown, State.WRITTEN)}
        assert value == 100
    elif level == LEAST:
        assert results[50:] == list(range(101, 151)) and value == 150
    else:
        assert results[50:] == list(range(51, 101)) and value == 100


@pytest.mark.parametrize("level", [MOST, LEAST])
def test_a_cluster_pipeline(level: str, proxied: Proxied, cluster: RedisCluster, connect_cluster: Connect) -> None:
    node = cluster.masters[0]
    key = next(cluster.keys_on(node))
    client = connect_cluster(level)
    proxied.before(node).cut_after_execution(b"INCR", nth=100, replies=50)
    results = hundred(client.pipeline(), key)
    check_hundred(results, level, on_node(cluster, key))


@pytest.mark.parametrize("level", [MOST, LEAST, EXACTLY])
def test_a_pipeline_on_one_server(level: str, connect: Connect, proxy: FaultProxy, witness: redis.Redis) -> None:
    client = connect(level)
    proxy.cut_after_execution(wire_name(b"INCR", level), nth=100, replies=50)
    results = hundred(client.pipeline(transaction=False), "n")
    check_hundred(results, level, int(witness.get("n") or 0))


def test_a_cluster_refuses_the_level_that_it_cannot_keep(proxied: Proxied, connect_cluster: Connect) -> None:
    with pytest.raises(redis.RedisError, match="exactly-once"):
        connect_cluster(EXACTLY)
    assert not proxied.forwarded(b"INCR")


# -- 4: a reply of zero ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [MOST, LEAST])
def test_a_reply_of_zero_is_a_reply(
    level: str, proxied: Proxied, cluster: RedisCluster, connect_cluster: Connect
) -> None:
    healthy, other = cluster.masters[:2]
    down, up = next(cluster.keys_on(healthy)), next(cluster.keys_on(other))
    healthy.ask("SET", down, 1)
    client = connect_cluster(level)
    proxied.before(other).cut_after_execution(b"INCR")
    pipe = client.pipeline()
    pipe.execute_command("DECR", down).execute_command("INCR", up)
    first, second = pipe.execute(raise_on_error=False)
    assert first == 0 and on_node(cluster, down) == 0 and proxied.before(healthy).forwarded[b"DECR"] == 1
    if level == MOST:
        assert isinstance(second, OutcomeUnknown) and on_node(cluster, up) == 1
    else:
        assert second == 2 and on_node(cluster, up) == 2


# -- 5: order while a slot migrates ---------------------------------------------------------------------------


@pytest.mark.parametrize("level", [MOST, LEAST])
def test_a_command_of_several_keys_keeps_its_place_while_their_slot_migrates(
    level: str, proxied: Proxied, cluster: RedisCluster, connect_cluster: Connect
) -> None:
    slot = key_slot(b"t")
    client = connect_cluster(level)
    client.mset({"{t}a": "old", "{t}b": "old"})
    target = next(master for master in cluster.masters if master is not cluster.owner(slot))
    source = cluster.half_migrate(slot, target, [b"{t}b"])
    asked_again = proxied.before(source).delay(0.0, b"MGET", nth=2)

    def finish() -> None:
        assert asked_again.wait()
        cluster.finish_migration(slot, target)

    with ThreadPoolExecutor(1) as pool:
        finished = pool.submit(finish)
        pipe = client.pipeline()
        pipe.mget("{t}a", "{t}b").set("{t}a", "new").get("{t}a")
        assert pipe.execute() == [[b"old", b"old"], True, b"new"]
        finished.result()
