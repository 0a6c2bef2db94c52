"""The work that a server does by itself goes on when a file of history is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis
from tests.support.storage.history import all_of, connected, files, fill, started, until


def lose_the_first_file(folder: Path) -> int:
    """Remove it; answers the last offset in it."""
    name = min(files(folder), key=lambda name: int(name.split("-")[0]))
    (folder / "history" / name).unlink()
    return int(name.split("-")[1])


def pending(client: redis.Redis) -> int:
    return client.execute_command("TGROUP", "LIST", "s")[0][b"pending"]


def test_messages_of_a_lost_file_are_given_up_without_letters(
    tmp_path: Path, entries: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    with started(tmp_path) as server, connected(server) as client:
        client.config_set("stream-max-pending", 100_000)
        fill(client, entries)
        read = "TREAD", "s", 0, 5000, "GROUP", "g", "RETRY", 10**9, 0, "MAXATTEMPTS", 1, "DEADLETTER", "dead"
        assert len(client.execute_command(*read)) == 5000
        client.execute_command("TREAD", "s", 8000, 1)  # the server does not keep the first ones ready
        end = lose_the_first_file(tmp_path)
        with pytest.raises(redis.ResponseError, match="is not there"):
            client.execute_command("TGIVEUP", "s", "g", f"1-{end + 1}")
        assert pending(client) == 5000, "TGIVEUP did nothing"
        assert client.execute_command("TEXTEND", "s", "g", 1, "1-5000") == 5000
        until(lambda: not pending(client))
        letters = all_of(client, "dead")
        assert len(letters) == 5000 - end
    assert sum("gets no dead letters" in record.getMessage() for record in caplog.records) == 1
    assert not [record for record in caplog.records if "internal error" in record.getMessage()]
    with started(tmp_path) as server, connected(server) as client:
        assert pending(client) == 0, "the log says so too"
        assert all_of(client, "dead") == letters


def test_a_stream_with_a_lost_file_is_compacted_when_that_is_evicted(
    tmp_path: Path, entries: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    with started(tmp_path) as server, connected(server) as client:
        fill(client, entries)
        end = lose_the_first_file(tmp_path)
        client.execute_command("TRETAIN", "s", "COMPACT", "yes")
        until(lambda: any("is not compacted" in record.getMessage() for record in caplog.records))
        newest = [word for entry in entries[:1000] for word in (b"t", entry)]
        client.execute_command("TWRITE", "s", "ENTRIES", *newest, *newest)
        client.execute_command("TEVICT", "s", end)
        until(lambda: len(all_of(client)) < len(entries) - end + 10)
    assert sum("is not compacted" in record.getMessage() for record in caplog.records) == 1
    assert not [record for record in caplog.records if "internal error" in record.getMessage()]


def test_what_was_given_up_stays_so_after_a_restart(tmp_path: Path, entries: list[bytes]) -> None:
    with started(tmp_path) as server, connected(server) as client:
        fill(client, entries)
        client.bgrewriteaof()
        until(lambda: client.info("persistence")["aof_rewrites"] == 1)
        name = min(files(tmp_path), key=lambda name: int(name.split("-")[0]))
        end = int(name.split("-")[1])
        client.execute_command("TAPPLY", "s", "LOST", name)
        until(lambda: name not in files(tmp_path))
        assert all_of(client) == entries[end:]
    with started(tmp_path) as server, connected(server) as client:
        assert all_of(client) == entries[end:]
