"""`penstock worker` as a shell runs it: real processes, real kills."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import redis
from tests.support.forked_program import ForkedProgram
from tests.support.waiting import wait_until
from typer.testing import CliRunner

from penstock import Server
from penstock.cli.main import app
from penstock.cli.worker_fleet import Fleet
from penstock.cli.worker_report import Report, serve_report
from penstock.testing.redis import free_port

HANDLERS = """
import asyncio, os, time

def record(message):
    # O_APPEND: a line is written whole, whichever process writes it
    with open("seen", "a") as seen:
        seen.write(f"{message.offset} {os.getpid()} one\\n")
    if message.entry == b"slow":
        time.sleep(1)

async def record_async(message):
    await asyncio.sleep(0)
    record(message)

def record_batch(batch):
    for message in batch:
        record(message)

def record_later(message):
    return record_async(message)

value = 3
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "handlers.py").write_text(HANDLERS)
    (tmp_path / "seen").touch()
    return tmp_path


def fill(url: str, count: int, entry: str = "x") -> None:
    with redis.Redis.from_url(url) as client:
        client.execute_command("TWRITE", "s", "ENTRIES", *(word for _ in range(count) for word in ("t", entry)))


@pytest.fixture
def url(ours: Server) -> str:
    with redis.Redis.from_url(ours.url) as client:
        client.flushall()
    return ours.url


def seen(project: Path) -> list[tuple[int, int, str]]:
    lines = (project / "seen").read_text().splitlines()
    return [(int(offset), int(process), version) for offset, process, version in map(str.split, lines)]


def done(project: Path) -> int:
    return len({offset for offset, _, _ in seen(project)})


