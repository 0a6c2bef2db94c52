"""Both cluster clients on a real cluster: redis-py's command methods, what concerns all nodes, what is refused."""

from __future__ import annotations

import asyncio
import gc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from tests.support.client.cluster.clients import Connect

import penstock
from penstock import aio
from penstock.client.cluster.errors import CrossSlotRefused, NoTopology, NotRoutable
from penstock.client.delivery import Delivery, State
from penstock.client.errors import ClientClosed, ExactlyOnceUnavailable, OutcomeUnknown
from penstock.protocol.slots import key_slot
from penstock.testing.cluster import RedisCluster
from penstock.testing.redis import RedisServer, free_port


def test_command_methods_are_those_of_redis_py(client: Any) -> None:
    assert client.set("k", "v", ex=100) is True
    assert client.get("k") == b"v"
    assert 0 < client.ttl("k") <= 100
    assert client.hset("h", mapping={"a": 1, "b": 2}) == 2
    assert client.hgetall("h") == {b"a": b"1", b"b": b"2"}
    assert client.zadd("z", {"a": 1, "b": 2}) == 2
    assert client.zrange("z", 0, -1, withscores=True) in ([(b"a", 1.0), (b"b", 2.0)], [[b"a", 1.0], [b"b", 2.0]])
    assert client.object("encoding", "k") in (b"embstr", b"raw")
    assert client.eval("return {KEYS[1], ARGV[1]}", 1, "k", "x") == [b"k", b"x"]
    assert client.xadd("s", {"f": "v"}) is not None
    assert len(client.xread({"s": "0"})) == 1
    assert client.zunionstore("{z}u", ["{z}1", "{z}2"]) == 0
    assert client.blpop("empty", timeout=0.01) is None


def test_an_unknown_command_gets_the_servers_answer(client: Any) -> None:
    with pytest.raises(redis.ResponseError, match="unknown command"):
        client.execute_command("NOSUCHCOMMAND", "k")


def test_what_concerns_all_nodes_is_asked_of_all(client: Any) -> None:
    keys = {b"k%d" % number for number in range(30)}
    with client.pipeline() as pipe:
        for key in keys:
            pipe.set(key, 1)
        assert pipe.execute() == [True] * 30
    assert client.dbsize() == 30
    assert set(client.keys("*")) == keys
    assert set(client.scan_iter(count=5)) == keys
    digest = client.script_load("return 1")
    assert client.script_exists(digest) == [True]
    assert client.flushall() is True
    assert client.dbsize() == 0


def test_a_command_can_be_sent_to_certain_nodes(cluster: RedisCluster, client: Any) -> None:
    cluster.wait_until_listed()
    sizes = client.dbsize(node="primaries")
    assert set(sizes.values()) == {0} and len(sizes) == 3
    assert len(client.ping(target_nodes="all")) == 6
    master = cluster.masters[0]
    assert client.config_get("port", node=master.address) == {"port": str(master.port)}
    assert client.config_get("port", node=f"127.0.0.1:{master.port}") == {"port": str(master.port)}
    with pytest.raises(ValueError, match="neither host:port nor one of primaries"):
        client.ping(node="everybody")


def test_commands_over_several_slots_are_refused_unless_split(connect: Connect) -> None:
    whole, split = connect(), connect(split=True)
    with pytest.raises(CrossSlotRefused, match="MSET has keys in several slots") as refused:
        whole.mset({"a": 1, "b": 2})
    assert refused.value.state is State.QUEUED
    assert split.mset({"a": 1, "b": 2, "c": 3}) is True
    assert split.mget("c", "missing", "a", "b", "a") == [b"3", None, b"1", b"2", b"1"]
    assert split.exists("a", "b", "nothing") == 2
    with whole.pipeline(split=True) as pipe:
        assert pipe.get("a").delete("a", "b", "c").get("a").execute() == [b"1", 3, None]
    with pytest.raises(CrossSlotRefused, match="RENAME"):
        split.rename("a", "b")


def test_errors_of_the_server_stand_in_their_places(client: Any) -> None:
    with client.pipeline() as pipe:
        pipe.set("s", "text").lpush("s", 1).get("s")
        first, second, third = pipe.execute(raise_on_error=False)
        assert (first, third) == (True, b"text") and isinstance(second, redis.ResponseError)
        pipe.get("s").lpush("s", 1)
        with pytest.raises(redis.ResponseError, match=r"command 2 \(LPUSH\) of the pipeline: ") as error:
            pipe.execute()
        assert error.value.states == [State.REPLIED, State.REPLIED]
        assert pipe.execute() == [], "and the pipeline is empty again"


