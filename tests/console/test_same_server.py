"""The history of the graphs is that of a server, whatever else was at its address."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import redis
from tests.support.waiting import wait_until

from penstock import Server
from penstock.console.errors import Away
from penstock.console.history import History
from penstock.console.login import Login
from penstock.console.sampler import Sampler
from penstock.testing.redis import free_port

pytestmark = pytest.mark.filterwarnings("ignore:.*lib_name:DeprecationWarning")  # of newer versions of redis-py

Look = Callable[[Server], Awaitable[tuple[list[float], float]]]


def _looking(folder: Path, look: Callable[[Look], Awaitable[None]]) -> None:
    """Run `look` with a function that samples the stream `clicks` of a server: its last offsets in the graph, and rate.

    Each offset is given once: how many points show it depends on how long the servers took to start. All servers are
    at one address, and one login and sampler go on, as in a console that is open all the time.
    """

    async def run() -> None:
        history = History(folder, "here")
        samplers: list[Sampler] = []

        async def sample(server: Server) -> tuple[list[float], float]:
            samplers[:] = samplers or [Sampler(Login(server.url), history)]
            for stream in samplers[0].streams.values():
                stream.taken_at -= 60
            try:
                await samplers[0].refresh([b"clicks"])
            except Away:  # the connection to the server before
                await samplers[0].refresh([b"clicks"])
            points = (await history.read(time.time(), b"clicks", 3600)).get(b"", [])
            return list(dict.fromkeys(point.values[0] for point in points)), samplers[0].streams[b"clicks"].rate

        try:
            await look(sample)
        finally:
            await samplers[0].login.close()
            history.close()

    asyncio.run(run())


def _write(server: Server, count: int) -> None:
    with redis.Redis.from_url(server.url) as client:
        client.execute_command("TWRITE", "clicks", "ENTRIES", *("t", "e") * count)


def test_another_server_at_the_same_address_has_a_graph_of_its_own(tmp_path: Path) -> None:
    port = free_port()
    folders = [tmp_path / name for name in ("one", "other")]
    for folder in folders:
        folder.mkdir()

    def server(at: int) -> Server:
        return Server(port=port, appendonly=True, dir=folders[at])

    async def look(sample: Look) -> None:
        with server(0) as one:
            _write(one, 5)
            assert (await sample(one))[0] == [5]
        with server(1) as other:
            _write(other, 900)
            assert await sample(other) == ([900], 0), "a rate between two servers is none"
        with server(0) as one:
            assert (await sample(one))[0] == [5], "the first one has its graph still"

    _looking(tmp_path, look)


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_server_without_a_log_is_known_by_its_streams(tmp_path: Path, is_kept: bool) -> None:
    """With a snapshot it comes back as it was. Without one it comes back empty, which is as good as another server."""
    port, empty = free_port(), tmp_path / "empty"

    async def look(sample: Look) -> None:
        with Server(port=port, dir=tmp_path, save="3600 1") as before:
            _write(before, 5)
            assert (await sample(before))[0] == [5]
        empty.mkdir()
        with Server(port=port, dir=tmp_path if is_kept else empty, save="3600 1") as after:
            if not is_kept:
                _write(after, 2)
            assert (await sample(after))[0] == ([5] if is_kept else [2])

    _looking(tmp_path, look)


def test_a_replica_that_was_promoted_goes_on_with_the_graph(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("leader", "replica")]
    for folder in folders:
        folder.mkdir()

    async def look(sample: Look) -> None:
        with Server(appendonly=True, dir=folders[1]) as replica, redis.Redis.from_url(replica.url) as client:
            with Server(appendonly=True, dir=folders[0]) as leader:
                _write(leader, 5)
                client.execute_command("REPLICAOF", "127.0.0.1", leader.port)
                wait_until(lambda: client.info("replication").get("master_link_status") == "up" and client.dbsize())
                assert (await sample(replica))[0] == [5]
            before = client.info("replication")["master_replid"]
            client.execute_command("REPLICAOF", "NO", "ONE")
            assert client.info("replication")["master_replid"] != before
            assert (await sample(replica))[0] == [5]

    _looking(tmp_path, look)


def test_a_file_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    now = int(time.time())
    with sqlite3.connect(tmp_path / "history.sqlite") as file:
        file.executescript(
            "CREATE TABLE series (id INTEGER PRIMARY KEY AUTOINCREMENT, server TEXT, stream BLOB, reader BLOB, "
            "touched INTEGER, UNIQUE (server, stream, reader));"
            "CREATE TABLE point (series INTEGER, ring INTEGER, place INTEGER, time INTEGER, a REAL, b REAL, c REAL, "
            "PRIMARY KEY (series, ring, place)) WITHOUT ROWID;"
        )
        file.execute("INSERT INTO series VALUES (1, 'here', ?, ?, ?)", (b"clicks", b"", now))
        file.execute("INSERT INTO point VALUES (1, 0, 0, ?, 3, 0, 3)", (now - 100,))
    file.close()

    async def look(sample: Look) -> None:
        with Server(appendonly=True, dir=tmp_path) as server:
            _write(server, 5)
            assert (await sample(server))[0] == [3, 5]

    _looking(tmp_path, look)
