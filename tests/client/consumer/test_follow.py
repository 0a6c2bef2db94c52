"""An offset in the caller's own transaction: exactly once, through kills, with sqlite3, SQLAlchemy and psycopg."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.background import in_background
from tests.support.client.consuming import fill
from tests.support.postgres import running_postgres

from penstock import Client, Server, aio
from penstock.testing.proxy import FaultProxy


def test_batches_go_on_where_the_last_one_ended(ours: Server) -> None:
    fill(ours.url, 25)
    with Client.from_url(ours.url) as client:
        batches = list(client.follow("s", count=10, block_ms=None))
        assert [[message.offset for message in batch] for batch in batches] == [
            list(range(1, 11)), list(range(11, 21)), list(range(21, 26)),
        ]  # fmt: skip
        assert [batch.next_offset for batch in batches] == [11, 21, 26]
        (rest,) = client.follow("s", start=23, block_ms=None)
        assert [message.entry for message in rest] == [b"23", b"24", b"25"]
        assert list(client.follow("s", start=26, block_ms=None)) == []
        client.tevict("s", 21)
        kept = list(client.follow("s", count=3, block_ms=None, max_bytes=None))
        assert [message.offset for batch in kept for message in batch] == [22, 23, 24, 25]


def test_new_messages_are_followed_as_they_come_through_lost_connections(ours: Server) -> None:
    fill(ours.url, 5)
    with FaultProxy(("127.0.0.1", ours.port)) as proxy, Client.from_url(proxy.url) as client:
        batches = client.follow("s", start="$", block_ms=100)
        fault = proxy.cut_after_execution(b"TREAD", nth=2)  # the first has asked where the stream ends

        def write() -> None:
            assert fault.wait()
            with Client.from_url(ours.url) as other:
                other.twrite("s", "t", "new")

        with in_background(write):
            batch = next(batches)
        assert [message.entry for message in batch] == [b"new"] and batch.next_offset == 7
        batches.close()  # type: ignore[attr-defined]


def test_tasks_follow_too(ours: Server) -> None:
    fill(ours.url, 5)

    async def main() -> list[int]:
        async with aio.Client.from_url(ours.url) as client:
            return [batch.next_offset async for batch in client.follow("s", count=2, block_ms=None)]

    assert asyncio.run(main()) == [3, 5, 6]


@pytest.mark.parametrize("wrong", [{"start": 0}, {"start": "x"}, {"count": 0}])
def test_a_place_that_cannot_be_is_refused(ours: Server, wrong: dict[str, Any]) -> None:
    with Client.from_url(ours.url) as client, pytest.raises(ValueError, match=next(iter(wrong))):
        client.follow("s", **wrong)


SQLITE = """
import sqlite3
database = sqlite3.connect(place, isolation_level=None)
database.execute("PRAGMA synchronous=OFF")
database.execute("CREATE TABLE IF NOT EXISTS orders (entry TEXT)")
database.execute("CREATE TABLE IF NOT EXISTS offsets (stream TEXT PRIMARY KEY, next INTEGER)")
(start,) = database.execute("SELECT next FROM offsets").fetchone() or (1,)
for batch in client.follow("s", start=start, count=7):
    database.execute("BEGIN")
    for message in batch:
        database.execute("INSERT INTO orders VALUES (?)", (message.entry.decode(),))
        maybe_die()
    database.execute("INSERT OR REPLACE INTO offsets VALUES ('s', ?)", (batch.next_offset,))
    maybe_die()
    database.execute("COMMIT")
    maybe_die()
    finish(batch)
"""
SQLALCHEMY = """
from sqlalchemy import create_engine, text
engine = create_engine(place)
with engine.begin() as database:
    database.execute(text("CREATE TABLE IF NOT EXISTS orders (entry TEXT)"))
    database.execute(text("CREATE TABLE IF NOT EXISTS offsets (stream TEXT PRIMARY KEY, next INTEGER)"))
    start = database.execute(text("SELECT next FROM offsets")).scalar() or 1
for batch in client.follow("s", start=start, count=7):
    with engine.begin() as database:
        database.execute(text("INSERT INTO orders VALUES (:e)"), [{"e": m.entry.decode()} for m in batch])
        maybe_die()
        database.execute(text("DELETE FROM offsets"))
        database.execute(text("INSERT INTO offsets VALUES ('s', :n)"), {"n": batch.next_offset})
        maybe_die()
    maybe_die()
    finish(batch)
"""
PSYCOPG = """
import psycopg
with psycopg.connect(place) as database:
    database.execute("CREATE TABLE IF NOT EXISTS orders (entry TEXT)")
    database.execute("CREATE TABLE IF NOT EXISTS offsets (stream TEXT PRIMARY KEY, next BIGINT)")
    start = (database.execute("SELECT next FROM offsets").fetchone() or (1,))[0]
    database.commit()
    for batch in client.follow("s", start=start, count=7):
        with database.transaction():
            for message in batch:
                database.execute("INSERT INTO orders VALUES (%s)", (message.entry.decode(),))
                maybe_die()
            database.execute(
                "INSERT INTO offsets VALUES ('s', %s) ON CONFLICT (stream) DO UPDATE SET next = excluded.next",
                (batch.next_offset,),
            )
            maybe_die()
        maybe_die()
        finish(batch)
"""
PROGRAM = """
import os, random, sys
from penstock import Client
url, place, seed = sys.argv[1:4]
chance = random.Random(int(seed))
def maybe_die():
    if chance.random() < (0.02 if int(seed) else 0):
        os.kill(os.getpid(), 9)
def finish(batch):
    if batch.next_offset > 150:
        sys.exit(0)
with Client.from_url(url) as client:
"""


def run_until_done(code: str, url: str, place: str) -> int:
    """Run a program that dies at random places again and again; how many times it was killed."""
    indented = "".join(f"    {line}\n" for line in code.strip().splitlines())
    for seed in [*range(1, 9), 0]:
        words = [sys.executable, "-c", PROGRAM + indented, url, place, str(seed)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
        if done.returncode == 0:
            return seed - 1 if seed else 8
        assert done.returncode == -signal.SIGKILL, done.stderr
    raise AssertionError("the last run does not die")


def test_every_message_is_in_a_sqlite_database_once_whatever_kills_the_program(ours: Server, tmp_path: Path) -> None:
    import sqlite3

    fill(ours.url, 150)
    place = str(tmp_path / "orders.db")
    assert run_until_done(SQLITE, ours.url, place) >= 1
    database = sqlite3.connect(place)
    found = [int(entry) for (entry,) in database.execute("SELECT entry FROM orders ORDER BY rowid")]
    database.close()
    assert found == list(range(1, 151))


def test_every_message_is_in_a_database_of_sqlalchemy_once(ours: Server, tmp_path: Path) -> None:
    import sqlalchemy

    fill(ours.url, 150)
    place = f"sqlite:///{tmp_path / 'orders.db'}"
    assert run_until_done(SQLALCHEMY, ours.url, place) >= 1
    engine = sqlalchemy.create_engine(place)
    with engine.connect() as database:
        found = sorted(int(entry) for (entry,) in database.execute(sqlalchemy.text("SELECT entry FROM orders")))
    engine.dispose()
    assert found == list(range(1, 151))


def test_every_message_is_in_a_postgres_once(ours: Server) -> None:
    import psycopg

    fill(ours.url, 150)
    with running_postgres() as place:
        assert run_until_done(PSYCOPG, ours.url, place) >= 1
        with psycopg.connect(place) as database:
            found = sorted(int(entry) for (entry,) in database.execute("SELECT entry FROM orders"))
    assert found == list(range(1, 151))
