"""The guided tour keeps its promises, and says so by its exit code."""

from __future__ import annotations

import subprocess
import sys


def test_the_tour_holds_from_start_to_end() -> None:
    tour = subprocess.run(
        [sys.executable, "-m", "penstock", "demo"], capture_output=True, text=True, timeout=100, check=False
    )
    assert tour.returncode == 0, tour.stdout
    assert "Everything above happened as promised." in tour.stdout
    assert "NOT AS PROMISED" not in tour.stdout
