"""Stream commands as methods."""

from __future__ import annotations


class StreamCommands:
    """x"""
