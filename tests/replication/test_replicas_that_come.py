"""Replicas that come, or come again, while clients wait for replicas (`replica-acks`)."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from tests.support.replication.servers import Pair, Servers, caught_up, servers, takes_writes
from tests.support.waiting import wait_until

from penstock.protocol.resp import pack


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Servers]:
    with servers(tmp_path) as world:
        yield world


def with_a_replica_that_is_stuck(world: Servers) -> tuple[Pair, Callable[[str | None], None]]:
    """A leader whose replica lives and writes nothing more, and the function that sets why."""
    leader = world.start("leader", replica_acks=1, min_replicas_max_lag=100_000)
    replica = world.start("replica", leader)
    caught_up(leader, replica)
    wait_until(lambda: takes_writes(leader))
    writer = replica.server.app.persistence.aof.writer
    assert writer is not None

    def set_trouble(trouble: str | None) -> None:
        replica.server.call(lambda app: setattr(writer, "trouble", trouble))

    set_trouble("No space left on device")
    return leader, set_trouble


@pytest.mark.parametrize("password", ["", "secret"])
def test_a_replica_can_come_while_a_write_waits_for_it(world: Servers, password: str) -> None:
    leader, _ = with_a_replica_that_is_stuck(world)
    if password:
        leader.client.config_set("requirepass", password)
    answers: list[object] = []
    client = threading.Thread(target=lambda: answers.append(leader.client.set("k", 1)))
    client.start()
    wait_until(lambda: leader.server.app.engine.keyspace[0].get(b"k") is not None)
    other = world.start("other", leader, masterauth=password)
    client.join()
    assert answers == [True] and other.client.get("k") == b"1"


def test_a_client_that_names_a_port_is_no_replica_that_others_wait_for(world: Servers) -> None:
    leader, set_trouble = with_a_replica_that_is_stuck(world)
    with socket.create_connection(("127.0.0.1", leader.server.port), timeout=60) as client:
        client.sendall(pack(b"SET", b"k", b"v"))
        wait_until(lambda: leader.server.app.engine.keyspace[0].get(b"k") is not None)
        client.sendall(pack(b"REPLCONF", b"listening-port", b"7") + pack(b"GET", b"k"))
        assert not select.select([client], [], [], 0.3)[0], "its replies wait, in order"
        set_trouble(None)
        with client.makefile("rb") as lines:
            assert [lines.readline() for _ in range(4)] == [b"+OK\r\n", b"+OK\r\n", b"$1\r\n", b"v\r\n"]


def test_a_replica_that_comes_again_counts_once(world: Servers) -> None:
    leader = world.start("leader")
    with contextlib.ExitStack() as stack:
        for run in ("one", "one", "other"):
            replica = stack.enter_context(socket.create_connection(("127.0.0.1", leader.server.port), timeout=60))
            lines = stack.enter_context(replica.makefile("rb"))
            replica.sendall(pack(b"REPLCONF", b"capa", b"penstock", b"run", run.encode()))
            assert lines.readline() == b"+OK\r\n"
            replica.sendall(pack(b"PSYNC", leader.info()["master_replid"].encode(), b"0"))
            assert lines.readline() == b"*2\r\n"
        wait_until(lambda: leader.info()["connected_slaves"] == 2)


def test_a_limit_for_what_waits_for_replicas_lets_them_copy_everything(world: Servers) -> None:
    leader = world.start("leader", client_output_buffer_limit="replica 16kb 0 0")
    leader.client.set("large", bytes(3 << 20))
    with contextlib.suppress(redis.ResponseError):
        leader.client.bgrewriteaof()
    wait_until(lambda: leader.server.app.persistence.aof.size_at_rewrite > 3 << 20)
    replica = world.start("replica", leader)
    caught_up(leader, replica)
    assert replica.client.strlen("large") == 3 << 20


@pytest.mark.parametrize("words", [("appendonly", "yes", "replica-acks", 1), ("replica-acks", 1, "appendonly", "yes")])
def test_what_was_written_before_there_was_a_log_is_not_shown_before_replicas_have_it(
    world: Servers, words: tuple[str | int, ...]
) -> None:
    leader = world.start("leader", appendonly=False)
    leader.client.set("k", 1)
    leader.client.execute_command("CONFIG", "SET", *words)
    with pytest.raises(redis.ResponseError, match="Not enough good replicas to read"):
        leader.client.get("k")
    replica = world.start("replica", leader)
    wait_until(lambda: takes_writes(leader))
    assert leader.client.get("k") == b"1" == replica.client.get("k")


class Client:
    """A connection that sends and receives bytes."""

    def __init__(self, pair: Pair, stack: contextlib.ExitStack) -> None:
        self._socket = stack.enter_context(socket.create_connection(("127.0.0.1", pair.server.port), timeout=60))
        self._lines = stack.enter_context(self._socket.makefile("rb"))

    def say(self, *commands: str) -> None:
        """Send commands in one piece."""
        self._socket.sendall(b"".join(pack(*command.encode().split()) for command in commands))

    def line(self) -> bytes:
        return self._lines.readline()

    @property
    def waits(self) -> bool:
        """Whether no reply has come yet."""
        return not select.select([self._socket], [], [], 0.3)[0]


def test_no_reply_that_shows_no_data_waits_for_replicas(world: Servers) -> None:
    leader, set_trouble = with_a_replica_that_is_stuck(world)
    leader.client.config_set("requirepass", "secret")
    with contextlib.ExitStack() as stack:
        writer, replica, other = (Client(leader, stack) for _ in range(3))
        for client in (writer, other):
            client.say("AUTH secret")
            assert client.line() == b"+OK\r\n"
        writer.say("SET k v")
        wait_until(lambda: leader.server.app.engine.keyspace[0].get(b"k") is not None)
        for words in ("AUTH secret", "PING", "REPLCONF capa penstock", "REPLCONF listening-port 7"):  # one at a time
            replica.say(words)
            assert replica.line() in (b"+OK\r\n", b"+PONG\r\n")
        other.say("PING", "GET k")
        assert other.waits, "what shows data waits, and what came with it"
        other.say("PING")
        writer.say("PING")
        assert other.waits and writer.waits, "replies leave in order"
        set_trouble(None)
        assert [writer.line() for _ in range(2)] == [b"+OK\r\n", b"+PONG\r\n"]
        assert [other.line() for _ in range(4)] == [b"+PONG\r\n", b"$1\r\n", b"v\r\n", b"+PONG\r\n"]


def test_a_reply_behind_a_write_that_gets_none_waits_for_what_that_has_changed(world: Servers) -> None:
    leader, set_trouble = with_a_replica_that_is_stuck(world)
    with contextlib.ExitStack() as stack:
        client = Client(leader, stack)
        client.say("CLIENT REPLY SKIP", "SET k v")
        wait_until(lambda: leader.server.app.engine.keyspace[0].get(b"k") is not None)
        client.say("PING")
        assert client.waits
        set_trouble(None)
        assert client.line() == b"+PONG\r\n"


def test_an_operator_who_hands_over_by_force_is_answered_while_clients_wait(world: Servers) -> None:
    leader, _ = with_a_replica_that_is_stuck(world)
    port = leader.info()["slave0"]["port"]
    with contextlib.ExitStack() as stack:
        writer, operator = Client(leader, stack), Client(leader, stack)
        writer.say("SET k v")
        wait_until(lambda: leader.server.app.engine.keyspace[0].get(b"k") is not None)
        operator.say("FAILOVER")
        assert operator.line() == b"+OK\r\n"
        operator.say("FAILOVER ABORT", f"FAILOVER TO 127.0.0.1 {port} TIMEOUT 1 FORCE")
        assert [operator.line() for _ in range(2)] == [b"+OK\r\n"] * 2
        assert writer.line().startswith(b"-NOREPLICAS The change was made here")
        operator.say("FAILOVER ABORT")
        operator.line()  # an error if the replica leads already
        operator.say("REPLICAOF NO ONE")
        assert operator.line() == b"+OK\r\n"


def test_a_client_that_becomes_a_replica_gets_what_it_asked_for_before_as_a_client_does(world: Servers) -> None:
    leader, set_trouble = with_a_replica_that_is_stuck(world)
    with contextlib.ExitStack() as stack:
        one, other = Client(leader, stack), Client(leader, stack)
        one.say("SET k v", "REPLCONF capa penstock", "PING")
        wait_until(lambda: leader.server.app.engine.keyspace[0].get(b"k") is not None)
        other.say("GET k", "REPLCONF capa penstock", "REPLCONF SIZE x")
        assert one.waits and other.waits
        set_trouble(None)
        assert [one.line() for _ in range(3)] == [b"+OK\r\n", b"+OK\r\n", b"+PONG\r\n"]
        assert [other.line() for _ in range(3)] == [b"$1\r\n", b"v\r\n", b"+OK\r\n"]


def test_the_connection_of_a_replica_shows_no_data(world: Servers) -> None:
    leader = world.start("leader")
    leader.client.set("k", "v")
    with contextlib.ExitStack() as stack:
        replica, subscriber, client = (Client(leader, stack) for _ in range(3))
        replica.say("REPLCONF capa penstock")
        assert replica.line() == b"+OK\r\n"
        for words in ("GET k", "SET k w", "INFO", "SUBSCRIBE c", "MULTI", "MONITOR", "EVAL return(1) 0", "RESET"):
            replica.say(words)
            assert replica.line().startswith(b"-ERR Replica can't interact with the keyspace: this connection has said")
        for words in ("REPLICAOF NO ONE", "FAILOVER"):
            replica.say(words)
            assert replica.line() == b"-ERR Command is not valid when client is a replica.\r\n"
        replica.say("PING", "QUIT")
        assert [replica.line() for _ in range(3)] == [b"+PONG\r\n", b"+OK\r\n", b""]
        subscriber.say("SUBSCRIBE c")
        assert [subscriber.line() for _ in range(6)][-1] == b":1\r\n"
        subscriber.say("HELLO 3", "REPLCONF capa penstock")
        assert subscriber.line().startswith(b"-ERR")  # RESP2 lets a subscriber say nothing else
        client.say("HELLO 3", "SUBSCRIBE c", "REPLCONF capa penstock", "REPLCONF FILES")
        while not (line := client.line()).startswith(b"-ERR"):
            assert line
        assert b"not subscribed" in line
        assert b"are for replicas" in client.line()


def test_a_pause_of_all_clients_does_not_hold_up_what_replicas_say(world: Servers) -> None:
    leader = world.start("leader", replica_acks=1, min_replicas_max_lag=100_000)
    replica = world.start("replica", leader)
    caught_up(leader, replica)
    wait_until(lambda: takes_writes(leader))
    with contextlib.ExitStack() as stack:
        operator, writer = Client(leader, stack), Client(leader, stack)
        writer.say("MULTI", "CLIENT PAUSE 100000 ALL", "SET k v", "EXEC")  # the write runs when all are paused
        assert [writer.line() for _ in range(6)][-1] == b"+OK\r\n"
        operator.say("PING")
        assert operator.waits, "clients are paused"
