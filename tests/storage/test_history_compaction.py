"""Compaction of messages that are in files: what it keeps survives restarts, also when the files are not needed."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pyarrow as pa
import redis
from tests.support.storage.life import Life
from tests.support.storage.running import running
from tests.support.waiting import wait_until

from penstock.storage.child import Child
from penstock.types.stream.nodes import NODE
from penstock.types.stream.reading import each
from penstock.types.stream.stream import Stream

COUNT = 60_000
SETTINGS = {"appendonly": "yes", "stream_memory": "2mb", "stream_compression": "none"}


def fill(client: redis.Redis) -> None:
    """Of each second message there is no newer one with its tag."""
    tags = [b"kept %d" % number if number % 2 else b"t" for number in range(COUNT)]
    entries = [b"%d " % number * 6 for number in range(COUNT)]
    table = pa.table({"tag": pa.array(tags, pa.binary()), "entry": pa.array(entries, pa.binary())})
    for at in range(0, COUNT, 5000):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table.slice(at, 5000))
        client.execute_command("TWRITE", "orders", "FORMAT", "ARROW", sink.getvalue().to_pybytes())


def offsets(client: redis.Redis) -> list[int]:
    found: list[int] = []
    for at in range(1, COUNT + 1, 10_000):
        reply = client.execute_command("TREAD", "orders", at, 10_000, "FORMAT", "ARROW")
        found += pa.ipc.open_stream(reply).read_all().column("offset").to_pylist()
    return found


def is_at_rest(client: redis.Redis) -> bool:
    info = client.info("persistence")
    is_busy = info["history_files_to_remove"] or info["history_write_in_progress"]
    return not is_busy and 4 * info["stream_memory_held"] < 3 * info["stream_memory_limit"]


def rewrite(client: redis.Redis) -> None:
    count = client.info("persistence")["aof_rewrites"]
    client.bgrewriteaof()
    wait_until(lambda: client.info("persistence")["aof_rewrites"] > count)


def test_what_compaction_keeps_of_files_survives_restarts_and_the_files_go_with_the_next_base(tmp_path: Path) -> None:
    expected = [*range(2, COUNT + 1, 2)]
    with running(tmp_path, **SETTINGS) as (_, client):
        fill(client)
        wait_until(lambda: is_at_rest(client))
        rewrite(client)
        before = {path.name for path in tmp_path.glob("history/*")}
        client.execute_command("TRETAIN", "orders", "COMPACT", "yes")
        wait_until(lambda: client.execute_command("TINFO", "orders")[b"length"] <= COUNT // 2 + 1500)
        wait_until(lambda: is_at_rest(client))
        assert before <= {path.name for path in tmp_path.glob("history/*")}, "the base refers to them"
        kept = offsets(client)
        assert set(expected) <= set(kept)
    for _ in range(2):
        with running(tmp_path, **SETTINGS) as (_, client):
            assert offsets(client) == kept
    with running(tmp_path, **SETTINGS) as (_, client):
        rewrite(client)
        wait_until(lambda: not before & {path.name for path in tmp_path.glob("history/*")})
        assert offsets(client) == kept
    with running(tmp_path, **SETTINGS) as (_, client):
        assert offsets(client) == kept


def test_files_that_only_a_replay_reads_do_not_fill_the_disk_for_ever(tmp_path: Path) -> None:
    settings = {**SETTINGS, "stream_memory": 200_000, "stream_history_max": 600_000, "stream_history_full": "refuse"}
    with running(tmp_path, **settings, stream_hot_nodes=1) as (_, client):
        client.execute_command("TWRITE", "orders", "t", "e")
        client.execute_command("TRETAIN", "orders", "COMPACT", "yes")
        written = 0

        def is_written() -> bool:
            tags = [b"%d" % (number % 7000) for number in range(written, written + 1000)]
            try:
                client.execute_command(
                    "TWRITE", "orders", "ENTRIES", *[word for tag in tags for word in (tag, b"x" * 60)]
                )
            except redis.ResponseError as error:
                assert "stream-history-max" in str(error)
                return False
            return True

        while written < 40_000:
            wait_until(is_written)
            written += 1000
        wait_until(lambda: client.execute_command("TINFO", "orders")[b"length"] < 9000)


# -- in one process: a compaction comes at the moment that the test chooses -----------------------------------------

SMALL = {"stream_memory": "40000", "stream_hot_nodes": "0", "stream_compression": "none", "appendfsync": "always"}
"""A node of these messages is a file."""


class Compacting(Life):
    """A server with a stream that compacts; each message has a tag of its own until it is superseded."""

    def run_words(self, *words: bytes) -> None:
        self.engine.execute(self.session, list(words))
        self.drain()

    def drain(self) -> None:
        self.loop.run()
        writer = self.persistence.aof.writer
        assert writer is not None
        writer.drain()

    def write(self, tags: range) -> None:
        words = [word for tag in tags for word in (b"%d" % tag, b"entry of %d" % tag)]
        self.run_words(b"TWRITE", b"s", b"ENTRIES", *words)

    def supersede(self, node: int) -> None:
        """Write some of the tags of a node again, and fill the node with tags that come once."""
        start = node * NODE
        self.write(range(start, start + 10))
        last = self.stream.messages.last
        self.write(range(10**6 + last, 10**6 + last + NODE - 10))
        self.work()

    def work(self) -> None:
        """What the server does when it has time: compaction, nodes go to files, unneeded files are removed."""
        history = self.persistence.history
        for _ in range(6):
            self.engine.streams.tick()
            self.loop.run()
            history.tick()
            while history._moving:
                self.loop.run()
                time.sleep(0.001)
        self.drain()

    def begin_rewrite(self) -> Child:
        """From here on, a child writes what is in memory now."""
        self.persistence.start_rewrite()
        while (child := self.persistence._child.running) is None:
            self.persistence.tick()  # the thread of the log was at work
            self.loop.run()
        return child

    def remove_unneeded(self) -> None:
        """Wait for the thread that removes files."""
        history = self.persistence.history
        self.work()
        wait_until(lambda: {path.name for path in history.files.folder.iterdir()} == set(history.names()))

    @property
    def stream(self) -> Stream:
        stream = self.engine.keyspace[0].data[b"s"]
        assert isinstance(stream, Stream)
        return stream

    @property
    def messages(self) -> list[tuple[int, bytes]]:
        return [(message.offset, message.entry) for message in each(self.stream.messages, 1, 10**6)]


def compacting(folder: Path) -> Compacting:
    """Eight nodes in files, of which the first was compacted since the base of the log."""
    life = Compacting(folder, **SMALL)
    for node in range(8):
        life.write(range(node * NODE, (node + 1) * NODE))
    life.run_words(b"TRETAIN", b"s", b"COMPACT", b"yes")
    life.work()
    life.begin_rewrite()
    life.wait_for_child()
    life.supersede(0)
    return life


def after_kill(life: Compacting, folder: Path) -> list[tuple[int, bytes]]:
    """The messages that a server finds which starts after a kill -9 of this one."""
    copy = folder / "after kill"
    shutil.copytree(life.persistence.history.files.folder.parent, copy)
    again = Compacting(copy, **SMALL)
    found = again.messages
    again.stream.check()
    again.persistence.close()
    return found


def test_compaction_during_a_rewrite_of_the_log_loses_nothing_that_a_replay_needs(tmp_path: Path) -> None:
    life = compacting(tmp_path / "data")
    life.begin_rewrite()
    life.supersede(4)
    life.wait_for_child()
    life.remove_unneeded()
    assert after_kill(life, tmp_path) == life.messages
    life.begin_rewrite()
    life.wait_for_child()
    life.remove_unneeded()
    assert after_kill(life, tmp_path / "again") == life.messages
    life.persistence.close()


def test_a_rewrite_that_failed_leaves_the_files_that_a_replay_needs(tmp_path: Path) -> None:
    life = compacting(tmp_path / "data")
    child = life.begin_rewrite()
    life.supersede(4)
    child.kill()
    life.persistence._child.running = None
    life.persistence._rewrites.failed("killed")
    life.supersede(5)
    life.remove_unneeded()
    assert after_kill(life, tmp_path) == life.messages
    life.persistence.close()


def test_compaction_during_a_snapshot_loses_nothing_that_it_or_the_log_needs(tmp_path: Path) -> None:
    life = compacting(tmp_path / "data")
    expected = life.messages
    assert life.persistence.start_save()
    life.supersede(4)
    life.wait_for_child()
    life.work()
    assert after_kill(life, tmp_path) == life.messages
    copy = shutil.copytree(tmp_path / "data", tmp_path / "snapshot alone", ignore=shutil.ignore_patterns("appendonly*"))
    again = Compacting(Path(copy), **SMALL | {"appendonly": "no"})
    assert again.messages == expected
    again.persistence.close()
    life.persistence.close()
