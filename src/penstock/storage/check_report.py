"""What `penstock check` found, in lines for people."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class Report:
    """Lines for people, and whether everything is usable. `str(report)` is what the command prints."""

    lines: list[str] = field(default_factory=list)
    damaged: int = 0  # files that cannot be used in their present state

    @property
    def exit_code(self) -> int:
        return 1 if self.damaged else 0

    def __str__(self) -> str:
        return "\n".join([*self.lines, "damaged" if self.damaged else "ok"])

    def say(self, path: Path, text: str) -> None:
        self.lines.append(f"{path}: {text}")

    def damage(self, path: Path, text: str) -> None:
        self.damaged += 1
        self.say(path, f"DAMAGED: {text}")
