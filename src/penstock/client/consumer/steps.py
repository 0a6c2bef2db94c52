"""What the generators of a consumer ask of the thread or task that drives them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Call:
    """Send commands in one go; `atomic`: as a transaction."""

    commands: Sequence[tuple[Any, ...]]
    atomic: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait, until something happens or for so many seconds."""

    seconds: float
