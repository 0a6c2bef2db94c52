"""How many connections a cluster client has, which calls share them, and what happens at the limit."""

from __future__ import annotations

import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import pytest
import redis
from tests.support.client.cluster.clients import Connect, Proxied
from tests.support.client.cluster.nodes import connections
from tests.support.client.interrupts import ask_interrupted

import penstock
from penstock.client.cluster.errors import TooManyConnections
from penstock.client.cluster.shared_connection import MOST_PIECES
from penstock.client.cluster.slot_map import SlotMap
from penstock.client.delivery import State
from penstock.client.errors import NotSent
from penstock.testing.cluster import RedisCluster


def test_at_the_bound_pipelines_share_and_blocking_commands_are_refused(
    cluster: RedisCluster, connect: Connect
) -> None:
    client = connect(max_connections=1)
    client.ping()
    before = connections(cluster)
    commands = [("SET", f"key:{number}", number) for number in range(10 * MOST_PIECES)]
    assert client.execute_many(commands) == [b"OK"] * len(commands)
    with client.pipeline() as pipe:
        for number in range(100):
            pipe.get(f"key:{number}")
        assert pipe.execute() == [b"%d" % number for number in range(100)]
    with client.pipeline(transaction=True) as pipe:
        assert pipe.incr("{t}n").incr("{t}n").execute() == [1, 2], "without WATCH it needs no connection of its own"
    assert connections(cluster) - before <= 2
    for call in (lambda: client.blpop("{t}list", timeout=1), lambda: client.pipeline(transaction=True).watch("{t}n")):
        with pytest.raises(TooManyConnections, match=r"all 1 connections to .* raise max_connections") as refused:
            call()
        assert refused.value.state is State.QUEUED
        assert isinstance(refused.value, redis.exceptions.MaxConnectionsError) and isinstance(refused.value, NotSent)


def test_connections_that_are_free_again_are_used_again(cluster: RedisCluster, connect: Connect) -> None:
    client = connect(max_connections=2)
    for _ in range(3):
        with client.pipeline(transaction=True) as pipe:
            pipe.watch("{t}n")
            with pytest.raises(TooManyConnections):
                client.blpop("{t}list", timeout=1)
        assert client.blpop("{t}list", timeout=0.01) is None


def test_a_moved_slot_is_followed_over_shared_connections_too(cluster: RedisCluster, connect: Connect) -> None:
    client = connect(max_connections=1)
    commands = [("SET", f"key:{number}", number) for number in range(300)]
    assert client.execute_many(commands) == [b"OK"] * 300
    core = getattr(client, "real", client).core
    known = core.topology.map
    following = dict(zip(known.masters, known.masters[1:] + known.masters[:1], strict=True))
    owners = tuple(following[owner] for owner in known.owners)
    core.topology.map = SlotMap(owners, known.replicas, known.epoch, is_covered=True)
    assert client.execute_many([("GET", f"key:{number}") for number in range(300)]) == [b"%d" % n for n in range(300)]
    assert client.counters.redirected == 300


def test_many_connections_one_after_the_other_are_not_too_many(
    proxied: Proxied, cluster: RedisCluster, connect_through: Connect
) -> None:
    """redis-py's pool counts what it has made, not what there is; a client that counted by it ended at the
    hundredth.
    """
    node = cluster.masters[0]
    keys = list(islice(cluster.keys_on(node), MOST_PIECES + 1))
    client = connect_through(max_connections=3)
    for number in range(8):
        client.execute_many([("INCR", key) for key in keys])
        with client.pipeline(transaction=True) as pipe:
            pipe.watch(keys[0])
        proxied.before(node).cut_connections()
        assert client.execute_command("INCR", keys[0]) == 2 * number + 2


def test_the_hundred_and_first_connection_is_opened(cluster: RedisCluster, connect: Connect) -> None:
    client = connect()
    for _ in range(102):
        with client.pipeline(transaction=True) as pipe:
            pipe.watch("{t}n")  # whose connection ends with it
    assert client.get("{t}n") is None


def test_a_wrong_password_is_an_error_at_once(cluster: RedisCluster, connect: Connect) -> None:
    client = connect()
    client.get("{t}n")
    pool = getattr(client, "real", client)._pool
    node = cluster.owner(client.keyslot("{t}n"))
    pool.client(node.address).connection_pool.connection_kwargs.update(username="nobody", password="wrong")
    with client.pipeline(transaction=True) as pipe, pytest.raises(redis.AuthenticationError) as refused:
        pipe.watch("{t}n")
    assert refused.value.state is State.QUEUED  # type: ignore[attr-defined]
    with pytest.raises(redis.AuthenticationError):
        client.blpop("{t}list", timeout=1)


# -- threads --------------------------------------------------------------------------------------------------


