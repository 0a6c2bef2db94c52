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
from typing import NamedTuple

import pytest
import redis
from tests.support.server_process import Process
from tests.support.spark.dying_driver import ROWS_A_BATCH

from penstock.testing.redis import free_port

GOOD_A_BATCH = ROWS_A_BATCH * 49 // 50

BATCHES = 6
NUMBERS = range(2 * ROWS_A_BATCH)
COUNTERS_DIE = ("counters:worker@0", "counters:server@0", "counters:hang@0")
STREAM_DIES = ("stream:worker@0", "stream:server@1", "stream:before@2")


class Life(NamedTuple):
    """A start of the driver; see dying_driver.py."""

    words: tuple[str, ...]
    batches: int
    """Those of the stream that are visible in the end."""
    counted: int
    """Those of the counters."""


LIVES = (
    Life(("counters", *COUNTERS_DIE, "stream", *STREAM_DIES), 2, 1),
    Life(("counters", "stream", "stream:inside@2"), 3, 2),
    Life(("stream", "stream:after@3"), 4, 2),
    Life(("stream",), BATCHES, 2),
)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[Process]]:
    """The server, begun anew whenever it dies; none is left behind."""
    started = [serve(tmp_path, free_port())]
    yield started
    started[-1].kill()


def serve(folder: Path, port: int) -> Process:
    server = Process(folder, port)
    (folder / "server.new").write_text(str(server.process.pid))
    (folder / "server.new").replace(folder / "server")  # another process may be reading it
    return server


def drive(folder: Path, servers: list[Process], *words: str) -> int:
    """Run the driver, and the server again when it dies; how the driver ended."""
    port = servers[-1].port
    program = [sys.executable, "-m", "tests.support.spark.dying_driver", f"redis://127.0.0.1:{port}", str(folder)]
    with (
        (folder / "driver.log").open("ab") as log,
        subprocess.Popen([*program, *words], stdout=log, stderr=log) as driver,
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
def test_every_row_and_every_dead_letter_is_there_once_and_counted_once_whatever_dies(
    tmp_path: Path, servers: list[Process]
) -> None:
    rows = [b"%d" % n if n % 50 == 7 else b'{"n": %d}' % n for n in range(BATCHES * ROWS_A_BATCH)]
    with redis.Redis(port=servers[0].port) as client:
        for stream, written in (("in", rows), ("numbers", [b'{"n": %d}' % n for n in NUMBERS])):
            client.execute_command("TWRITE", stream, "ENTRIES", *(word for row in written for word in (b"t", row)))
        for number, life in enumerate(LIVES, 1):
            ended = drive(tmp_path, servers, *life.words)
            assert (ended == 0) == (number == len(LIVES)), (tmp_path / "driver.log").read_text()[-2000:]
            there = client.execute_command("TREAD", "out", 1, 0, "WITHINFO")[0][1]
            assert there == life.batches * GOOD_A_BATCH, "no half of a batch is ever visible"
            counted = life.counted * ROWS_A_BATCH
            assert client.hgetall("count") == {b"rows": b"%d" % counted, b"n": b"%d" % sum(NUMBERS[:counted])}
        assert len(servers) == 3, "the server was to die once for each query"
        assert all((tmp_path / f"a worker of {query} died").exists() for query in ("stream", "counters"))
        assert [message[2] for message in client.execute_command("TREAD", "out", 1, 2 * len(rows))] == [
            row for row in rows if row.startswith(b"{")
        ]
        letters = [json.loads(message[2]) for message in client.execute_command("TREAD", "dead", 1, len(rows))]
    assert sorted(each["offset"] for each in letters) == [at + 1 for at in range(7, len(rows), 50)]
