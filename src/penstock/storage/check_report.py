"""The report of `penstock check`, as lines of text."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class Report:
    """Lines for people, and whether everything is usable. `str(report)` is what the command prints."""

    lines: list[str] = field(default_factory=list)
    damaged: int = 0  # files that cannot be used in their present state
    is_missing: bool = False  # what was to be checked

    @property
    def exit_code(self) -> int:
        return 2 if self.is_missing else 1 if self.damaged else 0

    def __str__(self) -> str:
        if self.is_missing:
            return "\n".join(self.lines)
        return "\n".join([*self.lines, "damaged" if self.damaged else "ok"])

    def say(self, path: Path, text: str) -> None:
        self.lines.append(f"{path}: {text}")

    def missing(self, path: Path, text: str) -> None:
        """There is nothing to check, and why."""
        self.is_missing = True
        self.say(path, text)

    def damage(self, path: Path, text: str) -> None:
        self.damaged += 1
        self.say(path, f"DAMAGED: {text}")
