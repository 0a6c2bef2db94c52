"""Where programs of this user keep what they can make again."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def cache_folder() -> Path:
    """The folder, which may not be there yet."""
    named = os.environ.get("XDG_CACHE_HOME")
    return (Path(named) if named else Path.home() / ".cache") / "penstock"


def cached(name: str, make: Callable[[Path], None]) -> Path:
    """The file of this name, which `make` writes unless it is there; OSError if it cannot be kept.

    It is whole or not there at all: several programs may make it at once.
    """
    file = cache_folder() / name
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent) as folder:
            made = Path(folder) / name
            make(made)
            made.replace(file)
    return file
