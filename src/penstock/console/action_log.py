"""The log of actions: who did what and when, and what came of it. One JSON object a line, in the console's folder.

The file is cut to its newer half when it is larger than a few megabytes. Entries of messages are not in it, only their
size: the log must not become a copy of the data.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections import deque
from pathlib import Path
from typing import Any

LARGEST = 4 << 20
RECENT = 50
LONGEST = 500
"""Characters of a text in the log: a key may have megabytes."""
logger = logging.getLogger("penstock.console")


class ActionLog:
    """Appends lines; the newest are in memory too."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "actions.jsonl"
        self.recent: deque[dict[str, Any]] = deque(_last_lines(self._path), maxlen=RECENT)

    def add(self, user: str, address: str, action: str, target: str, detail: dict[str, Any], outcome: str) -> None:
        """An action that was done is not undone because the log cannot be written, as when the disk is full."""
        row = {
            "time": int(time.time() * 1000),
            "user": user,
            "address": address,
            "action": action,
            "target": target[:LONGEST],
            "detail": {name: each[:LONGEST] if isinstance(each, str) else each for name, each in detail.items()},
            "outcome": outcome[:LONGEST],
        }
        self.recent.append(row)
        logger.info("%s by %r from %s on %r: %r", action, user, address, row["target"], row["outcome"])
        try:
            self._write(json.dumps(row, ensure_ascii=True) + "\n")
        except OSError as error:
            logger.error("%s cannot be written: %s. Lost: %s", self._path, error.strerror, json.dumps(row))

    def latest(self, count: int, user: str | None) -> list[dict[str, Any]]:
        """The newest first; those of one user, or of all if it is None."""
        rows = [row for row in self.recent if user is None or row.get("user") == user]
        return rows[-count:][::-1]

    def _write(self, line: str) -> None:
        self._cut()
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with open(descriptor, "a", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor with its permissions
            file.write(line)

    def _cut(self) -> None:
        try:
            if self._path.stat().st_size < LARGEST:
                return
        except OSError:
            return
        data = self._path.read_bytes()
        kept = data[data.find(b"\n", len(data) // 2) + 1 :]
        shorter = self._path.with_suffix(".new")
        shorter.write_bytes(kept)
        shorter.chmod(0o600)
        shorter.replace(self._path)


def _last_lines(path: Path) -> list[dict[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()[-RECENT:]
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue  # a line that was cut by a full disk or a kill
    return [row for row in found if isinstance(row, dict)]
