"""Requests of a consumer's generators to the thread or task that drives them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Call:
    """Send commands in one go."""

    commands: Sequence[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait, until something happens or for so many seconds."""

    seconds: float
