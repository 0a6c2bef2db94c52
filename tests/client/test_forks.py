"""A WATCH and a fork: what is watched is watched for the parent, and the child must not believe otherwise."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import redis

import penstock
from penstock.client.errors import TransactionLost
from penstock.testing.cluster import RedisCluster


def in_child(body: Callable[[], object]) -> str:
    """What a forked child says of its work: "done", or the name of what it failed with."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = "done"
        try:
            body()
        except BaseException as error:
            said = type(error).__name__
        finally:
            os.write(writing, said.encode())
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as told:
        return told.read()


def increment(pipe: Any) -> Any:
    pipe.multi()
    pipe.incr("{t}n")
    return pipe.execute()


def test_a_child_cannot_end_the_transaction_of_its_parent(peer: str) -> None:
    with penstock.Client.from_url(peer) as client, client.pipeline() as pipe:
        client.set("{t}n", 1)
        pipe.watch("{t}n")
        assert in_child(lambda: increment(pipe)) == "WatchError"
        assert client.get("{t}n") == b"1" and increment(pipe) == [2]


def test_a_child_may_begin_one_of_its_own_and_block(peer: str) -> None:
    with penstock.Client.from_url(peer) as client, client.pipeline() as pipe:
        client.set("{t}n", 1)
        pipe.watch("{t}n")

        def work() -> None:
            pipe.reset()
            client.blpop("nothing", 0.01)
            pipe.watch("{t}n")
            assert increment(pipe) == [2]

        assert in_child(work) == "done"
        try:
            increment(pipe)
        except redis.WatchError:
            assert client.get("{t}n") == b"2"
        else:
            raise AssertionError("the child has changed what the parent watches")


def test_nor_can_it_on_a_cluster(cluster: RedisCluster) -> None:
    with penstock.Cluster(startup_nodes=cluster.addresses) as client, client.pipeline(transaction=True) as pipe:
        client.set("{t}n", 1)
        pipe.watch("{t}n")
        assert in_child(lambda: increment(pipe)) == "WatchLost"
        assert in_child(lambda: (pipe.reset(), pipe.watch("{t}n"), pipe.get("{t}n"))) == "done"
        assert client.get("{t}n") == b"1" and increment(pipe) == [2]


def test_a_command_between_watch_and_multi_does_not_run_in_the_child(peer: str) -> None:
    with penstock.Client.from_url(peer) as client, client.pipeline() as pipe:
        client.set("{t}n", 1)
        pipe.watch("{t}n")
        assert in_child(lambda: pipe.set("{t}n", 5)) == "WatchError"
        with client.client() as own:
            own.execute_command("MULTI")
            assert in_child(lambda: own.set("{t}n", 7)) == TransactionLost.__name__
            assert own.execute_command("EXEC") == [] and client.get("{t}n") == b"1"