def test_ready_commands_run_in_one_go(client: Any) -> None:
    commands = [("SET", f"k{number}", number) for number in range(1000)]
    assert client.execute_many(commands) == [b"OK"] * 1000
    assert client.execute_many([("GET", "k7"), (b"get", b"k8")]) == [b"7", b"8"]
    with pytest.raises(redis.ResponseError, match=r"command 2 \(LPUSH\)"):
        client.execute_many([("GET", "k7"), ("LPUSH", "k7", 1)])
    assert client.execute_many([]) == []


def test_replies_are_decoded_on_request(connect: Connect) -> None:
    client = connect(decode_responses=True)
    client.set("k", "größe")
    assert client.get("k") == "größe"
    assert isinstance(client.dump("k"), bytes), "what is no text stays bytes"
    with client.pipeline() as pipe:
        assert pipe.get("k").hgetall("none").execute() == ["größe", {}]
    for strategy in ("packed", "sequential"):
        with client.pipeline(strategy=strategy) as pipe:
            text, dumped, size = pipe.get("k").dump("k").dbsize().execute()
            assert text == "größe" and isinstance(dumped, bytes) and size == 1


def test_a_reply_that_cannot_be_decoded_fails_its_command_alone(connect: Connect) -> None:
    client = connect(decode_responses=True)
    client.set("{t}bad", b"\xff\xfe")
    client.set("{t}good", "text")
    with client.pipeline() as pipe:
        good, bad, again = pipe.get("{t}good").get("{t}bad").get("{t}good").execute(raise_on_error=False)
    assert (good, again) == ("text", "text")
    assert isinstance(bad, UnicodeDecodeError) and bad.state is State.REPLIED  # type: ignore[attr-defined]
    with client.pipeline(transaction=True) as pipe:
        counted, bad, dumped = pipe.incr("{t}n").get("{t}bad").dump("{t}n").execute(raise_on_error=False)
    assert counted == 1 and isinstance(bad, UnicodeDecodeError) and isinstance(dumped, bytes)
    with client.pipeline(transaction=True) as pipe:
        pipe.watch("{t}n")
        waited = pipe.dump("{t}n")
        assert isinstance(waited if isinstance(waited, bytes) else client.do(lambda: waited), bytes)


@pytest.mark.parametrize("count", [3, 300])
def test_errors_inside_of_a_reply_are_exceptions_however_many_commands_there_are(client: Any, count: int) -> None:
    """Small batches share a connection, large ones have their own."""
    client.set("{t}a", "x")
    with client.pipeline(transaction=True) as pipe:
        for _ in range(count):
            pipe.lpush("{t}a", "y")
        results = pipe.execute(raise_on_error=False)
        assert len(results) == count and {type(result) for result in results} == {type(results[0])}
        assert isinstance(results[0], redis.ResponseError) and "WRONGTYPE" in repr(results[0].args)
    with client.pipeline() as pipe:
        for _ in range(count):
            pipe.eval("return {redis.error_reply('BAD luck')}", 1, "{t}a")
        assert {type(error) for (error,) in pipe.execute()} == {redis.ResponseError}


def test_a_transaction_runs_on_one_node_and_says_why_it_was_aborted(cluster: RedisCluster, client: Any) -> None:
    client.set("elsewhere", 1)
    with client.pipeline(transaction=True) as pipe:
        pipe.set("{t}a", 1).dbsize().flushall()
        first, size, flushed = pipe.execute()
    assert (first, flushed) == (True, True) and size >= 1
    with client.pipeline(transaction=True) as pipe:
        pipe.set("{t}a", 1).execute_command("NOSUCHCOMMAND")
        with pytest.raises(redis.ResponseError, match=r"command 2 \(NOSUCHCOMMAND\) of the pipeline: unknown command"):
            pipe.execute()
    assert client.get("{t}a") is None
    with client.pipeline(transaction=True) as pipe, pytest.raises(NotRoutable, match="MULTI"):
        pipe.set("{t}a", 1).execute_command("MULTI").execute()


def test_resp2_and_resp3_give_the_same_values(connect: Connect) -> None:
    for protocol in (2, 3):
        client = connect(protocol=protocol)
        client.delete("h")
        client.hset("h", mapping={"a": 1})
        assert client.hgetall("h") == {b"a": b"1"}


