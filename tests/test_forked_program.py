"""Programs that are forked from a helper are as if they were started; see support/forked_program.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.forked_program import ForkedProgram

PROGRAM = [sys.executable, "-m", "saying"]
SAYING = """
import atexit, os, sys, threading, time
atexit.register(print, "bye")
print(sys.argv, os.getcwd(), os.environ.get("WORD"), os.environ.get("JE_ARROW_MALLOC_CONF"), __name__, flush=True)
print(sys.stdin.read(), file=sys.stderr)
threading.Thread(target=print, args=["from a thread"]).start()
if "sleep" in sys.argv:
    time.sleep(600)
sys.exit(7)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "saying.py").write_text(SAYING)
    return tmp_path


def test_it_has_the_arguments_files_folder_and_environment_that_are_given(folder: Path) -> None:
    """Python looks for a module in the current folder first."""
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    said = []
    for start in (ForkedProgram, subprocess.Popen):
        with start([*PROGRAM, "a b", "ü"], cwd=folder, env={**os.environ, "WORD": "x"}, **options) as process:
            output, errors = process.communicate(b"in", timeout=60)
            said.append((output.decode().replace(str(folder / "saying.py"), "saying"), errors, process.returncode))
    assert said[0] == said[1]
    assert said[0][0].splitlines() == [f"['saying', 'a b', 'ü'] {folder} x None __main__", "from a thread", "bye"]


def test_it_ends_by_the_signal_that_it_gets(folder: Path) -> None:
    for number in (signal.SIGKILL, signal.SIGTERM):
        with ForkedProgram(
            [*PROGRAM, "sleep"], cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            assert process.poll() is None
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.01)
            process.send_signal(number)
            assert process.wait(60) == process.poll() == -number
            assert not Path(f"/proc/{process.pid}").exists()


def test_a_variable_that_python_looks_at_when_it_starts_is_heeded(folder: Path) -> None:
    with ForkedProgram(
        PROGRAM, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env={**os.environ, "PYTHONVERBOSE": "1"},
        stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert b"import 'site'" in process.communicate(timeout=60)[1]
        assert process.returncode == 7


def test_an_end_that_is_an_error_is_told_as_by_python(tmp_path: Path) -> None:
    ends = {
        "text": "sys.exit('no')", "error": "raise ValueError('no')", "large": "sys.exit(258)", "nothing": "sys.exit()",
        "unwritable": "sys.stdout = open('/dev/full', 'w'); print('lost')",
    }  # fmt: skip
    for name, end in ends.items():
        (tmp_path / f"{name}.py").write_text(f"import sys\n{end}\n")
    for name in ends:
        said = []
        for start in (ForkedProgram, subprocess.Popen):
            with start([sys.executable, "-m", name], cwd=tmp_path, stderr=subprocess.PIPE) as process:
                _, errors = process.communicate(timeout=60)
                said.append((errors.splitlines()[-1:], process.returncode))
        assert said[0] == said[1], name
