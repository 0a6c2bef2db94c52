"""Streams longer than memory, on real servers: files come and go, and nothing of the data does."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from tests.support.storage.history import (
    MESSAGES,
    SMALL,
    all_of,
    connected,
    files,
    fill,
    history,
    started,
    until,
    write,
)  # fmt: skip

from penstock import Server
from penstock.engine.directives import DIRECTIVES
from penstock.server.app import App
from penstock.types.stream.stream import Stream


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with started(tmp_path) as server:
        yield server


def test_memory_stays_within_its_bound_and_all_is_read(server: Server, tmp_path: Path, entries: list[bytes]) -> None:
    with connected(server) as client:
        fill(client, entries)
        until(lambda: client.info("persistence")["history_files"] == len(files(tmp_path)) > 3)
        assert all_of(client) == entries
        got = []
        while rows := client.execute_command("TREAD", "s", 0, 700, "GROUP", "g", "MAXBYTES", 30_000):
            got += [row[2] for row in rows]
        assert got == entries
        moment = client.execute_command("TREAD", "s", 5000, 1, "WITHTIME")[0][3]
        assert client.execute_command("TSEEK", "s", "TIME", moment) <= 5000


def test_a_restart_reads_the_tail_alone(tmp_path: Path, entries: list[bytes]) -> None:
    with started(tmp_path) as server, connected(server) as client:
        fill(client, entries)
        client.execute_command("BGREWRITEAOF")
        until(lambda: not client.info("persistence")["aof_rewrite_in_progress"])
        before = history(client)
    size = sum(path.stat().st_size for path in (tmp_path / "appendonlydir").iterdir())
    assert size < sum(map(len, entries)) / 3
    with started(tmp_path) as server, connected(server) as client:
        assert history(client) == before
        assert all_of(client) == entries


def test_the_log_alone_brings_back_what_was_in_files(tmp_path: Path, entries: list[bytes]) -> None:
    with started(tmp_path) as server, connected(server) as client:
        fill(client, entries)
    with started(tmp_path) as server, connected(server) as client:
        assert history(client)["length"] > 0
        assert all_of(client) == entries
    shutil.rmtree(tmp_path / "history")
    with started(tmp_path, stream_memory=0) as server, connected(server) as client:
        assert history(client)["length"] == 0, "the log still has all of it"
        assert all_of(client) == entries


def test_evicted_and_deleted_messages_free_their_files(server: Server, tmp_path: Path, entries: list[bytes]) -> None:
    with connected(server) as client:
        fill(client, entries)
        many = len(files(tmp_path))
        client.execute_command("TEVICT", "s", 6000)
        until(lambda: len(files(tmp_path)) <= many - 5)
        assert all_of(client) == entries[6000:]
        client.execute_command("TRETAIN", "s", "COUNT", 2000)
        until(lambda: history(client)["files"] <= 2)
        client.delete("s")
        until(lambda: not files(tmp_path))


def test_copies_share_files(server: Server, tmp_path: Path, entries: list[bytes]) -> None:
    with connected(server) as client:
        fill(client, entries)
        before = files(tmp_path)
        assert client.copy("s", "t")
        client.rename("s", "u")
        client.move("u", 3)
        client.swapdb(0, 3)
        assert all_of(client, "u") == entries
        client.delete("u")
        client.swapdb(0, 3)
        assert all_of(client, "t") == entries
        assert files(tmp_path) >= before
        client.flushall()
        until(lambda: not files(tmp_path))


def test_a_dump_holds_the_messages_themselves(server: Server, entries: list[bytes]) -> None:
    with connected(server) as client:
        fill(client, entries)
        dump = client.dump("s")
        assert dump is not None
        client.restore("copy", 0, dump)
        client.delete("s")
        assert all_of(client, "copy") == entries


def test_scripts_and_transactions_read_files(server: Server, entries: list[bytes]) -> None:
    with connected(server) as client:
        fill(client, entries)
        assert client.eval("return redis.call('TREAD', 's', 2500, 1)[1][3]", 0) == entries[2499]
        with client.pipeline(transaction=True) as pipe:
            pipe.execute_command("TREAD", "s", 3500, 2)
            pipe.execute_command("TREAD", "s", 100, 1, "GROUP", "g")
            first, second = pipe.execute()
        assert [row[2] for row in first + second] == [*entries[3499:3501], entries[99]]


def test_a_lost_file_fails_its_own_reads_alone(tmp_path: Path, entries: list[bytes]) -> None:
    with started(tmp_path) as server, connected(server) as client:
        fill(client, entries)
        name = min(files(tmp_path), key=lambda name: int(name.split("-")[0]))
        (tmp_path / "history" / name).unlink()
        for _ in range(2):
            with pytest.raises(redis.ResponseError, match=f"offsets 1 to .* history/{name} is not there"):
                client.execute_command("TREAD", "s", 1, 10)
        end = int(name.split("-")[1])
        assert client.execute_command("TREAD", "s", end + 1, 1)[0][2] == entries[end]
        assert client.execute_command("TWRITE", "s", "", "on") == MESSAGES + 1
        client.execute_command("BGREWRITEAOF")
        until(lambda: not client.info("persistence")["aof_rewrite_in_progress"])
    with started(tmp_path) as server, connected(server) as client:
        with pytest.raises(redis.ResponseError, match="is not there"):
            client.execute_command("TREAD", "s", 1, 10)
        assert client.execute_command("TREAD", "s", end + 1, 1)[0][2] == entries[end]
        client.execute_command("TEVICT", "s", end)
        assert all_of(client) == [*entries[end:], b"on"]


def test_a_snapshot_keeps_the_files_it_refers_to(tmp_path: Path, entries: list[bytes]) -> None:
    settings = {"appendonly": False, "save": "3600 1000000"}
    with started(tmp_path, **settings) as server, connected(server) as client:
        fill(client, entries)
        client.save()
        kept = files(tmp_path)
        shutil.copytree(tmp_path, tmp_path / "backup", ignore=shutil.ignore_patterns("backup"))
        client.execute_command("TEVICT", "s", 8000)
        until(lambda: client.info("persistence")["history_files_to_remove"] > 3)
        assert files(tmp_path) >= kept
        client.save()
        until(lambda: not client.info("persistence")["history_files_to_remove"])
        until(lambda: len(files(tmp_path)) < len(kept))
    with started(tmp_path / "backup", **settings) as server, connected(server) as client:
        assert all_of(client) == entries
    with started(tmp_path, **settings) as server, connected(server) as client:
        assert all_of(client) == entries[8000:]


def test_strays_go_at_the_start_and_other_files_stay(tmp_path: Path, entries: list[bytes]) -> None:
    with started(tmp_path) as server, connected(server) as client:
        fill(client, entries)
        known = files(tmp_path)
    for name in ("1-1000-0badcafe.arrow", "temp-1-2-1-1000-0badcafe.arrow", "mine.txt"):
        (tmp_path / "history" / name).write_text("x")
    with started(tmp_path) as server, connected(server) as client:
        assert files(tmp_path) == known | {"mine.txt"}
        assert all_of(client) == entries


def test_the_bound_cannot_be_lifted_while_files_hold_more(server: Server, entries: list[bytes]) -> None:
    with connected(server) as client:
        fill(client, entries)
        with pytest.raises(redis.ResponseError, match="are in files and would have to fit memory"):
            client.config_set("stream-memory", 0)
        client.config_set("stream-memory", "50mb")
        client.execute_command("TEVICT", "s", MESSAGES)
        until(lambda: not client.info("persistence")["history_files"])
        client.config_set("stream-memory", 0)


def test_files_are_bounded_by_evicting_the_oldest_messages(tmp_path: Path, entries: list[bytes]) -> None:
    with started(tmp_path, stream_history_max=300_000) as server, connected(server) as client:
        for at in range(0, MESSAGES, 1000):
            part = [word for entry in entries[at : at + 1000] for word in (b"", entry)]
            client.execute_command("TWRITE", "s", "ENTRIES", *part)
        until(lambda: 0 < client.info("persistence")["history_bytes"] <= 300_000)
        left = all_of(client)
        assert left == entries[-len(left) :]
        assert len(left) < MESSAGES
    with started(tmp_path, stream_history_max=300_000) as server, connected(server) as client:
        assert all_of(client)[-2000:] == entries[-2000:]


def test_no_more_is_evicted_because_a_reader_still_has_a_file(server: Server, entries: list[bytes]) -> None:
    with connected(server) as client:
        fill(client, entries)

        def evict_while_a_reader_has_all(app: App) -> int:
            stream = app.engine.keyspace[0].data[b"s"]
            assert isinstance(stream, Stream)
            reader = list(stream.messages.history)
            app.engine.config.change([(DIRECTIVES["stream-history-max"], "300000")])
            app.persistence.history.tick()
            return len(reader) - len(stream.messages.history)

        assert 3 < server.call(evict_while_a_reader_has_all) < 9
        assert len(all_of(client)) > 3000


def test_files_are_bounded_by_refusing_writes(tmp_path: Path, entries: list[bytes]) -> None:
    settings = {"stream_history_max": 300_000, "stream_history_full": "refuse"}
    with started(tmp_path, **settings) as server, connected(server) as client:

        def write_on() -> bool:
            try:
                client.execute_command("TWRITE", "s", "ENTRIES", *[b"x", entries[random.randrange(MESSAGES)]] * 100)
            except redis.ResponseError as error:
                assert "stream-history-max" in str(error)
                return True
            return False

        until(write_on)
        assert client.info("persistence")["history_bytes"] <= 300_000
        client.config_set("stream-history-max", "50mb")
        until(lambda: not write_on())
        client.config_set("stream-history-max", "300000")
        until(write_on)
        assert client.set("all else", "goes on")
        last = client.execute_command("TINFO", "s")[b"last"]
        client.execute_command("TEVICT", "s", last - 1)  # makes room
        until(lambda: not write_on())
        until(write_on)
        assert client.delete("s")
        until(lambda: not write_on())


def test_a_folder_that_takes_no_files_loses_nothing(tmp_path: Path, entries: list[bytes]) -> None:
    (tmp_path / "history").write_text("in the way")
    with started(tmp_path) as server, connected(server) as client:
        written = 0

        def refused() -> bool:
            nonlocal written
            try:
                words = [word for entry in entries[written : written + 100] for word in (b"", entry)]
                client.execute_command("TWRITE", "s", "ENTRIES", *words)
            except redis.ResponseError as error:
                assert str(error).startswith("MISCONF streams take the memory they may (stream-memory), and history")
                return True
            written += 100
            return False

        until(refused)
        assert all_of(client) == entries[:written]
        assert client.info("persistence")["history_last_write_status"] == "err"
        (tmp_path / "history").unlink()
        until(lambda: not refused())
        until(lambda: client.info("persistence")["history_files"] > 0)
        assert all_of(client) == entries[:written]


def test_turning_the_log_on_begins_history(tmp_path: Path, entries: list[bytes]) -> None:
    with started(tmp_path, appendonly=False, save="") as server, connected(server) as client:
        client.config_set("appendonly", "yes")
        fill(client, entries)
    with started(tmp_path) as server, connected(server) as client:
        assert all_of(client) == entries


def test_writes_are_refused_at_the_bound_and_not_at_the_next_tick(tmp_path: Path, entries: list[bytes]) -> None:
    (tmp_path / "history").touch()  # in the way of the folder
    with started(tmp_path, hz=1) as server, connected(server) as client:
        with pytest.raises(redis.ResponseError, match="history cannot be written"):
            write(client, entries)
        assert client.info("persistence")["stream_memory_held"] < 2 * SMALL


def test_a_dump_of_more_than_a_reply_is_refused(tmp_path: Path, entries: list[bytes]) -> None:
    with started(tmp_path, proto_max_bulk_len=1 << 20) as server, connected(server) as client:
        for _ in range(3):
            fill(client, entries)
            client.config_set("stream-memory", SMALL)
        with pytest.raises(redis.ResponseError, match="bytes in files, and proto-max-bulk-len allows 1048576"):
            client.dump("s")


def test_a_stream_that_compacts_is_in_files_too(tmp_path: Path) -> None:
    with started(tmp_path) as server, connected(server) as client:
        newest = {b"0": b"first"}
        client.execute_command("TWRITE", "s", b"0", newest[b"0"])
        client.execute_command("TRETAIN", "s", "COMPACT", "yes")
        random.seed(3)
        for _ in range(12):
            words = []
            for _ in range(1000):
                tag, entry = b"%d" % random.randrange(3000), random.randbytes(30).hex().encode()
                newest.pop(tag, None)
                newest[tag] = entry
                words += [tag, entry]
            client.execute_command("TWRITE", "s", "ENTRIES", *words)
        until(lambda: history(client)["files"] > 0)
        until(lambda: len(all_of(client)) <= 3000 + 1000)
    with started(tmp_path) as server, connected(server) as client:
        last = {row[1]: row[2] for row in client.execute_command("TREAD", "s", 1, 10**6) if row is not None}
        assert last == newest


def test_a_server_that_keeps_nothing_writes_no_files(tmp_path: Path, entries: list[bytes]) -> None:
    with started(tmp_path, appendonly=False, save="") as server, connected(server) as client:
        for at in range(0, MESSAGES, 1000):
            part = [word for entry in entries[at : at + 1000] for word in (b"", entry)]
            client.execute_command("TWRITE", "s", "ENTRIES", *part)
        assert client.info("persistence")["history_enabled"] == 0
        assert all_of(client) == entries
    assert not files(tmp_path)