@contextmanager
def worker(project: Path, url: str, *words: str, stderr: int = subprocess.PIPE) -> Iterator[subprocess.Popen[str]]:
    program = [sys.executable, "-m", "penstock", "worker", *words, "--stream", "s", "--group", "g", "--url", url]
    with ForkedProgram(program, cwd=project, stderr=stderr, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def children(process: subprocess.Popen[str]) -> list[int]:
    return [child.pid for child in psutil.Process(process.pid).children()]


def has_ended(pid: int) -> bool:
    """Whether a process is over, also where the first process of the machine or the container collects no orphans."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""


def test_processes_share_the_work_and_one_that_dies_is_started_again(project: Path, url: str) -> None:
    fill(url, 200)
    port = free_port()
    words = ("handlers:record", "--processes", "2", "--retry-ms", "500", "--health-port", str(port))
    with worker(project, url, *words) as process:
        wait_until(lambda: done(project) == 200)
        first = children(process)
        assert len(first) == 2
        os.kill(first[0], signal.SIGKILL)
        wait_until(lambda: len(children(process)) == 2 and first[0] not in children(process))
        fill(url, 100)
        wait_until(lambda: done(project) == 300 and get(port, "/health")[0] == 200)
        wait_until(lambda: json.loads(get(port, "/health")[1])["done"] >= 100)
        health = json.loads(get(port, "/health")[1])
        assert (health["status"], health["alive"], health["restarts"]) == ("ok", 2, 1)
        metrics = get(port, "/metrics")[1].splitlines()
        assert "penstock_worker_restarts_total 1" in metrics and "# TYPE penstock_worker_held gauge" in metrics
        assert get(port, "/else")[0] == 404
        process.terminate()
        _, said = process.communicate(timeout=100)
        assert process.returncode == 0 and "killed by signal 9" in said and "stopped: " in said


def test_sigterm_finishes_the_message_at_hand(project: Path, url: str) -> None:
    fill(url, 2, "slow")
    with worker(project, url, "handlers:record_async", "--grace-ms", "60000") as process:
        wait_until(lambda: done(project) == 1)
        process.terminate()
        process.communicate(timeout=100)
        assert process.returncode == 0
    with redis.Redis.from_url(url) as client:
        rows = client.execute_command("TREAD", "s", 0, 10, "GROUP", "g", "RETRY", 1000, 0)
    assert [row[0] for row in rows] == [2]


def test_a_changed_file_is_loaded(project: Path, url: str) -> None:
    fill(url, 5)
    with worker(project, url, "handlers:record_batch", "--batch", "10", "--reload") as process:
        wait_until(lambda: done(project) == 5)
        (project / "handlers.py").write_text(HANDLERS.replace(" one", " two"))

        def is_reloaded() -> bool:
            fill(url, 1)
            return seen(project)[-1][2] == "two"

        wait_until(is_reloaded)
        process.terminate()
        process.communicate(timeout=100)
        assert process.returncode == 0


@pytest.mark.parametrize(
    ("handler", "why"),
    [
        ("nothing", "names no function"),
        ("handlers:nothing", "cannot load handlers:nothing"),
        ("nothing:record", "No module named 'nothing'"),
        ("handlers:value", "is not a function"),
        ("leaves:record", "cannot load leaves:record: SystemExit: 3"),
        ("handlers:record_later", "which must be awaited"),
    ],
)
def test_a_handler_that_cannot_be_loaded_ends_the_program(project: Path, url: str, handler: str, why: str) -> None:
    (project / "leaves.py").write_text("import sys\nsys.exit(3)\n")
    fill(url, 1)
    with worker(project, url, handler, "--processes", "2") as process:
        _, said = process.communicate(timeout=100)
        assert process.returncode == 2 and why in said
        assert "importlib" not in said
        assert ("Traceback" in said) == (handler == "leaves:record"), said
    assert seen(project) == []


def test_a_file_that_cannot_be_loaded_is_waited_for(project: Path, url: str) -> None:
    fill(url, 5)
    with worker(project, url, "handlers:record", "--reload") as process:
        wait_until(lambda: done(project) == 5)
        (project / "handlers.py").write_text("def record(message:")
        assert process.stderr is not None
        while "waits for a file to change" not in process.stderr.readline():
            assert process.poll() is None
        (project / "handlers.py").write_text(HANDLERS.replace(" one", " two"))
        fill(url, 1)
        wait_until(lambda: done(project) == 6)
        assert seen(project)[-1][2] == "two"
        process.terminate()
        process.communicate(timeout=100)
        assert process.returncode == 0


def test_a_process_that_dies_after_a_change_while_there_was_none_is_counted() -> None:
    fleet = Fleet({}, 1, 1.0, lambda text: None)  # of a spec that no process can run
    fleet.restart()
    fleet.start()
    wait_until(lambda: fleet.tend() and fleet.report().restarts == 1)
    fleet.kill()


def test_a_signal_while_processes_are_started_stops_them_all() -> None:
    said: list[str] = []
    fleet = Fleet({}, 2, 60.0, said.append)
    fleet.asked = 1
    fleet.start()
    wait_until(lambda: not fleet.tend())
    assert (said, fleet.code) == ([], 0)


def test_two_signals_end_processes_at_once_and_start_none() -> None:
    fleet = Fleet({}, 2, 60.0, lambda text: None)
    fleet.start()
    fleet.asked = 2
    assert not fleet.tend()
    assert fleet.report().alive == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_health_is_served_on_any_address(host: str) -> None:
    with serve_report(Report, host, free_port()) as address:
        assert address is not None
        with urllib.request.urlopen(f"{address}/metrics", timeout=30) as reply:
            assert reply.status == 200


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--ordered --processes 2", "--ordered keeps the order within one process, and --processes is 2"),
        ("--batch-ms 5", "--batch-ms needs --batch"),
        ("--health-port 1 --health-host 192.0.2.1", "cannot serve --health-port 1 on 192.0.2.1"),
    ],
)
def test_options_that_cannot_work_are_refused(words: str, why: str) -> None:
    done = CliRunner().invoke(app, ["worker", "handlers:work", "--stream", "s", "--group", "g", *words.split()])
    assert done.exit_code == 2 and why in done.stderr


def test_an_invalid_url_ends_the_program(project: Path) -> None:
    with worker(project, "gopher://nowhere", "handlers:record") as process:
        _, said = process.communicate(timeout=100)
        assert process.returncode == 2 and "cannot run handlers:record: a URL must begin" in said


def test_a_server_that_refuses_ends_the_program(project: Path, url: str) -> None:
    with redis.Redis.from_url(url) as client:
        client.set("s", "text")
    with worker(project, url, "handlers:record") as process:
        _, said = process.communicate(timeout=100)
        assert process.returncode == 1 and "WRONGTYPE" in said


def test_no_process_outlives_its_parent(project: Path, url: str) -> None:
    fill(url, 1)
    with worker(project, url, "handlers:record", "--processes", "2", stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: done(project) == 1 and len(children(process)) == 2)
        left = children(process)
        process.kill()
        process.wait()
        wait_until(lambda: all(has_ended(pid) for pid in left))


def test_a_terminal_shows_how_far_it_is(project: Path, url: str) -> None:
    fill(url, 50)
    leader, follower = pty.openpty()
    try:
        with worker(project, url, "handlers:record", stderr=follower) as process:
            os.close(follower)
            text = b""
            while b"50 done" not in text:
                text += os.read(leader, 65536)
            assert b"1 processes, 50 done" in text
            process.terminate()
            process.wait(100)
    finally:
        os.close(leader)
