"""Waiting for something that another thread or process does.

The limit is there so that a test that waits in vain says what it waits for, before pytest-timeout ends it. It is no
measure of speed. The longer a test has waited the more rarely it looks, so that looking takes little of the time of
what it waits for.
"""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], seconds: float = 120) -> None:
    """Return when the condition holds; AssertionError if it does not for so long."""
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        assert waited < seconds, f"it did not happen within {seconds} seconds"
        time.sleep(min(0.002 + waited / 10, 0.1))
