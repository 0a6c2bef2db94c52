"""A server is told to follow what cannot be followed: it keeps what it has, and says what is the matter."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import uvloop
from tests.support.replication.servers import Pair, Servers, caught_up, is_up, servers
from tests.support.waiting import wait_until

from penstock.protocol.resp import pack
from penstock.replication.frames import out_of_band
from penstock.replication.leader_connection import LeaderConnection
from penstock.storage.batches import framed
from penstock.testing.redis import RedisServer


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Servers]:
    with servers(tmp_path) as world:
        yield world


@contextlib.contextmanager
def speaker(says: bytes) -> Iterator[int]:
    """A port where every connection gets these bytes, and nothing more."""
    connections: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connections.append(listener.accept()[0])
                    with contextlib.suppress(OSError):
                        connections[-1].sendall(says)

        thread = threading.Thread(target=serve)
        thread.start()
        yield int(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    for connection in connections:
        connection.close()


BEGIN = b"+OK\r\n" * 3


@pytest.mark.parametrize(
    "says",
    [
        b"hello\r\n", b":abc\r\n", b"$xx\r\n", b"$99999999999999\r\n", b"*99999999999999\r\n", b"x" * (2 << 20),
        b"*1\r\n" * 5000, BEGIN + b"*0\r\n", BEGIN + b":5\r\n", BEGIN + b"*2\r\n$8\r\nCONTINUE\r\n$3\r\na:0\r\n",
        BEGIN + b"*2\r\n$8\r\nCONTINUE\r\n$0\r\n\r\n", BEGIN + b"*1\r\n$4\r\nCOPY\r\n*1\r\n:5\r\n",
    ],
)  # fmt: skip
def test_what_is_no_leader_is_refused_without_an_internal_error(
    world: Servers, caplog: pytest.LogCaptureFixture, says: bytes
) -> None:
    one = world.start("one")
    one.client.set("k", 1)
    with speaker(says) as port, caplog.at_level(logging.WARNING):
        one.client.execute_command("REPLICAOF", "127.0.0.1", port)
        wait_until(lambda: "trying again" in caplog.text)
        one.client.execute_command("REPLICAOF", "NO", "ONE")
    assert "internal error" not in caplog.text
    one.server.stop()
    assert world.start("one").client.get("k") == b"1"


FEED = b"*2\r\n$8\r\nCONTINUE\r\n$42\r\n%b:0\r\n" % (b"a" * 40)


@pytest.mark.parametrize(("says", "problem"), [(BEGIN, "TimeoutError"), (BEGIN + FEED, "nothing came for 1 seconds")])
def test_a_leader_that_falls_silent_is_given_up(
    world: Servers, caplog: pytest.LogCaptureFixture, says: bytes, problem: str
) -> None:
    one = world.start("one", repl_timeout=1)
    with speaker(says) as port, caplog.at_level(logging.WARNING):
        one.client.execute_command("REPLICAOF", "127.0.0.1", port)
        wait_until(lambda: f"{problem}; trying again" in caplog.text)
        one.client.execute_command("REPLICAOF", "NO", "ONE")


@pytest.mark.parametrize(
    ("says", "problem"),
    [
        (framed(b"#TS:1"), "a batch ends within its time"),
        (framed(pack(b"TAPPLY")), "wrong number of arguments"),
        (framed(pack(b"TAPPLY", b"k")), "wrong number of arguments"),
        (framed(pack(b"SELECT") + pack(b"TAPPLY", b"k", b"COMPACT")), "wrong number of arguments"),
        (framed(pack(b"OBJECT")), "a log does not hold OBJECT"),
        (framed(pack(b"REPLICAOF", b"NO", b"ONE")), "a log does not hold REPLICAOF"),
        (out_of_band(b"PUBLISH"), "which means nothing"),
        (out_of_band(b"REPLCONF", b"GETACK"), "which means nothing"),
    ],
)
def test_a_leader_that_sends_nonsense_in_whole_frames_gets_one_clear_line(
    world: Servers, caplog: pytest.LogCaptureFixture, says: bytes, problem: str
) -> None:
    one = world.start("one")
    with speaker(BEGIN + FEED + says) as port, caplog.at_level(logging.WARNING):
        one.client.execute_command("REPLICAOF", "127.0.0.1", port)
        wait_until(lambda: problem in caplog.text)
        assert one.info()["role"] == "slave"
        one.client.execute_command("REPLICAOF", "NO", "ONE")
    assert "internal error" not in caplog.text and "Traceback" not in caplog.text
    assert one.client.set("k", 1)


def test_what_is_said_to_a_leader_that_is_gone_is_no_error() -> None:
    async def connect_close_and_say(port: int) -> None:
        connection = await LeaderConnection.open("127.0.0.1", port, "", "", None, 60)
        connection.close()
        with pytest.raises(ConnectionResetError):
            await connection.read()
        connection.say("REPLCONF", "ACK", 5)

    with speaker(b"+OK\r\n") as port:
        uvloop.run(connect_close_and_say(port))


def test_a_server_of_redis_cannot_be_followed(world: Servers, caplog: pytest.LogCaptureFixture) -> None:
    one = world.start("one")
    one.client.mset({f"k{n}": "x" * 100 for n in range(20)})
    with RedisServer() as server, caplog.at_level(logging.WARNING):
        one.client.execute_command("REPLICAOF", "127.0.0.1", server.port)
        wait_until(lambda: "this is no server of Penstock" in caplog.text)
    assert one.client.dbsize() == 20
    assert not list((world.folder("one") / "appendonlydir").glob("*.diverged"))


def test_a_server_of_redis_that_is_told_to_follow_keeps_its_data(world: Servers) -> None:
    one = world.start("one")

    def errors(code: str) -> int:
        return int(one.client.info("errorstats").get(f"errorstat_{code}", {}).get("count", 0))

    others = errors("ERR")
    with RedisServer() as server, redis.Redis(port=server.port) as client:
        client.mset({f"k{n}": "x" * 100 for n in range(20)})
        client.execute_command("REPLICAOF", "127.0.0.1", one.server.port)
        wait_until(lambda: errors("NOMASTERLINK") == 2)
        assert client.dbsize() == 20
        assert errors("ERR") == others, "it does not send SYNC"


def links_are_down(*pairs: Pair) -> bool:
    return not any(is_up(pair) for pair in pairs)


def test_servers_that_follow_each_other_do_not_count_as_connected(
    world: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    one = world.start("one")
    other = world.start("other", one)
    caught_up(one, other)
    with caplog.at_level(logging.WARNING):
        one.follow(other)
        wait_until(lambda: caplog.text.count("NOMASTERLINK") >= 2)
    assert links_are_down(one, other)
    one.client.execute_command("REPLICAOF", "NO", "ONE")
    one.client.set("k", 1)
    caught_up(one, other)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        one.follow(one)
        wait_until(lambda: "NOMASTERLINK" in caplog.text)
    assert links_are_down(one)


def test_a_replica_cannot_claim_what_is_no_address(world: Servers) -> None:
    leader = world.start("leader")
    for words in [("ip-address", "a\r\nrole:slave"), ("ip-address", "a,b"), ("listening-port", "70000")]:
        with pytest.raises(redis.ResponseError, match="REPLCONF"):
            leader.client.execute_command("REPLCONF", *words)


def test_a_replica_that_copies_and_falls_silent_is_given_up(world: Servers) -> None:
    leader = world.start("leader", repl_timeout=1)
    with redis.Redis(port=leader.server.port, single_connection_client=True) as silent:
        silent.execute_command("REPLCONF", "capa", "penstock")
        silent.execute_command("REPLCONF", "FILES")
        assert leader.info()["connected_slaves"] == 1
        wait_until(lambda: leader.info()["connected_slaves"] == 0)
