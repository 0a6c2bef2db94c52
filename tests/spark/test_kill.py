"""kill -9 of the driver's JVM before, inside and after a commit, of a Python worker, and of the server: each row is there once.

Without the fence of TCOMMIT the batch that died inside its commit would be written twice.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from tests.server_process import Process, free_port
from tests.spark.dying_driver import ROWS_A_BATCH

BATCHES = 14


def drive(port: int, folder: Path, point: str, batch: int = 0) -> int:
    """Run the driver; how it ended."""
    words = [f"redis://127.0.0.1:{port}", str(folder), point, str(batch)]
    with (folder / "driver.log").open("ab") as log:
        ended = subprocess.run(
            [sys.executable, "-m", "tests.spark.dying_driver", *words],
            stdout=log,
            stderr=log,
            env=os.environ,
            timeout=400,
        )
    return ended.returncode


def batches_done(folder: Path) -> int:
    try:
        return int((folder / "batch").read_text() or -1)
    except FileNotFoundError:
        return -1


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[Process]]:
    """Servers that a test starts; none is left behind."""
    started: list[Process] = []
    yield started
    for server in started:
        server.kill()


@pytest.mark.timeout(600)  # four starts of Spark, with all that may happen on a busy machine
def test_every_row_is_there_once_whatever_dies(tmp_path: Path, servers: list[Process]) -> None:
    port = free_port()
    servers.append(Process(tmp_path, port))
    rows = [b"%d" % number for number in range(BATCHES * ROWS_A_BATCH)]
    with redis.Redis(port=port) as client:
        client.execute_command("TWRITE", "in", "ENTRIES", *(word for row in rows for word in (b"t", row)))

    for point, batch in (("before", 1), ("inside", 3), ("after", 5)):
        assert drive(port, tmp_path, point, batch) != 0, f"the driver was to die {point} the commit of batch {batch}"
        assert batches_done(tmp_path) >= batch - 1
        with redis.Redis(port=port) as client:
            visible = client.execute_command("TREAD", "out", 1, 0, "WITHINFO")[0][1]
        assert visible % ROWS_A_BATCH == 0, "no half of a batch is ever visible"

    (tmp_path / "batch").write_text("")
    last = threading.Thread(target=drive, args=(port, tmp_path, "worker"))
    last.start()
    while batches_done(tmp_path) < 8 and last.is_alive():
        time.sleep(0.02)
    assert last.is_alive(), "the query ended before the server could be killed"
    servers.pop().kill()
    servers.append(Process(tmp_path, port))
    last.join()

    assert (tmp_path / "a worker died").exists()
    with redis.Redis(port=port) as client:
        out = client.execute_command("TREAD", "out", 1, 2 * len(rows))
        assert [message[2] for message in out] == rows, (tmp_path / "driver.log").read_text()[-2000:]
