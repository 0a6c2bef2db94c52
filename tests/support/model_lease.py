"""A lease of one message in the models of streams and groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class ModelLease:
    """A delivery that waits to be acknowledged."""

    retry_at: int
    expire_at: int  # less than 0: so long after the first attempt
    first_delivered: int
    attempts: int
    dead_letter: Any
    token: int = 0
    limit: int = 0
    reserved: bool = False

    def begin(self, now: int) -> None:
        self.attempts += 1
        self.reserved = False
        if self.expire_at < 0:
            self.expire_at = now - self.expire_at

    def is_over(self, now: int, limit: int = 0) -> bool:
        """Whether it is to be given up."""
        exhausted = any(0 < most <= self.attempts for most in (limit, self.limit)) and self.retry_at <= now
        return exhausted or 0 < self.expire_at <= now
