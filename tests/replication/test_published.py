"""What is published at a leader reaches the subscribers of its replicas, behind the changes before it."""

from __future__ import annotations

import contextlib
import logging
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from tests.support.replication.servers import Pair, Servers, caught_up, servers
from tests.support.waiting import wait_until

from penstock.protocol.resp import pack


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Servers]:
    with servers(tmp_path) as world:
        yield world


class Feed:
    """A replica that shows what it is sent, and says what it is told to."""

    def __init__(self, leader: Pair, connection: socket.socket) -> None:
        self.connection = connection
        self.say("REPLCONF", "capa", "penstock", "listening-port", "1")
        about = leader.info()
        self.say("PSYNC", str(about["master_replid"]), str(about["master_repl_offset"]))
        self.read_to(b"GETACK")

    def say(self, *words: str) -> None:
        self.connection.sendall(pack(*[word.encode() for word in words]))

    def read_to_end(self) -> None:
        """Read until the connection is closed."""
        with contextlib.suppress(ConnectionResetError):
            while self.connection.recv(1 << 16):
                pass

    def acknowledge(self) -> None:
        """Claim to have all that the leader has."""
        self.say("REPLCONF", "ACK", str(1 << 60))

    def read_to(self, mark: bytes) -> bytes:
        """What comes, up to these bytes."""
        read = b""
        while mark not in read:
            piece = self.connection.recv(1 << 16)
            assert piece, "the connection was closed"
            read += piece
        return read


def connected(pair: Pair) -> socket.socket:
    return socket.create_connection(("127.0.0.1", pair.server.port), timeout=60)


@contextmanager
def feed_of(leader: Pair) -> Iterator[Feed]:
    with connected(leader) as connection:
        yield Feed(leader, connection)


def pipeline(client: redis.Redis) -> None:
    with client.pipeline(transaction=False) as pipe:
        pipe.set("k", "CHANGE").publish("news", "MESSAGE").execute()


def transaction(client: redis.Redis) -> None:
    with client.pipeline() as pipe:
        pipe.set("k", "CHANGE").publish("news", "MESSAGE").execute()


def script(client: redis.Redis) -> None:
    client.eval("redis.call('SET', 'k', 'CHANGE') redis.call('PUBLISH', 'news', 'MESSAGE')", 0)


@pytest.mark.parametrize("policy", ["everysec", "always"])
@pytest.mark.parametrize("run", [pipeline, transaction, script])
def test_a_message_comes_behind_the_changes_before_it(
    world: Servers, run: Callable[[redis.Redis], None], policy: str
) -> None:
    leader = world.start("leader", appendfsync=policy)
    with feed_of(leader) as feed:
        run(leader.client)
        assert b"CHANGE" in feed.read_to(b"MESSAGE").partition(b"MESSAGE")[0]


def test_a_message_waits_until_enough_replicas_have_the_changes_before_it(world: Servers) -> None:
    leader = world.start("leader", replica_acks=1)
    with feed_of(leader) as feed, connected(leader) as writer, connected(leader) as other:
        feed.acknowledge()
        wait_until(lambda: answers(leader.client))
        writer.sendall(pack(b"SET", b"k", b"CHANGE") + pack(b"PUBLISH", b"news", b"MESSAGE"))
        assert b"MESSAGE" not in feed.read_to(b"CHANGE")
        other.sendall(pack(b"SET", b"k", b"ANOTHER"))
        assert b"MESSAGE" not in feed.read_to(b"ANOTHER")
        feed.acknowledge()
        feed.read_to(b"MESSAGE")


def answers(client: redis.Redis) -> bool:
    with contextlib.suppress(redis.ResponseError):
        client.get("k")
        return True
    return False


def test_messages_reach_the_subscribers_of_replicas_in_order(world: Servers) -> None:
    leader = world.start("leader")
    replica = world.start("replica", leader)
    caught_up(leader, replica)
    with replica.client.pubsub() as subscriber:
        subscriber.subscribe("news")
        assert subscriber.get_message(timeout=60)["type"] == "subscribe"
        with leader.client.pipeline() as pipe:
            for n in range(10):
                pipe.publish("news", n)
            pipe.execute()
        leader.client.publish("news", 10)
        assert [subscriber.get_message(timeout=60)["data"] for _ in range(11)] == [b"%d" % n for n in range(11)]


def test_a_replica_passes_on_what_its_leader_publishes_and_nothing_of_its_own_clients(world: Servers) -> None:
    leader = world.start("leader")
    middle = world.start("middle", leader)
    caught_up(leader, middle)
    with feed_of(middle) as feed, middle.client.pubsub() as subscriber:
        subscriber.subscribe("news")
        assert subscriber.get_message(timeout=60)["type"] == "subscribe"
        assert middle.client.publish("news", "OWN") == 1
        transaction(leader.client)
        leader.client.execute_command("SPUBLISH", "shard", "LAST")
        assert [subscriber.get_message(timeout=60)["data"] for _ in range(2)] == [b"OWN", b"MESSAGE"]
        read = feed.read_to(b"LAST")
        assert re.findall(b"OWN|CHANGE|MESSAGE|SPUBLISH", read) == [b"CHANGE", b"MESSAGE", b"SPUBLISH"]


def test_messages_for_a_slow_replica_wait_however_many_they_are(world: Servers) -> None:
    leader = world.start("leader")
    with feed_of(leader) as feed:
        for _ in range(20):  # more than its connection takes
            leader.client.set("k", b"x" * 300_000)
        for n in range(1500):
            leader.client.publish("news", f"<{n}>")
        assert re.findall(rb"<(\d+)>", feed.read_to(b"<1499>")) == [b"%d" % n for n in range(1500)]


def test_a_replica_that_does_not_take_messages_is_disconnected_at_the_limit(
    world: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    leader = world.start("leader")
    leader.client.config_set("client-output-buffer-limit", "replica 20000000 0 0")
    with feed_of(leader), caplog.at_level(logging.WARNING):
        unsent = [0]
        while found := leader.client.client_list(_type="replica"):
            unsent.append(int(found[0]["omem"]))
            assert len(unsent) < 100, "it was never closed"
            leader.client.publish("news", b"x" * 1_000_000)
        assert 10_000_000 < max(unsent) < 30_000_000
    assert "client-output-buffer-limit replica" in caplog.text


def test_messages_that_wait_for_enough_replicas_count_for_the_limit(
    world: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    leader = world.start("leader", replica_acks=1)
    leader.client.config_set("client-output-buffer-limit", "replica 4000000 0 0")
    with feed_of(leader) as feed, connected(leader) as writer, caplog.at_level(logging.WARNING):
        feed.acknowledge()
        wait_until(lambda: answers(leader.client))
        message = pack(b"PUBLISH", b"news", b"x" * 1_000_000)
        with contextlib.suppress(ConnectionError):  # it is closed with the replica, which its SET waits for
            writer.sendall(pack(b"SET", b"k", b"CHANGE") + message * 8)
        feed.read_to(b"CHANGE")
        feed.read_to_end()
    assert "client-output-buffer-limit replica" in caplog.text