def test_sixty_four_threads_need_one_connection_a_node(cluster: RedisCluster) -> None:
    with penstock.Cluster(startup_nodes=cluster.addresses) as client, ThreadPoolExecutor(64) as pool:
        client.ping()
        before = connections(cluster)
        replies = list(pool.map(lambda number: client.incr(f"key:{number % 100}"), range(2000)))
        assert sorted(replies) == sorted(list(range(1, 21)) * 100)
        assert list(pool.map(lambda n: client.mget(f"{{{n}}}a", f"{{{n}}}b"), range(200))) == [[None, None]] * 200
        assert connections(cluster) - before <= 2
        assert client.counters.sent == client.counters.replied == 1 + 2000 + 200


def test_threads_that_share_a_connection_have_their_own_replies_and_errors(cluster: RedisCluster) -> None:
    with penstock.Cluster(startup_nodes=cluster.addresses, decode_responses=True) as client:
        client.set("{t}text", "word")

        def work(number: int) -> None:
            for _ in range(50):
                client.set(f"{{t}}{number}", number)
                assert client.get(f"{{t}}{number}") == str(number)
                with pytest.raises(redis.ResponseError):
                    client.incr("{t}text")
                assert isinstance(client.dump("{t}text"), bytes)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))


def test_a_blocking_thread_delays_no_other(cluster: RedisCluster) -> None:
    with penstock.Cluster(startup_nodes=cluster.addresses) as client:
        got: list[Any] = []
        waiting = threading.Thread(target=lambda: got.append(client.blpop("{t}list", timeout=30)))
        waiting.start()
        owner = cluster.owner(client.keyslot("{t}list"))
        while b"blocked_clients:1" not in owner.ask("INFO", "clients"):
            pass
        assert client.set("{t}other", 1) is True
        client.rpush("{t}list", "x")
        waiting.join(30)
        assert [tuple(pair) for pair in got] == [(b"{t}list", b"x")]


def test_a_cut_shared_connection_is_made_good_for_every_thread(proxied: Proxied, cluster: RedisCluster) -> None:
    node = cluster.masters[0]
    keys = list(islice(cluster.keys_on(node), 16))
    with penstock.Cluster(startup_nodes=proxied.addresses, address_remap=proxied.remap) as client:

        def work(key: bytes) -> list[Any]:
            return [client.execute_command("SET", key, number) for number in range(50)]

        with ThreadPoolExecutor(16) as pool:
            client.get(keys[0])
            for nth in (100, 300, 500):
                proxied.before(node).cut_after_execution(command=b"SET", nth=nth)
            assert list(pool.map(work, keys)) == [[True] * 50] * 16
        assert client.counters.reconnects >= 1 and client.counters.failed == 0


def test_a_child_makes_its_own_connections_also_if_other_threads_were_at_work_at_the_fork(
    cluster: RedisCluster,
) -> None:
    with penstock.Cluster(startup_nodes=cluster.addresses) as client:
        client.set("k", "parent")
        at_work, forked = threading.Event(), threading.Event()

        def hold_everything() -> None:
            ownership = client._topology_lock.acquire(0)
            assert ownership is not None
            with client.core.bounds._lock, client._pool._lock:
                at_work.set()
                forked.wait(30)
            ownership.release()

        other = threading.Thread(target=hold_everything)
        other.start()
        at_work.wait(30)
        child = os.fork()
        if not child:
            try:
                client.core.topology.table = None  # which has to be asked for again
                ok = client.get("k") == b"parent" and client.execute_many([("GET", "k")] * 100) == [b"parent"] * 100
                os._exit(0 if ok else 1)
            except BaseException:
                os._exit(2)
        forked.set()
        other.join(30)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert client.get("k") == b"parent"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # sockets that redis-py was just making
@pytest.mark.parametrize("bound", [2, 1000])  # two: most have to wait for room
def test_interrupts_between_any_two_steps_leak_nothing_and_mix_up_no_replies(cluster: RedisCluster, bound: int) -> None:
    client = penstock.Cluster(startup_nodes=cluster.addresses, max_buffered_commands=bound, max_connections=8)
    wrong: list[Any] = []
    for number in range(30):
        client.set(f"key:{number}", number)

    def ask(number: int) -> None:
        number %= 30
        if number % 3:
            replies = [client.get(f"key:{number}")]
        else:
            replies = client.execute_many(
                [("GET", f"key:{number}"), ("GET", f"{{key:{number}}}none"), ("GET", "other")]
            )
            number = number if replies[1:] == [None, None] else -1
        if replies[0] != b"%d" % number:
            wrong.append((number, replies))

    ask_interrupted(ask, 400)
    assert not wrong
    gc.collect()
    counters = client.counters
    assert counters.buffered_commands == counters.buffered_bytes == 0
    assert client.blpop("none", timeout=0.01) is None, "and connections may still be opened"
    ownership = client._topology_lock.acquire(0)
    assert ownership is not None, "and the topology asked for"
    client.close()
