"""Clients of a shard whose leader hands over to a replica, and keeps their connections."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from tests.support.background import in_background
from tests.support.client.clients import Connect
from tests.support.replication.servers import Pair, caught_up, servers
from tests.support.waiting import wait_until

import penstock


class ShardOfThree:
    """A leader and two replicas, that change places."""

    def __init__(self, pairs: list[Pair]) -> None:
        self.pairs = pairs
        self.url = f"penstock://{','.join(f'127.0.0.1:{pair.server.port}' for pair in pairs)}/orders"

    @property
    def leader(self) -> Pair:
        wait_until(lambda: sum(pair.info()["role"] == "master" for pair in self.pairs) == 1)
        (leader,) = (pair for pair in self.pairs if pair.info()["role"] == "master")
        return leader

    def fail_over(self) -> None:
        old = self.leader
        old.client.execute_command("FAILOVER")
        wait_until(lambda: old.info()["role"] == "slave" and self.leader is not old)
        new = self.leader
        for pair in self.pairs:
            if pair is not new:
                pair.follow(new)
        wait_until(lambda: new.info()["connected_slaves"] == 2)


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShardOfThree]:
    with servers(tmp_path_factory.mktemp("shard")) as made:
        leader = made.start("one", replica_acks=1)
        others = [made.start(name, leader, replica_acks=1) for name in ("two", "three")]
        caught_up(leader, *others)
        yield ShardOfThree([leader, *others])


@pytest.mark.parametrize("level", ["at-most-once", "at-least-once", "exactly-once"])
def test_no_command_fails_at_any_level(shard: ShardOfThree, connect: Connect, level: str) -> None:
    client = connect(shard.url, delivery=level)
    client.delete("n", "list")
    assert client.incr("n") == 1
    shard.fail_over()
    assert client.incr("n") == 2
    shard.fail_over()
    pipe = client.pipeline(transaction=False)
    pipe.get("n")
    pipe.incr("n")
    pipe.get("n")
    pipe.rpush("list", "a")
    assert pipe.execute() == [b"2", 3, b"3", 1]
    shard.fail_over()
    pipe = client.pipeline(transaction=True)
    pipe.incr("n")
    pipe.rpush("list", "b")
    assert pipe.execute() == [4, 2]
    shard.fail_over()
    assert client.eval("return redis.call('INCR', KEYS[1])", 1, "n") == 5


def test_a_transaction_with_a_watch_is_begun_again(shard: ShardOfThree) -> None:
    with penstock.Client.from_url(shard.url) as client:
        client.set("n", 1)
        tries = []

        def double(pipe: Any) -> None:
            value = int(pipe.get("n"))
            if not tries:
                shard.fail_over()
            tries.append(value)
            pipe.multi()
            pipe.set("n", value * 2)

        client.transaction(double, "n")
        assert len(tries) == 2
        # The transaction had a connection of its own. The other one asks once a second whether its server still leads.
        wait_until(lambda: client.get("n") == b"2")


def test_a_client_that_waits_in_a_blocking_command_goes_on_waiting_at_the_next_leader(
    shard: ShardOfThree, connect: Connect
) -> None:
    client = connect(shard.url, delivery="at-most-once")
    client.delete("queue")
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(client.blpop(["queue"], 60)))
    waiting.start()
    wait_until(lambda: shard.leader.client.info("clients")["blocked_clients"] == 1)
    shard.fail_over()
    wait_until(lambda: shard.leader.client.info("clients")["blocked_clients"] == 1)
    shard.leader.client.rpush("queue", "x")
    waiting.join()
    assert found in ([(b"queue", b"x")], [[b"queue", b"x"]])


def test_redis_py_on_the_pool_of_a_client_follows(shard: ShardOfThree) -> None:
    with penstock.Client.from_url(shard.url) as client:
        plain = redis.Redis(connection_pool=client.connection_pool)
        plain.set("k", 1)
        shard.fail_over()
        with pytest.raises(redis.ConnectionError, match="does not lead any more"):
            plain.set("k", 2)
        assert plain.set("k", 3)


def test_writers_in_many_threads_lose_and_double_nothing(shard: ShardOfThree) -> None:
    with penstock.Client.from_url(shard.url, delivery="exactly-once") as client:
        client.delete("counted")
        over, counts = threading.Event(), [0] * 4

        def write(number: int) -> None:
            while not over.is_set():
                client.incr("counted")
                counts[number] += 1

        writers = [threading.Thread(target=write, args=(number,)) for number in range(len(counts))]
        for writer in writers:
            writer.start()
        for _ in range(3):
            before = sum(counts)
            shard.fail_over()
            wait_until(lambda before=before: sum(counts) > before + 50)  # type: ignore[misc]
        over.set()
        for writer in writers:
            writer.join()
        assert int(client.get("counted")) == sum(counts)


def test_a_server_that_took_over_waits_for_its_replicas_and_one_that_handed_over_for_none(shard: ShardOfThree) -> None:
    shard.fail_over()
    leader = shard.leader
    replicas = [pair for pair in shard.pairs if pair is not leader]
    leader.client.set("k", 1)
    assert all(pair.client.get("k") for pair in replicas), "their own replies wait for no replica"
    with redis.Redis(port=leader.server.port) as client:
        connection = client.connection_pool.get_connection()
        with standing_still(replicas):
            connection.send_command("SET", "k", 2)
            assert not connection.can_read(timeout=0.5)
        assert connection.read_response() == b"OK"
        client.connection_pool.release(connection)
    assert leader.client.get("k") == b"2"


@contextlib.contextmanager
def standing_still(pairs: list[Pair]) -> Iterator[None]:
    """Meanwhile these servers read nothing and write nothing."""
    go_on = threading.Event()
    with contextlib.ExitStack() as stack:
        try:
            for pair in pairs:
                stack.enter_context(_standing_still(pair, go_on))
            yield
        finally:
            go_on.set()


@contextlib.contextmanager
def _standing_still(pair: Pair, go_on: threading.Event) -> Iterator[None]:
    stands = threading.Event()

    def stand(app: Any) -> None:
        stands.set()
        go_on.wait(120)

    with in_background(lambda: pair.server.call(stand)):
        assert stands.wait(120)
        yield
