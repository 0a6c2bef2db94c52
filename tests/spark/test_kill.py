"""kill -9 of the driver's JVM before, inside and after a commit, of a Python worker, and of the server.

Each row is there once, and so is a dead letter for each entry that does not parse. Counters count each row once.

Without the fence of TCOMMIT the batch that died inside its commit would be written twice. Without the numbers of their
producers the letters of a batch that is run again would be. Without the guard of the counters it would be counted
twice.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from tests.support.server_process import Process
from tests.support.spark.dying_driver import ROWS_A_BATCH

from penstock.testing.redis import free_port

GOOD_A_BATCH = ROWS_A_BATCH * 49 // 50

BATCHES = 6
LIVES = (("worker@0", "server@1", "before@2"), ("inside@2",), ("after@3",), ())
"""What is to die in each start of the driver; see dying_driver.py."""


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[Process]]:
    """The server, begun anew whenever it dies; none is left behind."""
    started = [serve(tmp_path, free_port())]
    yield started
    started[-1].kill()


def serve(folder: Path, port: int) -> Process:
    server = Process(folder, port)
    (folder / "server").write_text(str(server.process.pid))
    return server


def drive(folder: Path, servers: list[Process], sink: str, *deaths: str) -> int:
    """Run the driver, and the server again when it dies; how the driver ended."""
    port = servers[-1].port
    words = [f"redis://127.0.0.1:{port}", str(folder), sink, *deaths]
    with (
        (folder / "driver.log").open("ab") as log,
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.spark.dying_driver", *words], stdout=log, stderr=log
        ) as driver,
    ):
        try:
            while driver.poll() is None:
                if servers[-1].process.poll() is not None:
                    servers[-1].kill()
                    servers.append(serve(folder, port))
                time.sleep(0.02)
        finally:
            driver.kill()
    return driver.returncode


@pytest.mark.timeout(1800)  # four starts of Spark, with all that may happen on a busy machine
def test_every_row_and_every_dead_letter_is_there_once_whatever_dies(tmp_path: Path, servers: list[Process]) -> None:
    rows = [b"%d" % n if n % 50 == 7 else b'{"n": %d}' % n for n in range(BATCHES * ROWS_A_BATCH)]
    with redis.Redis(port=servers[0].port) as client:
        client.execute_command("TWRITE", "in", "ENTRIES", *(word for row in rows for word in (b"t", row)))
        for deaths, visible in zip(LIVES, (2, 3, None, BATCHES), strict=True):
            ended = drive(tmp_path, servers, "stream", *deaths)
            assert (ended != 0) == bool(deaths), (tmp_path / "driver.log").read_text()[-2000:]
            there = client.execute_command("TREAD", "out", 1, 0, "WITHINFO")[0][1]
            assert there % GOOD_A_BATCH == 0, "no half of a batch is ever visible"
            assert visible is None or there == visible * GOOD_A_BATCH
        assert len(servers) == 2, "the server was to die once"
        assert (tmp_path / "a worker died").exists()
        assert [message[2] for message in client.execute_command("TREAD", "out", 1, 2 * len(rows))] == [
            row for row in rows if row.startswith(b"{")
        ]
        letters = [json.loads(message[2]) for message in client.execute_command("TREAD", "dead", 1, len(rows))]
    assert sorted(each["offset"] for each in letters) == [at + 1 for at in range(7, len(rows), 50)]


@pytest.mark.timeout(1800)
def test_counters_count_every_row_once_whatever_dies(tmp_path: Path, servers: list[Process]) -> None:
    numbers = range(2 * ROWS_A_BATCH)
    with redis.Redis(port=servers[0].port) as client:
        words = (word for n in numbers for word in (b"t", b'{"n": %d}' % n))
        client.execute_command("TWRITE", "in", "ENTRIES", *words)
        for deaths, counted in ((("worker@0", "server@0", "inside@0"), 1), ((), 2)):
            ended = drive(tmp_path, servers, "counters", *deaths)
            assert (ended != 0) == bool(deaths), (tmp_path / "driver.log").read_text()[-2000:]
            rows = counted * ROWS_A_BATCH
            assert client.hgetall("count") == {b"rows": b"%d" % rows, b"n": b"%d" % sum(numbers[:rows])}
        assert len(servers) == 2, "the server was to die once"
        assert (tmp_path / "a worker died").exists()
