"""The attributes of Config are typed: mypy finds a directive that is spelled wrongly, and a value of the wrong type."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent

RIGHT = """\
from penstock.engine.config import Config

number: int = Config().lazy_max_queued
"""


def errors(folder: Path, text: str) -> list[str]:
    """What mypy says of a file, with the settings of this project."""
    path = folder / "reads_a_directive.py"
    path.write_text(text, encoding="utf-8")
    words = [sys.executable, "-m", "mypy", "--no-error-summary", str(path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert not done.stderr, done.stderr
    return done.stdout.splitlines()


def test_mypy_finds_a_directive_that_is_misspelled_or_misread(tmp_path: Path) -> None:
    assert errors(tmp_path, RIGHT) == []
    (misspelled,) = errors(tmp_path, RIGHT.replace("lazy_max_queued", "lazy_max_queue"))
    assert '"Config" has no attribute "lazy_max_queue"' in misspelled
    (misread,) = errors(tmp_path, RIGHT.replace("int", "str"))
    assert "Incompatible types in assignment" in misread
