"""Stock Redis Sentinels fail over servers of ours, and redis-py's client of Sentinel follows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.exceptions import RedisError
from redis.sentinel import SentinelConnectionPool
from tests.support.replication.sentinels import NAME, Sentinels
from tests.support.server_process import Process
from tests.support.waiting import wait_until

import penstock
from penstock.testing.redis import free_port


def start(folder: Path, name: str, leader: Process | None = None, port: int = 0, options: str = "") -> Process:
    own = folder / name
    own.mkdir(exist_ok=True)
    follows = f"--replicaof 127.0.0.1 {leader.port} " if leader is not None else ""
    return Process(own, port or free_port(), options=follows + options)


def is_up(process: Process) -> bool:
    with contextlib.suppress(RedisError), redis.Redis(port=process.port) as client:
        return bool(client.info("replication").get("master_link_status") == "up")
    return False


def set_at_leader(sentinels: Sentinels, key: str, value: int) -> bool:
    with contextlib.suppress(RedisError):
        return bool(sentinels.client.master_for(NAME, socket_timeout=5).set(key, value))
    return False


@contextlib.contextmanager
def watched_pair(folder: Path, options: str = "") -> Iterator[tuple[contextlib.ExitStack, Process, Process, Sentinels]]:
    """A leader and a replica, which Sentinels know, and a stack for what must end with them."""
    with contextlib.ExitStack() as stack:
        one = start(folder, "one")
        stack.callback(one.kill)
        other = start(folder, "other", one, options=options)
        stack.callback(other.kill)
        wait_until(lambda: is_up(other))
        sentinels = stack.enter_context(Sentinels(folder, one.port))
        wait_until(lambda: sentinels.knows(replicas=1))
        yield stack, one, other, sentinels


def test_sentinels_replace_a_leader_that_is_killed_and_it_follows_when_it_is_back(tmp_path: Path) -> None:
    with watched_pair(tmp_path) as (stack, one, other, sentinels):
        client = sentinels.client.master_for(NAME)
        client.set("before", 1)
        assert client.wait(1, 60_000) == 1
        ours = penstock.Client(connection_pool=SentinelConnectionPool(NAME, sentinels.client), delivery="exactly-once")
        stack.callback(ours.close)
        url = f"penstock+sentinel://{','.join(f'127.0.0.1:{port}' for port in sentinels.ports)}/{NAME}"
        by_url = penstock.Client.from_url(url, delivery="exactly-once")
        stack.callback(by_url.close)
        assert ours.incr("counter") == 1 and by_url.incr("counter") == 2 and by_url.wait(1, 60_000) == 1
        one.process.kill()
        assert ours.incr("counter") == 3, "it waits for the next leader by itself"
        assert by_url.incr("counter") == 4
        assert ours.set("after", 2)
        wait_until(lambda: sentinels.leader == other.port)
        with redis.Redis(port=other.port) as leader:
            assert leader.get("before") == b"1"
            assert leader.execute_command("ROLE")[0] == b"master"
        one.kill()
        one = start(tmp_path, "one", port=one.port)
        stack.callback(one.kill)
        wait_until(lambda: is_up(one))  # they have told it to follow the other
        reader = sentinels.client.slave_for(NAME)
        wait_until(lambda: reader.get("after") == b"2")


def test_a_failover_that_is_asked_of_sentinel(tmp_path: Path) -> None:
    with watched_pair(tmp_path) as (_, one, other, sentinels):

        def asked() -> bool:
            with contextlib.suppress(redis.ResponseError), redis.Redis(port=sentinels.ports[0]) as sentinel:
                return bool(sentinel.execute_command("SENTINEL", "FAILOVER", NAME))
            return False

        wait_until(asked)  # refused until the replica's state is known
        wait_until(lambda: sentinels.leader == other.port)
        wait_until(lambda: is_up(one))
        wait_until(lambda: set_at_leader(sentinels, "after", 1))


def test_sentinel_promotes_no_replica_whose_priority_is_zero(tmp_path: Path) -> None:
    with watched_pair(tmp_path, "--replica-priority 0") as (_, one, _, sentinels):
        with redis.Redis(port=sentinels.ports[0], decode_responses=True) as sentinel:
            wait_until(lambda: sentinel.sentinel_slaves(NAME)[0]["slave-priority"] == 0)
            with pytest.raises(redis.ResponseError, match="NOGOODSLAVE"):
                sentinel.execute_command("SENTINEL", "FAILOVER", NAME)
        assert sentinels.leader == one.port
