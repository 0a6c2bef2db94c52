"""Programs that Hadoop starts for files if it has nothing better, each behind a script that notes its starts."""

from __future__ import annotations

import os
from pathlib import Path

NAMES = ("chmod", "readlink", "ls", "stat")


class WatchedPrograms:
    """The scripts in a folder. A process whose PATH is `path` starts them."""

    def __init__(self, folder: Path) -> None:
        self._notes = folder / "notes"
        self._notes.touch()
        self.path = f"{folder}:{os.environ['PATH']}"
        for name in NAMES:
            script = folder / name
            script.write_text(
                f'#!/bin/sh\necho {name} "$@" >> {self._notes}\nPATH=${{PATH#{folder}:}} exec {name} "$@"\n'
            )
            script.chmod(0o755)

    def starts_for(self, place: Path) -> list[str]:
        """What was started for a file, or for one below a folder."""
        return [line for line in self._notes.read_text().splitlines() if str(place) in line]