def test_large_values_and_many_commands_pass(client: Any) -> None:
    big = b"x" * 3_000_000
    with client.pipeline() as pipe:
        for number in range(6):
            pipe.set(f"big{number}", big)
        for number in range(6):
            pipe.get(f"big{number}")
        assert pipe.execute() == [True] * 6 + [big] * 6


def test_locks_and_messages(cluster: RedisCluster) -> None:
    with penstock.Cluster(startup_nodes=cluster.addresses) as client:
        with client.lock("lock", timeout=60):
            assert client.get("lock") is not None
        assert client.get("lock") is None
        subscription = client.pubsub()
        subscription.subscribe("news")
        assert subscription.get_message(timeout=60)["type"] == "subscribe"
        client.publish("news", "hello")
        assert subscription.get_message(timeout=60)["data"] == b"hello"
        subscription.close()


def test_locks_and_messages_of_asyncio(cluster: RedisCluster) -> None:
    async def session() -> None:
        async with aio.Cluster(startup_nodes=cluster.addresses) as client:
            async with client.lock("lock", timeout=60):
                assert await client.get("lock") is not None
            assert await client.get("lock") is None
            subscription = await client.pubsub()
            await subscription.subscribe("news")
            assert (await subscription.get_message(timeout=60))["type"] == "subscribe"
            await client.publish("news", "hello")
            assert (await subscription.get_message(timeout=60))["data"] == b"hello"
            await subscription.aclose()

    asyncio.run(session())


def test_a_cancelled_task_leaves_the_connections_in_step(cluster: RedisCluster) -> None:
    """redis-py#2624, #2665: the next command got the reply of the cancelled one."""

    async def session() -> None:
        async with aio.Cluster(startup_nodes=cluster.addresses) as client:
            await client.set("{t}a", "a")
            waiting = asyncio.create_task(client.blpop("{t}list", timeout=60))
            await asyncio.sleep(0.05)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert await asyncio.gather(*(client.get("{t}a") for _ in range(10))) == [b"a"] * 10

    asyncio.run(session())


def test_a_client_of_asyncio_may_outlive_its_loop(cluster: RedisCluster) -> None:
    client = aio.Cluster(startup_nodes=cluster.addresses)

    async def session(last: bool) -> None:
        assert await client.set("k", "v") is True
        if last:
            await client.aclose()

    with asyncio.Runner() as first:
        first.run(session(last=False))
        with asyncio.Runner() as second:
            second.run(session(last=True))


def test_the_error_for_an_unreachable_cluster_names_the_nodes_that_were_asked(make: Connect) -> None:
    port = free_port()
    with pytest.raises(NoTopology, match=f"127.0.0.1:{port}") as error:
        make(host="127.0.0.1", port=port).get("k")
    assert error.value.state is State.QUEUED


def test_a_server_that_is_no_cluster_says_so(make: Connect, theirs: RedisServer) -> None:
    with pytest.raises(NoTopology, match="cluster support disabled"):
        make(host="127.0.0.1", port=theirs.port).get("k")


def test_a_closed_client_sends_nothing(make: Connect, cluster: RedisCluster) -> None:
    with penstock.Cluster(startup_nodes=cluster.addresses) as client:
        assert client.ping() is True
    with pytest.raises(ClientClosed):
        client.ping()


@pytest.mark.parametrize("level", ["at-most-once", "at-least-once"])
def test_a_call_that_waits_when_the_client_is_closed_may_have_run(
    level: str, cluster: RedisCluster, connect: Connect
) -> None:
    client = connect(delivery=level)
    client.get("{t}n")
    node = cluster.owner(key_slot(b"t"))
    node.ask("CLIENT", "PAUSE", 60_000, "WRITE")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.incr, "{t}n")
        while b" flags=b " not in node.ask("CLIENT", "LIST"):
            pass
        turn = getattr(client._pool.shared(node.address), "_write_turn", None)
        while turn is not None and turn.sending is not None:
            pass  # the server may have it before the thread that wrote it knows
        getattr(client, "close_real", client.close)()
        with pytest.raises(OutcomeUnknown) as unknown:
            waiting.result()
    node.ask("CLIENT", "UNPAUSE")
    assert unknown.value.state is State.WRITTEN
    with pytest.raises(ClientClosed):
        client.get("{t}n")
    with pytest.raises(ClientClosed):
        client.execute_many([("GET", f"k{number}") for number in range(100)])


