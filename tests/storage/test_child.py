"""The forked child: its success, its failures, its end when the parent is killed."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO

import pytest

from penstock.storage import child as child_module
from penstock.storage.child import Child


def result(child: Child) -> str:
    deadline = time.monotonic() + 60
    while (problem := child.poll()) is None:
        assert time.monotonic() < deadline, "the child never ended"
        time.sleep(0.005)
    return problem


def test_what_it_wrote_is_there_under_its_temporary_name(tmp_path: Path) -> None:
    child = Child(tmp_path / "temp-1-x", lambda file, go_on: file.write(b"data") and None)
    assert result(child) == ""
    assert (tmp_path / "temp-1-x").read_bytes() == b"data"


def test_a_failed_child_reports_why_and_leaves_no_file(tmp_path: Path) -> None:
    def fail(file: BinaryIO, go_on: Callable[[], None]) -> None:
        raise OSError(28, "No space left on device")

    assert "No space left on device" in result(Child(tmp_path / "temp-1-x", fail))
    assert not list(tmp_path.iterdir())


def test_a_killed_child_leaves_nothing(tmp_path: Path) -> None:
    def hang(file: BinaryIO, go_on: Callable[[], None]) -> None:
        time.sleep(60)

    child = Child(tmp_path / "temp-1-x", hang)
    while not (tmp_path / "temp-1-x").exists():
        time.sleep(0.005)
    os.kill(child.pid, 9)
    assert "signal 9" in result(child)
    assert not list(tmp_path.iterdir())


def test_a_child_that_writes_nothing_for_too_long_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(
        child_module, "time", SimpleNamespace(monotonic=lambda: now, perf_counter_ns=time.perf_counter_ns)
    )
    told, written = tmp_path / "told", tmp_path / "temp-1-x"
    told.touch()

    def write_when_told(file: BinaryIO, go_on: Callable[[], None]) -> None:
        while True:
            if written.stat().st_size < told.stat().st_size:
                os.write(file.fileno(), b"x")
            time.sleep(0.001)

    child = Child(written, write_when_told)
    for size in range(1, 5):  # all in all longer than it may be silent
        now += child_module.STALLED_SECONDS * 0.9
        told.write_bytes(b"x" * size)
        while not written.exists() or written.stat().st_size < size:
            time.sleep(0.001)
        assert child.poll() is None
    now += child_module.STALLED_SECONDS * 1.1
    assert result(child) == "the child wrote nothing for 3600 seconds and was killed"
    assert not written.exists()


def test_it_holds_no_socket_of_its_parent(tmp_path: Path) -> None:
    """A child that outlives a killed server must not keep the next one from listening on the port."""

    def count_sockets(file: BinaryIO, go_on: Callable[[], None]) -> None:
        found = 0
        for descriptor in range(3, 256):
            with contextlib.suppress(OSError):
                found += stat.S_ISSOCK(os.fstat(descriptor).st_mode)
        file.write(b"%d" % found)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        assert result(Child(tmp_path / "temp-1-x", count_sockets)) == ""
        assert (tmp_path / "temp-1-x").read_bytes() == b"0"
        assert stat.S_ISSOCK(os.fstat(listening.fileno()).st_mode), "the parent's own socket was closed"


ORPHAN = """
import sys, time
from pathlib import Path
from penstock.storage import child as child_module
from penstock.storage.child import Child

def write(file, go_on):
    while True:
        go_on()
        time.sleep(0.01)

print(Child(Path(sys.argv[1]), write).pid, flush=True)
time.sleep(60)
"""


def test_a_child_whose_parent_was_killed_gives_up_and_cleans_up(tmp_path: Path) -> None:
    path = tmp_path / "temp-1-x"
    with subprocess.Popen([sys.executable, "-c", ORPHAN, str(path)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        deadline = time.monotonic() + 60
        while not path.exists():
            assert time.monotonic() < deadline
            time.sleep(0.005)
        parent.kill()
        parent.wait()
        while path.exists():
            assert time.monotonic() < deadline, "the orphan goes on"
            time.sleep(0.01)
