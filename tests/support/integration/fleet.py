"""A fleet of worker processes that a test can kill, stall and restart, and what its log says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.forked_program import ForkedProgram

PROGRAM = "tests.support.integration.fleet_worker"


class Line(NamedTuple):
    """A line of the log."""

    what: str
    offset: int
    tag: str
    process: int
    at: float


class Fleet:
    """Processes by number; one that a message has killed is started again by `revive`."""

    def __init__(self, url: str, folder: Path, **options: Any) -> None:
        self._url = url
        self._log = folder / "log"
        self._log.touch()
        self._options = json.dumps(options)
        self.processes: list[subprocess.Popen[bytes]] = []

    def add(self, count: int = 1) -> None:
        for _ in range(count):
            self.processes.append(self._start())

    def _start(self) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", PROGRAM, self._url, str(self._log), self._options]
        return ForkedProgram(words, cwd=Path(__file__).parents[3])

    def revive(self) -> int:
        """Start processes again that died; how many."""
        dead = [number for number, process in enumerate(self.processes) if process.poll() is not None]
        for number in dead:
            assert self.processes[number].returncode == -signal.SIGKILL, "a worker gave up"
            self.processes[number] = self._start()
        return len(dead)

    def kill(self, number: int) -> None:
        self.processes[number].kill()
        self.processes[number].wait()

    def send(self, number: int, what: signal.Signals) -> None:
        os.kill(self.processes[number].pid, what)

    def roll(self) -> None:
        """Stop one after the other with SIGTERM, and start its successor."""
        for number, process in enumerate(self.processes):
            process.terminate()
            assert process.wait(60) in (0, -signal.SIGKILL, -signal.SIGTERM), "a worker gave up"
            self.processes[number] = self._start()

    def lines(self) -> list[Line]:
        rows = [line.split() for line in self._log.read_text().splitlines()]
        return [Line(what, int(offset), tag, int(process), float(at)) for what, offset, tag, process, at in rows]

    def ended(self) -> set[int]:
        """Offsets whose body has come to its end."""
        return {line.offset for line in self.lines() if line.what == "ended"}

    def orders(self) -> dict[str, list[int]]:
        """Offsets of each tag in the order in which their bodies ended for the first time."""
        found: dict[str, list[int]] = defaultdict(list)
        seen: set[int] = set()
        for line in self.lines():
            if line.what == "ended" and line.offset not in seen:
                seen.add(line.offset)
                found[line.tag].append(line.offset)
        return found

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()


@contextmanager
def fleet_of(url: str, folder: Path, count: int, **options: Any) -> Iterator[Fleet]:
    fleet = Fleet(url, folder, **options)
    try:
        fleet.add(count)
        yield fleet
    finally:
        fleet.end()
