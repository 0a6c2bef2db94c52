"""A replica has what its leader has, and changes nothing by itself."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.support.commands.stream_world import lasting
from tests.support.keys_of_every_type import fill_every_type
from tests.support.replication.servers import Pair, Servers, caught_up, is_up, servers
from tests.support.waiting import wait_until

from penstock.replication import follower
from penstock.server import app
from penstock.storage import segment_files
from penstock.types.stream.segments import Segment


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Servers]:
    with servers(tmp_path) as world:
        yield world


@pytest.fixture
def leader(world: Servers) -> Pair:
    return world.start("leader")


def fill(pair: Pair) -> None:
    """Something of everything that a log can hold."""
    client = pair.client
    client.delete("x")  # the ids in it are given
    fill_every_type(client)
    client.execute_command("TWRITE", "t", "ENTRIES", *[word for n in range(3000) for word in (b"", b"entry %d" % n)])
    client.execute_command("TREAD", "t", 0, 10, "GROUP", "g")
    client.execute_command("LAZY", "SADD", "lazy", "a", "b")
    client.eval("redis.call('incr', KEYS[1]); return redis.call('incr', KEYS[1])", 1, "scripted")
    with client.pipeline() as pipe:
        pipe.incr("n").rpush("m", 1, 2).execute()
    with redis.Redis(port=pair.server.port, db=5) as other:
        other.set("elsewhere", 1)
    client.set("in the first again", 1)


def increments(folder: Path) -> bytes:
    """The bytes of the feed in a folder, from its first increment on."""
    files = sorted((folder / "appendonlydir").glob("*.incr.aof"), key=lambda path: int(path.name.split(".")[2]))
    return b"".join(path.read_bytes() for path in files)


def test_a_replica_copies_everything_and_then_follows(world: Servers, leader: Pair) -> None:
    fill(leader)
    leader.client.bgrewriteaof()
    wait_until(lambda: not leader.client.info("persistence")["aof_rewrite_in_progress"])
    leader.client.set("after the base", 1)
    replica = world.start("replica", leader)
    caught_up(leader, replica)
    assert replica.digest() == leader.digest()
    fill(leader)
    caught_up(leader, replica)
    assert replica.digest() == leader.digest()
    ours, theirs = (pair.client.execute_command("TINFO", "t") for pair in (replica, leader))
    assert [ours[field] for field in (b"first", b"last")] == [theirs[field] for field in (b"first", b"last")]
    assert [lasting(group) for group in ours[b"groups"]] == [lasting(group) for group in theirs[b"groups"]]
    assert leader.client.info("stats")["sync_full"] == 1


def test_monitor_at_a_replica_shows_what_its_leader_sends(world: Servers, leader: Pair) -> None:
    replica = world.start("replica", leader)
    caught_up(leader, replica)
    with replica.client.monitor() as monitor, redis.Redis(port=leader.server.port, db=5) as other:
        with leader.client.pipeline() as pipe:
            pipe.rpush("l", 1).rpush("l", 2).execute()
        other.set("elsewhere", 1)
        leader.client.execute_command("TWRITE", "stream", "tag", "entry")
        leader.client.set("last", 1)
        shown: list[tuple[int, str, str]] = []
        while not shown or "last" not in shown[-1][1]:
            line = monitor.next_command()
            shown.append((line["db"], line["command"], line["client_port"]))
    written = [line for line in shown if not line[1].startswith("SELECT ")]
    words = [(0, "MULTI"), (0, "RPUSH l 1"), (0, "RPUSH l 2"), (0, "EXEC"), (5, "SET elsewhere 1")]
    words += [(0, "TWRITE stream tag entry"), (0, "SET last 1")]
    assert written == [(*each, str(leader.server.port)) for each in words]


def test_the_log_of_a_replica_is_that_of_its_leader(world: Servers, leader: Pair) -> None:
    replica = world.start("replica", leader)
    caught_up(leader, replica)
    fill(leader)
    caught_up(leader, replica)
    ours, theirs = increments(world.folder("replica")), increments(world.folder("leader"))
    assert ours and theirs.endswith(ours)


def test_a_replica_that_was_away_goes_on_where_it_was(world: Servers, leader: Pair) -> None:
    fill(leader)
    replica = world.start("replica", leader)
    caught_up(leader, replica)
    replica.server.stop()
    for n in range(500):
        leader.client.set(f"away {n}", n)
    leader.client.bgrewriteaof()  # what it lacks is kept beside the new base
    wait_until(lambda: not leader.client.info("persistence")["aof_rewrite_in_progress"])
    leader.client.set("after", 1)
    replica = world.start("replica", leader)
    caught_up(leader, replica)
    assert replica.digest() == leader.digest()
    stats = leader.client.info("stats")
    assert (stats["sync_full"], stats["sync_partial_err"]) == (1, 0)


def test_what_is_kept_for_replicas_is_bounded(world: Servers) -> None:
    leader = world.start("leader", repl_backlog_size="20kb")
    replica = world.start("replica", leader)
    caught_up(leader, replica)
    replica.server.stop()
    for _ in range(5):
        leader.client.mset({f"k{n}": "x" * 1000 for n in range(20)})
        leader.client.bgrewriteaof()
        wait_until(lambda: not leader.client.info("persistence")["aof_rewrite_in_progress"])
    wait_until(lambda: leader.info()["repl_backlog_histlen"] < 60_000)
    replica = world.start("replica", leader)
    caught_up(leader, replica)
    assert replica.digest() == leader.digest()
    assert leader.client.info("stats")["sync_full"] == 2, "it had to copy everything again"


def test_a_leader_that_restarts_is_followed_on(world: Servers, leader: Pair) -> None:
    replica = world.start("replica", leader)
    fill(leader)
    caught_up(leader, replica)
    port = leader.server.port
    leader.server.stop()
    wait_until(lambda: not is_up(replica))
    leader = world.start("leader", port=port)
    leader.client.set("again", 1)
    caught_up(leader, replica)
    assert replica.digest() == leader.digest()
    assert leader.client.info("stats")["sync_full"] == 0


def test_clients_of_a_replica_may_only_read(world: Servers, leader: Pair) -> None:
    leader.client.set("k", 1)
    replica = world.start("replica", leader)
    caught_up(leader, replica)
    client = replica.client
    assert client.get("k") == b"1"
    assert client.eval("return redis.call('get', KEYS[1])", 1, "k") == b"1"
    for argv in [
        ("SET", "k", 2), ("LAZY", "SET", "k", 2), ("TWRITE", "t", "", "e"), ("TREAD", "t", 0, 1, "GROUP", "g"),
        ("BLPOP", "l", 0), ("FLUSHALL",), ("EVAL", "return redis.call('set', KEYS[1], 2)", 1, "k"),
    ]:  # fmt: skip
        with pytest.raises(redis.ResponseError, match="read only replica"):
            client.execute_command(*argv)
    with pytest.raises(redis.ResponseError, match="cannot be used with replica instances"):
        client.wait(1, 10)
    assert client.get("k") == b"1"


def test_a_replica_hides_what_has_expired_and_leaves_deleting_it_to_its_leader(world: Servers, leader: Pair) -> None:
    replica = world.start("replica", leader)
    leader.client.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", 0)
    leader.client.set("k", 1, px=20)
    caught_up(leader, replica)
    wait_until(lambda: replica.client.get("k") is None)
    assert replica.client.dbsize() == 1, "it is there, and hidden"
    assert leader.client.get("k") is None
    caught_up(leader, replica)
    assert replica.client.dbsize() == 0


def test_readers_that_wait_on_a_replica_are_woken_by_the_feed(world: Servers, leader: Pair) -> None:
    leader.client.execute_command("TWRITE", "t", "", "first")
    replica = world.start("replica", leader)
    caught_up(leader, replica)
    answers: list[object] = []
    with redis.Redis(port=replica.server.port) as waiting:
        reader = threading.Thread(
            target=lambda: answers.append(waiting.execute_command("TREAD", "t", 2, 1, "BLOCK", 60_000))
        )
        reader.start()
        wait_until(lambda: replica.client.info("clients")["blocked_clients"] == 1)
        leader.client.execute_command("TWRITE", "t", "", "second")
        reader.join()
    assert b"second" in repr(answers).encode()


@pytest.mark.parametrize("patience", [0, 3600])
def test_the_feed_lets_readers_of_a_replica_end_but_waits_for_none_forever(
    world: Servers, leader: Pair, monkeypatch: pytest.MonkeyPatch, patience: float
) -> None:
    monkeypatch.setattr(follower, "READERS_PATIENCE", patience)
    monkeypatch.setattr(app, "STOP_PATIENCE", 0)
    replica = world.start("replica", leader, enable_debug_command="yes")
    leader.client.rpush("list", 1)
    caught_up(leader, replica)
    with redis.Redis(port=replica.server.port) as reader:
        connection = reader.connection_pool.get_connection()
        connection.send_command("DEBUG", "LOCK", 200 if patience else 60_000, "READ", "list")
        wait_until(lambda: replica.client.execute_command("LOCKS"))
        leader.client.rpush("list", 2)
        caught_up(leader, replica)
        assert bool(replica.client.execute_command("LOCKS")) is not bool(patience)
        assert replica.client.lrange("list", 0, -1) == [b"1", b"2"]
        replica.client.client_kill_filter(_type="normal", skipme=True)
        reader.connection_pool.release(connection)


def test_replicas_of_replicas(world: Servers, leader: Pair) -> None:
    middle = world.start("middle", leader)
    last = world.start("last", middle)
    fill(leader)
    caught_up(leader, middle, last)
    assert leader.digest() == middle.digest() == last.digest()
    middle.client.execute_command("REPLICAOF", "NO", "ONE")
    middle.client.set("own", 1)
    caught_up(middle, last)
    assert last.client.get("own") == b"1" and leader.client.get("own") is None
    assert middle.client.info("stats")["sync_full"] == 1, "the new feed continues the old one"


def test_a_replica_says_how_much_memory_streams_hold_after_their_messages_went_to_files(world: Servers) -> None:
    settings = {"stream_memory": 200_000, "stream_hot_nodes": 1, "stream_compression_rest": 0}
    leader = world.start("leader", **settings)
    replica = world.start("replica", leader, **settings)
    for at in range(0, 20_000, 1000):
        words = [word for n in range(at, at + 1000) for word in (b"", b"%d " % n * 10)]
        leader.client.execute_command("TWRITE", "t", "ENTRIES", *words)
    wait_until(lambda: leader.client.info("persistence")["stream_memory_held"] <= 200_000)
    caught_up(leader, replica)
    wait_until(lambda: replica.client.info("persistence")["stream_memory_held"] <= 250_000)
    assert replica.client.info("persistence")["history_files"] > 0


def test_history_is_copied_file_by_file(world: Servers) -> None:
    settings = {"stream_memory": 200_000, "stream_hot_nodes": 1, "stream_compression_rest": 0}
    leader = world.start("leader", **settings)
    entries = [b"%d " % n + bytes([97 + n % 20]) * 50 for n in range(20_000)]

    def write(part: list[bytes]) -> None:
        for at in range(0, len(part), 1000):
            words = [word for entry in part[at : at + 1000] for word in (b"", entry)]
            leader.client.execute_command("TWRITE", "t", "ENTRIES", *words)

    write(entries[:10_000])
    wait_until(lambda: leader.client.info("persistence")["history_files"] > 0)
    leader.client.bgrewriteaof()
    wait_until(lambda: not leader.client.info("persistence")["aof_rewrite_in_progress"])
    replica = world.start("replica", leader, **settings)
    caught_up(leader, replica)
    write(entries[10_000:])
    caught_up(leader, replica)

    def files(name: str) -> set[str]:
        return {path.name for path in (world.folder(name) / "history").glob("*.arrow")}

    def same_files() -> bool:
        caught_up(leader, replica)
        return files("leader") == files("replica")

    wait_until(same_files)
    assert len(files("leader")) > 1
    for pair in (leader, replica):
        read = pair.client.execute_command("TREAD", "t", 1, 30_000)
        assert [bytes(message[-1]) for message in read] == entries
    replica.server.stop()
    replica = world.start("replica", leader, **settings)
    caught_up(leader, replica)
    assert replica.digest() == leader.digest()


def test_a_server_that_follows_moves_nothing_to_a_file_that_was_being_written(
    world: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_write, is_writing = threading.Event(), threading.Event()
    write = segment_files.write

    def wait_and_write(*arguments: Any) -> list[Segment]:
        is_writing.set()
        assert may_write.wait(60)
        return write(*arguments)

    leader = world.start("leader", stream_memory="8mb")
    replica = world.start("replica", leader, stream_memory="8mb")
    monkeypatch.setattr(segment_files, "write", wait_and_write)
    while not is_writing.is_set():
        leader.client.execute_command("TWRITE", "s", "t", os.urandom(3000))
    caught_up(leader, replica)
    monkeypatch.undo()
    replica.client.execute_command("REPLICAOF", "NO", "ONE")
    leader.follow(replica)
    may_write.set()
    wait_until(lambda: leader.client.info("persistence")["history_write_in_progress"] == 0)
    caught_up(replica, leader)
    kept = [each.client.info("persistence")["history_files"] for each in (leader, replica)]
    assert kept[0] == kept[1], "the new leader says what goes to files"


def test_a_replica_is_a_client_that_can_be_listed_and_closed(world: Servers, leader: Pair) -> None:
    replica = world.start("replica", leader)
    caught_up(leader, replica)
    (row,) = leader.client.client_list(_type="replica")
    assert "S" in row["flags"]
    leader.client.client_kill_filter(_type="replica")
    wait_until(lambda: leader.client.info("stats")["sync_partial_ok"] == 2)
    wait_until(lambda: is_up(replica))
    (row,) = replica.client.client_list(_type="master")
    assert "M" in row["flags"] and row["addr"] == f"127.0.0.1:{leader.server.port}"
    replica.client.client_kill_filter(_type="master")
    wait_until(lambda: leader.client.info("stats")["sync_partial_ok"] == 3)
    replica.client.execute_command("REPLICAOF", "NO", "ONE")
    assert replica.client.client_list(_type="master") == []
    replica.follow(leader)
    leader.client.set("k", 1)
    caught_up(leader, replica)


def test_a_reload_of_other_data_reaches_replicas(world: Servers, leader: Pair) -> None:
    replica = world.start("replica", leader)
    leader.client.set("a", 1)
    leader.client.save()
    leader.client.set("b", 2)
    caught_up(leader, replica)
    for reload in ("NOSAVE", "NOFLUSH"):
        with pytest.raises(redis.ResponseError, match="would make this server differ"):
            replica.client.execute_command("DEBUG", "RELOAD", reload)
    leader.client.execute_command("DEBUG", "RELOAD", "NOSAVE")
    leader.client.set("c", 3)
    caught_up(leader, replica)
    assert sorted(replica.client.keys()) == [b"a", b"c"]
    assert replica.digest() == leader.digest()


def test_a_replica_may_come_back_at_any_time_while_others_write(
    world: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    leader = world.start("leader", appendfsync="always")
    replica = world.start("replica", leader)
    stop = threading.Event()

    def write() -> None:
        with redis.Redis(port=leader.server.port) as client:
            while not stop.is_set():
                client.incr("n")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for times in range(2, 7):
            wait_until(lambda: is_up(replica))
            leader.client.client_kill_filter(_type="replica")
            wait_until(lambda times=times: leader.client.info("stats")["sync_partial_ok"] == times)
    finally:
        stop.set()
        writer.join()
    caught_up(leader, replica)
    assert replica.digest() == leader.digest()
    assert not [record for record in caplog.records if "not a reply" in record.getMessage()]


def test_files_of_a_log_that_was_replaced_are_removed(world: Servers) -> None:
    one = world.start("one")
    other = world.start("other", one)
    caught_up(one, other)
    one.client.set("k", 1)
    one.client.bgrewriteaof()
    wait_until(lambda: not one.client.info("persistence")["aof_rewrite_in_progress"])
    other.client.execute_command("REPLICAOF", "NO", "ONE")
    one.client.set("own", 1)
    other.client.set("k", 2)
    one.follow(other)
    caught_up(other, one)
    names = {path.name for path in (world.folder("one") / "appendonlydir").iterdir() if "diverged" not in path.name}
    assert len(names) == 3, "a manifest, a base and an increment"


def test_a_leader_with_a_password(world: Servers) -> None:
    leader = world.start("leader", user="default on >secret ~* &* +@all")
    leader.client.close()
    leader.client = redis.Redis(port=leader.server.port, password="secret")
    leader.client.acl_setuser(
        "replica", enabled=True, passwords=["+mine"], commands=["+psync", "+replconf", "+ping"], reset=True
    )
    replica = world.start("replica", leader, masteruser="replica", masterauth="wrong")
    wait_until(lambda: leader.client.acl_log())
    assert not is_up(replica)
    replica.client.config_set("masterauth", "mine")
    caught_up(leader, replica)


def test_a_replica_without_its_leader_answers_nothing_if_it_is_told_so(world: Servers, leader: Pair) -> None:
    leader.client.set("k", 1)
    replica = world.start("replica", leader)
    caught_up(leader, replica)
    leader.server.stop()
    wait_until(lambda: not is_up(replica))
    assert replica.client.get("k") == b"1"
    replica.client.config_set("replica-serve-stale-data", "no")
    with pytest.raises(redis.ResponseError, match="Link with MASTER is down"):
        replica.client.get("k")
    assert replica.client.execute_command("ROLE")[0] == b"slave"


def test_following_needs_a_log_on_both_sides(world: Servers, leader: Pair) -> None:
    without = world.start("without", appendonly=False)
    with pytest.raises(redis.ResponseError, match="appendonly yes"):
        without.follow(leader)
    with without.client.client() as connection:
        connection.execute_command("REPLCONF", "capa", "penstock")
        with pytest.raises(redis.ResponseError, match="appendonly yes"):
            connection.execute_command("PSYNC", "?", -1)
    replica = world.start("replica", leader)
    with pytest.raises(redis.ResponseError, match="a replica keeps a log"):
        replica.client.config_set("appendonly", "no")
