"""Waiting for something that another thread or process does.

The limit is there so that a test that waits in vain says what it waits for, before pytest-timeout ends it. It is no
measure of speed.
"""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], seconds: float = 120) -> None:
    """Return when the condition holds; AssertionError if it does not for so long."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {seconds} seconds"
        time.sleep(0.002)
