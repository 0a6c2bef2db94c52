"""When to try to connect again: at once after a loss, then after delays that double up to a cap; half of each delay is
random.

The random part keeps a thousand clients that lost the same server from coming back in the same instant.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.client.delivery import Settings


class Backoff:
    """Counts failures since the last reply: a connection that was opened, and gave none, is no success."""

    def __init__(self, settings: Settings, jitter: Callable[[], float]) -> None:
        self._settings = settings
        self._jitter = jitter
        self.failures = 0
        self.retry_at = 0.0

    def failed(self, now: float) -> float:
        """One more failure; when to try again."""
        delay = 0.0
        if self.failures:
            longest = self._settings.backoff_base * 2.0 ** min(self.failures - 1, 30)
            delay = min(self._settings.backoff_cap, longest) * (0.5 + self._jitter() / 2)
        self.failures += 1
        self.retry_at = now + delay
        return self.retry_at
