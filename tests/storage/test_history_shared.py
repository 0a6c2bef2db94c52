"""Small streams share files of history: a file for each would have to be synced for each."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from tests.support.storage.history import all_of, connected, files, history, started, until, write

from penstock.storage.check import run_check
from penstock.storage.segment_files import read_indexes

STREAMS = 240
MEMORY = 2 << 20  # a sixteenth is four times what a node takes, compressed or not: no stream has a file of its own
ENTRIES = [b"%d" % (number * 7919) for number in range(1000)]


def entries_of(number: int) -> list[bytes]:
    return [b"%d:%s" % (number, entry) for entry in ENTRIES]


def name_of(number: int) -> str:
    return f"s{number}"


def check_all(client: redis.Redis, gone: frozenset[int] = frozenset()) -> None:
    for number in set(range(STREAMS)) - gone:
        assert all_of(client, name_of(number)) == entries_of(number)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a stopped server, most of whose streams are in files."""
    folder = tmp_path_factory.mktemp("shared")
    with started(folder, stream_memory=MEMORY) as server, connected(server) as client:
        with client.pipeline() as transaction:
            for number in range(STREAMS):
                write(transaction, entries_of(number), name_of(number))
            transaction.execute()
        until(lambda: client.info("persistence")["stream_memory_held"] <= MEMORY)
        until(lambda: not client.info("persistence")["history_write_in_progress"])
        until(lambda: client.info("persistence")["history_files"] == len(files(folder)))
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Iterator[Path]:
    yield Path(shutil.copytree(made, tmp_path / "shared"))


def in_file(folder: Path) -> tuple[Path, list[int]]:
    """A shared file, and the numbers of the streams that have messages in it."""
    path = next((folder / "history").glob("shared-*"))
    places = {segment.places[0] for segment in read_indexes(path)}
    with started(folder, stream_memory="50mb") as server:

        def referring(app: object) -> list[int]:
            data = app.engine.keyspace[0].data  # type: ignore[attr-defined]
            return [
                number
                for number in range(STREAMS)
                for segment in data[name_of(number).encode()].messages.history
                if segment.name == path.name and segment.places[0] in places
            ]

        return path, server.call(referring)


def test_many_small_streams_make_few_files(folder: Path) -> None:
    with started(folder, stream_memory="50mb") as server, connected(server) as client:
        stored = [number for number in range(STREAMS) if history(client, name_of(number))["files"]]
        assert len(stored) > STREAMS // 3
        assert len(files(folder)) < len(stored) // 2
        check_all(client)
        server.call(lambda app: [stream.check() for stream in app.engine.keyspace[0].data.values()])


