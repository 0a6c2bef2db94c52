"""`format("penstock")` on a standalone cluster: a master, two workers and spark-submit, all on this machine."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
import redis

from penstock import Server
from penstock.spark import local_files

BIN = Path(pyspark.__file__).parent / "bin"
DEPLOY = "org.apache.spark.deploy"


@contextlib.contextmanager
def started(environment: dict[str, str], sign: str, *words: object) -> Iterator[re.Match[str]]:
    """A process of the cluster, from the moment it shows a sign of being there."""
    command = [str(BIN / "spark-class"), *map(str, words)]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        log = process.stderr
        assert log is not None
        seen = []
        found = None
        for line in log:
            seen.append(line)
            if found := re.search(sign, line):
                break
        # A process stops when its output is not read and the pipe is full.
        rest = threading.Thread(target=log.read)
        rest.start()
        try:
            assert found, "".join(seen)
            yield found
        finally:
            process.terminate()
            process.wait()
            rest.join()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The master's address, and the environment to submit in."""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("PENSTOCK_URL", "SPARK_CONNECT_MODE_ENABLED")
    }
    environment |= {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(tmp_path / "local"),
        # Java takes an archive of classes only with the class path that the archive was made with.
        "SPARK_DAEMON_CLASSPATH": local_files.settings({"spark.master": "local"}).get(
            "spark.driver.extraClassPath", ""
        ),
    }
    with contextlib.ExitStack() as stack:
        place = ("--host", "127.0.0.1", "--webui-port", 0)
        master = stack.enter_context(
            started(
                environment, r"Starting Spark master at (spark://\S+)", f"{DEPLOY}.master.Master", *place, "--port", 0
            )
        )[1]
        for name in ("one", "two"):
            size = ("--cores", 1, "--memory", "1g", "--work-dir", tmp_path / name)
            worker = (f"{DEPLOY}.worker.Worker", *place, *size, master)
            stack.enter_context(started(environment, "Successfully registered with master", *worker))
        yield master, environment


@pytest.mark.timeout(900)
def test_streams_are_read_and_written_by_executors_of_a_cluster(
    tmp_path: Path, cluster: tuple[str, dict[str, str]]
) -> None:
    master, environment = cluster
    settings = {
        "spark.executor.memory": "512m", "spark.executor.cores": "1", "spark.cores.max": "2",
        "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "600s",
        "spark.executor.extraJavaOptions": environment["SPARK_SUBMIT_OPTS"],
        "spark.driver.extraClassPath": environment["SPARK_DAEMON_CLASSPATH"],
        "spark.executor.extraClassPath": environment["SPARK_DAEMON_CLASSPATH"],
    }  # fmt: skip
    with Server() as server, redis.Redis.from_url(server.url) as client:
        entries = [b"%06d" % number for number in range(10_000)]
        client.execute_command("TWRITE", "in", "ENTRIES", *(word for entry in entries for word in (b"tag", entry)))
        command = [BIN / "spark-submit", "--master", master]
        command += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        command += [Path(__file__).parents[1] / "support" / "spark" / "cluster_copy.py", tmp_path / "checkpoint"]
        submitted = subprocess.run(
            list(map(str, command)),
            env=environment | {"PENSTOCK_URL": server.url, "PYTHONPATH": str(Path(__file__).parents[2])},
            capture_output=True,
            text=True,
            check=False,
        )
        assert submitted.returncode == 0, submitted.stderr[-5000:]
        assert "2 executors, 10000 rows" in submitted.stdout
        copied = [message[2] for message in client.execute_command("TREAD", "out", 1, 20_000)]
    assert sorted(copied) == entries