def test_a_client_that_was_closed_before_its_first_call_says_so(cluster: RedisCluster) -> None:
    client = penstock.Cluster(startup_nodes=cluster.addresses)
    client.close()
    with pytest.raises(ClientClosed):
        client.get("k")


def test_arguments_are_checked(make: Connect) -> None:
    with pytest.raises(ValueError, match="startup_nodes"):
        penstock.Cluster()
    with pytest.raises(ValueError, match="no delivery level"):
        penstock.Cluster("h", delivery="twice")
    client = penstock.Cluster("h")
    with pytest.raises(ValueError, match="no strategy"):
        client.pipeline(strategy="fast")
    with pytest.raises(ValueError, match="single-slot"):
        client.pipeline(True, strategy="packed")
    with pytest.raises(redis.RedisError, match="transaction=True"):
        client.pipeline().watch("k")
    client.close()


def test_a_url_names_a_node_to_start_from(cluster: RedisCluster) -> None:
    with penstock.Cluster.from_url(f"redis://127.0.0.1:{cluster.masters[0].port}?decode_responses=true") as client:
        client.set("k", "v")
        assert client.get("k") == "v"
        assert client.keyslot("k") == key_slot(b"k")
        assert len(client.slot_map.masters) == 3


def test_what_belongs_to_one_connection_is_refused(client: Any) -> None:
    with pytest.raises(NotRoutable, match="scan_iter"):
        client.scan(0)
    with pytest.raises(NotRoutable, match="argument of Cluster"):
        client.client_setname("me")


@pytest.mark.parametrize(
    "call",
    [
        ("MOVE", "a", 1), (b"move", b"a", b"1"), ("SWAPDB", 0, 1), ("COPY", "a", "a", "DB", 1),
        ("REPLICAOF", "NO", "ONE"), ("SLAVEOF", "NO", "ONE"), ("FAILOVER",), ("SELECT", 1),
    ],
)  # fmt: skip
def test_what_no_node_of_a_cluster_does_is_refused_by_name_before_anything_is_sent(
    cluster: RedisCluster, client: Any, call: tuple[Any, ...]
) -> None:
    known = cluster.masters[0].ask("COMMAND", "INFO", call[0])
    if known[0] is not None:  # not every version has all of them
        with pytest.raises(redis.ResponseError, match=r"(?i)not allowed in cluster mode"):
            cluster.owner(key_slot(b"a")).ask(*call)
    name = call[0].decode().upper() if isinstance(call[0], bytes) else call[0]
    client.set("a", 1)
    before = client.counters.sent
    for strategy in ("packed", "sequential", "two-step", "single-slot"):
        pipe = client.pipeline(strategy=strategy)
        pipe.incr("a").execute_command(*call)
        with pytest.raises(NotRoutable, match=rf"{name}.* makes no sense for a whole cluster: ."):
            pipe.execute()
    with pytest.raises(NotRoutable, match=name):
        client.execute_command(*call)
    with pytest.raises(NotRoutable, match=name):
        client.execute_many([("INCR", "a"), call])
    assert client.get("a") == b"1" and client.counters.sent == before + 1


def test_a_copy_within_the_only_database_is_sent(client: Any) -> None:
    client.delete("{t}b")
    client.set("{t}a", 1)
    assert client.execute_command("COPY", "{t}a", "{t}b", "DB", 0) and client.get("{t}b") == b"1"


@pytest.mark.parametrize("bad", [(), "GET a", (None,), (5,), ("  ",)])
def test_an_unknown_command_is_refused_by_name(client: Any, bad: Any) -> None:
    with pytest.raises(redis.DataError, match="is no"):
        client.execute_many([("GET", "a"), bad])
    assert client.ping()


@pytest.mark.parametrize("make", [penstock.Cluster, aio.Cluster])
def test_the_level_may_be_changed_and_the_one_it_cannot_keep_is_refused(make: Any) -> None:
    client = make("127.0.0.1", 1)
    assert client.delivery is Delivery.AT_LEAST_ONCE and client.replay_filter is None
    client.delivery = "at-most-once"
    with pytest.raises(ExactlyOnceUnavailable):
        client.delivery = "exactly-once"
    assert client.delivery is Delivery.AT_MOST_ONCE


def test_a_forgotten_client_leaves_nothing_open(cluster: RedisCluster) -> None:
    client = penstock.Cluster(startup_nodes=cluster.addresses)
    client.ping()
    del client
    gc.collect()  # a socket left open would be a ResourceWarning, and so an error
