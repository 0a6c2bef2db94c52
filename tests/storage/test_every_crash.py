"""A crash or a power cut at any instant: what was acknowledged under `always` is there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(1800)  # some hundred short lives, one after the other
@pytest.mark.parametrize("life", ["log", "history", "compaction"])
def test_no_crash_and_no_power_cut_loses_what_was_acknowledged(tmp_path: Path, life: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.support.storage.power_cut", str(tmp_path), life],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert int(ran.stdout.split()[-2]) > 40, "hardly any call was interrupted"
