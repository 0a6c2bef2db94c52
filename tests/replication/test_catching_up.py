"""A replica that gets what came while it was away: much at once, from a leader that says no more than it must."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.replication.servers import Pair, Servers, caught_up, servers
from tests.support.waiting import wait_until

from penstock.protocol.resp import pack
from penstock.replication.follower import LITTLE, Follower
from penstock.replication.frames import Frame, out_of_band
from penstock.storage.batches import framed
from penstock.testing.relay import Relay

WELCOME = b"+OK\r\n" * 3 + b"*2\r\n$8\r\nCONTINUE\r\n$42\r\n%b:0\r\n" % (b"a" * 40)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Servers]:
    with servers(tmp_path) as world:
        yield world


@contextlib.contextmanager
def followed(replica: Pair) -> Iterator[socket.socket]:
    """What a leader of that server sends by: whatever the server asks for, the feed goes on from where it is."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        replica.client.execute_command("REPLICAOF", "127.0.0.1", listener.getsockname()[1])
        with listener.accept()[0] as leader:
            leader.sendall(WELCOME)
            yield leader
            replica.client.execute_command("REPLICAOF", "NO", "ONE")


def test_the_log_is_not_rewritten_before_a_replica_has_caught_up(world: Servers) -> None:
    replica = world.start("replica", auto_aof_rewrite_min_size=1, auto_aof_rewrite_percentage=1, hz=1)

    def rewrites() -> int:
        replica.server.call(lambda app: app.persistence.tick())
        info = replica.client.info("persistence")
        return int(info["aof_rewrites"] + info["aof_rewrite_in_progress"])

    wait_until(lambda: replica.client.info("persistence")["aof_rewrite_in_progress"] == 0)
    with followed(replica) as leader:
        before = rewrites()
        leader.sendall(b"".join(framed(pack(b"SET", b"%d" % number, b"x" * 1000)) for number in range(1000)))
        wait_until(lambda: replica.client.get("999"))
        assert rewrites() == before
        leader.sendall(out_of_band(b"REPLCONF", b"GETACK", b"NEVER"))  # what a leader says when that was all
        wait_until(lambda: rewrites() > before)


def test_sentinel_is_told_not_to_promote_a_replica_that_has_not_caught_up(world: Servers) -> None:
    replica = world.start("replica", replica_acks=1, replica_priority=7)

    def priority() -> int:
        return int(replica.info()["slave_priority"])

    with followed(replica) as leader:
        leader.sendall(framed(pack(b"SET", b"k", b"v")))
        wait_until(lambda: replica.info()["slave_repl_offset"] > 0)
        assert priority() == 0
        replica.client.config_set("replica-acks", 0)
        assert priority() == 7, "as in Redis"
        replica.client.config_set("replica-acks", 1)
        leader.sendall(out_of_band(b"REPLCONF", b"GETACK", b"NEVER"))  # what a leader says when that was all
        wait_until(lambda: priority() == 100)  # as all others: Sentinel goes by their offsets
        replica.client.config_set("replica-priority", 0)
        assert priority() == 0


def test_a_replica_that_has_yet_to_copy_everything_has_offset_0(world: Servers) -> None:
    leader, replica = world.start("leader"), world.start("replica")
    replica.client.set("own", "x" * 1000)
    with Relay(leader.server.port) as relay:
        relay.pause(after=len(b"+OK\r\n" * 3 + b"*1\r\n$4\r\nCOPY\r\n"))
        replica.client.execute_command("REPLICAOF", "127.0.0.1", relay.port)
        wait_until(lambda: replica.info()["slave_repl_offset"] == 0)
        assert replica.client.strlen("own") == 1000, "its log has more than that of the leader, and is another one"
        relay.resume()
        leader.client.set("k", "v")
        caught_up(leader, replica)
        assert replica.info()["slave_repl_offset"] > 0


def test_batches_before_one_that_cannot_be_used_are_applied(world: Servers, caplog: pytest.LogCaptureFixture) -> None:
    replica = world.start("replica")
    batches = [pack(b"SET", b"a", b"1"), pack(b"OF.A.MODULE"), pack(b"SET", b"b", b"1")]
    with caplog.at_level(logging.WARNING), followed(replica) as leader:
        leader.sendall(b"".join(map(framed, batches)))
        wait_until(lambda: "the command OF.A.MODULE is unknown" in caplog.text)
        assert replica.client.mget("a", "b") == [b"1", None]
        assert replica.info()["slave_repl_offset"] == len(framed(batches[0]))


def test_commands_of_the_feed_that_fail_do_not_fill_the_log(world: Servers, caplog: pytest.LogCaptureFixture) -> None:
    replica = world.start("replica")

    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records if "of the feed failed" in record.getMessage()]

    with caplog.at_level(logging.WARNING), followed(replica) as leader:
        leader.sendall(framed(pack(b"SET", b"text", b"x")))
        for number in range(10):
            leader.sendall(framed(pack(b"LPUSH", b"text", b"y") + pack(b"SET", b"number", b"%d" % number)))
            wait_until(lambda number=number: replica.client.get("number") == b"%d" % number)
        assert len(lines()) == 1 and lines()[0].startswith("a command of the feed failed: Operation against a key")
        follower = replica.server.app.replication._roles.follower
        replica.server.call(lambda app: setattr(follower, "_tells_failures_at", 0.0))  # a minute has passed
        wait_until(lambda: len(lines()) == 2)
        assert lines()[1].startswith("9 commands of the feed failed; the last one: Operation against a key")


def test_little_is_applied_as_it_comes_and_much_by_the_task(world: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    replica = world.start("replica")
    taken: list[Frame] = []
    take = Follower._take

    async def noted(self: Follower, frames: list[Frame]) -> None:
        taken.extend(frame for frame in frames if frame.logged)
        await take(self, frames)

    monkeypatch.setattr(Follower, "_take", noted)
    little = framed(pack(b"SET", b"a", b"1"))
    much = framed(pack(b"SET", b"b", b"x" * LITTLE))
    with followed(replica) as leader:
        wait_until(lambda: replica.info()["master_link_status"] == "up")
        leader.sendall(little)
        wait_until(lambda: replica.client.get("a"))
        assert taken == []
        leader.sendall(much)
        wait_until(lambda: replica.client.get("b"))
        assert [bytes(frame.raw) for frame in taken] == [much]
        leader.sendall(little[:9])
        leader.sendall(little[9:] + little)
        wait_until(lambda: replica.info()["slave_repl_offset"] == 3 * len(little) + len(much))
