"""A replica compacts what its leader has compacted: a thread reads the files, and clients are served meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.support.replication.servers import Pair, Servers, caught_up, servers
from tests.support.storage.history import SMALL, history
from tests.support.waiting import wait_until

from penstock.engine import cold_compaction
from penstock.engine.dispatch import Engine
from penstock.protocol.grammar import Argv
from penstock.replication import compaction_ahead, follower
from penstock.storage.segment_files import SegmentFiles
from penstock.types.stream.messages import Messages, Place
from penstock.types.stream.segments import Segment
from penstock.types.stream.stream import Stream

COUNT, TAGS = 12_000, 100
SETTINGS = {"stream_memory": SMALL, "stream_hot_nodes": 1, "stream_compression_rest": 0}


class Disk:
    """Holds up threads that read files of one folder, until it is told to go on; knows which threads came."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.threads: list[str] = []
        fetch = SegmentFiles.fetch

        def slow(files: SegmentFiles, segment: Segment, places: Sequence[int]) -> list[bytes]:
            if folder in files.folder.parents:
                self.threads.append(threading.current_thread().name)
                assert self.threads[-1] == "penstock-server" or self.open.wait(60)
            return fetch(files, segment, places)

        monkeypatch.setattr(SegmentFiles, "fetch", slow)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Servers]:
    with servers(tmp_path) as world:
        yield world


def write(client: redis.Redis, start: int, count: int) -> None:
    for at in range(start, start + count, 1000):
        words = [word for n in range(at, at + 1000) for word in (b"%d" % (n % TAGS), b"%d " % n * 12)]
        client.execute_command("TWRITE", "s", "ENTRIES", *words)


def fill(leader: Pair, *replicas: Pair) -> None:
    """Most of the stream is in files, everywhere."""
    write(leader.client, 0, COUNT)
    wait_until(lambda: history(leader.client, "s")["length"] >= COUNT - 5000)
    wait_until(lambda: not leader.client.info("persistence")["history_write_in_progress"])
    caught_up(leader, *replicas)


def rows(pair: Pair) -> list[list[bytes]]:
    return [row for row in pair.client.execute_command("TREAD", "s", 1, 10**6) if row is not None]


def compact(leader: Pair) -> None:
    leader.client.execute_command("TRETAIN", "s", "COMPACT", "yes")
    wait_until(lambda: len(rows(leader)) == TAGS)


def check(pair: Pair) -> None:
    def look(app: object) -> None:
        stream = pair.server.app.engine.keyspace[0].data[b"s"]
        assert isinstance(stream, Stream)
        stream.check()

    pair.server.call(look)


def test_clients_of_a_replica_go_on_while_it_reads_files_to_compact(
    world: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = world.start("leader", **SETTINGS)
    replica = world.start("replica", leader, **SETTINGS)
    fill(leader, replica)
    disk = Disk(world.folder("replica"), monkeypatch)
    compact(leader)
    wait_until(lambda: disk.threads)
    assert replica.client.ping()
    assert replica.client.exists("s")
    disk.open.set()
    caught_up(leader, replica)
    assert "penstock-server" not in disk.threads
    assert rows(replica) == rows(leader)
    check(replica)


def test_what_a_replica_has_read_to_compact_is_not_kept_while_its_disk_is_full(
    world: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = world.start("leader", **SETTINGS)
    replica = world.start("replica", leader, **SETTINGS)
    fill(leader, replica)
    has_read, read = threading.Event(), follower.read_for_compaction
    writer: Any = replica.server.app.persistence.aof.writer

    async def and_then_refuse(engine: Engine, commands: Sequence[Argv]) -> object:
        found = await read(engine, commands)
        if not has_read.is_set():
            writer.trouble = "No space left on device"
            has_read.set()
        return found

    monkeypatch.setattr(follower, "read_for_compaction", and_then_refuse)
    compact(leader)
    assert has_read.wait(60)
    check(replica)
    replica.server.call(lambda app: setattr(writer, "trouble", None))
    caught_up(leader, replica)
    assert rows(replica) == rows(leader)


def test_a_replica_that_was_started_again_reads_all_of_the_stream_in_a_thread(
    world: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = world.start("leader", **SETTINGS)
    replica = world.start("replica", leader, **SETTINGS)
    fill(leader, replica)
    replica.server.stop()
    disk = Disk(world.folder("replica"), monkeypatch)
    disk.open.set()
    replica = world.start("replica", leader, **SETTINGS)
    caught_up(leader, replica)
    compact(leader)
    write(leader.client, COUNT, 2000)
    caught_up(leader, replica)
    assert disk.threads and "penstock-server" not in disk.threads
    check(replica)


def test_what_a_replica_reads_ahead_is_bounded_by_bytes(world: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_compaction, "AHEAD_BYTES", 1)
    counts: list[int] = []
    choose = compaction_ahead.next_portion

    def counted(messages: Messages) -> list[Place]:
        places = choose(messages)
        counts.append(len(places))
        return places

    monkeypatch.setattr(compaction_ahead, "next_portion", counted)
    leader = world.start("leader", **SETTINGS)
    replica = world.start("replica", leader, **SETTINGS)
    fill(leader, replica)
    compact(leader)
    caught_up(leader, replica)
    assert len(counts) > 6
    assert max(counts) == 1
    check(replica)


def test_a_replica_that_lost_a_file_goes_on_with_the_feed(world: Servers) -> None:
    leader = world.start("leader", **SETTINGS)
    replica = world.start("replica", leader, **SETTINGS)
    fill(leader, replica)
    for path in (world.folder("replica") / "history").glob("*.arrow"):
        path.unlink()
    compact(leader)
    leader.client.set("k", 1)
    caught_up(leader, replica)
    assert replica.client.get("k") == b"1"
