"""The part of a project to run. A module of its own, because the command line needs it before it imports Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Selection:
    """The tables to run: everything new by default."""

    full_refresh: Sequence[str] = ()
    full_refresh_all: bool = False
    refresh: Sequence[str] = ()
    dry: bool = False

    @property
    def is_everything(self) -> bool:
        """Whether everything new is run, and nothing is emptied. The command line has lists, so `==` does not tell."""
        return not (self.full_refresh or self.full_refresh_all or self.refresh or self.dry)
