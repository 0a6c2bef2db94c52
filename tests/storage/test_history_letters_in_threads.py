"""Dead letters of expired messages that lie in files: a thread reads the files, and other clients go on meanwhile."""

from __future__ import annotations

import json
import weakref
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from tests.support.storage.history import connected, files, fill, started, until
from tests.support.storage.slow_reads import SlowReads

from penstock import Server
from penstock.engine import cold_letters
from penstock.types.stream.groups import Group
from penstock.types.stream.messages import Messages, Place


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with started(tmp_path) as server:
        yield server


def lease(client: redis.Redis, key: str, first: int, count: int, dead: str) -> None:
    """A group holds messages, for the last time; `expire` ends that."""
    client.execute_command(
        "TREAD", key, first, count, "GROUP", "g", "RETRY", 10**9, 0, "MAXATTEMPTS", 1, "DEADLETTER", dead
    )
    client.execute_command("TREAD", key, 9500, 1)  # the server does not keep the first ones ready


def expire(client: redis.Redis, *keys: str) -> None:
    """Have what groups hold be given up now."""
    for key in keys:
        client.execute_command("TEXTEND", key, "g", 1, "1-12000")


def letters(client: redis.Redis, key: str) -> list[int]:
    return [json.loads(row[2])["offset"] for row in client.execute_command("TREAD", key, 1, 10**5)]


def test_others_go_on_while_expired_messages_wait_for_files(
    server: Server, disk: SlowReads, entries: list[bytes]
) -> None:
    disk.open.set()
    with connected(server) as client:
        client.config_set("stream-max-pending", 100_000)
        fill(client, entries)
        lease(client, "s", 501, 3000, "dead")
        disk.open.clear()
        disk.threads.clear()
        expire(client, "s")
        until(lambda: disk.threads)
        assert client.ping()
        assert not client.exists("dead")
        disk.open.set()
        until(lambda: client.exists("dead") and len(letters(client, "dead")) == 3000)
        assert letters(client, "dead") == [*range(501, 3501)]
    assert not disk.on_the_loop


def test_more_streams_than_are_read_at_once_all_get_their_letters(
    server: Server, disk: SlowReads, entries: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_letters, "AT_ONCE", 2)
    keys = ["a", "b", "c", "d", "e"]
    disk.open.set()
    with connected(server) as client:
        fill(client, entries)
        for key in keys:
            client.copy("s", key)
            lease(client, key, 1, 900, f"dead {key}")
        disk.open.clear()
        disk.threads.clear()
        expire(client, *keys)
        until(lambda: disk.threads)
        assert client.ping()
        client.delete("a", "b")  # which may be the ones that threads read for
        disk.open.set()
        for key in keys[2:]:
            until(lambda key=key: client.exists(f"dead {key}") and len(letters(client, f"dead {key}")) == 900)
    assert not disk.on_the_loop


def test_a_group_that_goes_while_a_thread_reads_holds_up_no_other(
    server: Server, disk: SlowReads, entries: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_letters, "AT_ONCE", 1)
    disk.open.set()
    with connected(server) as client:
        fill(client, entries)
        client.copy("s", "t")
        for key in ("s", "t"):
            lease(client, key, 1, 900, f"dead {key}")
        disk.open.clear()
        disk.threads.clear()
        expire(client, "s")
        until(lambda: disk.threads)
        client.execute_command("TGROUP", "DEL", "s", "g")
        expire(client, "t")
        disk.open.set()
        until(lambda: client.exists("dead t") and len(letters(client, "dead t")) == 900)
        assert not client.exists("dead s")
    assert not disk.on_the_loop


def test_letters_come_although_the_lease_that_was_read_for_is_acknowledged_meanwhile(
    server: Server, disk: SlowReads, entries: list[bytes]
) -> None:
    disk.open.set()
    with connected(server) as client:
        fill(client, entries)
        lease(client, "s", 950, 10, "dead")  # in the first node
        client.execute_command("TGROUP", "SET", "s", "g", 980)
        lease(client, "s", 0, 100, "dead")  # in the first two
        disk.open.clear()
        disk.threads.clear()
        client.execute_command("TEXTEND", "s", "g", 1, "950-959")
        until(lambda: disk.threads)
        client.execute_command("TACK", "s", "g", "950-959")
        client.execute_command("TEXTEND", "s", "g", 1, "980-1079")
        disk.open.set()
        until(lambda: client.exists("dead") and len(letters(client, "dead")) == 100)
        assert letters(client, "dead") == [*range(980, 1080)]
    assert not disk.on_the_loop


def test_what_is_read_for_dead_letters_is_bounded_by_bytes(
    server: Server, disk: SlowReads, entries: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_letters, "AHEAD_BYTES", 1)
    monkeypatch.setattr(cold_letters, "MOST_BYTES", 1)
    asked: Counter[Messages] = Counter()
    ready_for = cold_letters.ColdLetters.ready_for

    def counted(letters: cold_letters.ColdLetters, messages: Messages, group: Group, now: int) -> object:
        asked[messages] += 1
        return ready_for(letters, messages, group, now)

    monkeypatch.setattr(cold_letters.ColdLetters, "ready_for", counted)
    keys = ["a", "b", "c"]
    disk.open.set()
    with connected(server) as client:
        fill(client, entries)
        for key in keys:
            client.copy("s", key)
            for first in (1, 1001, 2001):
                client.execute_command("TGROUP", "SET", key, "g", first)
                lease(client, key, 0, 100, f"dead {key}")
        disk.open.clear()
        disk.threads.clear()
        asked.clear()
        expire(client, *keys)
        until(lambda: len(asked) == len(keys) and min(asked.values()) > 2)
        assert len(disk.threads) == 1, "one stream at a time has one node read"
        disk.open.set()
        for key in keys:
            until(lambda key=key: client.exists(f"dead {key}") and len(letters(client, f"dead {key}")) == 300)
    assert not disk.on_the_loop
    assert len(disk.threads) == 9


def test_what_was_read_for_dead_letters_that_are_not_needed_any_more_is_let_go_of(
    server: Server, disk: SlowReads, entries: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_letters, "UNUSED", 0.01)
    readings: list[weakref.ref[cold_letters.Reading]] = []

    class Known(cold_letters.Reading):
        __slots__ = ("__weakref__",)

        def __init__(self, places: list[Place], now: int) -> None:
            super().__init__(places, now)
            readings.append(weakref.ref(self))

    monkeypatch.setattr(cold_letters, "Reading", Known)
    disk.open.set()
    with connected(server) as client:
        fill(client, entries)
        lease(client, "s", 1, 100, "dead")
        disk.open.clear()
        disk.threads.clear()
        expire(client, "s")
        until(lambda: disk.threads)
        client.execute_command("TACK", "s", "g", "1-100")
        disk.open.set()
        until(lambda: not any(reading() for reading in readings))
    assert readings


def test_messages_of_a_lost_file_do_not_hold_up_the_others(
    tmp_path: Path, server: Server, entries: list[bytes]
) -> None:
    with connected(server) as client:
        client.config_set("stream-max-pending", 100_000)
        fill(client, entries)
        lease(client, "s", 1, 6000, "dead")
        lost = min(files(tmp_path), key=lambda name: int(name.split("-")[0]))
        (tmp_path / "history" / lost).unlink()
        end = int(lost.split("-")[1])
        expire(client, "s")
        until(lambda: client.exists("dead") and letters(client, "dead")[-1] == 6000)
        assert letters(client, "dead") == [*range(end + 1, 6001)]
