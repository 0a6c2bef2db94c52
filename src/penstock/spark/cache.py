"""The cache folder of the user, for files that can be made again."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def cache_folder() -> Path:
    """The folder. It may not exist yet."""
    named = os.environ.get("XDG_CACHE_HOME")
    return (Path(named) if named else Path.home() / ".cache") / "penstock"


def cached(name: str, make: Callable[[Path], None]) -> Path:
    """The file of this name in the cache. `make` writes it if it does not exist. OSError if it cannot be written.

    The file is complete or absent: several programs may write it at the same time.
    """
    file = cache_folder() / name
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent) as folder:
            made = Path(folder) / name
            make(made)
            made.replace(file)
    return file
