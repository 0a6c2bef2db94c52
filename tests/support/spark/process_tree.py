"""The processes that Spark starts."""

from __future__ import annotations

import psutil


def command_of(process: psutil.Process) -> list[str]:
    """The command line of a process; nothing if it is over."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []
