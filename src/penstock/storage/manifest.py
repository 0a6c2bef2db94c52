"""The list of files that make up the log: one base, then increments in order. A text file, replaced atomically.

    file appendonly.aof.2.base.pns seq 2 type b
    file appendonly.aof.3.incr.aof seq 3 type i
    file appendonly.aof.1.base.pns seq 1 type h

A file is part of the log if and only if it is listed here as b or i. So a file is made and synced before it is listed,
and removed only after a manifest that calls it history (h) is on disk: a crash at any instant leaves a manifest that
loads, and nothing is ever removed that a manifest did not name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from penstock.storage.files import StorageError, replace_file

_line = re.compile(r"file (\S+) seq (\d+) type ([bih])").fullmatch


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is listed, by name. Immutable: a change is a new one, written before it is used."""

    base: str = ""  # empty only while the log is being made
    increments: tuple[str, ...] = ()
    history: tuple[str, ...] = ()  # replaced by the base, to be removed
    last: int = 0  # the highest sequence number ever given out

    @property
    def names(self) -> tuple[str, ...]:
        return (self.base, *self.increments) if self.base else self.increments

    def write(self, path: Path) -> None:
        rows = [(self.base, "b")] if self.base else []
        rows += [(name, "i") for name in self.increments] + [(name, "h") for name in self.history]
        text = "".join(f"file {name} seq {sequence_of(name)} type {kind}\n" for name, kind in rows)
        replace_file(path, lambda file: file.write(text.encode()))


def read(path: Path) -> Manifest:
    """The manifest at `path`; StorageError if a line of it cannot be understood."""
    base, last, offset = "", 0, 0
    increments: list[str] = []
    history: list[str] = []
    for line in path.read_text("utf-8", "replace").splitlines(keepends=True):
        found = _line(line.strip())
        if found is None or not line.endswith("\n") or (found[3] == "b" and (base or increments)):
            raise StorageError(path, offset, f"this is no line of a manifest: {line.strip()!r}", "Restore the file")
        if found[3] == "b":
            base = found[1]
        else:
            (increments if found[3] == "i" else history).append(found[1])
        last = max(last, int(found[2]))
        offset += len(line.encode())
    if not base:
        raise StorageError(path, 0, "the manifest lists no base", "Restore the file")
    return Manifest(base, tuple(increments), tuple(history), last)


def base_name(prefix: str, sequence: int) -> str:
    return f"{prefix}.{sequence}.base.pns"


def increment_name(prefix: str, sequence: int) -> str:
    return f"{prefix}.{sequence}.incr.aof"


def sequence_of(name: str) -> int:
    """The sequence number in a file's name; 0 if it has none.

    >>> sequence_of("appendonly.aof.12.incr.aof")
    12
    """
    found = re.search(r"\.(\d+)\.(?:base\.pns|incr\.aof)\Z", name)
    return int(found[1]) if found else 0
