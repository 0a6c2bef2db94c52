"""Which part of a project to run. A module of its own, because the command line needs it before it imports Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Selection:
    """What to run: everything that is new, unless told otherwise."""

    full_refresh: Sequence[str] = ()
    full_refresh_all: bool = False
    refresh: Sequence[str] = ()
    dry: bool = False
