"""A console beside another subcommand ends with it, also if that is killed."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.waiting import wait_until

from penstock import Server

PROGRAM = """
import sys, time
from pathlib import Path
from penstock.cli.console_beside import console_beside
with console_beside(sys.argv[1], Path(sys.argv[2]), lambda line: print(line, flush=True)):
    sys.stdin.readline()
"""


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("killed", [False, True])
def test_a_console_ends_with_the_subcommand_that_started_it(server: Server, tmp_path: Path, killed: bool) -> None:
    words = [sys.executable, "-c", PROGRAM, server.url, str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        line = process.stdout.readline()
        port = int(line.strip().rstrip("/").rpartition(":")[2])
        assert _answers(port)
        if killed:
            process.kill()
        else:
            process.stdin.write("\n")
            process.stdin.flush()
        process.wait()
        wait_until(lambda: not _answers(port))
