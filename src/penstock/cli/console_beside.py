"""A console beside another subcommand: `penstock run --console` and `penstock demo`.

It is a process of its own, and ends with the subcommand, also when that is killed: it reads a pipe that closes then.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PORT = 8379


def is_installed() -> bool:
    return all(importlib.util.find_spec(package) is not None for package in ("starlette", "uvicorn"))


@contextmanager
def console_beside(url: str, folder: Path, tell: Callable[[str], None]) -> Iterator[None]:
    """Run a console of the server while the block runs; `tell` gets its line with the address."""
    words = ["console", "--port", str(PORT if _is_free(PORT) else 0), "--dir", str(folder), "--with-parent"]
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PENSTOCK_URL": url},  # a password in it is not on a command line
        start_new_session=True,  # Ctrl-C is for the subcommand, which ends the console
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        try:
            line = process.stdout.readline()
        except BaseException:
            process.kill()  # it looks at the pipe only when it has started
            raise
        tell(line.strip() or "The console did not start.")
        yield
    finally:
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
