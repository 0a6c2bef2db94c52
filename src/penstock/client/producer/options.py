"""Where a producer writes, and on what terms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict

ANSWERS = 8
"""So many answers the server remembers of a producer."""


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """Where a producer writes, and on what terms."""

    key: Any
    name: str | None = None
    """The producer's id on the server; None takes a fresh one. A producer that is started again under the name of one
    that ended, or is still at work, takes its place.
    """
    linger_ms: float = 5
    """How long a message waits for others to be written with."""
    batch_bytes: int = 256 * 1024
    """A write of this size waits no longer."""
    max_bytes: int = 64 * 1024 * 1024
    """How much may be held, unanswered; then callers wait for room."""
    timeout: float = 60.0
    """Seconds from the call until a message is written or given up; reconnecting included."""
    in_flight: int = 4
    """Writes that are sent before the first of them is answered, at most 8."""
    backoff_base: float = 0.05
    backoff_cap: float = 1.0

    def __post_init__(self) -> None:
        if self.linger_ms < 0:
            raise ValueError(f"linger_ms={self.linger_ms}: milliseconds cannot be less than 0")
        for name in ("batch_bytes", "max_bytes", "timeout"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)}: it must be more than 0")
        if not 1 <= self.in_flight <= ANSWERS:
            raise ValueError(f"in_flight={self.in_flight}: from 1 to {ANSWERS}, which is what the server remembers")
        if self.name is not None and not self.name:
            raise ValueError("name='': give a name, or None for a fresh one")


class ProducerOptions(TypedDict, total=False):
    """The options of `client.producer`, for type checkers: those of ProducerSettings."""

    name: str | None
    linger_ms: float
    batch_bytes: int
    max_bytes: int
    timeout: float
    in_flight: int
    backoff_base: float
    backoff_cap: float