def test_small_streams_that_are_written_slowly_share_files_too(tmp_path: Path) -> None:
    """The server has time to compress each before the next one comes, and waits until some can go together."""
    with started(tmp_path, stream_memory=MEMORY // 2) as server, connected(server) as client:
        for number in range(STREAMS // 2):
            write(client, entries_of(number), name_of(number))
            time.sleep(0.02)
        until(lambda: not client.info("persistence")["history_write_in_progress"])
        stored = [number for number in range(STREAMS // 2) if history(client, name_of(number))["files"]]
        assert len(stored) > STREAMS // 6
        assert client.info("persistence")["history_segments_written"] < len(stored) // 2


@pytest.mark.parametrize("how", ["rewrite", "snapshot", "reload"])
def test_shared_files_are_found_again(folder: Path, how: str) -> None:
    with started(folder, stream_memory="50mb") as server, connected(server) as client:
        if how == "rewrite":
            client.bgrewriteaof()
            until(lambda: not client.info("persistence")["aof_rewrite_in_progress"])
        elif how == "snapshot":
            client.save()
        else:
            server.call(lambda app: app.persistence.reload(save=True, flush=True))
        check_all(client)
    appendonly = how != "snapshot"
    with started(folder, stream_memory="50mb", appendonly=appendonly) as server, connected(server) as client:
        check_all(client)


def test_a_shared_file_goes_when_its_last_stream_has_gone(folder: Path) -> None:
    path, numbers = in_file(folder)
    assert len(numbers) > 2
    with started(folder, stream_memory="50mb") as server, connected(server) as client:
        client.delete(*map(name_of, numbers[1:]))
        client.bgrewriteaof()
        until(lambda: not client.info("persistence")["aof_rewrite_in_progress"])
        until(lambda: not client.info("persistence")["history_files_to_remove"])
        assert path.exists()
        check_all(client, frozenset(numbers[1:]))
        client.delete(name_of(numbers[0]))
        until(lambda: not path.exists())
        check_all(client, frozenset(numbers))


def test_a_lost_shared_file_concerns_its_streams_alone(folder: Path) -> None:
    path, numbers = in_file(folder)
    with started(folder, stream_memory="50mb") as server, connected(server) as client:
        client.bgrewriteaof()  # else the log has the messages
        until(lambda: not client.info("persistence")["aof_rewrite_in_progress"])
    path.unlink()
    with started(folder, stream_memory="50mb") as server, connected(server) as client:
        check_all(client, frozenset(numbers))
        for number in numbers:
            with pytest.raises(redis.ResponseError, match=f"history/{path.name} is not there"):
                all_of(client, name_of(number))
    report = run_check(folder)
    assert report.exit_code == 1
    for number in numbers:
        assert f"offsets 1 to 1000 of the stream '{name_of(number)}' in database 0" in str(report)
    assert run_check(folder, fix=True).exit_code == 0
    assert run_check(folder).exit_code == 0
    with started(folder, stream_memory="50mb") as server, connected(server) as client:
        check_all(client, frozenset(numbers))
        assert [all_of(client, name_of(number)) for number in numbers] == [[]] * len(numbers)


def test_a_damaged_node_of_a_shared_file_is_given_up_alone(folder: Path) -> None:
    path, numbers = in_file(folder)
    with started(folder, stream_memory="50mb") as server, connected(server) as client:
        client.bgrewriteaof()
        until(lambda: not client.info("persistence")["aof_rewrite_in_progress"])
    place = read_indexes(path)[1].places[0] + 400
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    report = run_check(folder, fix=True)
    assert report.exit_code == 0, report
    assert str(report).count("are given up") == 1
    with started(folder, stream_memory="50mb") as server, connected(server) as client:
        lost = [number for number in numbers if not all_of(client, name_of(number))]
        assert len(lost) == 1
        check_all(client, frozenset(lost))


def test_streams_that_change_while_their_file_is_written_keep_their_messages(tmp_path: Path) -> None:
    """Each is renamed, deleted, evicted or written to, while nodes of all of them go to files."""
    with started(tmp_path, stream_memory=MEMORY) as server, connected(server) as client:
        for number in range(STREAMS):
            write(client, entries_of(number), name_of(number))
            if number > 10 and number % 3 == 0:
                client.rename(name_of(number - 1), f"r{number - 1}")
                client.delete(name_of(number - 2))
                client.execute_command("TEVICT", name_of(number - 4) if number % 2 else f"r{number - 4}", 500)
                write(client, [b"more"], name_of(number))
        until(lambda: client.info("persistence")["stream_memory_held"] <= MEMORY)
        expected = {key: all_of(client, key) for key in map(bytes.decode, client.keys("*"))}
        server.call(lambda app: [stream.check() for stream in app.engine.keyspace[0].data.values()])
    with started(tmp_path, stream_memory=MEMORY) as server, connected(server) as client:
        assert {key: all_of(client, key) for key in map(bytes.decode, client.keys("*"))} == expected


def test_a_bound_on_disk_evicts_from_streams_that_share_files(folder: Path) -> None:
    before = sum(path.stat().st_size for path in (folder / "history").iterdir())
    with started(folder, stream_memory="50mb") as server, connected(server) as client:
        client.config_set("stream-history-max", before // 2)
        until(lambda: client.info("persistence")["history_bytes"] <= before // 2)
        until(lambda: client.info("persistence")["history_files"] == len(files(folder)))
        assert client.info("persistence")["history_bytes"] > 0
        for number in range(STREAMS):
            assert all_of(client, name_of(number)) in (entries_of(number), [])
