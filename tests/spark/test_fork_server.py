"""Python processes of Spark are forked from one that has imported everything, and are as if they had been started."""

from __future__ import annotations

import contextlib
import errno
import json
import marshal
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support.spark.process_tree import command_of
from tests.support.spark.world import World
from tests.support.waiting import wait_until

from penstock.spark import fork_request
from penstock.spark.fork_server import Incoming, fits
from penstock.spark.worker_python import FORK_SERVER, ForkServer, fork_server, use_worker_python, worker_python

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {"PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "YES", "OMP_NUM_THREADS": "1", "TZ": "Asia/Tokyo"}


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    server = ForkServer()
    yield server
    server.end()


@contextlib.contextmanager
def started(server: str, *words: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """What Java would start, as a process that asks for a fork; with no server's name, as Python itself."""
    python = [sys.executable, "-m", "tests.support.spark.forked", *words]
    command = [sys.executable, "-I", "-S", fork_request.__file__, server, *python] if server else python
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        env=os.environ | ENVIRONMENT | environment,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def told(server: str, **environment: str) -> tuple[dict[str, Any], str, int]:
    with started(server, "tell", "7", **environment) as process:
        out, complaint = process.communicate("given")
    return json.loads(out), complaint, process.returncode


def staying(process: subprocess.Popen[str]) -> psutil.Process:
    assert process.stdout is not None
    return psutil.Process(int(process.stdout.readline()))


def test_a_fork_finds_what_a_process_of_its_own_finds(server: ForkServer) -> None:
    given = {"PYTHONPATH": "/somewhere", "SECRET": "of ours é"}
    forked, alone = told(server.name, **given), told("", **given)
    assert forked == alone
    found, complaint, code = forked
    assert (found["input"], complaint, code) == ("given", "complaint\n", 7)
    assert found["path"] == [str(ROOT), "/somewhere"]
    with started(server.name, "stay", **given) as process:
        assert staying(process).parent().pid == server.pid


def test_the_two_end_together(server: ForkServer) -> None:
    with started(server.name, "stay") as process:
        fork = staying(process)
        assert fork.parent().pid == server.pid
        process.terminate()  # as Java does
        assert process.wait() == -signal.SIGTERM
        wait_until(lambda: not fork.is_running())
    with started(server.name, "stay") as process:
        staying(process).kill()
        assert process.wait() == -signal.SIGKILL


def test_a_server_that_still_imports_ends_at_once() -> None:
    server = ForkServer()
    os.kill(server.pid, signal.SIGSTOP)  # it will never see that its input is closed
    server.end()
    assert not psutil.pid_exists(server.pid)


def test_forks_end_with_a_server_that_is_killed_and_with_one_that_is_ended() -> None:
    for end in (lambda server: os.kill(server.pid, signal.SIGKILL), ForkServer.end):
        server = ForkServer()
        with started(server.name, "stay") as process:
            fork = staying(process)
            end(server)
            assert process.wait() == 1
            wait_until(lambda fork=fork: not fork.is_running())
        server.end()


@pytest.mark.parametrize("environment", [{"OMP_NUM_THREADS": "4"}, {"LC_ALL": "C"}])
def test_what_libraries_read_when_they_are_loaded_cannot_differ_in_a_fork(
    server: ForkServer, environment: dict[str, str]
) -> None:
    with started(server.name, "stay", **environment) as process:
        assert staying(process).pid == process.pid, "it is a fork, whose libraries were loaded with other settings"


def test_without_its_server_a_process_starts_by_itself() -> None:
    found, complaint, code = told("penstock-nowhere")
    assert (found, complaint, code) == told("")


def test_a_request_that_is_cut_off_does_no_harm(server: ForkServer) -> None:
    with started(server.name, "stay") as process:
        staying(process)
        with socket.socket(socket.AF_UNIX) as other:
            other.connect(f"\0{server.name}")
            other.sendall(b"abc")
        assert told(server.name)[2] == 7


def test_the_server_has_one_thread_and_what_workers_need(server: ForkServer) -> None:
    assert told(server.name)[2] == 7  # so it has imported everything
    assert psutil.Process(server.pid).num_threads() == 1, "a lock that another thread holds would stay locked in forks"


def test_every_process_of_a_query_is_a_fork(world: World) -> None:
    """Those that Java knows ask for one; the others are forks of the server, or forks of these."""
    world.write("in", "a")
    frame = world.follow(stream="in").select("tag", "entry")
    query = frame.writeStream.format("penstock").option("url", world.url).option("stream", "out")
    running = query.option("checkpointLocation", str(world.folder / "checkpoint")).start()
    wait_until(lambda: running.exception() or world.entries("out") == [b"a"])
    assert running.exception() is None
    java = next(each for each in psutil.Process().children() if "java" in each.name())
    commands = [words for each in java.children() if (words := command_of(each))]
    running.stop()
    pythons = [words for words in commands if "pyspark" in words[-1]]
    assert pythons and all(fork_request.__file__ in words for words in pythons)
    assert any(words[-1].endswith("python_streaming_source_runner") for words in pythons)
    servers = [each for each in psutil.Process().children() if "penstock.spark.fork_server" in command_of(each)]
    assert len(servers) >= 1
    assert max(len(each.children()) for each in servers) >= len(pythons) - 1


NO_DESCRIPTORS = """
import errno, os, time
def pidfd_open(pid, flags=0):
    time.sleep(0.5)  # a fork that does not wait has its input by then
    raise OSError(errno.EMFILE, "too many open files")
os.pidfd_open = pidfd_open
"""


def test_a_fork_that_cannot_be_watched_leaves_the_input_to_the_process_that_asked_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(NO_DESCRIPTORS)
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        server = ForkServer()
    try:
        assert told(server.name) == told("")
        assert psutil.Process(server.pid).children() == []
    finally:
        server.end()


def _refused(pid: int, flags: int = 0) -> int:
    raise PermissionError(errno.EPERM, "seccomp")


@pytest.mark.parametrize("pidfd_open", [None, _refused])
def test_no_server_is_started_where_forks_cannot_be_watched(monkeypatch: pytest.MonkeyPatch, pidfd_open: Any) -> None:
    for variable in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(variable, "")
    use_worker_python()
    if pidfd_open is None:
        monkeypatch.delattr(os, "pidfd_open")
    else:
        monkeypatch.setattr(os, "pidfd_open", pidfd_open)
    assert fork_server() is None


def test_a_server_is_started_only_for_workers_that_ask_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
    assert fork_server() is None
    use_worker_python()
    monkeypatch.setenv("JE_ARROW_MALLOC_CONF", "background_thread:true")
    assert fork_server() is None, "pyarrow would start a thread in it"
    assert FORK_SERVER in Path(worker_python()).read_text()


@pytest.mark.parametrize("sent", [b"", b"abc", b"\xff" * 8, (1 << 30).to_bytes(8, "little"), bytes(8)])
def test_what_is_no_request_is_refused_and_ends_nothing(sent: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, Path("/dev/null").open("rb") as null:
        if sent:
            socket.send_fds(theirs, [sent], [null.fileno()] * 3)
        theirs.shutdown(socket.SHUT_WR)
        incoming = Incoming(ours)
        with pytest.raises((OSError, ValueError, EOFError, TypeError)):  # those that the server expects
            while incoming.receive() is None:
                pass
        incoming.close()


def test_a_request_arrives_in_pieces() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, Path("/dev/null").open("rb") as null:
        incoming = Incoming(ours)
        assert incoming.receive() is None
        body = marshal.dumps((["-m", "x"], {b"A": b"1"}, "/"))
        sent = len(body).to_bytes(8, "little") + body
        socket.send_fds(theirs, [sent[:3]], [null.fileno()] * 3)
        assert incoming.receive() is None
        theirs.sendall(sent[3:20])
        assert incoming.receive() is None
        theirs.sendall(sent[20:])
        request = incoming.receive()
        assert request is not None
        assert request[:3] == (["-m", "x"], {b"A": b"1"}, "/")
        for each in request.streams:
            os.close(each)


def test_connections_that_send_nothing_hold_no_other_one_up_and_are_closed(server: ForkServer) -> None:
    assert told(server.name)[2] == 7  # so it has imported everything
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(20)]
        for each in silent:
            each.connect(f"\0{server.name}")
        before = time.monotonic()
        assert told(server.name)[2] == 7
        assert time.monotonic() - before < 50, "it waited for each, five seconds"
        assert [each.recv(1) for each in silent] == [b""] * 20


def test_a_fork_that_pays_no_attention_to_sigterm_is_killed(server: ForkServer) -> None:
    with started(server.name, "ignore") as process:
        fork = staying(process)
        process.kill()  # so it cannot ask the fork to end
        wait_until(lambda: not fork.is_running())


@pytest.mark.parametrize(
    ("given", "own", "do"),
    [
        ({}, {}, True),
        ({}, {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "YES"}, True),
        ({"HOME": "/", "PYTHONPATH": "/x", "PYTHON_WORKER_FACTORY_PORT": "1"}, {"PYTHONPATH": "/y"}, True),
        ({"PYTHON_GIL": "0"}, {}, False),
        ({"PYTHON_CPU_COUNT": "1"}, {"PYTHON_CPU_COUNT": "2"}, False),
        ({"PYTHON_CPU_COUNT": "2"}, {"PYTHON_CPU_COUNT": "2"}, True),
        ({}, {"LC_ALL": "C"}, False),
        ({}, {"MALLOC_ARENA_MAX": "1"}, False),
    ],
)
def test_only_variables_that_no_library_has_read_may_differ(
    given: dict[str, str], own: dict[str, str], do: bool
) -> None:
    theirs, ours = ({name.encode(): value.encode() for name, value in each.items()} for each in (given, own))
    assert fits(theirs, ours) == do
