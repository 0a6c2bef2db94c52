"""What the errors of a cluster client say about every command of a pipeline."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from redis.exceptions import AskError, ClusterCrossSlotError, TryAgainError
from tests.support.client.clients import SHORT_TIMES, raised
from tests.support.client.cluster.clients import Connect

from penstock import State
from penstock.client.cluster.errors import WatchLost
from penstock.client.errors import ClientClosed, NotEncodable
from penstock.testing.cluster import RedisCluster


def test_a_refusal_before_sending_gives_every_command_its_error(client: Any) -> None:
    with client.pipeline() as pipe, pytest.raises(ClusterCrossSlotError) as crossing:
        pipe.set("a", 1).mget("a", "b").get("c").execute()
    assert crossing.value.states == [State.QUEUED] * 3 and crossing.value.replies == [crossing.value] * 3
    with client.pipeline() as pipe, pytest.raises(NotEncodable) as unfit:
        pipe.set("a", 1).set("a", object()).execute()
    assert unfit.value.states == [State.QUEUED] * 2
    with pytest.raises(ClusterCrossSlotError) as crossing:
        client.execute_many([("SET", "a", 1), ("MGET", "a", "b")])
    assert crossing.value.states == [State.QUEUED] * 2
    assert client.get("a") is None


def test_so_is_what_a_closed_client_does_not_send(make: Connect, cluster: RedisCluster) -> None:
    client = make(startup_nodes=cluster.addresses)
    client.ping()
    getattr(client, "close_real", client.close)()
    pipe = client.pipeline()
    pipe.set("a", 1).set("b", 2)
    with pytest.raises(ClientClosed) as closed:
        pipe.execute()
    assert closed.value.states == [State.QUEUED] * 2 and len(closed.value.replies) == 2


def test_a_node_that_does_not_want_us_leaves_commands_unsent_and_says_so(
    cluster: RedisCluster, connect: Connect
) -> None:
    client = connect()
    client.get("{t}n")
    pool = getattr(client, "real", client)._pool
    node = cluster.owner(client.keyslot("{t}n"))
    pool.client(node.address).connection_pool.connection_kwargs.update(username="nobody", password="wrong")
    pipe = client.pipeline()
    for number in range(200):  # more than go over the connection that is open already
        pipe.set(f"{{t}}{number}", number)
    with pytest.raises(redis.AuthenticationError) as refused:
        pipe.execute()
    assert refused.value.states == [State.QUEUED] * 200  # type: ignore[attr-defined]


def test_a_wrong_password_is_no_want_of_a_topology(cluster: RedisCluster, make: Connect) -> None:
    client = make(startup_nodes=cluster.addresses[:2], username="nobody", password="wrong")
    with pytest.raises(redis.AuthenticationError, match=f"127.0.0.1:{cluster.nodes[0].port}: ") as refused:
        client.get("k")
    assert refused.value.state is State.QUEUED  # type: ignore[attr-defined]


def test_a_reply_that_redis_py_cannot_read_was_replied(client: Any) -> None:
    with pytest.raises(TypeError) as unread:
        client.execute_command("COMMAND", "COUNT")  # redis-py reads what COMMAND answers without any word
    assert unread.value.state is State.REPLIED  # type: ignore[attr-defined]
    with client.pipeline() as pipe, pytest.raises(TypeError) as unread:
        pipe.set("k", 1).execute_command("COMMAND", "COUNT").execute()
    assert unread.value.states == [State.REPLIED] * 2  # type: ignore[attr-defined]


def test_a_transaction_that_is_refused_until_its_time_is_up_ends_with_the_refusal(
    cluster: RedisCluster, connect: Connect
) -> None:
    client = connect()
    client.set("{t}a", 1)
    client.set("{t}b", 1)
    slot = client.keyslot("{t}a")
    target = next(node for node in cluster.masters if node is not cluster.owner(slot))
    with client.pipeline(transaction=True) as watching:
        watching.watch("{t}a")
        cluster.half_migrate(slot, target, [b"{t}a"])
        watching.multi()
        with pytest.raises(WatchLost, match=rf"is lost \(ASK {slot} 127.0.0.1:{target.port}\)"):
            watching.incr("{t}a").execute()
    rules = getattr(client, "real", client).core.rules
    for seconds in SHORT_TIMES:
        rules.command_timeout = seconds
        with client.pipeline(transaction=True) as pipe:
            refused = raised(pipe.incr("{t}a").incr("{t}b").execute)
        with client.pipeline(transaction=True) as pipe:
            unwatched = raised(lambda pipe=pipe: pipe.watch("{t}a"))
        if not isinstance(refused, redis.TimeoutError) and not isinstance(unwatched, redis.TimeoutError):
            break
    assert isinstance(refused, TryAgainError | AskError) and refused.states == [State.REPLIED] * 2  # type: ignore[union-attr]
    assert isinstance(unwatched, AskError)
    cluster.finish_migration(slot, target)
    rules.command_timeout = 60
    assert (client.get("{t}a"), client.get("{t}b")) == (b"1", b"1")
