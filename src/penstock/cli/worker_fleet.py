"""The processes of `penstock worker`: started, started again when they die, stopped in time.

A process gets a pipe for its reports, and its standard input is a pipe that ends with the parent: so a parent that is
killed leaves no process behind. A process that cannot load the handler, or that the server refuses, ends the fleet,
because another process would fail too. If files are watched, the fleet waits for one to change instead.

Rejected: multiprocessing. Its children import the parent's main module, and their life hangs on its queues.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from typing import IO, Any

from penstock.cli.worker_process import CANNOT_LOAD, REFUSED
from penstock.cli.worker_report import Report

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # before a process is started again
_SILENT = 15.0
_MARGIN = 5.0  # seconds beyond the grace, to give messages back


class _Worker:
    """One place in the fleet, and the process that fills it now."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: subprocess.Popen[bytes] | None = None
        self.reports: IO[bytes] | None = None
        self.text = b""
        self.last: dict[str, int] = {}
        self.heard = 0.0
        self.started = 0.0
        self.start_at = 0.0
        self.pause = _FIRST_PAUSE
        self.is_restarting = False


class Fleet:
    """See the top of this file."""

    def __init__(
        self,
        spec: dict[str, Any],
        processes: int,
        grace: float,
        say: Callable[[str], None],
        waits_for_change: bool = False,
    ) -> None:
        self._spec = json.dumps(spec)
        self._waits_for_change = waits_for_change
        self.asked = 0
        """How many signals asked to stop; `tend` follows them."""
        self._grace = grace
        self._say = say
        self._workers = [_Worker(number) for number in range(processes)]
        self._ended = Report()  # what processes have done that are gone
        self._restarts = 0
        self._stop_at: float | None = None
        self.code = 0

    @property
    def is_stopping(self) -> bool:
        return self._stop_at is not None

    def start(self) -> None:
        for worker in self._workers:
            self._start(worker)

    def stop(self) -> None:
        """Ask all processes to finish what is at hand."""
        self._stop_at = time.monotonic() + self._grace + _MARGIN
        for worker in self._workers:
            if worker.process is not None:
                worker.process.send_signal(signal.SIGTERM)

    def restart(self) -> None:
        """Ask all processes to end, and start new ones."""
        for worker in self._workers:
            worker.pause, worker.start_at = _FIRST_PAUSE, 0.0
            if worker.process is not None:
                worker.is_restarting = True
                worker.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End all processes now."""
        for worker in self._workers:
            if worker.process is not None:
                if worker.process.poll() is None:
                    worker.process.kill()
                    self.code = self.code or 1
                worker.process.wait()
                self._bury(worker)

    def tend(self) -> bool:
        """Look after the processes; False when all have ended."""
        now = time.monotonic()
        if self.asked and not self.is_stopping:
            self.stop()
        if self.asked > 1:
            self.kill()
        for worker in self._workers:
            self._read(worker, now)
            if worker.process is not None and (code := worker.process.poll()) is not None:
                self._note_end(worker, code, now)
            if worker.process is None and not self.is_stopping and now >= worker.start_at:
                self._start(worker)
        if self._stop_at is not None and now >= self._stop_at:
            self._say("processes did not end in time, and are killed; their messages come again")
            self.kill()
        return not self.is_stopping or any(worker.process is not None for worker in self._workers)

    def report(self) -> Report:
        """The report of all processes."""
        found = Report(wanted=len(self._workers), restarts=self._restarts)
        now = time.monotonic()
        for worker in self._workers:
            if worker.process is not None:
                found.alive += 1
                found.silent += now - worker.heard > _SILENT
        for field in fields(Report):
            if field.name not in ("wanted", "alive", "silent", "restarts"):
                now_done = sum(worker.last.get(field.name, 0) for worker in self._workers)
                total = getattr(self._ended, field.name) + now_done
                setattr(found, field.name, total)
        return found

    def _start(self, worker: _Worker) -> None:
        reports, theirs = os.pipe()
        os.set_blocking(reports, False)
        words = [sys.executable, "-m", "penstock.cli.worker_process", str(theirs)]
        # In the environment: the URL may hold a password, which a list of processes would show.
        environment = {**os.environ, "PENSTOCK_WORKER": self._spec, "PENSTOCK_WORKER_NUMBER": str(worker.number)}
        worker.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, pass_fds=(theirs,), env=environment, start_new_session=False
        )
        os.close(theirs)
        worker.reports = os.fdopen(reports, "rb", buffering=0)
        worker.started = worker.heard = time.monotonic()
        worker.text, worker.last = b"", {}

    def _read(self, worker: _Worker, now: float) -> None:
        while worker.reports is not None and (data := worker.reports.read(65536)):
            worker.text += data
            *lines, worker.text = worker.text.split(b"\n")
            if lines:
                worker.last, worker.heard = json.loads(lines[-1]), now

    def _note_end(self, worker: _Worker, code: int, now: float) -> None:
        self._read(worker, now)
        self._bury(worker)
        if self.is_stopping:
            return
        if worker.is_restarting:
            worker.is_restarting = False
            return
        if code == CANNOT_LOAD and self._waits_for_change:
            worker.start_at = math.inf
            self._say(f"process {worker.number} waits for a file to change")
            return
        if code in (CANNOT_LOAD, REFUSED):
            self.code = 2 if code == CANNOT_LOAD else 1
            self.stop()
            return
        why = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
        worker.pause = _FIRST_PAUSE if now - worker.started > 10 else min(worker.pause * 2, _LONGEST_PAUSE)
        worker.start_at = now + worker.pause
        self._restarts += 1
        self._say(f"process {worker.number} {why}; it is started again in {worker.pause:.1f} s")

    def _bury(self, worker: _Worker) -> None:
        """Keep what a process has done."""
        for name, value in worker.last.items():
            if name not in ("held", "waiting"):
                setattr(self._ended, name, getattr(self._ended, name) + value)
        if worker.process is not None and worker.process.stdin is not None:
            worker.process.stdin.close()
        if worker.reports is not None:
            worker.reports.close()
        worker.process = worker.reports = None
        worker.last = {}
