"""A server in a process of its own that a test can kill, and start again on the same folder and port."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import redis
from tests.support.forked_program import ForkedProgram

FORKED = ("penstock", "tests.support.everything_long")
"""Programs that change nothing before they import the server."""


class Process:
    """`penstock serve` in a process of its own; `program` is another module that serves, with `options` of its own."""

    def __init__(self, folder: Path, port: int, program: str = "penstock", options: str = "") -> None:
        self.port = port
        words = (
            f"serve --port {port} --dir {folder} --appendonly yes --appendfsync always --save 1 1 --loglevel warning"
        )
        words += f" --auto-aof-rewrite-min-size 20000 {options}"
        self.output = (folder / "server.log").open("ab")
        self.process = (ForkedProgram if program in FORKED else subprocess.Popen)(
            [sys.executable, "-m", program, *words.split()],
            stdout=self.output,
            stderr=self.output,
            cwd=Path(__file__).parents[2],
        )
        try:
            self._wait(folder)
        except BaseException:
            self.kill()
            raise

    def _wait(self, folder: Path) -> None:
        deadline = time.monotonic() + 60
        while True:
            try:
                with redis.Redis(port=self.port, retry=None) as client:  # its own attempts are ever further apart
                    client.ping()
                    return
            except (redis.ConnectionError, redis.TimeoutError):
                log = (folder / "server.log").read_text()
                assert self.process.poll() is None, f"the server refused to start: {log}"
                assert time.monotonic() < deadline, f"the server does not come up: {log}"
                time.sleep(0.02)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.output.close()
