"""py4j logs the stack of each call to Java that fails, with the root logger, also when a signal interrupts it or Java
has ended. It raises the error as well, and the programs that use this say it in a line.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def py4j_silenced() -> Iterator[None]:
    """Leave out what py4j logs within a with statement."""
    root, own = logging.getLogger(), logging.getLogger("py4j")
    root.addFilter(_is_told)
    own.propagate = False
    try:
        yield
    finally:
        root.removeFilter(_is_told)
        own.propagate = True


def _is_told(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"
